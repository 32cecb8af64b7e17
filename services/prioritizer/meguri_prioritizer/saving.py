"""A partition's state in snapshots: tables of rows by number, and the totals.

Rows are appended and keep their numbers, so that tables refer to one another by them, and a later row of a number
replaces an earlier one. Lists of URLs held back and indexes aren't written: loading makes them anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.errors import CorruptSnapshot
from meguri_common.runtime.chain import TableSource, load_tables, save_tables
from meguri_prioritizer import layout
from meguri_prioritizer.kernels.held import list_held

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter
    from meguri_prioritizer.state import PartitionState
    from meguri_prioritizer.tables import Table

__all__ = ["load", "mark_saved", "save"]

_URL = ("path_key", "cash", "history", "host", "last_visit", "sent", "depth", "flags")
_HOST = (
    "key", "vouched_at", "robots_at", "score_epoch", "budget", "count", "in_degree", "score", "depth_cap",
    "crawl_delay", "flags",
)  # fmt: skip
_EXTRA = ("key", "seeded_at", "rank_epoch", "rank")
_CONTROLS = ("host_key", "path_key", "thing", "at")
_CONTROL_SCHEMA = pa.schema([(name, pa.uint64()) for name in _CONTROLS])


def save(state: PartitionState, writer: SnapshotWriter) -> None:
    """Write all state, or what changed of it."""
    controls = TableSource(
        "controls", len(state.controls), len(state.changed_controls), lambda only: _controls(state, changed_only=only)
    )
    tables = [
        _source("urls", state.urls, _URL, state.urls.changed("flags", layout.CHANGED)),
        _source("hosts", state.hosts, _HOST, state.hosts.changed("marks", layout.HOST_DIRTY)),
        _source("extras", state.extras, _EXTRA, state.extras.changed("marks", 1)),
        *state.sources.tables(state.hosts),
        controls,
    ]
    save_tables(writer, tables)
    writer.scalars["totals"] = dict(zip(layout.TOTALS, state.totals.tolist(), strict=True))
    writer.scalars["rows"] = {"urls": len(state.urls), "hosts": len(state.hosts), "extras": len(state.extras)}


def mark_saved(state: PartitionState) -> None:
    """The last save is durable."""
    state.urls["flags"][state.urls.changed("flags", layout.CHANGED)] &= 0xFFFF ^ layout.CHANGED
    state.hosts["marks"][:] = 0
    state.extras["marks"][:] = 0
    for table in (state.urls, state.hosts, state.extras):
        table.mark_saved()
    state.changed_controls.clear()
    state.sources.saved()


def load(state: PartitionState, reader: SnapshotReader) -> None:
    """Take over a snapshot into empty state. Budgets are earned anew, under the parameters in force.

    Raises:
        CorruptSnapshot: rows are missing.
    """
    tables = (("hosts", state.hosts, _HOST), ("urls", state.urls, _URL), ("extras", state.extras, _EXTRA))
    for name, table, fields in tables:
        for batch in load_tables(reader, name):
            rows = batch.column("row").to_numpy().astype(np.int64)
            table.load(rows, {field: batch.column(field).to_numpy() for field in fields})
        if len(table) != reader.scalars["rows"][name]:
            msg = f"prioritizer: the snapshot says {reader.scalars['rows'][name]} {name}, its files hold {len(table)}"
            raise CorruptSnapshot(msg)
        table.reindex()
        table.mark_saved()
    for batch in load_tables(reader, "controls"):
        for host_key, path_key, thing, at in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            state.controls[host_key, path_key, thing] = at
    state.totals[:] = [reader.scalars["totals"][name] for name in layout.TOTALS]
    state.locate_hosts(np.zeros(0, np.uint64))  # makes room in the queue
    _earn_budgets(state)
    state.sources.load(reader, state.hosts, state.budget_rule)
    needed = list_held(len(state.urls), state.urls.records, state.hosts.records, state.held, state.held_meta)
    if needed:
        state.reserve_held(needed)
        list_held(len(state.urls), state.urls.records, state.hosts.records, state.held, state.held_meta)


def _earn_budgets(state: PartitionState) -> None:
    base, per, least, most = state.budget_rule
    hosts = state.hosts
    # All are below 2^32: neither product nor sum wraps.
    earned = np.minimum(base + per * hosts["in_degree"].astype(np.uint64), np.uint64((1 << 32) - 1))
    earned = np.minimum(np.maximum(earned, least), most)
    flags = hosts["flags"]
    budget = np.where(flags & layout.VOUCHED, 0, earned).astype(np.uint32)
    free = (flags & layout.BUDGET_SET) == 0
    hosts["budget"][free] = budget[free]


def _source(name: str, table: Table, fields: tuple[str, ...], changed: NDArray[np.int64]) -> TableSource:
    def export(changed_only: bool) -> pa.RecordBatch:
        rows = changed if changed_only else np.arange(len(table))
        columns: dict[str, Any] = {field: table[field][rows] for field in fields}
        if name == "urls":
            columns["flags"] &= layout.SAVED_URL_FLAGS
        return pa.RecordBatch.from_pydict({"row": rows.astype(np.uint32), **columns})

    return TableSource(name, len(table), len(changed), export)


def _controls(state: PartitionState, *, changed_only: bool) -> pa.RecordBatch:
    keys = sorted(state.changed_controls if changed_only else state.controls)
    rows = [(*key, state.controls[key]) for key in keys]
    columns = zip(*rows, strict=True) if rows else [()] * len(_CONTROLS)
    return pa.RecordBatch.from_arrays([pa.array(column, pa.uint64()) for column in columns], schema=_CONTROL_SCHEMA)
