"""Bundling lines into messages, and the ledger of what was published.

The ledger knows published content by a running digest: each published bundle is a row that leads from (length,
digest) of the content before it to those of the content after it. An input whose content takes such a step has been
published that far, and goes on behind it. The row is written in the publish's own transaction, so a bundle is
published once, whatever is killed when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
import xxhash

from meguri_common.errors import InputUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BUNDLE_BYTES", "LINE_LIMIT", "Bundle", "Ledger", "bundles"]

BUNDLE_BYTES = 1 << 20
"""Bytes of whole lines that a message holds, about; a longer line travels alone."""

LINE_LIMIT = 8 << 20
"""Bytes of a line that is an event; longer ones are rejected whole."""

_KEPT_OF_LONG_LINE = 64 << 10
_PREFIX = "ledger/"


class Rows(Protocol):
    """Where the ledger's rows are."""

    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Rows whose key starts with the prefix."""
        ...


@dataclass(frozen=True, slots=True)
class Bundle:
    """Consecutive content of an input."""

    data: bytes
    """Whole lines; of a line that is too long, its beginning."""
    first_line: int
    """Number of the first line, from 1."""
    too_long: int
    """Bytes of the line, if it is one beyond `LINE_LIMIT`; else 0."""
    row: tuple[str, bytes]
    """The ledger's row for it."""
    last: bool
    """The input ends behind it."""


class Ledger:
    """What was published, as steps of a running digest."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @staticmethod
    def key(length: int, digest: str) -> str:
        """Prefix of the steps that start behind content of this length and digest."""
        return f"{_PREFIX}{length:016x}-{digest}/"

    @staticmethod
    def place(row: str) -> int:
        """Length of the content before the step that a row stands for."""
        return int(row.removeprefix(_PREFIX).partition("-")[0], 16)

    def steps(self, length: int, digest: str) -> list[tuple[int, str]]:
        """(length, digest) of the content behind each bundle published after this content, longest first."""
        prefix = self.key(length, digest)
        ends = []
        for key, _ in self._rows.scan(prefix):
            end, _, end_digest = key.removeprefix(prefix).partition("-")
            ends.append((int(end, 16), end_digest))
        return sorted(ends, reverse=True)


class _Content:
    """The input's content from the current position on, with the digest of all before it."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._hash = xxhash.xxh3_128()
        self._ended = False
        self.problem: InputUnreadable | None = None
        """Why the input ends where it does, if it broke off."""
        self.buffer = bytearray()
        self.length = 0
        self.lines = 0
        self._line_ended = True

    @property
    def torn(self) -> bool:
        """Whether what was taken ends in a line of which the rest can't be read."""
        return self.problem is not None and not self.buffer and not self._line_ended

    def fill(self, size: int) -> bool:
        """Hold at least `size` bytes; False if the input ends before."""
        while len(self.buffer) < size and not self._ended:
            try:
                chunk = next(self._chunks, None)
            except InputUnreadable as problem:
                self.problem, chunk = problem, None
            if chunk is None:
                self._ended = True
            else:
                self.buffer += chunk
        return len(self.buffer) >= size

    def digest(self, ahead: int = 0) -> str:
        """Digest of the content up to `ahead` bytes from here."""
        digest = self._hash.copy()
        with memoryview(self.buffer) as view:
            digest.update(view[:ahead])
        return digest.hexdigest()

    def take(self, size: int) -> bytes:
        """Move on."""
        piece = bytes(self.buffer[:size])
        del self.buffer[:size]
        self._hash.update(piece)
        self.length += size
        self.lines += piece.count(b"\n")
        self._line_ended = piece.endswith(b"\n")
        return piece


def bundles(chunks: Iterator[bytes], ledger: Ledger) -> Iterator[Bundle]:
    """What of an input is still to be published.

    Args:
        chunks: the input's decompressed content.
        ledger: what has been published.

    Raises:
        InputUnreadable: it broke off, after all whole lines before. A line that is torn there isn't one yet.
    """
    content = _Content(chunks)
    _skip_published(content, ledger)
    while content.fill(1):
        start = Ledger.key(content.length, content.digest())
        first_line = content.lines + 1
        size = _bundle_size(content)
        if size:
            data, too_long = content.take(size), 0
        else:
            data, too_long = _take_long_line(content)
        if content.torn:
            break
        row = f"{start}{content.length:016x}-{content.digest()}"
        if too_long and ledger.steps(*_behind(start)) and row in _keys(ledger, start):
            _skip_published(content, ledger)
            continue
        value = msgspec.json.encode({"lines": content.lines})
        yield Bundle(data, first_line, too_long, (row, value), not content.fill(1))
    if content.problem:
        raise content.problem


def _behind(start: str) -> tuple[int, str]:
    length, _, digest = start.removeprefix(_PREFIX).rstrip("/").partition("-")
    return int(length, 16), digest


def _keys(ledger: Ledger, start: str) -> set[str]:
    return {f"{start}{length:016x}-{digest}" for length, digest in ledger.steps(*_behind(start))}


def _skip_published(content: _Content, ledger: Ledger) -> None:
    """Move behind what the ledger knows of this content."""
    moved = True
    while moved:
        moved = False
        for end, digest in ledger.steps(content.length, content.digest()):
            size = end - content.length
            # A step over a line that is too long isn't held in memory: `bundles` takes it when it meets the line.
            if size > LINE_LIMIT + BUNDLE_BYTES or not content.fill(size) or content.digest(size) != digest:
                continue
            # Published without its line end, as an input's last line: another line if this one goes on here.
            goes_on = content.buffer[size - 1] != ord("\n") and content.fill(size + 1)
            if goes_on and content.buffer[size] != ord("\n"):
                continue
            content.take(size)
            moved = True
            break


def _bundle_size(content: _Content) -> int:
    """Bytes of the next bundle: a function of the content alone; 0 if a line comes first that is too long."""
    content.fill(BUNDLE_BYTES)
    size = content.buffer.rfind(b"\n", 0, BUNDLE_BYTES) + 1
    if size:
        return size
    searched = 0
    while True:
        end = content.buffer.find(b"\n", searched, LINE_LIMIT + 1)
        if end >= 0:
            return end + 1
        if len(content.buffer) > LINE_LIMIT:
            return 0
        searched = len(content.buffer)
        if not content.fill(searched + 1):
            # The last line has no end: it is a bundle of its own, so that an input that goes on from here is seen to.
            return searched


def _take_long_line(content: _Content) -> tuple[bytes, int]:
    """Move behind a line of any length without holding it; its beginning, and its bytes."""
    kept, total = b"", 0
    while content.fill(1):
        end = content.buffer.find(b"\n")
        piece = content.take(end + 1 if end >= 0 else len(content.buffer))
        kept = kept or piece[:_KEPT_OF_LONG_LINE]
        total += len(piece)
        if end >= 0:
            break
    return kept, total
