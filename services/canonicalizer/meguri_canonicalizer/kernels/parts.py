"""The parts of a plain link, read and written byte by byte: authority, path; escapes.

Positions are addresses. Each function reads from `at` to at most `end`, and writes from `to`, where there is room for
three times as many bytes and 16 more. It returns where it stopped reading and writing; a negative number in place of
the first if it can't decide. What it writes is what `canonicalize` writes under the default policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meguri_canonicalizer.kernels.addresses import peek, peek_word, poke, poke_word
from meguri_canonicalizer.kernels.classes import (
    ENCODED,
    END,
    HEX_VALUE,
    HOST_BYTE,
    PATH_CLASS,
    PATH_SPECIAL,
    PERCENT,
    PLAIN,
    RELATIVE_SPECIAL,
    REMOVED,
    SEPARATOR,
    UNRESERVED,
    UPPER_HEX,
)
from meguri_common.kernels.jit import inline_kernel, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "HAS_COLON",
    "HAS_REMOVED",
    "LONGEST_HOST",
    "NEEDS_PARSER",
    "write_authority",
    "write_escape",
    "write_path",
    "write_percent",
]

NEEDS_PARSER: Final = -1
HAS_REMOVED: Final = -2
"""A tab or a line break stands in the link: it is to be read again without those."""
HAS_COLON: Final = -3
"""What was taken for a relative path may begin with a scheme."""
LONGEST_HOST: Final = 253
_ZERO: Final = np.uint64(0)
_BYTE: Final = np.uint64(255)
_BITS_8: Final = np.uint64(8)
_BITS_16: Final = np.uint64(16)
_BITS_24: Final = np.uint64(24)
_BITS_32: Final = np.uint64(32)
_BITS_40: Final = np.uint64(40)
_BITS_48: Final = np.uint64(48)
_BITS_56: Final = np.uint64(56)
_HIGH_BITS: Final = np.uint64(0x8080808080808080)
_FIRST_HIGH_BIT: Final = np.uint64(0x80)
_LOW_BITS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_DOTS: Final = np.uint64(0x2E2E2E2E2E2E2E2E)
_SLASHES: Final = np.uint64(0x2F2F2F2F2F2F2F2F)
_HEX_BASE: Final = 16


@inline_kernel
def write_escape(to: int, octet: int) -> int:
    """Write the escape of an octet; returns where it ends."""
    poke(to, 37)
    poke(to + 1, UPPER_HEX[octet >> 4])
    poke(to + 2, UPPER_HEX[octet & 15])
    return to + 3


@kernel
def write_percent(at: int, end: int, to: int) -> tuple[int, int]:
    """An escape, or a stray `%` with what is bound to it; `%` stands at `at`."""
    high = HEX_VALUE[peek(at + 1)] if at + 1 < end else 255
    low = HEX_VALUE[peek(at + 2)] if at + 2 < end else 255
    if high < _HEX_BASE and low < _HEX_BASE:
        octet = high * 16 + low
        if UNRESERVED[octet]:
            poke(to, octet)
            return at + 3, to + 1
        return at + 3, write_escape(to, octet)
    poke(to, 37)
    at += 1
    to += 1
    if high < _HEX_BASE:
        poke(to, peek(at))
        at += 1
        to += 1
    if at + 2 < end and peek(at) == 37:
        high = HEX_VALUE[peek(at + 1)]
        low = HEX_VALUE[peek(at + 2)]
        if high < _HEX_BASE and low < _HEX_BASE and HEX_VALUE[high * 16 + low] < _HEX_BASE:
            return at + 3, write_escape(to, high * 16 + low)
    return at, to


@kernel
def write_authority(at: int, end: int, https: bool, to: int) -> tuple[int, int, int]:
    """Host and port, for hosts of plain names.

    Returns:
        Where reading stopped (at a delimiter or the end), where the host ends in the URL, where writing stopped.
    """
    label = host = to
    while at < end:
        octet = HOST_BYTE[peek(at)]
        if octet == 0:
            break
        if octet == 46:
            if to == label:
                return NEEDS_PARSER, to, to
            label = to + 1
        poke(to, octet)
        to += 1
        at += 1
        if to == label + 4 and peek(label) == 120 and peek(label + 1) == 110 and peek(label + 2) == 45 and octet == 45:
            return NEEDS_PARSER, to, to
    if to == label or to - host > LONGEST_HOST or peek(label) < 97:  # empty, or an address: its last label is a number
        return NEEDS_PARSER, to, to
    host_end = to
    if at < end and peek(at) == 58:
        at += 1
        port = -1
        while at < end and 48 <= peek(at) <= 57:
            port = 10 * max(port, 0) + peek(at) - 48
            port = min(port, 65536)
            at += 1
        if port > 65535:
            return NEEDS_PARSER, to, to
        if port >= 0 and port != (443 if https else 80):
            poke(to, 58)
            to += 1
            scale = 10000
            while scale > max(port, 1):
                scale //= 10
            while scale > 0:
                poke(to, 48 + port // scale % 10)
                to += 1
                scale //= 10
    if at < end and not (peek(at) == 47 or peek(at) == 92 or peek(at) == 63 or peek(at) == 35):
        return NEEDS_PARSER, to, to
    return at, host_end, to


@inline_kernel
def _equal_bytes(word: np.uint64, pattern: np.uint64) -> np.uint64:
    """The high bit of each byte in which two words agree, for words whose own high bits are clear."""
    return ~((word ^ pattern) + _LOW_BITS) & _HIGH_BITS


@kernel
def _copy_ordinary(at: int, end: int, to: int, special: NDArray[np.uint8]) -> int:
    """Copy words of bytes that stand for themselves, as long as no dot comes before a slash; returns how many bytes."""
    start = at
    before_dot = peek(to - 1) == 46
    while at + 8 <= end:
        word = peek_word(at)
        if (
            special[word & _BYTE]
            | special[(word >> _BITS_8) & _BYTE]
            | special[(word >> _BITS_16) & _BYTE]
            | special[(word >> _BITS_24) & _BYTE]
            | special[(word >> _BITS_32) & _BYTE]
            | special[(word >> _BITS_40) & _BYTE]
            | special[(word >> _BITS_48) & _BYTE]
            | special[word >> _BITS_56]
        ):
            break
        dots = _equal_bytes(word, _DOTS)
        if _equal_bytes(word, _SLASHES) & ((dots << _BITS_8) | (_FIRST_HIGH_BIT if before_dot else _ZERO)):
            break
        before_dot = (word >> _BITS_56) == 46
        poke_word(to, word)
        at += 8
        to += 8
    return at - start


@kernel
def write_path(at: int, end: int, to: int, root: int, may_be_scheme: bool) -> tuple[int, int]:
    """Path segments, up to `?`, `#` or the end; dot segments take back what was written.

    Args:
        at: where its path begins: behind a slash, or at the start of a relative path.
        end: end of the link.
        to: where to write; a slash stands before it.
        root: where the path's first segment begins in the URL.
        may_be_scheme: HAS_COLON is the answer to a colon in the first segment.
    """
    special = RELATIVE_SPECIAL if may_be_scheme else PATH_SPECIAL
    while True:
        copied = _copy_ordinary(at, end, to, special)
        at += copied
        to += copied
        word_end = min(at + 8, end)
        while True:
            if at == word_end and at < end:
                break
            kind = PATH_CLASS[peek(at)] if at < end else END
            if kind == PLAIN:
                if may_be_scheme and peek(at) == 58:
                    return HAS_COLON, to
                poke(to, peek(at))
                to += 1
                at += 1
            elif kind == ENCODED:
                to = write_escape(to, peek(at))
                at += 1
            elif kind == PERCENT:
                at, to = write_percent(at, end, to)
                word_end = max(at, word_end)
            elif kind == REMOVED:
                return HAS_REMOVED, to
            else:
                if peek(to - 1) == 46 and peek(to - 2) == 47:
                    to -= 1
                elif peek(to - 1) == 46 and peek(to - 2) == 46 and peek(to - 3) == 47:
                    to -= 2
                    if to > root:
                        to -= 1
                        while to > root and peek(to - 1) != 47:
                            to -= 1
                elif kind == SEPARATOR:
                    poke(to, 47)
                    to += 1
                if kind == END:
                    return at, to
                may_be_scheme = False
                at += 1
