"""Compiled fingerprints: normalise and hash bodies, tokenise and simhash texts.

The tokeniser follows `meguri_common.content.tokens` on text that is ASCII, or folded already and valid UTF-8.
Counting a token's hash once per occurrence is the same as once per distinct token, weighted by its frequency.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.content.classes import IGNORED, MARK, PAIRED, SEPARATOR, SYMBOL, WORD
from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.xxh64 import xxh64_slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["hash_bodies", "simhash_texts"]

_LOWER = np.array(
    [ord(chr(byte).lower()) if byte < 128 and chr(byte).isalnum() else 0 for byte in range(256)],  # noqa: PLR2004 - the first byte beyond ASCII
    np.uint8,
)
"""The lower-cased byte of ASCII letters and digits; 0 for every other byte."""

_ASCII_END = 0x80
_TWO_BYTES_END = 0xE0
_THREE_BYTES_END = 0xF0
_ONE = np.uint64(1)


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
            space = 1 if byte == 32 or 9 <= byte <= 13 else 0  # noqa: PLR2004 - the six bytes of ASCII white space
            scratch[length] = 32 if space else byte
            length += 1 - (space & after_space)
            after_space = space
        if length > 0 and after_space:
            length -= 1
        hashed = xxh64_slice(scratch, 0, length)
        content_fp[row] = hashed if hashed != 0 else _ONE
        is_ascii[row] = bits < _ASCII_END


@inline_kernel
def _count(counts: NDArray[np.uint64], scratch: NDArray[np.uint8], start: int, end: int) -> None:
    """Add the bits of a token's hash to the counters."""
    hashed = xxh64_slice(scratch, start, end)
    for bit in range(64):
        counts[bit] += (hashed >> np.uint64(bit)) & _ONE


@kernel
def _simhash(
    data: NDArray[np.uint8],
    at: int,
    end: int,
    classes: NDArray[np.uint8],
    scratch: NDArray[np.uint8],
    counts: NDArray[np.uint64],
) -> int:
    """Count the hashes of the tokens of `data[at:end]` into `counts` (64,); returns how many tokens there were."""
    counts[:] = 0
    found = 0
    kind = SEPARATOR
    length = 0  # of the run, in scratch
    previous = current = 0  # where the last two characters of an unspaced run start
    units = 0  # characters of an unspaced run
    while at <= end:
        # What stands here; the end of the text separates.
        size = 1
        what = SEPARATOR
        if at < end:
            byte = np.int64(data[at])
            if byte < _ASCII_END:
                if _LOWER[byte] != 0:
                    what = WORD
            elif byte < _TWO_BYTES_END:
                size = 2
                what = classes[(byte & 0x1F) << 6 | (data[at + 1] & 0x3F)]
            elif byte < _THREE_BYTES_END:
                size = 3
                what = classes[(byte & 0x0F) << 12 | (data[at + 1] & 0x3F) << 6 | (data[at + 2] & 0x3F)]
            else:
                size = 4
                what = classes[
                    (byte & 0x07) << 18
                    | (data[at + 1] & 0x3F) << 12
                    | (data[at + 2] & 0x3F) << 6
                    | (data[at + 3] & 0x3F)
                ]
        if what == IGNORED:
            at += size
            continue
        # What it ends: a run, or the last pair but one of an unspaced run that goes on.
        if what != kind and kind != SEPARATOR and what != MARK:
            start = previous if kind == PAIRED and units > 1 else (current if kind == PAIRED else 0)
            _count(counts, scratch, start, length)
            found += 1
            kind = SEPARATOR
        # What it begins or continues.
        if what == WORD:
            if kind == SEPARATOR:
                kind = WORD
                length = 0
            if size == 1:
                while at < end and _LOWER[data[at]] != 0:
                    scratch[length] = _LOWER[data[at]]
                    length += 1
                    at += 1
                continue
        elif what == PAIRED:
            if kind == SEPARATOR:
                kind = PAIRED
                length = units = 0
            elif units > 1:
                _count(counts, scratch, previous, length)
                found += 1
            previous = current
            current = length
            units += 1
        elif what == SYMBOL:
            length = 0
        if what == SYMBOL or kind != SEPARATOR:
            for step in range(size):
                scratch[length + step] = data[at + step]
            length += size
        if what == SYMBOL:
            _count(counts, scratch, 0, length)
            found += 1
        at += size
    return found


@kernel
def simhash_texts(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    classes: NDArray[np.uint8],
    scratch: NDArray[np.uint8],
    simhash: NDArray[np.uint64],
    empty: NDArray[np.bool_],
) -> None:
    """Simhash of each text's tokens, and whether it has none.

    Args:
        data: texts: ASCII, or folded and valid UTF-8.
        starts: (n,) where each text starts.
        ends: (n,) where each text ends.
        classes: (0x110000,) class of every code point.
        scratch: room for the longest text.
        simhash: (n,) written.
        empty: (n,) written.
    """
    counts = np.zeros(64, np.uint64)
    for row in range(starts.size):
        found = _simhash(data, starts[row], ends[row], classes, scratch, counts)
        bits = np.uint64(0)
        for bit in range(64):
            if counts[bit] * np.uint64(2) > np.uint64(found):
                bits |= _ONE << np.uint64(bit)
        simhash[row] = bits
        empty[row] = found == 0
