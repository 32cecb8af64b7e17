"""Measure the seen-set and the filters beside what could be used instead: CPU and bits a key, false positives.

Each contender at each size has a process of its own; all run one after another, in one go. Keys come in batches of
10,000. Results go to `bench/results/seen.json`, tables and a chart to docs/benchmarks/seen.md and seen.svg.

The peers are optional (`make bench-seen` installs them): rbloom, fastbloom-rs, pyfusefilter, lmdb, rocksdict.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machine import add_machine
from run_figures import Figures
from seen_page import show, write_chart, write_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results" / "seen.json"
_PAGE = _HERE.parent / "docs" / "benchmarks" / "seen.md"
_CHART = _PAGE.with_suffix(".svg")

_OWN = {
    "set": ("SeenSet in memory", "SeenSet on disk"),
    "filter": ("Bloom", "ribbon r = 7", "ribbon r = 14"),
}
_PEERS = {
    "Python set": ("set", "SeenSet in memory", None),
    "LMDB": ("set", "SeenSet on disk", "lmdb"),
    "RocksDB": ("set", "SeenSet on disk", "rocksdict"),
    "rbloom": ("filter", "Bloom", "rbloom"),
    "fastbloom-rs": ("filter", "Bloom", "fastbloom_rs"),
    "pyfusefilter Fuse8": ("filter", "ribbon r = 7", "pyfusefilter"),
    "pyfusefilter Fuse16": ("filter", "ribbon r = 14", "pyfusefilter"),
}
"""Of each peer: what it is, whom it is compared with, and the module that has it."""
_SOAKED = ("SeenSet in memory", "SeenSet on disk", "ribbon r = 7")
_LARGE = 100_000_000
_ROOM = 60
"""Bytes of free disk needed, a key of the largest set."""


def measured(what: str, name: str, keys: int) -> dict[str, Any]:
    """What a process of its own says of a contender.

    Raises:
        RuntimeError: it failed, or gave a wrong answer.
    """
    print(f"{what} {name}, {keys:,} keys ...", file=sys.stderr)
    command = [sys.executable, str(_HERE / "seen_case.py"), what, name, str(keys)]
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        msg = f"{name} failed with {keys:,} keys: {done.stderr.decode(errors='replace')}"
        raise RuntimeError(msg)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def peers_there() -> Iterator[str]:
    """Names of the peers that are installed; says which aren't."""
    for name, (_, _, module) in _PEERS.items():
        if module is None or importlib.util.find_spec(module):
            yield name
        else:
            print(f"{name} is left out: {module} isn't installed", file=sys.stderr)


def measure_sizes(figures: Figures, sizes: list[int], peers: list[str]) -> dict[tuple[str, int], dict[str, Any]]:
    """Everything at each size; what this project's own said, by name and size."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for keys in sizes:
        add_machine(figures, f"before {keys} keys")
        for what, names in _OWN.items():
            for name in names:
                found[name, keys] = measured(what, name, keys)
                for measure, (value, unit) in found[name, keys].items():
                    figures.add(f"{name}, {keys} keys: {measure}", value, unit)
        for peer in peers:
            what, own, _ = _PEERS[peer]
            try:
                said = measured(what, peer, keys)
            except RuntimeError as problem:  # an hour's measuring isn't lost for it
                print(f"{peer} is left out: {problem}", file=sys.stderr)
                continue
            for measure, (value, unit) in said.items():
                mine = found[own, keys].get(measure)
                if mine is not None and mine[0] > 0:
                    name = f"{own}, {keys} keys: {measure}, peer: {peer}"
                    figures.add(name, mine[0], unit, peer=value, ratio=value / mine[0])
    return found


def soak(figures: Figures, soaked: list[tuple[str, int]]) -> None:
    """Add so many keys and ask for each again."""
    for name, keys in soaked:
        for measure, (value, unit) in measured("soak", name, keys).items():
            figures.add(f"{name}, {keys} keys: {measure}", value, unit)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--keys", type=int, nargs="+", default=[1_000_000, 10_000_000], help="sizes, for all contenders"
    )
    parser.add_argument("--large", action="store_true", help=f"with {_LARGE:,} keys, too: set on disk, ribbon")
    parser.add_argument("--soak", type=int, default=50_000_000, help="keys that are asked for again; 0 for none")
    parser.add_argument("--first", type=int, default=100_000, help="first capacity of the filter that grows")
    parser.add_argument("--output", type=Path, default=_RESULTS)
    parser.add_argument("--page", type=Path, default=_PAGE, help="Markdown file whose tables are rewritten")
    parser.add_argument("--chart", type=Path, default=_CHART)
    given = parser.parse_args()
    sizes = sorted(given.keys)
    most = max([*sizes, given.soak, _LARGE if given.large else 0])
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < most * _ROOM:
        msg = (
            f"{tempfile.gettempdir()} has {free / 1e9:.1f} GB free, {most * _ROOM / 1e9:.1f} GB are needed: set TMPDIR"
        )
        raise SystemExit(msg)

    figures = Figures()
    found = measure_sizes(figures, sizes, list(peers_there()))
    if given.large:
        name = "SeenSet on disk"
        found[name, _LARGE] = measured("set", name, _LARGE)
        for measure, (value, unit) in found[name, _LARGE].items():
            figures.add(f"{name}, {_LARGE} keys: {measure}", value, unit)
    for name in _OWN["set"]:
        grown = sorted(keys for held, keys in found if held == name)
        for measure in ("all known", "half new", "all new", "crawl"):
            for keys in grown[1:]:
                growth = found[name, keys][measure][0] / found[name, grown[0]][measure][0]
                figures.add(f"{name}, {keys} keys: {measure}, over {grown[0]} keys", growth, "ratio")
    for measure, (value, unit) in measured("rates", "Bloom", given.first).items():
        figures.add(f"Bloom that grows from {given.first} keys: {measure}", value, unit)
    soaked = [(name, given.soak) for name in _SOAKED if given.soak] + [(_SOAKED[-1], _LARGE)] * given.large
    soak(figures, soaked)
    add_machine(figures, "at the end")
    figures.write(given.output)
    rows = json.loads(given.output.read_text())
    write_tables(rows, given.page)
    write_chart(rows, given.chart)
    show(rows)


if __name__ == "__main__":
    main()
