"""Tables and a chart of `bench/results/seen.json`, for people.

python bench/seen_page.py          # writes them anew from the results, without measuring
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Rows = Sequence[dict[str, Any]]

__all__ = ["show", "write_chart", "write_tables"]

_SETS = ("SeenSet in memory", "Python set", "SeenSet on disk", "RocksDB", "LMDB")
_SET_MEASURES = ("filling", "all known", "half new", "all new", "crawl", "memory a key", "disk a key")
_FILTERS = (
    "Bloom",
    "rbloom",
    "fastbloom-rs",
    "ribbon r = 7",
    "pyfusefilter Fuse8",
    "ribbon r = 14",
    "pyfusefilter Fuse16",
)
_FILTER_MEASURES = ("build", "probe, absent", "probe, present", "bits a key", "false positives")
_OWN = ("SeenSet", "Bloom", "ribbon")
_NAME = re.compile(r"(?P<own>.+), (?P<keys>\d+) keys: (?P<measure>.+?)(?:, peer: (?P<peer>.+))?")
_RATE = re.compile(r"Bloom that grows from (\d+) keys: rate (\S+) asked for, (\S+) of the first capacity")

_WIDTH, _LEFT, _BAR, _LINE, _GAP = 760, 200, 440, 22, 46


class _Figure(NamedTuple):
    value: float
    unit: str


def _figures(rows: Rows) -> dict[tuple[str, int, str], _Figure]:
    """By contender, keys and measure."""
    out = {}
    for row in rows:
        match = _NAME.fullmatch(row["name"])
        if match:
            name, value = (match["peer"], row["peer"]) if match["peer"] else (match["own"], row["value"])
            out[name, int(match["keys"]), match["measure"]] = _Figure(value, row["unit"])
    return out


def _table(found: dict[tuple[str, int, str], _Figure], names: Sequence[str], measures: Sequence[str]) -> Iterable[str]:
    units = {measure: figure.unit for (_, _, measure), figure in found.items()}
    shown = [measure for measure in measures if measure in units]
    yield "| | keys | " + " | ".join(_headed(measure, units[measure]) for measure in shown) + " |"
    yield "|---|--:|" + "--:|" * len(shown)
    for name in names:
        for keys in sorted({keys for held, keys, measure in found if held == name and measure in shown}):
            cells = (found.get((name, keys, measure)) for measure in shown)
            yield f"| {name} | {keys:,} | " + " | ".join(f"{cell.value:,.10g}" if cell else "" for cell in cells) + " |"


def _headed(measure: str, unit: str) -> str:
    return measure if unit in measure else f"{measure}, {unit}"


def _rates(rows: Rows) -> Iterable[str]:
    found = {match.groups(): row["value"] for row in rows if (match := _RATE.fullmatch(row["name"]))}
    fills = list(dict.fromkeys(fill for _, _, fill in found))
    yield "| rate asked for | " + " | ".join(fills) + " |"
    yield "|--:|" + "--:|" * len(fills)
    for first, rate in dict.fromkeys((first, rate) for first, rate, _ in found):
        yield f"| {float(rate):.4g} | " + " | ".join(f"{found[first, rate, fill]:.10g} %" for fill in fills) + " |"


def _soaks(rows: Rows) -> Iterable[str]:
    for row in rows:
        match = _NAME.fullmatch(row["name"])
        if match and match["measure"].startswith("soak, "):
            name, measure = f"{match['own']}, {int(match['keys']):,} keys", match["measure"].removeprefix("soak, ")
            yield f"| {name} | {measure} | {row['value']:,.10g} {row['unit']} |"


def _growth(rows: Rows) -> Iterable[str]:
    for row in rows:
        match = re.fullmatch(r"(.+), (\d+) keys: (.+), over (\d+) keys", row["name"])
        if match:
            name, keys, measure, least = match.groups()
            yield f"| {name} | {measure} | {int(keys):,} over {int(least):,} | {row['value']:.10g} |"


def _machine(rows: Rows) -> Iterable[str]:
    found = {tuple(row["name"].split(": ", 1)): row["value"] for row in rows if row["name"].startswith("machine, ")}
    if not found:
        return
    names = list(dict.fromkeys(name for _, name in found))
    yield "| CPU, ns | " + " | ".join(names) + " |"
    yield "|---|" + "--:|" * len(names)
    for when in dict.fromkeys(when for when, _ in found):
        shown = re.sub(r"\d+", lambda digits: f"{int(digits[0]):,}", when.removeprefix("machine, "))
        yield f"| {shown} | " + " | ".join(f"{found[when, name]:.3g}" for name in names) + " |"


def _sections(rows: Rows) -> dict[str, str]:
    found = _figures(rows)
    return {
        "machine": "\n".join(_machine(rows)),
        "sets": "\n".join(_table(found, _SETS, _SET_MEASURES)),
        "growth": "\n".join(["| | mix | keys | CPU a key, times |", "|---|---|--:|--:|", *_growth(rows)]),
        "filters": "\n".join(_table(found, _FILTERS, _FILTER_MEASURES)),
        "rates": "\n".join(_rates(rows)),
        "soak": "\n".join(["| | | |", "|---|---|--:|", *_soaks(rows)]),
    }


def write_tables(rows: Rows, page: Path) -> None:
    """Put the tables between the page's marks, `<!-- name -->` and `<!-- end -->`.

    Raises:
        ValueError: the page lacks a mark.
    """
    text = page.read_text()
    for name, table in _sections(rows).items():
        head, mark, rest = text.partition(f"<!-- {name} -->\n")
        text = head + mark + table + "\n" + rest[rest.index("<!-- end -->") :]
    page.write_text(text)


def show(rows: Rows) -> None:
    """Print the tables."""
    print("\n\n".join(_sections(rows).values()))


def write_chart(rows: Rows, path: Path) -> None:
    """Bars at the largest size that all have: CPU of the sets, CPU and size of the filters."""
    found = _figures(rows)
    keys = max(size for name, size, _ in found if name == _SETS[0] and (_FILTERS[0], size, "build") in found)
    panels = [
        (f"Exact sets of {keys:,} keys, a crawl's mix: CPU ns a key", _SETS, "crawl"),
        (f"Filters of {keys:,} keys, probe of an absent key: CPU ns", _FILTERS, "probe, absent"),
        (f"Filters of {keys:,} keys: bits a key", _FILTERS, "bits a key"),
    ]
    parts: list[str] = []
    top = 0
    for title, names, measure in panels:
        bars = [(name, found[name, keys, measure].value) for name in names if (name, keys, measure) in found]
        parts.append(f'<text class="title" x="0" y="{top + 20}">{escape(title)}</text>')
        most = max(value for _, value in bars)
        for number, (name, value) in enumerate(bars):
            y = top + 30 + number * _LINE
            kind = "own" if name.startswith(_OWN) else "peer"
            width = max(_BAR * value / most, 1)
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y + 2}" width="{width:.1f}" height="{_LINE - 6}"/>')
            parts.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 14}">{value:,.10g}</text>')
        top += len(bars) * _LINE + _GAP
    style = "text{font:13px sans-serif;fill:#222}.title{font-weight:bold}.own{fill:#1b6ca8}.peer{fill:#b8b8b8}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}">'
    body = "\n".join(parts)
    path.write_text(f'{head}\n<style>{style}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n')


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    results = json.loads((here / "results" / "seen.json").read_text())
    docs = here.parent / "docs" / "benchmarks"
    write_tables(results, docs / "seen.md")
    write_chart(results, docs / "seen.svg")
