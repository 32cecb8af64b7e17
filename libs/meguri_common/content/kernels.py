"""Fingerprints of ASCII texts, compiled: what most pages are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import kernel
from meguri_common.kernels.xxh64 import xxh64_slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["fingerprint_ascii"]

_ASCII_END, _SPACE, _TAB, _CR = 0x80, 0x20, 0x09, 0x0D
_DIGIT_0, _DIGIT_9, _UPPER_A, _UPPER_Z, _LOWER_A, _LOWER_Z = 0x30, 0x39, 0x41, 0x5A, 0x61, 0x7A
_CASE = np.uint8(0x20)
_BITS = 64


@kernel
def _normalize(data: NDArray[np.uint8], start: int, end: int, out: NDArray[np.uint8]) -> int:
    """The normalised body in `out`; gives its length, or -1 for a text that isn't ASCII."""
    length = 0
    pending = False
    for at in range(start, end):
        byte = data[at]
        if byte >= _ASCII_END:
            return -1
        if byte == _SPACE or (byte >= _TAB and byte <= _CR):
            pending = length > 0
            continue
        if pending:
            out[length] = _SPACE
            length += 1
            pending = False
        out[length] = byte
        length += 1
    return length


@kernel
def _simhash(text: NDArray[np.uint8], length: int, sums: NDArray[np.int32]) -> int:
    """Count the bits of the hashes of a text's tokens into `sums`; lower-cases the text in place; gives the tokens."""
    sums[:] = 0
    count = 0
    start = -1
    for at in range(length + 1):
        inside = False
        if at < length:
            byte = text[at]
            if byte >= _UPPER_A and byte <= _UPPER_Z:
                text[at] = byte | _CASE
                inside = True
            else:
                inside = (byte >= _LOWER_A and byte <= _LOWER_Z) or (byte >= _DIGIT_0 and byte <= _DIGIT_9)
        if inside:
            if start < 0:
                start = at
        elif start >= 0:
            hashed = xxh64_slice(text, start, at)
            for bit in range(_BITS):
                sums[bit] += np.int32((hashed >> np.uint64(bit)) & np.uint64(1))
            count += 1
            start = -1
    return count


@kernel
def fingerprint_ascii(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    fps: NDArray[np.uint64],
    hashes: NDArray[np.uint64],
    empty: NDArray[np.bool_],
    odd: NDArray[np.bool_],
) -> None:
    """content_fp and simhash of each text; texts that aren't ASCII are marked `odd` and left alone.

    `scratch` holds the longest text.
    """
    sums = np.zeros(_BITS, np.int32)
    for row in range(offsets.size - 1):
        length = _normalize(data, offsets[row], offsets[row + 1], scratch)
        if length < 0:
            odd[row] = True
            continue
        exact = xxh64_slice(scratch, 0, length)
        count = _simhash(scratch, length, sums)
        if count == 0:
            empty[row] = True
            continue
        fps[row] = exact if exact != np.uint64(0) else np.uint64(1)
        found = np.uint64(0)
        for bit in range(_BITS):
            if 2 * sums[bit] > count:
                found |= np.uint64(1) << np.uint64(bit)
        hashes[row] = found
