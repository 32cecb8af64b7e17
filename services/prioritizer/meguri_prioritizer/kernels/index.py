"""Open-addressing indexes from keys to row numbers of append-only columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import prefetch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "find_pairs",
    "find_singles",
    "locate_pairs",
    "locate_singles",
    "rebuild_pairs",
    "rebuild_singles",
    "spread",
]

_AHEAD = 12
"""Rows between asking for an index slot's cache line and using it."""


@inline_kernel
def spread(key: np.uint64) -> np.uint64:
    """A hash of a key."""
    # Keys are hashes already; both halves of a pair count, since one page's targets share few hosts.
    return key ^ (key >> np.uint64(29))


@kernel
def locate_pairs(
    slots: NDArray[np.int32],
    first: NDArray[np.uint64],
    second: NDArray[np.uint64],
    count: NDArray[np.int64],
    in_first: NDArray[np.uint64],
    in_second: NDArray[np.uint64],
    rows: NDArray[np.int64],
) -> None:
    """rows[i] = row of (in_first[i], in_second[i]); keys not there are appended as new rows.

    `slots` holds row + 1 or 0, and has a power of two of entries, more than the rows after this call. `count[0]` is
    the number of rows.
    """
    mask = np.uint64(slots.size - 1)
    total = in_first.size
    for i in range(total):
        if i + _AHEAD < total:
            prefetch(slots, np.int64((spread(in_second[i + _AHEAD]) ^ in_first[i + _AHEAD]) & mask))
        a = in_first[i]
        b = in_second[i]
        at = (spread(b) ^ a) & mask
        while True:
            row = slots[np.int64(at)] - 1
            if row < 0:
                row = count[0]
                first[row] = a
                second[row] = b
                count[0] = row + 1
                slots[np.int64(at)] = row + 1
                break
            if second[row] == b and first[row] == a:
                break
            at = (at + np.uint64(1)) & mask
        rows[i] = row


@kernel
def find_pairs(
    slots: NDArray[np.int32],
    first: NDArray[np.uint64],
    second: NDArray[np.uint64],
    in_first: NDArray[np.uint64],
    in_second: NDArray[np.uint64],
    rows: NDArray[np.int64],
) -> None:
    """rows[i] = row of (in_first[i], in_second[i]), or -1."""
    mask = np.uint64(slots.size - 1)
    for i in range(in_first.size):
        a = in_first[i]
        b = in_second[i]
        at = (spread(b) ^ a) & mask
        while True:
            row = slots[np.int64(at)] - 1
            if row < 0 or (second[row] == b and first[row] == a):
                break
            at = (at + np.uint64(1)) & mask
        rows[i] = row


@kernel
def rebuild_pairs(slots: NDArray[np.int32], first: NDArray[np.uint64], second: NDArray[np.uint64], count: int) -> None:
    """Fill an empty index with the first `count` rows."""
    mask = np.uint64(slots.size - 1)
    for row in range(count):
        at = (spread(second[row]) ^ first[row]) & mask
        while slots[np.int64(at)] != 0:
            at = (at + np.uint64(1)) & mask
        slots[np.int64(at)] = row + 1


@kernel
def locate_singles(
    slots: NDArray[np.int32],
    keys: NDArray[np.uint64],
    count: NDArray[np.int64],
    in_keys: NDArray[np.uint64],
    rows: NDArray[np.int64],
) -> None:
    """`locate_pairs` for keys of one word."""
    mask = np.uint64(slots.size - 1)
    for i in range(in_keys.size):
        a = in_keys[i]
        at = spread(a) & mask
        while True:
            row = slots[np.int64(at)] - 1
            if row < 0:
                row = count[0]
                keys[row] = a
                count[0] = row + 1
                slots[np.int64(at)] = row + 1
                break
            if keys[row] == a:
                break
            at = (at + np.uint64(1)) & mask
        rows[i] = row


@kernel
def find_singles(
    slots: NDArray[np.int32], keys: NDArray[np.uint64], in_keys: NDArray[np.uint64], rows: NDArray[np.int64]
) -> None:
    """rows[i] = row of in_keys[i], or -1."""
    mask = np.uint64(slots.size - 1)
    for i in range(in_keys.size):
        at = spread(in_keys[i]) & mask
        while True:
            row = slots[np.int64(at)] - 1
            if row < 0 or keys[row] == in_keys[i]:
                break
            at = (at + np.uint64(1)) & mask
        rows[i] = row


@kernel
def rebuild_singles(slots: NDArray[np.int32], keys: NDArray[np.uint64], count: int) -> None:
    """Fill an empty index with the first `count` rows."""
    mask = np.uint64(slots.size - 1)
    for row in range(count):
        at = spread(keys[row]) & mask
        while slots[np.int64(at)] != 0:
            at = (at + np.uint64(1)) & mask
        slots[np.int64(at)] = row + 1
