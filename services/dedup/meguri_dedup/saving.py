"""Snapshots of a seen-set: its runs, which are files already, and the keys that are in none as a table of changes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa

from meguri_common.errors import CorruptSnapshot, RestoreRefused
from meguri_common.runtime.chain import TableSource, load_tables, save_tables
from meguri_common.wire.columns import numbers
from meguri_dedup.figures import SeenFigures
from meguri_dedup.rows import keys_of_rows
from meguri_dedup.run_file import ROLE, ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter
    from meguri_dedup.seen_set import SeenSet

__all__ = ["load_seen", "recover", "save_seen"]

_SPILLS = "spills"
_FIGURES = "seen_figures"
_KEY_SCHEMA = pa.schema([("host_key", pa.uint64()), ("path_key", pa.uint64())])


def save_seen(seen: SeenSet, writer: SnapshotWriter) -> int:
    """Write what the snapshot before hasn't.

    Returns:
        How many unsaved keys were written: what `SeenSet.mark_saved` is told once the snapshot is durable.

    Raises:
        OSError: it couldn't be written.
    """
    if seen.drum is not None:
        for run in seen.drum.name():
            writer.keep(run.reference)
    unsaved = seen.unsaved
    writer.changed_bytes += seen.spilled_unsaved * ROW_BYTES

    def export(changed: bool) -> pa.RecordBatch:
        host, path = seen.unsaved_keys() if changed else seen.recent_keys()
        return pa.RecordBatch.from_arrays([pa.array(host), pa.array(path)], schema=_KEY_SCHEMA)

    save_tables(writer, [TableSource(_table_name(seen.spills), seen.recent, unsaved, export)])
    writer.scalars[_SPILLS] = seen.spills
    writer.scalars[_FIGURES] = asdict(seen.figures())
    return unsaved


def load_seen(seen: SeenSet, reader: SnapshotReader) -> None:
    """Fill an empty set with what a snapshot has; the filter is made anew from the keys.

    A set without a bound takes the keys of runs into memory; one with a bound goes on with the runs. Nothing is
    written.

    Raises:
        CorruptSnapshot: a file that is missing or altered, or keys that repeat.
        CampaignMismatch: a run of another campaign or partition.
    """
    references = [reference for reference in reader.files if reference.role == ROLE]
    if references and seen.drum is None:
        msg = f"{references[0].path}: keys on disk, and no folder to read them from was given"
        raise CorruptSnapshot(msg)
    runs = [seen.drum.folder.open(reference) for reference in references] if seen.drum else []
    rows = sum(len(run) for run in runs)
    spills = reader.scalars.get(_SPILLS, 0)
    if seen.memory_bytes:
        seen.adopt(runs, spills)
    else:
        # The table is another one now than the one whose changes the snapshot has.
        seen.adopt((), spills + bool(runs))
        for run in runs:
            for piece in run.pieces():
                pairs = keys_of_rows(piece)
                seen.insert_batch(pairs[:, 0].copy(), pairs[:, 1].copy())
    for batch in load_tables(reader, _table_name(spills)):
        seen.insert_batch(numbers(batch, "host_key"), numbers(batch, "path_key"))
        rows += batch.num_rows
    seen.mark_saved(seen.unsaved)
    if rows != len(seen):
        whose = f"{reader.snapshot.service} partition {reader.snapshot.partition}"
        msg = f"{whose}: the snapshot has {rows} keys, {len(seen)} of them distinct"
        raise CorruptSnapshot(msg)
    if _FIGURES in reader.scalars:
        seen.take_figures(SeenFigures(**reader.scalars[_FIGURES]))


def recover(seen: SeenSet, chunks: Iterable[tuple[NDArray[np.uint64], NDArray[np.uint64]]], rows: int) -> None:
    """Fill an empty set from a key column, such as a shard's rows: host and path keys, some at a time, in any order.

    Whatever is still under way downstream must have reached the column before: what it lacks is admitted again.

    Args:
        seen: the set; answers afterwards as the one that the column's URLs were admitted by.
        chunks: columns of keys, each of a size that fits in memory.
        rows: how many rows the column says it has.

    Raises:
        RestoreRefused: the column hasn't as many distinct keys: it isn't whole, or not a column of keys.
        OSError: keys couldn't be written to disk.
    """
    for host, path in chunks:
        seen.insert_batch(host, path)
    if len(seen) != rows:
        msg = (
            f"the key column states {rows} rows and has {len(seen)} distinct keys: it isn't whole. "
            "Verify what it was taken from, and recover from a copy of it."
        )
        raise RestoreRefused(msg)


def _table_name(spills: int) -> str:
    """The table of recent keys is another one after each time that it was emptied."""
    return f"keys{spills}" if spills else "keys"
