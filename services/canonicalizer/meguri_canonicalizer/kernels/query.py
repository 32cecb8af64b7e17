"""The query of a plain link: tracking pairs dropped, the rest in the order of their decoded names.

Positions are addresses, as in `parts`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from meguri_canonicalizer.kernels.addresses import copy_bytes, peek, peek_signed, peek_word, poke, poke_word
from meguri_canonicalizer.kernels.classes import (
    ENCODED,
    END,
    HEX_VALUE,
    PERCENT,
    PLAIN,
    QUERY_CLASS,
    REMOVED,
    TABLE_FIRST,
    TABLE_OFFSETS,
)
from meguri_canonicalizer.kernels.parts import HAS_REMOVED, NEEDS_PARSER, write_escape, write_percent
from meguri_common.kernels.jit import inline_kernel, kernel

__all__ = ["MOST_PAIRS", "SORTING_ROOM", "write_query"]

MOST_PAIRS: Final = 64
"""Queries of more pairs that are out of order are left to the parser."""
SORTING_ROOM: Final = MOST_PAIRS * 16 + 8
"""Bytes of scratch memory beyond those of the longest query."""

_ONE: Final = np.uint64(1)
_MOST_NAME_BYTES: Final = 63


@kernel
def _is_tracking(start: int, end: int, table: int) -> bool:
    """Whether a name is in the built-in list; one with an escape left in it can be there only by the prefix."""
    size = end - start
    is_utm = size >= 4 and peek(start) | 32 == 117 and peek(start + 1) | 32 == 116 and peek(start + 2) | 32 == 109
    if is_utm and peek(start + 3) == 95:
        return True
    if size == 0 or size > _MOST_NAME_BYTES:
        return False
    octet = peek(start)
    if (peek_word(table + 8 * octet) >> np.uint64(size)) & _ONE == 0:
        return False
    for row in range(peek_signed(table + TABLE_FIRST + 8 * octet), peek_signed(table + TABLE_FIRST + 8 * octet + 8)):
        name = peek_signed(table + TABLE_OFFSETS + 8 * row)
        if peek_signed(table + TABLE_OFFSETS + 8 * row + 8) - name == size:
            at = 0
            while at < size and peek(table + name + at) == peek(start + at):
                at += 1
            if at == size:
                return True
    return False


@inline_kernel
def _octet(at: int, end: int) -> tuple[int, int]:
    """The decoded octet at a position of a name, and the position behind it."""
    octet = peek(at)
    if octet == 37 and at + 2 < end:
        high = int(HEX_VALUE[peek(at + 1)])
        low = int(HEX_VALUE[peek(at + 2)])
        if high < 16 and low < 16:
            return high * 16 + low, at + 3
    return octet, at + 1


@kernel
def _is_less(one: int, one_end: int, two: int, two_end: int) -> bool:
    """Whether the name that begins pair one comes before that of pair two."""
    while True:
        if two == two_end or peek(two) == 61:
            return False
        if one == one_end or peek(one) == 61:
            return True
        left, one = _octet(one, one_end)
        right, two = _octet(two, two_end)
        if left != right:
            return left < right


@kernel
def _sort_pairs(start: int, end: int, scratch: int) -> bool:
    """Put pairs in the order of their names, those of one name staying in theirs; False if there are too many.

    Args:
        start: where the first pair begins.
        end: behind the `&` of the last one.
        scratch: room for the pairs and SORTING_ROOM bytes.
    """
    count = 0
    at = start
    while at < end:
        if count == MOST_PAIRS:
            return False
        pair = at
        while peek(at) != 38:
            at += 1
        place = scratch + 16 * count
        while place > scratch and _is_less(pair, at, peek_signed(place - 16), peek_signed(place - 8)):
            poke_word(place, peek_word(place - 16))
            poke_word(place + 8, peek_word(place - 8))
            place -= 16
        poke_word(place, np.uint64(pair))
        poke_word(place + 8, np.uint64(at))
        count += 1
        at += 1
    sorted_pairs = to = scratch + 16 * count
    for row in range(count):
        pair = peek_signed(scratch + 16 * row)
        size = peek_signed(scratch + 16 * row + 8) + 1 - pair
        copy_bytes(pair, to, size)
        to += size
    copy_bytes(sorted_pairs, start, end - start)
    return True


@kernel
def write_query(at: int, end: int, to: int, table: int, scratch: int) -> tuple[int, int]:
    """`?` and the pairs that stay, up to `#` or the end. Nothing if no pair stays.

    Args:
        at: position behind the `?`.
        end: end of the link.
        to: where to write.
        table: see `tracking_table`.
        scratch: room for what is written and SORTING_ROOM bytes.

    Returns:
        Where reading stopped, or NEEDS_PARSER or HAS_REMOVED; where writing stopped.
    """
    start = to
    poke(to, 63)
    to += 1
    before = -1
    in_order = True
    while True:
        pair = to
        name_end = -1
        while True:
            kind = QUERY_CLASS[peek(at)] if at < end else END
            if kind == PLAIN:
                octet = peek(at)
                if octet == 61 and name_end < 0:
                    name_end = to
                poke(to, octet)
                to += 1
                at += 1
            elif kind == ENCODED:
                to = write_escape(to, peek(at))
                at += 1
            elif kind == PERCENT:
                at, to = write_percent(at, end, to)
            elif kind == REMOVED:
                return HAS_REMOVED, to
            else:
                break
        if to > pair:
            if _is_tracking(pair, to if name_end < 0 else name_end, table):
                to = pair
            else:
                if in_order and before >= 0:
                    in_order = not _is_less(pair, to, before, pair - 1)
                before = pair
                poke(to, 38)
                to += 1
        if kind == END:
            break
        at += 1
    if before < 0:
        return at, start
    if not in_order and not _sort_pairs(start + 1, to, scratch):
        return NEEDS_PARSER, to
    return at, to - 1
