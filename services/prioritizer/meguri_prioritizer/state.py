"""A partition's columns: URLs, hosts, and the sparse tables beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.records import CRAWL_DELAY_UNSET, NO_DEPTH
from meguri_common.runtime.chain import TableSource, load_tables, save_tables
from meguri_prioritizer.budget import update_budget
from meguri_prioritizer.columns import PairTable, SingleTable
from meguri_prioritizer.importance import UNIT
from meguri_prioritizer.kernels import flags as bits
from meguri_prioritizer.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter

__all__ = ["DEFAULTS", "PartitionState"]

DEFAULTS: dict[str, Any] = {
    "discount": 0.9998,
    "teleport_rate": 0.15,
    "log_norm": 1.0,
    "w_pagerank": 0.6,
    "w_opic_with_page": 0.25,
    "w_host": 0.15,
    "w_opic_with_host": 0.7,
    "w_host_only": 0.3,
    "base_budget": 64,
    "per_in_link": 16,
    "min_budget": 16,
    "max_budget": 1 << 20,
    "trap_suspect_factor": 0.1,
    "depth_decay": 0.95,
    "depth_cap": 0,
    "release_batch": 256,
}
"""Parameters and their defaults; each is part of every snapshot."""

_SAVED_URL = ["host_key", "path_key", "cash", "history", "last_visit", "depth", "flags", "reason", "sent", "host"]
_SAVED_HOST = [
    "host_key", "flags", "vouched_at", "budget", "count", "depth_cap", "in_degree", "score", "score_epoch",
    "crawl_delay", "robots_at",
]  # fmt: skip
_RANKS = ("rank", "ranked")


class PartitionState:
    """All that one partition of the prioritizer keeps."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        p = {**DEFAULTS, **parameters}
        self.parameters = p
        self.teleport = np.uint64(round(p["teleport_rate"] * UNIT))
        self.discount = np.uint64(round(p["discount"] * UNIT))
        names = ("w_pagerank", "w_opic_with_page", "w_host", "w_opic_with_host", "w_host_only")
        norm = p["log_norm"] if p["log_norm"] > 0 else 1.0
        self.weights = np.array([norm, *(p[name] for name in names), p["trap_suspect_factor"], p["depth_decay"]])
        self.urls = PairTable(
            ("host_key", "path_key"),
            {
                "cash": (np.uint64, 0),
                "history": (np.uint64, 0),
                "last_visit": (np.uint64, 0),  # epoch seconds + 1; 0 = never
                "depth": (np.uint16, NO_DEPTH),
                "flags": (np.uint8, 0),
                "marks": (np.uint8, 0),
                "reason": (np.uint8, 0),
                "sent": (np.float32, 0),
                "host": (np.int32, -1),
                "next_held": (np.int32, -1),
            },
        )
        self.hosts = SingleTable(
            "host_key",
            {
                "flags": (np.uint16, 0),
                "marks": (np.uint8, 0),
                "vouched_at": (np.uint64, 0),  # epoch seconds + 1 of the last word on it; 0 = none
                "budget": (np.uint32, self.earned(0)),  # in force; 0 = unlimited
                "count": (np.uint32, 0),
                "depth_cap": (np.uint16, p["depth_cap"]),
                "in_degree": (np.uint32, 0),
                "score": (np.float32, 0),
                "score_epoch": (np.uint64, 0),  # epoch + 1; 0 = none
                "crawl_delay": (np.uint16, CRAWL_DELAY_UNSET),
                "robots_at": (np.uint64, 0),  # epoch seconds + 1 of a change whose URLs are still to be revived
                "held": (np.int32, -1),
            },
        )
        self.sources = Sources()
        self.totals = np.zeros(len(bits.TOTALS), np.uint64)
        # Imported ranks: columns beside the URLs' from the first import on.
        self.rank = np.zeros(0, np.float32)
        self.ranked = np.zeros(0, np.uint64)
        self._ranks_changed: set[int] = set()
        self.seeded: dict[int, int] = {}
        """Time of a URL's last seed, by row."""
        self._seeded_changed: set[int] = set()
        self.controls: dict[tuple[int, int], int] = {}
        """Time of an operator's last word on (host key, action)."""
        self._controls_changed: set[tuple[int, int]] = set()

    def earned(self, in_degree: int) -> int:
        """Budget that an in-degree earns."""
        p = self.parameters
        names = ("base_budget", "per_in_link", "min_budget", "max_budget")
        return update_budget(in_degree, **{name: p[name] for name in names})

    def locate_urls(self, hosts: NDArray[np.uint64], paths: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Rows of URLs, made where they aren't there."""
        rows = self.urls.locate(hosts, paths)
        capacity = len(self.urls["cash"])
        if 0 < len(self.ranked) < capacity:
            self._grow_ranks(capacity)
        return rows

    def set_rank(self, row: int, rank: float, epoch: int) -> bool:
        """Take over an imported rank unless a newer one is there."""
        if not len(self.ranked):
            self._grow_ranks(len(self.urls["cash"]))
        if epoch + 1 <= self.ranked[row]:
            return False
        self.rank[row] = rank
        self.ranked[row] = epoch + 1
        self._ranks_changed.add(row)
        return True

    def later_seed(self, row: int, observed_at: int) -> bool:
        """Whether a seed is observed later than the URL's last; if so it is now the last."""
        if observed_at <= self.seeded.get(row, -1):
            return False
        self.seeded[row] = observed_at
        self._seeded_changed.add(row)
        return True

    def later_control(self, host_key: int, thing: int, at: int) -> bool:
        """Whether an operator's word is later than the last on the same thing; if so it is now the last."""
        if at <= self.controls.get((host_key, thing), -1):
            return False
        self.controls[host_key, thing] = at
        self._controls_changed.add((host_key, thing))
        return True

    # -- snapshots ---------------------------------------------------------------------------------------------

    def save(self, writer: SnapshotWriter) -> None:
        """Write all state, or what changed of it."""
        save_tables(writer, self._tables())
        writer.scalars["totals"] = {name: int(value) for name, value in zip(bits.TOTALS, self.totals, strict=True)}

    def saved(self) -> None:
        """The last save is durable."""
        self.urls["marks"][: len(self.urls)] = 0
        self.hosts["marks"][: len(self.hosts)] = 0
        self.sources.saved()
        for changed in (self._ranks_changed, self._seeded_changed, self._controls_changed):
            changed.clear()

    def load(self, reader: SnapshotReader) -> None:
        """Take over a snapshot."""
        for batch in load_tables(reader, "hosts"):
            self._put(self.hosts, self.hosts.locate(_numbers(batch, "host_key")), batch, _SAVED_HOST[1:])
        for batch in load_tables(reader, "urls"):
            rows = self.locate_urls(_numbers(batch, "host_key"), _numbers(batch, "path_key"))
            self._put(self.urls, rows, batch, _SAVED_URL[2:])
        for batch in load_tables(reader, "ranks"):
            for row, rank, epoch in zip(*(batch.column(name).to_pylist() for name in ("row", *_RANKS)), strict=True):
                self.set_rank(row, rank, epoch - 1)
        for batch in load_tables(reader, "seeded"):
            self.seeded.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for batch in load_tables(reader, "controls"):
            for host_key, thing, at in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                self.controls[host_key, thing] = at
        self.sources.load(reader)
        for name, value in reader.scalars["totals"].items():
            self.totals[bits.TOTALS.index(name)] = value
        self._list_held()
        self.saved()

    def _tables(self) -> list[TableSource]:
        urls, hosts = len(self.urls), len(self.hosts)
        changed_urls = np.flatnonzero(self.urls["marks"][:urls] & bits.CHANGED)
        changed_hosts = np.flatnonzero(self.hosts["marks"][:hosts] & bits.HOST_DIRTY)
        return [
            TableSource("urls", urls, len(changed_urls), _exporter(self.urls, urls, changed_urls, _SAVED_URL)),
            TableSource("hosts", hosts, len(changed_hosts), _exporter(self.hosts, hosts, changed_hosts, _SAVED_HOST)),
            *self.sources.tables(),
            TableSource("ranks", int(np.count_nonzero(self.ranked)), len(self._ranks_changed), self._export_ranks),
            TableSource("seeded", len(self.seeded), len(self._seeded_changed), self._export_seeded),
            TableSource("controls", len(self.controls), len(self._controls_changed), self._export_controls),
        ]

    def _export_ranks(self, changed_only: bool) -> pa.RecordBatch:
        rows = np.array(sorted(self._ranks_changed), np.int64) if changed_only else np.flatnonzero(self.ranked)
        columns = {"row": rows, "rank": self.rank[rows], "ranked": self.ranked[rows]}
        return pa.RecordBatch.from_pydict({name: pa.array(column) for name, column in columns.items()})

    def _export_seeded(self, changed_only: bool) -> pa.RecordBatch:
        rows = sorted(self._seeded_changed if changed_only else self.seeded)
        times = [self.seeded[row] for row in rows]
        return pa.RecordBatch.from_pydict({"row": pa.array(rows, pa.int64()), "at": pa.array(times, pa.int64())})

    def _export_controls(self, changed_only: bool) -> pa.RecordBatch:
        keys = sorted(self._controls_changed if changed_only else self.controls)
        return pa.RecordBatch.from_pydict(
            {
                "host_key": pa.array([key[0] for key in keys], pa.uint64()),
                "thing": pa.array([key[1] for key in keys], pa.int64()),
                "at": pa.array([self.controls[key] for key in keys], pa.int64()),
            }
        )

    def _put(self, table: PairTable | SingleTable, rows: NDArray[np.int64], batch: Any, names: list[str]) -> None:
        for name in names:
            table[name][rows] = _numbers(batch, name)

    def _grow_ranks(self, capacity: int) -> None:
        rank, ranked = np.zeros(capacity, np.float32), np.zeros(capacity, np.uint64)
        rank[: len(self.rank)], ranked[: len(self.ranked)] = self.rank, self.ranked
        self.rank, self.ranked = rank, ranked

    def _list_held(self) -> None:
        """Make the hosts' lists of URLs held back anew; their order is never seen."""
        count = len(self.urls)
        flags, reason = self.urls["flags"], self.urls["reason"]
        flags[:count] &= ~bits.LISTED
        held = np.flatnonzero((reason[:count] != 0) | ((flags[:count] & bits.EXCLUDED) != 0))
        for row in held.tolist():
            host = int(self.urls["host"][row])
            flags[row] |= bits.LISTED
            self.urls["next_held"][row] = self.hosts["held"][host]
            self.hosts["held"][host] = row


def _numbers(batch: Any, name: str) -> NDArray[Any]:
    values: NDArray[Any] = batch.column(name).to_numpy()
    return values


def _exporter(
    table: PairTable | SingleTable, count: int, changed: NDArray[np.int64], names: list[str]
) -> Callable[[bool], pa.RecordBatch]:
    def export(changed_only: bool) -> pa.RecordBatch:
        rows = changed if changed_only else slice(0, count)
        return pa.RecordBatch.from_pydict({name: pa.array(table[name][rows]) for name in names})

    return export
