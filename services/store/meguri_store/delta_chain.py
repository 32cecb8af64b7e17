"""The delta files that stand beside a generation, from snapshot to snapshot.

Operations are numbered through in files, whatever generations take over. A generation made beside the intake may end
in the middle of a file: the file stays, and what of it the generation holds, its overlap, doesn't count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_store.delta_file import FIRST, first_number, is_delta, plan_delta, read_deltas, write_delta

if TYPE_CHECKING:
    from meguri_common.runtime.snapshots import FileRef, SnapshotReader, SnapshotWriter
    from meguri_store.oplog import OpLog

__all__ = ["DeltaChain"]


class DeltaChain:
    """Which operations of a shard's log are in which delta files of the last snapshot."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._first = 0
        """Number in the files of the log's first operation."""
        self._overlap = 0
        """Operations in the first file that come before it."""
        self._next = 0, 0
        """Both as they are once the last `write` is durable."""

    def write(self, writer: SnapshotWriter, log: OpLog, taken: int) -> None:
        """Keep the files that hold operations from number `taken` on, and write one with what is in none."""
        end = -self._overlap
        before: list[FileRef] = []
        begin = taken
        for reference in filter(is_delta, writer.previous):
            end += reference.rows
            if end > taken:
                begin = begin if before else end - reference.rows
                before.append(reference)
        saved = max(end, taken)
        plan = plan_delta(before)
        kept = before if saved == log.count else plan.kept
        for reference in kept:
            writer.keep(reference)
        if saved < log.count:
            start = begin + sum(reference.rows for reference in kept) if kept else taken
            size = write_delta(writer, self._partition, log, start=start, first=self._first, level=plan.level)
            writer.changed_bytes += size * (log.count - saved) // (log.count - start)
        self._next = self._first + taken, taken - begin if kept else 0
        writer.scalars[FIRST] = self._next[0]

    def written(self) -> None:
        """The last `write` is durable."""
        self._first, self._overlap = self._next

    def read(self, reader: SnapshotReader) -> OpLog:
        """Take over a snapshot's files; gives the operations in them.

        Raises:
            CorruptSnapshot: a file is missing or altered, or operations are.
        """
        log = read_deltas(reader)
        self._first = first_number(reader)
        self._overlap = sum(reference.rows for reference in filter(is_delta, reader.files)) - log.count
        return log
