"""Cuts the strings of a page's `links` array out of its JSON line, eight bytes at a time.

Method: bytes that end a stretch (quote, backslash, controls, `#`) are found in a word by the zero-byte test of the
Bit Twiddling Hacks collection; its lowest mark is always a true one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import count_trailing_zeros, load64, store64

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CUT", "LARGEST_TABLE", "PLAIN", "REFUSED", "UNSEEN", "WHOLE", "cut_links"]

UNSEEN, CUT, PLAIN, WHOLE, REFUSED = 0, 1, 2, 3, 4
"""State of a line: not looked at; links cut out; scanned, without links; for the JSON parser as a whole; not JSON."""

LARGEST_TABLE = 1 << 17
"""Slots of the table that finds repeats; more than twice the links that a page may have."""

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_SPACES = np.uint64(0x2020202020202020)
_QUOTES = np.uint64(0x2222222222222222)
_HASHES = np.uint64(0x2323232323232323)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_THREE = np.uint64(3)
_SHIFT = np.uint64(32)


@inline_kernel
def _zero_bytes(word: np.uint64) -> np.uint64:
    return (word - _ONES) & ~word & _HIGHS


@inline_kernel
def _string_marks(word: np.uint64) -> np.uint64:
    """High bits of the bytes that a JSON string can't hold as they are; the lowest one is true."""
    return _zero_bytes(word ^ _QUOTES) | _zero_bytes(word ^ _BACKSLASHES) | ((word - _SPACES) & ~word & _HIGHS)


@inline_kernel
def _past_space(buffer: NDArray[np.uint8], at: int) -> int:
    while buffer[at] == 32 or buffer[at] == 9 or buffer[at] == 13:
        at += 1
    return at


@kernel
def _string_end(buffer: NDArray[np.uint8], at: int) -> int:
    """Position of the first byte at or after `at` that a JSON string can't hold as it is."""
    while True:
        marks = _string_marks(load64(buffer, at))
        if marks != _ZERO:
            return at + int(count_trailing_zeros(marks) >> _THREE)
        at += 8


@kernel
def _copy(source: NDArray[np.uint8], start: int, end: int, target: NDArray[np.uint8], at: int) -> int:
    """Copy a stretch, up to 7 bytes beyond it; returns where it ends in the target."""
    i = start
    while i < end:
        store64(target, at + i - start, load64(source, i))
        i += 8
    return at + end - start


@kernel
def _same(data: NDArray[np.uint8], a: int, b: int, length: int) -> bool:
    i = 0
    while i + 8 <= length:
        if load64(data, a + i) != load64(data, b + i):
            return False
        i += 8
    if i < length:
        mask = (_ONE << np.uint64(8 * (length - i))) - _ONE
        return bool(((load64(data, a + i) ^ load64(data, b + i)) & mask) == _ZERO)
    return True


@kernel
def cut_links(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    keep_fragments: bool,
    limit: int,
    states: NDArray[np.uint8],
    shells: NDArray[np.uint8],
    shell_starts: NDArray[np.int64],
    shell_ends: NDArray[np.int64],
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    counts: NDArray[np.uint32],
    first_rows: NDArray[np.int64],
    authored: NDArray[np.int64],
    table: NDArray[np.int32],
) -> int:
    """Cut the links of all lines whose state is `UNSEEN` out into columns; returns the number of rows.

    A line that is accepted means, with an empty `links` array and the rows of the columns, what it means as a whole;
    the rest of it is not judged. Anything that isn't plain makes the line `WHOLE`, without rows: escapes or controls
    in a link, anything but strings in the array, the key twice or possibly spelled with escapes, a surrogate escape
    anywhere, more than `limit` links.

    Args:
        buffer: the lines, each followed by a byte below 0x20, and 16 zero bytes at the end; valid UTF-8 where UNSEEN.
        starts: (lines,) first byte of each line.
        ends: (lines,) end of each line.
        keep_fragments: whether `a#x` and `a#y` are two links.
        limit: most links of a page.
        states: (lines,) in and out.
        shells: out, bytes: lines without their links; as long as the buffer.
        shell_starts: (lines,) out, for lines that were CUT.
        shell_ends: (lines,) out, for lines that were CUT.
        data: out, bytes of the distinct links; 16 bytes longer than the buffer.
        offsets: out, one more than there are rows; a third of the buffer's length, and 2, is enough.
        counts: out, how often a page holds each link.
        first_rows: (lines + 1,) out: a line's rows are `first_rows[i]` to `first_rows[i + 1]`.
        authored: (lines,) out, links of the line with repeats.
        table: (LARGEST_TABLE,) scratch, all -1.
    """
    rows = 0
    serial = 0  # of the row in the table: never taken back, so that entries of earlier lines are known by it
    shell = 0
    offsets[0] = 0
    for line in range(starts.size):
        first_rows[line] = rows
        authored[line] = 0
        if states[line] != UNSEEN:
            continue
        first, first_serial = rows, serial
        shell_starts[line] = shell
        capacity = 64
        while capacity < LARGEST_TABLE and capacity * 2 < ends[line] - starts[line]:
            capacity *= 2
        slot_mask = np.uint64(capacity - 1)
        copied = starts[line]
        at = _past_space(buffer, starts[line])
        good = buffer[at] == 123
        seen = False
        depth = 0
        while good and at < ends[line]:
            c = buffer[at]
            if c in (123, 91):
                depth += 1
            elif c in (125, 93):
                depth -= 1
            elif c == 34:
                opened = at + 1
                escaped = False
                at = _string_end(buffer, opened)
                while buffer[at] == 92:
                    escaped = True
                    if buffer[at + 1] < 32 or (buffer[at + 1] == 117 and (buffer[at + 2] | 32) == 100):
                        good = False
                        break
                    at = _string_end(buffer, at + 2)
                if not good or buffer[at] != 34:
                    good = False
                    break
                if depth == 1 and (escaped or at - opened == 5):
                    after = _past_space(buffer, at + 1)
                    if buffer[after] == 58:
                        if escaped:
                            good = False
                            break
                        if (
                            buffer[opened] == 108
                            and buffer[opened + 1] == 105
                            and buffer[opened + 2] == 110
                            and buffer[opened + 3] == 107
                            and buffer[opened + 4] == 115
                        ):
                            at = _past_space(buffer, after + 1)
                            if seen or buffer[at] != 91:
                                good = False
                                break
                            seen = True
                            shell = _copy(buffer, copied, at, shells, shell)
                            shells[shell] = 91
                            shells[shell + 1] = 93
                            shell += 2
                            number = 0
                            at = _past_space(buffer, at + 1)
                            more = buffer[at] != 93
                            while more:
                                if buffer[at] != 34:
                                    good = False
                                    break
                                number += 1
                                opened = at + 1
                                fragments = keep_fragments
                                begin = offsets[rows]
                                while True:
                                    at = opened
                                    out = begin
                                    mixed = _MIX
                                    while True:
                                        word = load64(buffer, at)
                                        marks = _string_marks(word)
                                        if not fragments:
                                            marks |= _zero_bytes(word ^ _HASHES)
                                        store64(data, out, word)
                                        if marks != _ZERO:
                                            break
                                        mixed = (mixed ^ word) * _MIX
                                        mixed ^= mixed >> _SHIFT
                                        at += 8
                                        out += 8
                                    bits = count_trailing_zeros(marks) & ~np.uint64(7)
                                    word &= (_ONE << bits) - _ONE
                                    mixed = (mixed ^ word) * _MIX
                                    mixed ^= mixed >> _SHIFT
                                    at += int(bits >> _THREE)
                                    if buffer[at] != 35 or fragments or at == opened or buffer[at - 1] > 32:
                                        break
                                    fragments = (
                                        True  # space before `#` is part of the path: only a whole one means that
                                    )
                                length = at - opened
                                if buffer[at] == 35:
                                    at = _string_end(buffer, at)
                                if buffer[at] != 34 or number > limit:
                                    good = False
                                    break
                                slot = (mixed ^ np.uint64(length)) & slot_mask
                                while True:
                                    entry = table[np.int64(slot)]
                                    if entry < first_serial:
                                        table[np.int64(slot)] = serial
                                        serial += 1
                                        counts[rows] = 1
                                        rows += 1
                                        offsets[rows] = begin + length
                                        break
                                    row = np.int64(entry) - first_serial + first
                                    if offsets[row + 1] - offsets[row] == length and _same(
                                        data, offsets[row], begin, length
                                    ):
                                        counts[row] += np.uint32(1)
                                        break
                                    slot = (slot + _ONE) & slot_mask
                                at = _past_space(buffer, at + 1)
                                if buffer[at] == 93:
                                    more = False
                                elif buffer[at] == 44:
                                    at = _past_space(buffer, at + 1)
                                else:
                                    good = False
                                    break
                            if not good:
                                break
                            authored[line] = number
                            copied = at + 1
            at += 1
        if not good:
            states[line] = WHOLE
            authored[line] = 0
            rows = first
            shell = shell_starts[line]
        elif seen:
            states[line] = CUT
            shell = _copy(buffer, copied, ends[line], shells, shell)
            shell_ends[line] = shell
        else:
            states[line] = PLAIN
    first_rows[starts.size] = rows
    return rows
