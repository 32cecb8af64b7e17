"""Delta files: operations since the last generation, as Parquet, so that a snapshot needs no new generation.

One row an operation; columns that a kind doesn't have are null. Rows of a kind stand together, and `number` gives
the place of each in the inbox.

Many small files are folded together in levels: the 32nd file of a level becomes, with the 31 before it, one file of
the next. So there are at most 31 files a level, and an operation is written once for each level: once where
snapshots are few, twice up to a thousand, three times up to 32 thousand of them between two compactions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from meguri_common.errors import CorruptSnapshot
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_store.generation import shard_folder
from meguri_store.oplog import KINDS, OpLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meguri_common.runtime.snapshots import FileRef, SnapshotReader, SnapshotWriter

__all__ = ["DELTA_SCHEMA", "FIRST", "DeltaPlan", "first_number", "is_delta", "plan_delta", "read_deltas", "write_delta"]

FILES_A_LEVEL = 32
FIRST = "first"
"""Name of the snapshot's scalar that says which operations count."""

_ROLE = "delta."


def _file_column(kind: RowKind, name: str) -> str:
    """A kind's column in the file: its own name, but where kinds give one name different types."""
    types = {str(SCHEMAS[other].field(name).type) for other in KINDS if name in SCHEMAS[other].names}
    return name if len(types) == 1 else f"{kind.name.lower()}_{name}"


def _delta_schema() -> pa.Schema:
    fields = {
        _file_column(kind, field.name): pa.field(_file_column(kind, field.name), field.type)
        for kind in KINDS
        for field in SCHEMAS[kind]
    }
    return pa.schema([pa.field("kind", pa.uint8()), pa.field("number", pa.uint64()), *fields.values()])


DELTA_SCHEMA = _delta_schema()
"""Columns of a delta file: kind (`wire.schemas.RowKind`), number, and those of all kinds."""


@dataclass(frozen=True)
class DeltaPlan:
    """Which files a snapshot keeps, and what goes into its new one."""

    kept: tuple[FileRef, ...]
    level: int


def is_delta(reference: FileRef) -> bool:
    """Whether a file of a snapshot is a delta file."""
    return reference.role.startswith(_ROLE)


def _level(reference: FileRef) -> int:
    return int(reference.role.removeprefix(_ROLE))


def plan_delta(previous: Sequence[FileRef]) -> DeltaPlan:
    """Plan the next file after delta files of the snapshot before."""
    kept = list(previous)
    level = 0
    while len(kept) >= FILES_A_LEVEL - 1 and all(_level(file) == level for file in kept[-(FILES_A_LEVEL - 1) :]):
        del kept[-(FILES_A_LEVEL - 1) :]
        level += 1
    return DeltaPlan(tuple(kept), level)


def write_delta(writer: SnapshotWriter, partition: int, log: OpLog, *, start: int, first: int, level: int) -> int:
    """Write operations into a new file of the snapshot; gives its size in bytes.

    Args:
        writer: the snapshot.
        partition: the shard.
        log: the operations.
        start: number of the first one to write.
        first: what the file's numbers are above the log's (see `read_deltas`).
        level: how often its operations have been written before.
    """
    stem = f"d{writer.offset:012d}"
    rows = log.count - start
    with (
        writer.create(f"{_ROLE}{level}", "parquet", rows=rows, folder=shard_folder(partition), stem=stem) as sink,
        # Without dictionaries: URLs and keys differ from row to row; they'd cost as much time again, and more bytes.
        pq.ParquetWriter(sink, DELTA_SCHEMA, compression="zstd", compression_level=3, use_dictionary=False) as parquet,
    ):
        for kind in KINDS:
            numbers, batch = log.table(kind, start)
            if not batch.num_rows:
                continue
            given = {_file_column(kind, name): batch.column(name) for name in batch.schema.names}
            given["kind"] = pa.array(np.full(batch.num_rows, kind, np.uint8))
            given["number"] = pa.array((numbers + first).astype(np.uint64))
            columns = [given.get(field.name, pa.nulls(batch.num_rows, field.type)) for field in DELTA_SCHEMA]
            parquet.write_table(pa.Table.from_arrays(columns, schema=DELTA_SCHEMA))
    return writer.kept[-1].size


def read_deltas(reader: SnapshotReader) -> OpLog:
    """All operations in the delta files of a snapshot that its generation doesn't hold, numbered from 0.

    Numbers in files run on when a generation takes the first ones over; a file may hold some that it has taken. The
    snapshot's scalar `first` is the first number that counts, 0 where it isn't stated.

    Raises:
        CorruptSnapshot: a file is missing or altered, or operations are.
    """
    log = OpLog()
    first = first_number(reader)
    found = 0
    for reference in filter(is_delta, reader.files):
        blob = reader.read(reference)
        try:
            table = pq.read_table(pa.BufferReader(blob), schema=DELTA_SCHEMA, use_threads=False)
        except (OSError, pa.ArrowException) as problem:
            msg = f"{reference.path}: can't be decoded: {problem}"
            raise CorruptSnapshot(msg) from problem
        found += table.num_rows
        kinds = table.column("kind").to_numpy()
        for kind in KINDS:
            of_kind = table.filter(pa.array(kinds == kind)).combine_chunks()
            for batch in of_kind.to_batches():
                columns = [batch.column(_file_column(kind, name)) for name in SCHEMAS[kind].names]
                numbers = batch.column("number").to_numpy().astype(np.int64) - first
                taken = int(np.searchsorted(numbers, 0))
                rows = pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[kind])
                log.restore(kind, numbers[taken:], rows.slice(taken))
    expected = sum(reference.rows for reference in reader.files if is_delta(reference))
    held = sum(log.rows(kind) for kind in KINDS)
    if found != expected or held != log.count:
        msg = f"the delta files of shard {reader.snapshot.partition} hold {found} rows of {expected}, {held} that count"
        raise CorruptSnapshot(msg)
    return log


def first_number(reader: SnapshotReader) -> int:
    """Number in the delta files of a snapshot of the first operation that its generation doesn't hold."""
    first: int = reader.scalars.get(FIRST, 0)
    return first
