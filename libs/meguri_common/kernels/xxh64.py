"""xxh64 with seed 0 over slices of a byte column, equal to the xxhash package's (tests hold them together).

Method: Yann Collet, xxHash, the 64-bit variant of its specification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import load64

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["hash_path_keys", "hash_slices", "path_key_slice", "xxh64_slice"]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_PATH_PREFIX = np.uint64(0x9E3779B97F4A7C15)
_ZERO = np.uint64(0)


@inline_kernel
def _rotate(x: np.uint64, bits: int) -> np.uint64:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@kernel
def _xxh64(data: NDArray[np.uint8], start: int, end: int, prefixed: bool) -> np.uint64:
    """xxh64 of `data[start:end]`, after the path-key prefix word if `prefixed`. Needs no padding."""
    length = end - start + (8 if prefixed else 0)
    done = 0
    at = start - 8 if prefixed else start  # where word `done` would stand; the first one may be the prefix
    if length >= 32:
        a = _P1 + _P2
        b = _P2
        c = _ZERO
        d = _ZERO - _P1
        while done + 32 <= length:
            word = _PATH_PREFIX if prefixed and done == 0 else load64(data, at)
            a = _rotate(a + word * _P2, 31) * _P1
            b = _rotate(b + load64(data, at + 8) * _P2, 31) * _P1
            c = _rotate(c + load64(data, at + 16) * _P2, 31) * _P1
            d = _rotate(d + load64(data, at + 24) * _P2, 31) * _P1
            done += 32
            at += 32
        h = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
        h = (h ^ (_rotate(a * _P2, 31) * _P1)) * _P1 + _P4
        h = (h ^ (_rotate(b * _P2, 31) * _P1)) * _P1 + _P4
        h = (h ^ (_rotate(c * _P2, 31) * _P1)) * _P1 + _P4
        h = (h ^ (_rotate(d * _P2, 31) * _P1)) * _P1 + _P4
    else:
        h = _P5
    h += np.uint64(length)
    while done + 8 <= length:
        word = _PATH_PREFIX if prefixed and done == 0 else load64(data, at)
        h ^= _rotate(word * _P2, 31) * _P1
        h = _rotate(h, 27) * _P1 + _P4
        done += 8
        at += 8
    if done + 4 <= length:
        word = (
            np.uint64(data[at])
            | (np.uint64(data[at + 1]) << np.uint64(8))
            | (np.uint64(data[at + 2]) << np.uint64(16))
            | (np.uint64(data[at + 3]) << np.uint64(24))
        )
        h ^= word * _P1
        h = _rotate(h, 23) * _P2 + _P3
        done += 4
        at += 4
    while done < length:
        h ^= np.uint64(data[at]) * _P5
        h = _rotate(h, 11) * _P1
        done += 1
        at += 1
    h ^= h >> np.uint64(33)
    h *= _P2
    h ^= h >> np.uint64(29)
    h *= _P3
    h ^= h >> np.uint64(32)
    return h


@kernel
def xxh64_slice(data: NDArray[np.uint8], start: int, end: int) -> np.uint64:
    """xxh64 (seed 0) of `data[start:end]`."""
    return _xxh64(data, start, end, False)


@kernel
def path_key_slice(data: NDArray[np.uint8], start: int, end: int) -> np.uint64:
    """PathKey of the canonical URL `data[start:end]`."""
    return _xxh64(data, start, end, True)


@kernel
def hash_slices(data: NDArray[np.uint8], offsets: NDArray[np.int32], out: NDArray[np.uint64]) -> None:
    """out[i] = xxh64 of `data[offsets[i]:offsets[i + 1]]`; offsets (n + 1,), out (n,)."""
    for i in range(out.size):
        out[i] = _xxh64(data, offsets[i], offsets[i + 1], False)


@kernel
def hash_path_keys(data: NDArray[np.uint8], offsets: NDArray[np.int32], out: NDArray[np.uint64]) -> None:
    """out[i] = PathKey of the canonical URL `data[offsets[i]:offsets[i + 1]]`; offsets (n + 1,), out (n,)."""
    for i in range(out.size):
        out[i] = _xxh64(data, offsets[i], offsets[i + 1], True)
