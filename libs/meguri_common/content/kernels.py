"""Compiled fingerprints: normalise and hash bodies, tokenise and simhash texts.

The tokeniser follows `meguri_common.content.tokens` on text whose words beyond ASCII are folded already. Counting a
token's hash once per occurrence is the same as once per distinct token, weighted by its frequency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.content.classes import IGNORED, MARK, PAIRED, SEPARATOR, WORD
from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.xxh64 import xxh64_slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["hash_bodies", "simhash_texts", "wide_words"]

_ASCII_END = 0x80
_TWO_BYTES_END = 0xE0
_THREE_BYTES_END = 0xF0
_SPACE = 0x20
_ONE = np.uint64(1)
_BITS = 64
_BLOCK = 16
_LOWER = np.array(
    [ord(chr(byte).lower()) if byte < _ASCII_END and chr(byte).isalnum() else 0 for byte in range(256)], np.uint8
)
"""The lower-cased byte of ASCII letters and digits; 0 for every other byte."""


@kernel
def hash_bodies(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    content_fp: NDArray[np.uint64],
    is_ascii: NDArray[np.bool_],
) -> None:
    """Content fingerprint of each normalised body, never 0, and whether the body is pure ASCII.

    Args:
        data: bodies, one after another.
        offsets: (n + 1,) body i is `data[offsets[i]:offsets[i + 1]]`.
        scratch: room for the longest body and one byte.
        content_fp: (n,) written.
        is_ascii: (n,) written.
    """
    for row in range(content_fp.size):
        bits = np.uint8(0)
        length = 0
        after_space = 1  # so that leading white space leaves nothing behind
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            bits |= byte
            space = 1 if byte == _SPACE or 9 <= byte <= 13 else 0
            scratch[length] = _SPACE if space else byte
            length += 1 - (space & after_space)
            after_space = space
        if length > 0 and after_space:
            length -= 1
        hashed = xxh64_slice(scratch, 0, length)
        content_fp[row] = hashed if hashed != 0 else _ONE
        is_ascii[row] = bits < _ASCII_END


@kernel
def wide_words(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    counts: NDArray[np.int64],
    spans: NDArray[np.int64],
) -> None:
    """Find the words that aren't pure ASCII; words lie between bytes up to the space.

    Args:
        data: texts.
        starts: (n,) where each text starts.
        ends: (n,) where each text ends.
        counts: (n,) written: such words of each text.
        spans: (m, 2) written: start and end of each such word; with m = 0 they are only counted.
    """
    total = 0
    for row in range(starts.size):
        before = total
        at = start = starts[row]
        bits = np.uint8(0)
        end = ends[row]
        while at <= end:
            if at == end or data[at] <= _SPACE:
                if bits >= _ASCII_END:
                    if spans.shape[0]:
                        spans[total, 0] = start
                        spans[total, 1] = at
                    total += 1
                start = at + 1
                bits = np.uint8(0)
            else:
                bits |= data[at]
            at += 1
        counts[row] = total - before


@inline_kernel
def _add(left: np.uint64, right: np.uint64, carried: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Sum and carry of three bits, in 64 columns at once."""
    half = left ^ right
    return half ^ carried, (left & right) | (half & carried)


@kernel
def _majority(hashes: NDArray[np.uint64], size: int) -> np.uint64:
    """The bits that are set in more than half of `hashes[:size]`; overwrites up to a block behind them.

    Bits are counted in 64 columns at once: plane p holds bit p of all counters. Sixteen hashes are summed by a tree
    of carry-save adders, so that only one carry in sixteen ripples up (Harley and Seal's population count).
    """
    hashes[size : size + _BLOCK] = 0  # fills the last block up
    planes = np.zeros(_BITS, np.uint64)
    ones = twos = fours = eights = np.uint64(0)
    for at in range(0, size, _BLOCK):
        ones, two_a = _add(ones, hashes[at], hashes[at + 1])
        ones, two_b = _add(ones, hashes[at + 2], hashes[at + 3])
        twos, four_a = _add(twos, two_a, two_b)
        ones, two_a = _add(ones, hashes[at + 4], hashes[at + 5])
        ones, two_b = _add(ones, hashes[at + 6], hashes[at + 7])
        twos, four_b = _add(twos, two_a, two_b)
        fours, eight_a = _add(fours, four_a, four_b)
        ones, two_a = _add(ones, hashes[at + 8], hashes[at + 9])
        ones, two_b = _add(ones, hashes[at + 10], hashes[at + 11])
        twos, four_a = _add(twos, two_a, two_b)
        ones, two_a = _add(ones, hashes[at + 12], hashes[at + 13])
        ones, two_b = _add(ones, hashes[at + 14], hashes[at + 15])
        twos, four_b = _add(twos, two_a, two_b)
        fours, eight_b = _add(fours, four_a, four_b)
        eights, carry = _add(eights, eight_a, eight_b)
        plane = 4
        while carry != 0:
            both = planes[plane] & carry
            planes[plane] ^= carry
            carry = both
            plane += 1
    planes[0] = ones
    planes[1] = twos
    planes[2] = fours
    planes[3] = eights
    result = np.uint64(0)
    for bit in range(_BITS):
        count = np.uint64(0)
        for plane in range(40):
            count |= ((planes[plane] >> np.uint64(bit)) & _ONE) << np.uint64(plane)
        if count + count > np.uint64(size):
            result |= _ONE << np.uint64(bit)
    return result


@inline_kernel
def _class_at(data: NDArray[np.uint8], at: int, classes: NDArray[np.uint8]) -> tuple[int, int]:
    """Class and size of the UTF-8 character at `at`, which isn't ASCII."""
    lead = np.int64(data[at])
    point = (lead & 0x1F) << 6 | np.int64(data[at + 1]) & 0x3F
    if lead < _TWO_BYTES_END:
        return int(classes[point]), 2
    point = ((lead & 0x0F) << 12) | ((np.int64(data[at + 1]) & 0x3F) << 6) | (np.int64(data[at + 2]) & 0x3F)
    if lead < _THREE_BYTES_END:
        return int(classes[point]), 3
    point = ((point & 0xFFF) << 6) | ((lead & 0x07) << 18) | (np.int64(data[at + 3]) & 0x3F)
    return int(classes[point]), 4


@kernel
def _token_hashes(
    data: NDArray[np.uint8],
    at: int,
    end: int,
    classes: NDArray[np.uint8],
    run: NDArray[np.uint8],
    hashes: NDArray[np.uint64],
) -> int:
    """Write the hashes of the tokens of `data[at:end]`; returns how many there are.

    `run` holds the characters of the run that is under way, without those that are ignored.
    """
    found = 0
    kind = SEPARATOR  # of the run
    length = 0  # of the run
    first = 0  # where its next token starts: at the last character but one of an unspaced run, else at the run's start
    last = 0  # where the last character of an unspaced run starts
    while at < end or kind != SEPARATOR:
        what = SEPARATOR  # as what follows the text
        size = 1
        if at < end:
            if data[at] >= _ASCII_END:
                what, size = _class_at(data, at, classes)
            elif _LOWER[data[at]] != 0:
                what = WORD
        if what == IGNORED:
            at += size
            continue
        in_run = kind in (WORD, PAIRED)
        if what == MARK and not in_run:
            what = SEPARATOR
        goes_on = in_run and what in (MARK, kind)
        if (what == PAIRED and last > first) if goes_on else (kind != SEPARATOR):
            hashes[found] = xxh64_slice(run, first, length)
            found += 1
        if not goes_on:
            kind = what
            first = last = length = 0
        elif what == PAIRED:
            first = last
            last = length
        if what == SEPARATOR:
            at += size
        elif size == 1:
            while at < end and _LOWER[data[at]] != 0:
                run[length] = _LOWER[data[at]]
                length += 1
                at += 1
        else:
            for step in range(size):
                run[length + step] = data[at + step]
            length += size
            at += size
    return found


@kernel
def simhash_texts(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    classes: NDArray[np.uint8],
    simhash: NDArray[np.uint64],
    empty: NDArray[np.bool_],
) -> None:
    """Simhash of each text's tokens, and whether it has none.

    Args:
        data: texts in UTF-8, valid and folded but for the case of ASCII.
        starts: (n,) where each text starts.
        ends: (n,) where each text ends.
        classes: (0x110000,) class of every code point.
        simhash: (n,) written.
        empty: (n,) written.
    """
    longest = 0
    for row in range(starts.size):
        longest = max(longest, ends[row] - starts[row])
    run = np.empty(longest, np.uint8)
    hashes = np.empty(longest // 2 + 1 + _BLOCK, np.uint64)  # tokens of one byte have a separator between them
    for row in range(starts.size):
        found = _token_hashes(data, starts[row], ends[row], classes, run, hashes)
        simhash[row] = _majority(hashes, found)
        empty[row] = found == 0
