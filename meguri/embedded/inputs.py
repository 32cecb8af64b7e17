"""Inputs as streams of decompressed bytes: plain, zstd or gzip files, and standard input.

A compressed file that ends inside a frame is an error here, not an end: the streaming readers of the libraries pass
over it silently. A pipe may be silent for hours, so that waiting for it asks now and then whether to stop.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import zstandard

from meguri_common.errors import InputUnreadable, MeguriError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["InputStopped", "InputStream", "open_input"]

_PLAIN_CHUNK = 1 << 20
_ZSTD_CHUNK = 4 << 10
"""Compressed bytes fed at once. A frame of repeats grows by up to 32,768 times, so little is fed at a time."""
_ZSTD_WINDOW = 1 << 31
_GZIP_CHUNK = 64 << 10
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"
_ASK_AFTER = 0.25
"""Seconds of waiting for a pipe after which to ask whether to stop."""


class InputStopped(MeguriError):
    """Asked to stop while waiting for an input: it has not ended, and what is unfinished of it is not to be used."""


def _never() -> bool:
    return False


class InputStream:
    """One input: chunks of decompressed bytes, and how far its file has been read."""

    def __init__(self, name: str, file: BinaryIO, total: int | None, stopping: Callable[[], bool] = _never) -> None:
        self.name = name
        """Path as given; `-` for standard input."""
        self.total = total
        """Bytes of the file as stored; None if that isn't known."""
        self.consumed = 0
        """Stored bytes read so far."""
        self._file = file
        self._pipe = _pipe_of(file)
        self._stopping = stopping

    def close(self) -> None:
        """Close the file."""
        if self._file is not sys.stdin.buffer:
            self._file.close()

    def chunks(self) -> Iterator[bytes]:
        """Decompressed content, in pieces.

        Raises:
            InputUnreadable: I/O error, not the compression its name says, or cut off inside a frame.
            InputStopped: asked to stop while a pipe gave nothing.
        """
        head = piece = self._read(len(_ZSTD_MAGIC))
        while piece and len(head) < len(_ZSTD_MAGIC):  # a pipe gives what it has
            piece = self._read(len(_ZSTD_MAGIC) - len(head))
            head += piece
        if head.startswith(_ZSTD_MAGIC) or (self.name.endswith(".zst") and head):
            yield from self._zstd(head)
        elif head.startswith(_GZIP_MAGIC) or (self.name.endswith(".gz") and head):
            yield from self._gzip(head)
        else:
            while head:
                yield head
                head = self._read(_PLAIN_CHUNK)

    def _read(self, size: int) -> bytes:
        try:
            piece = self._file.read(size) if self._pipe is None else self._read_pipe(self._pipe, size)
        except OSError as problem:
            msg = f"{self.name}: can't be read on after {self.consumed} bytes: {problem.strerror or problem}"
            raise InputUnreadable(msg) from problem
        self.consumed += len(piece)
        return piece

    def _read_pipe(self, pipe: int, size: int) -> bytes:
        while not select.select([pipe], [], [], _ASK_AFTER)[0]:
            if self._stopping():
                msg = f"{self.name}: stopped after {self.consumed} bytes, while waiting for more"
                raise InputStopped(msg)
        return os.read(pipe, size)

    def _zstd(self, piece: bytes) -> Iterator[bytes]:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        frame = decompressor.decompressobj()
        inside = False
        while piece:
            try:
                content = frame.decompress(piece)
            except zstandard.ZstdError as problem:
                msg = f"{self.name}: not zstd, or damaged, within the {self.consumed} bytes read so far: {problem}"
                raise InputUnreadable(msg) from problem
            if content:
                yield content
            inside = not frame.eof
            if frame.eof:
                piece = frame.unused_data
                frame = decompressor.decompressobj()
                if piece:
                    continue
            piece = self._read(_ZSTD_CHUNK)
        if inside:
            msg = f"{self.name}: ends inside a zstd frame after {self.consumed} bytes: the file was cut off"
            raise InputUnreadable(msg)

    def _gzip(self, piece: bytes) -> Iterator[bytes]:
        member = zlib.decompressobj(wbits=31)
        inside = False
        while piece:
            try:
                content = member.decompress(piece, _PLAIN_CHUNK)
            except zlib.error as problem:
                msg = f"{self.name}: not gzip, or damaged, within the {self.consumed} bytes read so far: {problem}"
                raise InputUnreadable(msg) from problem
            if content:
                yield content
            inside = not member.eof
            if member.eof:
                piece = member.unused_data.lstrip(b"\0")  # zero padding behind a member is allowed
                member = zlib.decompressobj(wbits=31)
            else:
                piece = member.unconsumed_tail
            piece = piece or self._read(_GZIP_CHUNK)
        if inside:
            msg = f"{self.name}: ends inside a gzip member after {self.consumed} bytes: the file was cut off"
            raise InputUnreadable(msg)


def _pipe_of(file: BinaryIO) -> int | None:
    """Descriptor of what has to be waited for: a pipe, a terminal or a socket; None for a file."""
    try:
        descriptor = file.fileno()
    except io.UnsupportedOperation:
        return None
    return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor


def open_input(name: str, stopping: Callable[[], bool] = _never) -> InputStream:
    """Open an input by path, or standard input for `-`.

    Args:
        name: path, or `-`.
        stopping: asked while a pipe gives nothing; true ends the stream with `InputStopped`.

    Raises:
        InputUnreadable: it can't be opened; names the path.
    """
    if name == "-":
        return InputStream(name, sys.stdin.buffer, None, stopping)
    path = Path(name)
    try:
        file = path.open("rb")
        size = path.stat().st_size if path.is_file() else None
    except OSError as problem:
        msg = f"{name}: can't be opened: {problem.strerror or problem}"
        raise InputUnreadable(msg) from problem
    return InputStream(name, file, size, stopping)
