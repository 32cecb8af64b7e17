"""Incremental snapshots of tables: a base file, then files of changed rows, until a new base is the cheaper.

A full rewrite is due when the changed rows written since the base, this time's included, reach the base's size. A
base is then at most twice the changes that paid for it, so that all bases and changes together stay below three
times the rows changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter

__all__ = ["TableSource", "load_tables", "save_tables"]


@dataclass(frozen=True)
class TableSource:
    """A table of a service's state. Rows have a key; a later row of a key replaces an earlier one."""

    name: str
    rows: int
    changed: int
    """Rows that differ from the last snapshot."""
    export: Callable[[bool], pa.RecordBatch]
    """All rows (False), or the changed ones only (True)."""


def save_tables(writer: SnapshotWriter, tables: Sequence[TableSource]) -> None:
    """Write each table's changes, or all of it, and keep what still counts of the previous snapshot."""
    for table in tables:
        chain = [reference for reference in writer.previous if reference.role in _roles(table.name)]
        delta_rows = sum(reference.rows for reference in chain[1:]) + table.changed
        if chain and (writer.quick or delta_rows < chain[0].rows):
            for reference in chain:
                writer.keep(reference)
            if table.changed:
                _write(writer, f"{table.name}.changes", table, changed_only=True)
        elif table.rows:
            _write(writer, f"{table.name}.base", table, changed_only=False)


def load_tables(reader: SnapshotReader, name: str) -> list[pa.RecordBatch]:
    """A table's base and changes, in the order in which they are to be applied."""
    batches = []
    for reference in reader.files:
        if reference.role in _roles(name):
            with pa.ipc.open_stream(reader.read(reference)) as stream:
                batches.extend(stream)
    return batches


def _roles(name: str) -> tuple[str, str]:
    return f"{name}.base", f"{name}.changes"


def _write(writer: SnapshotWriter, role: str, table: TableSource, *, changed_only: bool) -> None:
    batch = table.export(changed_only)
    # Of the columns, not of the file: its frame is overhead.
    writer.changed_bytes += batch.nbytes * table.changed // max(batch.num_rows, 1)
    with (
        writer.create(role, "arrow", rows=batch.num_rows) as file,
        pa.ipc.new_stream(file, batch.schema) as stream,
    ):
        stream.write_batch(batch)
