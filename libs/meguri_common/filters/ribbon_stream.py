"""A ribbon filter of keys that stream by in any order, in bounded memory.

Keys are kept as 8 bytes each. When the buffer is full it is put into the order of the shards and written to a spill
file; at the end each shard is gathered from its slice of every such run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from meguri_common.filters.kernels.ribbon import hash_keys
from meguri_common.filters.layer import key_columns
from meguri_common.filters.ribbon import BuiltRibbon
from meguri_common.filters.ribbon_sizing import clamped_bits, ribbon_shard_count
from meguri_common.filters.ribbon_solving import partitioned, solve

if TYPE_CHECKING:
    from typing import BinaryIO, Self

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from meguri_common.runtime.files import FileSystem

__all__ = ["FileSpill", "RibbonStream", "Spill"]

_RESIDENT = 1 << 22
_WIDTH = 8


class Spill(Protocol):
    """Where runs of hashes go."""

    def append(self, chunk: Buffer) -> None:
        """Keep a run after the ones before it."""
        ...

    def read(self, at: int, size: int) -> Buffer:
        """Bytes of what was appended."""
        ...


class FileSpill:
    """A temporary file, as a context manager: it is removed at the end, and never synced."""

    def __init__(self, files: FileSystem, path: str) -> None:
        """Make the file, which must not exist."""
        self._files = files
        self._path = path
        self._written: BinaryIO = files.create(path)
        self._flushed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._written.close()
        self._files.remove(self._path)

    def append(self, chunk: Buffer) -> None:
        """See `Spill`."""
        self._written.write(chunk)
        self._flushed = False

    def read(self, at: int, size: int) -> Buffer:
        """See `Spill`. Nothing of the file stays mapped."""
        if not self._flushed:
            self._written.flush()
            self._flushed = True
        with self._files.open(self._path) as opened:
            opened.seek(at)
            chunk: bytes = opened.read(size)
        return chunk


class _Run(NamedTuple):
    at: int
    ends: NDArray[np.int64]


class RibbonStream:
    """Gathers keys that are distinct, in any order, and solves them at the end.

    Takes 8 bytes for each of `resident` keys, twice that while they are written or solved, and the filter itself.
    Without a spill file all keys are resident.
    """

    def __init__(self, most: int, bits: int = 7, *, spill: Spill | None = None, resident: int = _RESIDENT) -> None:
        """Make an empty one.

        Args:
            most: keys that may come at most.
            bits: bits a slot, brought to within 1 to 16.
            spill: where keys go that aren't resident.
            resident: keys kept in memory if there is a spill file.

        Raises:
            ValueError: a negative number of keys, or none resident.
        """
        self._finest = ribbon_shard_count(most)
        if resident < 1:
            msg = f"at least 1 key must be resident, not {resident}"
            raise ValueError(msg)
        self._most = most
        self._bits = clamped_bits(bits)
        self._spill = spill
        self._waiting = np.empty(most if spill is None else min(most, resident), np.uint64)
        self._count = 0
        self._spilled = 0
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        """Keys added."""
        return self._spilled + self._count

    def add(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> None:
        """Add n keys; shapes (n,). A key that was added before does no harm, but counts again.

        Raises:
            ValueError: more keys than were announced.
        """
        host, path = key_columns(host, path)
        if len(self) + host.size > self._most:
            msg = f"{len(self) + host.size:,} keys came where {self._most:,} were announced"
            raise ValueError(msg)
        start = 0
        while start < host.size:
            if self._count == self._waiting.size:
                self._write()
            end = min(host.size, start + self._waiting.size - self._count)
            room = self._waiting[self._count : self._count + end - start]
            hash_keys(host[start:end], path[start:end], room)
            self._count += end - start
            start = end

    def finish(self) -> BuiltRibbon:
        """Solve what was added: the same filter that `freeze_keys` makes of these keys.

        Raises:
            FilterBuildError: no seed and number of slots gave a solution.
        """
        count = ribbon_shard_count(len(self))
        waiting, ends = partitioned(self._waiting[: self._count], 0, self._finest)
        fold = self._finest // count
        shards = []
        for shard in range(count):
            first, last = shard * fold, (shard + 1) * fold
            slices = [self._slice(run, first, last) for run in self._runs]
            slices.append(waiting[ends[first] : ends[last]])
            shards.append(solve(np.concatenate(slices), count.bit_length() - 1, self._bits, distinct=True))
        return BuiltRibbon(self._bits, [shard for shard in shards if shard is not None])

    def _write(self) -> None:
        assert self._spill is not None
        ordered, ends = partitioned(self._waiting[: self._count], 0, self._finest)
        self._spill.append(ordered.data.cast("B"))
        self._runs.append(_Run(self._spilled * _WIDTH, ends))
        self._spilled += self._count
        self._count = 0

    def _slice(self, run: _Run, first: int, last: int) -> NDArray[np.uint64]:
        assert self._spill is not None
        start, end = int(run.ends[first]), int(run.ends[last])
        return np.frombuffer(memoryview(self._spill.read(run.at + start * _WIDTH, (end - start) * _WIDTH)), np.uint64)
