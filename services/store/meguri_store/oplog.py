"""The delta in memory: rows of the inbox since the last generation, as columns, in inbox order.

Intake appends and no more: nothing is looked up, sorted or folded until a generation, a query or a snapshot needs it.
An operation's number is its place in the inbox since the generation; numbers run over all kinds together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from meguri_common.wire.schemas import SCHEMAS, RowKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["KINDS", "OpLog"]

KINDS = (RowKind.ADMITTED, RowKind.UPDATE, RowKind.HOST, RowKind.OUTCOME)
"""Kinds of rows that the store takes, in the order a step sends them."""

_LOOSE = 256
"""Batches that may stand beside one another before they are copied together."""

_Chunk = tuple["NDArray[np.int64]", pa.RecordBatch]


class OpLog:
    """Operations by kind, each with its number."""

    def __init__(self) -> None:
        self.count = 0
        """Operations so far; the next one's number."""
        self._bytes = 0
        self._chunks: dict[RowKind, list[_Chunk]] = {kind: [] for kind in KINDS}
        self._loose: dict[RowKind, int] = dict.fromkeys(KINDS, 0)

    @property
    def bytes(self) -> int:
        """Memory that the operations take."""
        return self._bytes

    def rows(self, kind: RowKind) -> int:
        """Operations of a kind."""
        return sum(batch.num_rows for _, batch in self._chunks[kind])

    def append(self, kind: RowKind, batch: pa.RecordBatch) -> None:
        """Add rows of `SCHEMAS[kind]` as the newest operations."""
        self.restore(kind, np.arange(self.count, self.count + batch.num_rows), batch)

    def restore(self, kind: RowKind, numbers: NDArray[np.int64], batch: pa.RecordBatch) -> None:
        """Add rows with the numbers (n,) they have; ascending, and above those of the same kind added before."""
        if not batch.num_rows:
            return
        chunks = self._chunks[kind]
        chunks.append((numbers, batch))
        self._bytes += numbers.nbytes + batch.nbytes
        self.count = max(self.count, int(numbers[-1]) + 1)
        self._loose[kind] += 1
        if self._loose[kind] >= _LOOSE:
            kept = len(chunks) - self._loose[kind]
            chunks[kept:] = [_joined(kind, chunks[kept:])]
            self._loose[kind] = 0

    def table(self, kind: RowKind, start: int = 0) -> _Chunk:
        """Numbers (n,) i64 and rows of all operations of a kind from number `start` on, in order."""
        chunks = self._chunks[kind]
        if start == 0:
            if len(chunks) > 1:  # kept joined: a compaction asks several times
                chunks[:] = [_joined(kind, chunks)]
                self._loose[kind] = 0
            return _joined(kind, chunks)
        found = []
        for numbers, batch in chunks:
            skipped = int(np.searchsorted(numbers, start))
            if skipped < batch.num_rows:
                found.append((numbers[skipped:], batch.slice(skipped)))
        return _joined(kind, found)

    def since(self, start: int) -> OpLog:
        """The operations from number `start` on, numbered anew from 0."""
        rest = OpLog()
        for kind in KINDS:
            for numbers, batch in self._chunks[kind]:
                skipped = int(np.searchsorted(numbers, start))
                rest.restore(kind, numbers[skipped:] - start, batch.slice(skipped))
        rest.count = self.count - start
        return rest

    def until(self, end: int) -> OpLog:
        """The operations below number `end`, which stay as they are whatever is added later."""
        part = OpLog()
        for kind in KINDS:
            for numbers, batch in self._chunks[kind]:
                taken = int(np.searchsorted(numbers, end))
                part.restore(kind, numbers[:taken], batch.slice(0, taken))
        part.count = end
        return part

    def of_host(self, host_key: int) -> OpLog:
        """The operations on one host and its URLs, numbers kept."""
        part = OpLog()
        for kind in KINDS:
            numbers, batch = self.table(kind)
            mask = batch.column("host_key").to_numpy() == np.uint64(host_key)
            part.restore(kind, numbers[mask], batch.filter(pa.array(mask)))
        return part


def _joined(kind: RowKind, chunks: list[_Chunk]) -> _Chunk:
    if len(chunks) == 1:
        return chunks[0]
    if not chunks:
        return np.zeros(0, np.int64), pa.RecordBatch.from_pylist([], SCHEMAS[kind])
    return np.concatenate([numbers for numbers, _ in chunks]), pa.concat_batches([batch for _, batch in chunks])
