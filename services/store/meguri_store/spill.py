"""Record batches in a temporary file, written one after another and read back one by one.

Not compressed: on one core lz4 takes three times as long as writing and reading the bytes that it saves. Reading
copies a batch out and lets the file go again, so that no more of it is resident than the batch in hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Self

import pyarrow as pa

if TYPE_CHECKING:
    from meguri_common.runtime.files import FileSystem

__all__ = ["Block", "SpillFile", "read_block"]


class Block(NamedTuple):
    """Where a batch lies."""

    path: str
    """Below the data root."""
    at: int
    size: int
    rows: int


class SpillFile:
    """A temporary file being written: a context manager. It isn't synced, since nobody needs it after a crash."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._file = files.create(path)
        self._path = path
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, batch: pa.RecordBatch) -> Block:
        """Write a batch.

        Raises:
            OSError: the disk is full, or fails.
        """
        blob = memoryview(batch.serialize())
        self._file.write(blob)
        self._size += blob.nbytes
        return Block(self._path, self._size - blob.nbytes, blob.nbytes, batch.num_rows)

    def flush(self) -> None:
        """Let what was written be read."""
        self._file.flush()


def read_block(files: FileSystem, block: Block, schema: pa.Schema) -> pa.RecordBatch:
    """Read a batch back."""
    with files.open(block.path) as file:
        file.seek(block.at)
        blob = pa.py_buffer(file.read(block.size))
    return pa.ipc.read_record_batch(blob, schema)
