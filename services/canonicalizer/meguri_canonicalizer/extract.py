"""From the messages of a step to typed events and columns of authored links.

The links of plain pages are cut out by a byte kernel and never become Python objects; whatever isn't plain goes
through the JSON parser as a whole. Both ways give the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from meguri_canonicalizer.kernels.extract import CUT, LARGEST_TABLE, PLAIN, REFUSED, WHOLE, cut_links
from meguri_common.events.decode import EventRejected, decode_event, decode_page_shell
from meguri_common.events.model import EVENT_LIMIT, ITEM_LIMIT, LinkObject, PageEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from meguri_common.events.model import Event

__all__ = ["Extracted", "Extractor", "Rejected", "fold_hrefs"]

_PADDING = bytes(16)
_LINE_FEED = b"\n"
_BLANKS = b" \t\r"
_SPACE = 0x20


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line that is no usable event."""

    line: int
    """Position in `Extracted.message_of`."""
    reason: str
    detail: str


@dataclass(slots=True)
class Extracted:
    """The events of some messages, in order, and the authored links of their pages as columns."""

    buffer: bytearray
    """All messages, one after the other, each followed by a line feed; reused like the columns."""
    starts: list[int]
    ends: list[int]
    message_of: list[int]
    """Of each line that isn't empty: where it stands, and the position of its message."""
    message_starts: list[int]
    events: list[Event] = field(default_factory=list)
    line_of: list[int] = field(default_factory=list)
    """Of each event: its line."""
    rejects: list[Rejected] = field(default_factory=list)
    data: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(16, np.uint8))
    """Bytes of the distinct hrefs of each page, without fragments, UTF-8; 16 bytes longer than they are."""
    offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    counts: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """How often the page holds the href."""
    first_row: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    last_row: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of each event: its rows are from `first_row` to before `last_row`."""
    authored: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of each event: links as authored, repeats included."""

    def line_bytes(self, line: int) -> bytes:
        """The line as it was published."""
        return bytes(self.buffer[self.starts[line] : self.ends[line]])

    def positions_in_messages(self, lines: Sequence[int]) -> list[int]:
        """Which line of its message each of some lines is, from 0, empty ones counted; the lines are in order."""
        positions: list[int] = []
        message, counted, position = -1, 0, 0
        for line in lines:
            if self.message_of[line] != message:
                message = self.message_of[line]
                counted, position = self.message_starts[message], 0
            position += self.buffer.count(_LINE_FEED, counted, self.starts[line])
            counted = self.starts[line]
            positions.append(position)
        return positions

    def hrefs(self, event: int) -> list[tuple[bytes, int]]:
        """The distinct hrefs of an event with their counts, for those who want objects."""
        blob = self.data.tobytes()
        return [
            (blob[self.offsets[row] : self.offsets[row + 1]], int(self.counts[row]))
            for row in range(self.first_row[event], self.last_row[event])
        ]


def fold_hrefs(links: Iterable[str | LinkObject], *, keep_fragments: bool) -> dict[bytes, int]:
    """Distinct hrefs in order of first occurrence, with how often each occurs.

    A fragment is cut off, unless white space or a control stands before it: that is part of the path then, and would
    be trimmed at the end of a shorter href.
    """
    folded: dict[bytes, int] = {}
    for link in links:
        href = (link if isinstance(link, str) else link.href).encode()
        if not keep_fragments:
            at = href.find(b"#")
            if at == 0 or (at > 0 and href[at - 1] > _SPACE):
                href = href[:at]
        folded[href] = folded.get(href, 0) + 1
    return folded


class Extractor:
    """Cuts messages into events and link columns; keeps its buffers for the next ones."""

    def __init__(self, *, keep_fragments: bool, use_kernel: bool = True) -> None:
        """Set up.

        Args:
            keep_fragments: whether the policy lets fragments count (hashbangs).
            use_kernel: whether plain pages go through the byte kernel; without it the result is the same.
        """
        self._keep_fragments = keep_fragments
        self._use_kernel = use_kernel
        self._table = np.zeros(LARGEST_TABLE, np.int32)
        self._text = bytearray()
        self._bytes = [np.zeros(0, np.uint8), np.zeros(0, np.uint8)]
        self._offsets = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.uint32)

    def extract(self, payloads: Sequence[bytes]) -> Extracted:
        """The events of these messages; the columns are views that the next call overwrites.

        Lines end at LF, empty ones are skipped, CR counts as white space.
        """
        found = _lines(payloads, self._text)
        self._text = found.buffer
        lines = len(found.starts)
        states = np.zeros(lines, np.uint8)
        self._refuse(payloads, found, states)
        first_rows = np.zeros(lines + 1, np.int64)
        authored = np.zeros(lines, np.int64)
        shells, shell_starts, shell_ends = self._cut(found, states, first_rows, authored)
        extra = _ParsedLinks(found.offsets.size - 1, int(found.offsets[-1]))
        view = memoryview(found.buffer)
        first, last, numbers = [], [], []
        for line, state in enumerate(states.tolist()):
            row, end, number = 0, 0, 0
            try:
                if state == CUT:
                    event: Event = decode_page_shell(shells[shell_starts[line] : shell_ends[line]])
                    row, end, number = first_rows[line], first_rows[line + 1], authored[line]
                elif state == PLAIN:
                    event = decode_page_shell(view[found.starts[line] : found.ends[line]])
                else:
                    event = decode_event(found.line_bytes(line))
                    if isinstance(event, PageEvent):
                        number = len(event.links)
                        row, end = extra.add(fold_hrefs(event.links, keep_fragments=self._keep_fragments))
            except (msgspec.MsgspecError, RecursionError):
                try:
                    event = decode_event(found.line_bytes(line))
                    row, end, number = 0, 0, 0
                except EventRejected as problem:
                    found.rejects.append(Rejected(line, problem.reason, problem.detail))
                    continue
            except EventRejected as problem:
                found.rejects.append(Rejected(line, problem.reason, problem.detail))
                continue
            found.events.append(event)
            found.line_of.append(line)
            first.append(row)
            last.append(end)
            numbers.append(number)
        found.first_row = np.array(first, np.int64)
        found.last_row = np.array(last, np.int64)
        found.authored = np.array(numbers, np.int64)
        extra.append_to(found)
        return found

    def _refuse(self, payloads: Sequence[bytes], found: Extracted, states: NDArray[np.uint8]) -> None:
        """Keep lines from the kernel that it can't take: too large ones, and ones that aren't UTF-8."""
        if not self._use_kernel:
            states[:] = WHOLE
            return
        odd = [not payload.isascii() for payload in payloads]
        for line, message in enumerate(found.message_of):
            size = found.ends[line] - found.starts[line]
            if size > EVENT_LIMIT:
                states[line] = REFUSED
            elif odd[message]:
                try:
                    found.line_bytes(line).decode()
                except UnicodeDecodeError:
                    states[line] = REFUSED

    def _cut(
        self, found: Extracted, states: NDArray[np.uint8], first_rows: NDArray[np.int64], authored: NDArray[np.int64]
    ) -> tuple[memoryview, list[int], list[int]]:
        size = found.ends[-1] + len(_PADDING) if found.ends else len(_PADDING)
        if self._bytes[0].size < size:
            self._bytes = [np.empty(size + size // 4, np.uint8), np.empty(size + size // 4, np.uint8)]
            self._offsets = np.empty(size // 2 + 2, np.int64)
            self._counts = np.empty(size // 2 + 2, np.uint32)
        data, shells = self._bytes
        shell_starts, shell_ends = np.zeros((2, states.size), np.int64)
        self._table.fill(-1)
        rows = cut_links(
            np.frombuffer(found.buffer, np.uint8),
            np.array(found.starts, np.int64),
            np.array(found.ends, np.int64),
            self._keep_fragments,
            ITEM_LIMIT,
            states,
            shells,
            shell_starts,
            shell_ends,
            data,
            self._offsets,
            self._counts,
            first_rows,
            authored,
            self._table,
        )
        found.offsets = self._offsets[: rows + 1]
        found.data = data[: found.offsets[rows] + len(_PADDING)]
        found.counts = self._counts[:rows]
        return memoryview(shells.data), shell_starts.tolist(), shell_ends.tolist()


def _lines(payloads: Sequence[bytes], buffer: bytearray) -> Extracted:
    """Put the messages into the buffer, or into a new one if it is too small, and find their lines."""
    size = sum(map(len, payloads)) + len(payloads) + len(_PADDING)
    if len(buffer) < size:
        buffer = bytearray(size + size // 4)
    found = Extracted(buffer, [], [], [], [])
    start = 0
    for message, payload in enumerate(payloads):
        found.message_starts.append(start)
        stop = start + len(payload)
        with memoryview(buffer) as view:
            view[start:stop] = payload
            view[stop : stop + 1 + len(_PADDING)] = _LINE_FEED + _PADDING
        while start < stop:
            end = buffer.find(_LINE_FEED, start)
            # A line that starts with a visible character isn't empty.
            if end > start and (buffer[start] > _SPACE or buffer[start:end].strip(_BLANKS)):
                found.starts.append(start)
                found.ends.append(end)
                found.message_of.append(message)
            start = end + 1
        start = stop + 1
    return found


class _ParsedLinks:
    """Columns of the links that came through the JSON parser; they follow those of the kernel."""

    def __init__(self, rows: int, size: int) -> None:
        self._rows = rows
        self._size = size
        self._hrefs: list[bytes] = []
        self._counts: list[int] = []

    def add(self, folded: dict[bytes, int]) -> tuple[int, int]:
        """Take a page's links; returns the range of their rows."""
        first = self._rows + len(self._hrefs)
        self._hrefs.extend(folded)
        self._counts.extend(folded.values())
        return first, first + len(folded)

    def append_to(self, found: Extracted) -> None:
        """Put the rows behind those that are there."""
        if not self._hrefs:
            return
        blob = b"".join([*self._hrefs, _PADDING])
        ends = np.cumsum(np.fromiter(map(len, self._hrefs), np.int64, len(self._hrefs)))
        found.data = np.concatenate([found.data[: self._size], np.frombuffer(blob, np.uint8)])
        found.offsets = np.concatenate([found.offsets, ends + self._size])
        found.counts = np.concatenate([found.counts, np.array(self._counts, np.uint32)])
