"""Going through an exact table from front to back, for a larger table, a larger filter, or a list of its keys.

Slots are nearly in the order of their keys' hashes, and so are the slots of a larger table and the blocks of a filter:
both are written from front to back, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.kernels.bloom import block_of, hash_key, set_block
from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_dedup.kernels.exact import ZERO, home_shift

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["fill_blocks", "list_keys", "split_table"]

_AT_ONCE = 256
"""Slots whose keys are copied and hashed before they are used: they fit the innermost cache."""

_0 = np.uint64(0)
_1 = np.uint64(1)


@inline_kernel
def _take_some(
    table: NDArray[np.uint64],
    start: int,
    host: NDArray[np.uint64],
    path: NDArray[np.uint64],
    hashes: NDArray[np.uint64],
) -> int:
    """Copy the keys of `_AT_ONCE` slots, from `start` on, and their hashes; gives how many. Columns (_AT_ONCE,)."""
    count = 0
    for slot in range(start, min(start + _AT_ONCE, table.size // 2)):
        h = table[np.uint64(2 * slot)]
        p = table[np.uint64(2 * slot + 1)]
        host[np.uint64(count)] = h  # an empty slot's is overwritten, which costs less than a branch
        path[np.uint64(count)] = p
        count += int(h | p != _0)
    for i in range(count):  # apart from the copying, so that it is vectorised
        hashes[i] = hash_key(host[i], path[i])
    return count


@kernel
def split_table(table: NDArray[np.uint64], larger: NDArray[np.uint64]) -> None:
    """Copy a table into an empty one of twice the size."""
    mask = np.uint64(larger.size // 2 - 1)
    shift = home_shift(larger)
    host = np.empty(_AT_ONCE, np.uint64)
    path = np.empty(_AT_ONCE, np.uint64)
    hashes = np.empty(_AT_ONCE, np.uint64)
    for start in range(0, table.size // 2, _AT_ONCE):
        for i in range(_take_some(table, start, host, path, hashes)):
            row = np.uint64(i)
            at = hashes[row] >> shift
            while larger[at << _1] | larger[(at << _1) | _1] != _0:
                at = (at + _1) & mask
            larger[at << _1] = host[row]
            larger[(at << _1) | _1] = path[row]


@kernel
def fill_blocks(words: NDArray[np.uint64], k: int, table: NDArray[np.uint64], counts: NDArray[np.int64]) -> None:
    """Add a table's keys to a filter that is being made, (8 * blocks,); the blocks come one after another."""
    blocks = np.uint64(words.size // 8)
    host = np.empty(_AT_ONCE, np.uint64)
    path = np.empty(_AT_ONCE, np.uint64)
    hashes = np.empty(_AT_ONCE, np.uint64)
    for start in range(0, table.size // 2, _AT_ONCE):
        for i in range(_take_some(table, start, host, path, hashes)):
            hashed = hashes[np.uint64(i)]
            set_block(words, block_of(hashed, blocks), hashed, k)
    if counts[ZERO] != 0:
        hashed = hash_key(_0, _0)
        set_block(words, block_of(hashed, blocks), hashed, k)


@kernel
def list_keys(table: NDArray[np.uint64], start: int, pairs: NDArray[np.uint64]) -> tuple[int, int]:
    """Copy keys, from slot `start` on, to pairs (m, 2) until it is full; gives how many, and the next slot."""
    count = 0
    slot = start
    while slot < table.size // 2 and count < len(pairs):
        h = table[2 * slot]
        p = table[2 * slot + 1]
        pairs[count, 0] = h
        pairs[count, 1] = p
        count += int(h | p != _0)
        slot += 1
    return count, slot
