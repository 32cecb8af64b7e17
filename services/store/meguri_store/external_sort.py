"""Sorting more rows by (host key, URL) than fit into memory: sorted runs on disk, then a merge of them.

Rows gather in a buffer of a fixed size. A full buffer is sorted, freed of repeats and written as a run, in blocks that
never cross a partition. A partition is merged from the runs' blocks of it, one block a run resident; where there are
more runs than that allows, some are merged into one first. Of rows with one key the first that came in wins.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.wire.columns import binary_array, binary_parts, numbers
from meguri_store.kernels.sorting import STACK_ROWS, distinct_rows, sort_rows, unordered_row
from meguri_store.spill import Block, SpillFile, read_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from meguri_common.runtime.files import FileSystem

__all__ = ["LEAST_MEMORY", "ROWS", "ExternalSort", "SortedRuns", "sorted_distinct"]

ROWS = pa.schema(
    [
        pa.field("host_key", pa.uint64(), nullable=False),
        pa.field("url", pa.binary(), nullable=False),
        pa.field("group_at", pa.uint16(), nullable=False),
        pa.field("group_len", pa.uint16(), nullable=False),
        pa.field("depth", pa.uint16(), nullable=False),
        pa.field("source", pa.uint8(), nullable=False),
        pa.field("priority", pa.float32(), nullable=False),
        pa.field("first_seen", pa.uint32(), nullable=False),
        pa.field("next_due", pa.uint32(), nullable=False),
    ]
)
"""New URLs on their way into the store: canonical URL with the place of its host group, and what it is stamped with."""

LEAST_MEMORY = 4 << 20
"""Bytes below which a sort buffer holds too little of anything."""

_GATHERED = 65_536
"""Rows that are brought into order at once, when all have been sorted."""

_FIXED = tuple(field.name for field in ROWS if field.name != "url")
_ROW_BYTES = sum(ROWS.field(name).type.bit_width // 8 for name in _FIXED) + 4
_SORT_BYTES = 12
"""A row's number and digit, beside the row itself."""
_URL_SHARE = 0.6
_FAN_IN = 24
"""Runs that are merged at once."""
_MERGE_SHARE = 4
"""Blocks of all runs that are merged at once take this part of the memory, since merging copies them."""
_PADDING = 16
_KEYS = 1 << 64
_MOST_URL_BYTES = (1 << 31) - 1


class ExternalSort:
    """Takes rows in any order. The folder is the caller's to make and to remove."""

    def __init__(self, files: FileSystem, folder: str, partitions: int, memory: int) -> None:
        """An empty sort.

        Args:
            files: where runs are written.
            folder: theirs alone.
            partitions: how many ranges of host keys there are.
            memory: bytes of the sort buffer.

        Raises:
            ValueError: a buffer of less than `LEAST_MEMORY`.
        """
        if memory < LEAST_MEMORY:
            msg = f"a sort buffer of {memory} bytes: it needs {LEAST_MEMORY} at least"
            raise ValueError(msg)
        self._runs = _Runs(files, folder, partitions, max(memory // (_MERGE_SHARE * _FAN_IN), 64 << 10))
        self._buffer = _Buffer(memory)
        self.rows = 0
        """Rows taken in, repeats included."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows of `ROWS`.

        Raises:
            OSError: a run can't be written.
            ValueError: a URL is longer than the buffer.
        """
        self.rows += batch.num_rows
        while batch.num_rows:
            if not (taken := self._buffer.take(batch)):
                if not self._buffer.rows:
                    msg = f"a URL of {len(batch.column('url')[0].as_py())} bytes doesn't fit into the sort buffer"
                    raise ValueError(msg)
                self._spill()
            batch = batch.slice(taken)

    def finish(self) -> SortedRuns:
        """All rows, sorted; nothing is taken in afterwards.

        Raises:
            OSError: a run can't be written.
        """
        self._spill()
        self._buffer.free()
        return self._runs.merged_down()

    def _spill(self) -> None:
        if self._buffer.rows:
            self._runs.write(sorted_distinct(self._buffer.batch()))
            self._buffer.clear()


class _Buffer:
    """Columns of a fixed size."""

    def __init__(self, memory: int) -> None:
        # Address space: what is never written to takes no memory.
        self._data = np.empty(min(int(memory * _URL_SHARE), _MOST_URL_BYTES), np.uint8)
        self._room = int(memory * (1 - _URL_SHARE)) // (_ROW_BYTES + _SORT_BYTES)
        self._offsets = np.zeros(self._room + 1, np.int32)
        self._columns: dict[str, NDArray[Any]] = {
            name: np.empty(self._room, ROWS.field(name).type.to_pandas_dtype()) for name in _FIXED
        }
        self.rows = 0

    def take(self, batch: pa.RecordBatch) -> int:
        """Copy rows in as far as there is room; gives how many."""
        offsets, data = binary_parts(batch.column("url"))
        start, used = self.rows, int(self._offsets[self.rows])
        free = self._data.size - _PADDING - used
        fit = int(np.searchsorted(offsets, int(offsets[0]) + free, side="right")) - 1
        count = int(min(fit, self._room - start, batch.num_rows))
        end = int(offsets[count] - offsets[0])
        self._data[used : used + end] = data[offsets[0] : offsets[count]]
        self._offsets[start + 1 : start + count + 1] = offsets[1 : count + 1] - (offsets[0] - used)
        for name, column in self._columns.items():
            column[start : start + count] = numbers(batch, name)[:count]
        self.rows += count
        return count

    def batch(self) -> pa.RecordBatch:
        """The rows, as views."""
        end = int(self._offsets[self.rows])
        url = binary_array(self._offsets[: self.rows + 1], self._data[:end])
        columns = [url if name == "url" else pa.array(self._columns[name][: self.rows]) for name in ROWS.names]
        return pa.RecordBatch.from_arrays(columns, schema=ROWS)

    def clear(self) -> None:
        self.rows = 0

    def free(self) -> None:
        self.rows = self._room = 0
        self._data, self._offsets, self._columns = self._data[:0].copy(), self._offsets[:1].copy(), {}


class _Runs:
    """Runs, each as its partitions' blocks."""

    def __init__(self, files: FileSystem, folder: str, partitions: int, block_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._partitions = partitions
        self._block_bytes = block_bytes
        self._runs: list[dict[int, list[Block]]] = []
        self._made = 0

    def write(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Add a run of sorted batches."""
        blocks: dict[int, list[Block]] = {}
        path = f"{self._folder}/run-{self._made:05d}"
        self._made += 1
        with SpillFile(self._files, path) as file:
            for batch in batches:
                for partition, block in _blocks(batch, self._partitions, self._block_bytes):
                    blocks.setdefault(partition, []).append(file.append(block))
        self._runs.append(blocks)

    def merged_down(self) -> SortedRuns:
        """The runs, few enough to be merged at once. Earlier runs stay before later ones."""
        while len(self._runs) > _FAN_IN:
            parts = [self._runs[start : start + _FAN_IN] for start in range(0, len(self._runs), _FAN_IN)]
            self._runs = []
            for part in parts:
                if len(part) == 1:
                    self._runs += part
                    continue
                sorted_part = SortedRuns(tuple(part))
                self.write(
                    batch
                    for partition in sorted_part.partitions()
                    for batch in sorted_part.merged(self._files, partition)
                )
                for path in {blocks[0].path for run in part for blocks in run.values()}:
                    self._files.remove(path)
        return SortedRuns(tuple(self._runs))


@dataclass(frozen=True)
class SortedRuns:
    """What `ExternalSort` made: good as long as its folder is there, in other processes, too."""

    runs: tuple[dict[int, list[Block]], ...]

    def partitions(self) -> list[int]:
        """Partitions with rows."""
        return sorted({partition for run in self.runs for partition in run})

    def rows(self, partition: int) -> int:
        """Rows of a partition, repeats between runs included."""
        return sum(block.rows for run in self.runs for block in run.get(partition, ()))

    def all(self, files: FileSystem) -> Iterator[pa.RecordBatch]:
        """The rows of all partitions, each key once."""
        for partition in self.partitions():
            yield from self.merged(files, partition)

    def merged(self, files: FileSystem, partition: int) -> Iterator[pa.RecordBatch]:
        """The rows of a partition in the order (host key, URL), each key once."""
        runs = [_RunReader(files, run[partition]) for run in self.runs if partition in run]
        while runs:
            # The rows of all runs up to this key are in memory: blocks that follow begin above it.
            bound = min((run.last for run in runs if run.goes_on), default=None)
            pieces = [piece for run in runs if (piece := run.take(bound)).num_rows]
            runs = [run for run in runs if run.refill()]
            yield from sorted_distinct(pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces))


class _RunReader:
    """One run's rows of a partition, a block at a time."""

    def __init__(self, files: FileSystem, blocks: list[Block]) -> None:
        self._files = files
        self._waiting = blocks[::-1]
        self._rows = read_block(files, self._waiting.pop(), ROWS)

    @property
    def goes_on(self) -> bool:
        """Whether blocks follow the one in memory."""
        return bool(self._waiting)

    @property
    def last(self) -> tuple[int, bytes]:
        """Key of the last row in memory."""
        return _key(self._rows, self._rows.num_rows - 1)

    def take(self, bound: tuple[int, bytes] | None) -> pa.RecordBatch:
        """The rows up to a key, and that one; all if there is none."""
        count = self._rows.num_rows if bound is None else _rows_up_to(self._rows, bound)
        taken = self._rows.slice(0, count)
        self._rows = self._rows.slice(count)
        return taken

    def refill(self) -> bool:
        """Read the next block if the last one is used up; False if there is none."""
        if self._rows.num_rows:
            return True
        if not self._waiting:
            return False
        self._rows = read_block(self._files, self._waiting.pop(), ROWS)
        return True


def sorted_distinct(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows of `ROWS` by (host key, URL), of each key the first; those that are so already are given as they are."""
    offsets, data = (_fixed(part) for part in binary_parts(batch.column("url")))
    host = _fixed(numbers(batch, "host_key"))
    if unordered_row(host, offsets, data) == len(host):
        yield batch
        return
    order = np.arange(len(host), dtype=np.int32)
    sort_rows(host, offsets, data, order, np.empty(len(host), np.uint64), np.empty((STACK_ROWS, 3), np.int64))
    order = order[: distinct_rows(host, offsets, data, order)]
    for start in range(0, len(order), _GATHERED):
        yield batch.take(pa.array(order[start : start + _GATHERED]))


def _blocks(batch: pa.RecordBatch, partitions: int, block_bytes: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Slices of sorted rows, each of one partition and of about `block_bytes` at most."""
    firsts = np.array([-(-_KEYS * partition // partitions) for partition in range(1, partitions)], np.uint64)
    ends = np.append(np.searchsorted(numbers(batch, "host_key"), firsts), batch.num_rows).tolist()
    offsets, _ = binary_parts(batch.column("url"))
    size = offsets.astype(np.int64) + np.arange(len(offsets)) * _ROW_BYTES
    start = 0
    for partition, end in enumerate(ends):
        while start < end:
            stop = int(np.searchsorted(size, size[start] + block_bytes, side="right")) - 1
            stop = min(max(stop, start + 1), end)
            yield partition, batch.slice(start, stop - start)
            start = stop


def _rows_up_to(batch: pa.RecordBatch, bound: tuple[int, bytes]) -> int:
    """How many of sorted rows have a key of at most `bound`."""
    host, url = bound
    hosts = numbers(batch, "host_key")
    low, high = (int(np.searchsorted(hosts, np.uint64(host), side=side)) for side in ("left", "right"))
    urls = batch.column("url")
    return bisect_right(range(high), url, lo=low, key=lambda row: urls[row].as_py())


def _key(batch: pa.RecordBatch, row: int) -> tuple[int, bytes]:
    return int(numbers(batch, "host_key")[row]), batch.column("url")[row].as_py()


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: one type for the kernels, wherever the array comes from."""
    view = values.view()
    view.flags.writeable = False
    return view
