"""Lists of URLs as columns: one a line, or JSON Lines that say more about each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from meguri_canonicalizer.batch import BaseColumns, BatchCanonicalizer, LinkColumns
from meguri_common.records import LINK_REJECT_REASONS, Source
from meguri_store.bulk_load import new_urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from meguri_canonicalizer.batch import CanonicalColumns
    from meguri_canonicalizer.policy import Policy
    from meguri_store.bulk_load import Stamps

__all__ = ["LINE_LIMIT", "ListReader", "Refused", "canonical_columns"]

LINE_LIMIT = 1 << 20
"""Bytes of a line; a longer one holds no URL."""

_BLOCK = 2 << 20
_PADDING = bytes(16)
_EXAMPLES = 5
_PAGE = 1 << 20
_NEWLINE = 10
_SPACES = b" \t\r\v\f"


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """A line of JSON: the fields of a record that a URL can have before its first fetch."""

    url: str
    depth: int | None = None
    source: int | str | None = None
    priority: float | None = None
    first_seen: int | None = None
    next_due: int | None = None


_RANGES = {"depth": 0xFFFF, "first_seen": 0xFFFFFFFF, "next_due": 0xFFFFFFFF}
_SOURCES = {source.name.lower(): int(source) for source in Source}


@dataclass
class Refused:
    """Lines that gave no URL."""

    reasons: dict[str, int] = field(default_factory=dict)
    """How many, by `records.LINK_REJECT_REASONS`."""
    bad_lines: int = 0
    """Lines of JSON Lines that can't be used."""
    examples: list[str] = field(default_factory=list)
    """The first few of those, with place and cause."""


class ListReader:
    """Makes rows for `BulkLoad` of lists."""

    def __init__(self, policy: Policy, stamps: Stamps) -> None:
        self._canonicalizer = BatchCanonicalizer(policy)
        self._stamps = stamps
        self.lines = 0
        """Lines that are not empty."""
        self.refused = Refused()

    def rows(self, name: str, chunks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
        """Rows of an input, some ten thousand at a time.

        Args:
            name: of the input, for messages.
            chunks: its content, in pieces of any size.

        Raises:
            InputUnreadable: what the chunks raise; rows of the lines before have been given.
        """
        number = 0
        parse: Callable[[str, int, bytes], pa.RecordBatch] | None = None
        for block in _blocks(chunks):
            if parse is None and (begin := block.lstrip()[:1]):
                parse = self._json if begin == b"{" else self._plain
            if parse is not None and (rows := parse(name, number, block)).num_rows:
                yield rows
            number += block.count(b"\n")

    def _plain(self, _name: str, _number: int, block: bytes) -> pa.RecordBatch:
        if b"\r" in block:
            block = b"\n".join(line.rstrip(_SPACES) for line in block.split(b"\n"))
        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        offsets = np.append(0, ends - np.arange(len(ends)))
        filled = np.flatnonzero(np.diff(offsets))
        offsets = np.append(offsets[filled], offsets[-1])
        text = np.frombuffer(block.translate(None, b"\n") + _PADDING, np.uint8)
        return self._canonical(text, offsets, {})

    def _json(self, name: str, number: int, block: bytes) -> pa.RecordBatch:
        found = []
        for at, line in enumerate(block.split(b"\n"), number + 1):
            if not line.strip():
                continue
            try:
                found.append(_checked(line))
            except (msgspec.DecodeError, ValueError) as problem:
                self.lines += 1
                self.refused.bad_lines += 1
                if len(self.refused.examples) < _EXAMPLES:
                    self.refused.examples.append(f"{name}:{at}: {problem}")
        texts = [line.url.encode("utf-8", "surrogatepass") for line in found]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        stamps, stated = self._stamps, {}
        fallback = {"depth": stamps.depth, "source": int(stamps.source), "priority": stamps.priority}
        fallback |= {"first_seen": stamps.now, "next_due": stamps.now}
        for column, otherwise in fallback.items():
            values = [getattr(line, column) for line in found]
            if any(value is not None for value in values):
                stated[column] = np.array([otherwise if value is None else value for value in values])
        return self._canonical(np.frombuffer(b"".join(texts) + _PADDING, np.uint8), offsets, stated)

    def _canonical(
        self, text: NDArray[np.uint8], offsets: NDArray[np.int64], stated: dict[str, NDArray[Any]]
    ) -> pa.RecordBatch:
        count = len(offsets) - 1
        self.lines += count
        out = canonical_columns(self._canonicalizer, text, offsets)
        refused = np.bincount(out.reject, minlength=len(LINK_REJECT_REASONS) + 1).tolist()
        for reason, number in zip(LINK_REJECT_REASONS, refused[1:], strict=True):
            if number:
                self.refused.reasons[reason] = self.refused.reasons.get(reason, 0) + number
        # A refused row is empty: leaving it out leaves the bytes as they are.
        good = np.flatnonzero(out.reject == 0)
        return new_urls(
            out.data,
            np.append(out.offsets[good], out.offsets[-1]),
            out.host_key[good],
            out.group_at[good],
            out.group_len[good],
            self._stamps,
            {name: values[good] for name, values in stated.items()},
        )


def canonical_columns(
    canonicalizer: BatchCanonicalizer, text: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> CanonicalColumns:
    """Canonical URLs of texts without a base.

    Args:
        canonicalizer: of the campaign's policy.
        text: their bytes, with 16 more behind them.
        offsets: where each begins, (n + 1,).
    """
    # A page's links are bounded in bytes: these are on pages that hold too few for that.
    page = (offsets[:-1] - offsets[0]) // _PAGE
    bases = BaseColumns(np.frombuffer(_PADDING, np.uint8), np.zeros(int(page[-1]) + 2 if len(page) else 1, np.int64))
    return canonicalizer.run(LinkColumns(text, offsets, page.astype(np.int32)), bases)


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The content in blocks of whole lines, each with its LF; of a line that is too long the beginning."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size < _BLOCK:
            continue
        content = b"".join(parts)
        whole, newline, rest = content.rpartition(b"\n")
        if newline:
            yield whole + newline
        if len(rest) > LINE_LIMIT:
            rest = rest[: LINE_LIMIT + 1]
        parts, size = [rest], len(rest)
    if any(parts):
        yield b"".join(parts) + b"\n"


def _checked(text: bytes) -> _Line:
    """A line that can be used.

    Raises:
        msgspec.DecodeError: it is no such object.
        ValueError: a value is out of range.
    """
    line = msgspec.json.decode(text, type=_Line)
    for name, most in _RANGES.items():
        value = getattr(line, name)
        if value is not None and not 0 <= value <= most:
            msg = f"{name} is {value}: 0 to {most}"
            raise ValueError(msg)
    if isinstance(line.source, str) or (line.source is not None and line.source not in _SOURCES.values()):
        if line.source not in _SOURCES:
            msg = f"source is {line.source!r}: one of {', '.join(_SOURCES)}, or its number"
            raise ValueError(msg)
        line.source = _SOURCES[line.source]
    return line
