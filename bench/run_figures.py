"""Figures of `bench/run.py`: a list of name, value, unit and, where there is one, a peer's value and the ratio."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Figures"]

_MIB = 1 << 20
_SIZES = {"pages_a_step": "pages", "links_a_step": "links", "rows_an_envelope": "rows", "bytes_an_envelope": "bytes"}


class Figures:
    """What was measured."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, name: str, value: float, unit: str, **more: float) -> None:
        """Note a figure."""
        self._rows.append(
            {"name": name, "value": _short(value), "unit": unit, **{k: _short(v) for k, v in more.items()}}
        )

    def of_run(self, name: str, run: dict[str, Any], distinct: int, stages: Sequence[str]) -> None:
        """Everything that a run said of itself."""
        links = run["links"]
        self.add(f"{name}: CPU a link", run["cpu"] * 1e6 / links, "us")
        self.add(f"{name}: CPU a link that is distinct in its page", run["cpu"] * 1e6 / distinct, "us")
        for stage in stages:
            self.add(f"{name}: CPU a link, {stage}", run["stages"].get(stage, 0.0) * 1e6 / links, "us")
        self.add(f"{name}: wall clock", run["wall"], "s")
        self.add(f"{name}: links", links, "links")
        self.add(f"{name}: URLs", run["urls"], "URLs")
        self.add(f"{name}: rounds", run["steps"]["canonicalizer"], "rounds")
        for service, steps in run["steps"].items():
            self.add(f"{name}: steps, {service}", steps, "steps")
        self.add(f"{name}: envelopes", run["envelopes"], "envelopes")
        for field, unit in _SIZES.items():
            for which, value in run[field].items():
                self.add(f"{name}: {field.replace('_', ' ')}, {which}", value, unit)
        rounds = run["steps"]["canonicalizer"]
        if rounds >= 2 * len(run["marginal"]):
            for number, cost in enumerate(run["marginal"], 1):
                self.add(f"{name}: CPU a link in eighth {number}", cost, "us")
        self._of_memory(name, run)
        self._of_snapshots(name, run)

    def of_sizes(self, name: str, sizes: Sequence[dict[str, Any]], again: dict[str, Any]) -> None:
        """What comparing runs tells: growth with sites, and with time alone."""
        first, last = sizes[0], sizes[-1]
        cost = [run["cpu"] / run["links"] for run in sizes]
        self.add(f"{name}: CPU a link, largest size over smallest", cost[-1] / cost[0], "ratio")
        self.add(f"{name}: CPU a link, dearest size over smallest", max(cost) / cost[0], "ratio")
        if last is not first:
            grown = last["memory"]["peak"] - first["memory"]["peak"]
            self.add(f"{name}: memory a URL, from smallest to largest", grown / (last["urls"] - first["urls"]), "bytes")
        self.add(
            f"{name}: peak memory with {again['links'] // first['links']} times the links, same URLs",
            again["memory"]["peak"] / first["memory"]["peak"],
            "ratio",
        )

    def of_peer(self, name: str, way: str, run: dict[str, Any], cost: float) -> None:
        """Plain Python beside a run; the ratio says how many times it takes as long."""
        mine = run["cpu"] * 1e6 / run["links"]
        self.add(f"{name}: CPU a link, peer: {way}", mine, "us", peer=cost, ratio=cost / mine)

    def of_stop(self, name: str, fraction: float, stopped: dict[str, Any], run: dict[str, Any]) -> None:
        """A stop by SIGTERM, and whether what followed led to the same counts as the run that wasn't stopped."""
        totals = stopped["totals"]
        counted = {"pages": "pages", "links": "links", "urls": "urls_total", "cash": "cash_minted"}
        same = all(run[mine] == totals[theirs] for mine, theirs in counted.items())
        self.add(f"{name}: SIGTERM at this part of the input", fraction, "share")
        self.add(f"{name}: SIGTERM to the end", stopped["seconds"], "s")
        self.add(f"{name}: SIGTERM, exit code", stopped["exit_code"], "code")
        self.add(f"{name}: gone on with, same counts as without a stop", int(same), "yes=1")

    def write(self, path: Path) -> None:
        """Write them as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[\n" + ",\n".join(json.dumps(row) for row in self._rows) + "\n]\n")

    def show(self) -> None:
        """Print them as a table."""
        width = max(len(row["name"]) for row in self._rows)
        for row in self._rows:
            peer = f"   peer {row['peer']:,} ({row['ratio']} times)" if "peer" in row else ""
            print(f"{row['name']:<{width}}  {row['value']:>16,} {row['unit']}{peer}")

    def _of_memory(self, name: str, run: dict[str, Any]) -> None:
        floor, peak = run["memory"]["floor"], run["memory"]["peak"]
        self.add(f"{name}: memory before the run", floor / _MIB, "MiB")
        self.add(f"{name}: peak memory", peak / _MIB, "MiB")
        self.add(f"{name}: peak memory less that before, a URL", (peak - floor) / run["urls"], "bytes")

    def _of_snapshots(self, name: str, run: dict[str, Any]) -> None:
        services = run["snapshots"]
        total = {field: sum(service[field] for service in services.values()) for field in services["dedup"]}
        for service, found in {**services, "all": total}.items():
            self.add(f"{name}: snapshots of {service}, written", found["written"], "bytes")
            self.add(f"{name}: snapshots of {service}, rows changed", found["changed"], "bytes")
            self.add(f"{name}: snapshots of {service}, final state", found["final"], "bytes")
            due = found["final"] + found["changed"]
            if due:
                self.add(f"{name}: snapshots of {service}, written over both", found["written"] / due, "ratio")
        self.add(f"{name}: generations written", total["generations"], "bytes")


def _short(value: float) -> float:
    """Four significant digits; whole numbers as they are."""
    return value if isinstance(value, int) or value == int(value) else float(f"{value:.4g}")
