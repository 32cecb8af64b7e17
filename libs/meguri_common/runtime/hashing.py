"""Files that are hashed while they are written."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

import xxhash

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["HashingFile"]


class HashingFile:
    """A binary file being written, as pyarrow wants it: counts and hashes what passes. Closing is the owner's."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = xxhash.xxh64()
        self.size = 0
        self.closed = False

    @property
    def checksum(self) -> str:
        """xxh64 of all that was written, hex."""
        return self._hash.hexdigest()

    def write(self, chunk: Buffer) -> int:
        """Write all of it."""
        view = memoryview(chunk)
        self._file.write(view)
        self._hash.update(view)
        self.size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Bytes written."""
        return self.size

    def flush(self) -> None:
        """Hand on what is buffered."""
        self._file.flush()

    def close(self) -> None:
        """Take no more."""
        self.closed = True

    def writable(self) -> bool:
        """Whether it is a file to write to."""
        return True

    def readable(self) -> bool:
        """Whether it is a file to read from."""
        return False

    def seekable(self) -> bool:
        """Whether one can go back."""
        return False
