"""Filter and exact table in one pass over a batch of keys.

The table is open addressing with linear probing: slot i is words 2i (host key) and 2i + 1 (path key), both 0 if it is
empty; the one key that is (0, 0) is kept apart. A key's search begins at the top bits of its hash: slots are nearly in
the order of their hashes, in a table of any size, and so are the filter's blocks. A larger table, and a larger filter,
are therefore made from front to back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.kernels.bloom import AHEAD, block_of, hash_key, probe_block, set_block
from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import count_trailing_zeros, prefetch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["list_keys", "merge_keys", "split_table"]

_0 = np.uint64(0)
_1 = np.uint64(1)


@inline_kernel
def _home_shift(table: NDArray[np.uint64]) -> np.uint64:
    """By how much a hash is shifted to give the slot where the search begins."""
    shift: np.uint64 = np.uint64(65) - count_trailing_zeros(np.uint64(table.size))
    return shift


@kernel
def merge_keys(
    words: NDArray[np.uint64],
    k: int,
    table: NDArray[np.uint64],
    log: NDArray[np.uint64],
    room: int,
    counts: NDArray[np.int64],
    host: NDArray[np.uint64],
    path: NDArray[np.uint64],
    seen: NDArray[np.bool_],
    insert: bool,
) -> int:
    """seen[i] = whether key i was in before its turn; new ones are added if `insert`. Columns (n,).

    Stops in front of a new key that there is no room for; gives how many keys were dealt with.

    Args:
        words: bits of the filter's blocks, (8 * blocks,).
        k: probes of the filter.
        table: slots of two words, their number a power of two; never full.
        log: takes the new keys in order, host and path in turn.
        room: keys that filter, table and log have room for.
        counts: keys; those in the log; whether (0, 0) is one; decisions that went past the filter; and those of them
            that were about new keys. Shape (5,).
        host: host keys.
        path: path keys.
        seen: the verdicts.
        insert: whether new keys are added.
    """
    n = seen.size
    blocks = np.uint64(words.size // 8)
    mask = np.uint64(table.size // 2 - 1)
    shift = _home_shift(table)
    hashes = np.empty(n, np.uint64)
    firsts = np.empty(n, np.uint64)
    for i in range(n):  # apart from the look-ups, so that it is vectorised
        hashed = hash_key(host[i], path[i])
        hashes[i] = hashed
        firsts[i] = block_of(hashed, blocks)
    keys, logged, zero, probes, false_hits = counts
    done = n
    for i in range(n):
        if i + AHEAD < n:
            prefetch(words, np.int64(firsts[i + AHEAD]))
            prefetch(table, np.int64((hashes[i + AHEAD] >> shift) << _1))
        at = hashes[i] >> shift
        h = host[i]
        p = path[i]
        maybe = probe_block(words, firsts[i], hashes[i], k)
        found = False
        if h | p == _0:
            found = zero != 0
        elif maybe:
            while True:
                there = table[at << _1]
                if there == h and table[(at << _1) | _1] == p:
                    found = True
                    break
                if there == _0 and table[(at << _1) | _1] == _0:
                    break
                at = (at + _1) & mask
        seen[i] = found
        if found:
            probes += 1
            continue
        if insert:
            if keys >= room:
                done = i
                break
            if h | p == _0:
                zero = 1
            else:
                while table[at << _1] | table[(at << _1) | _1] != _0:
                    at = (at + _1) & mask
                table[at << _1] = h
                table[(at << _1) | _1] = p
            log[2 * logged] = h
            log[2 * logged + 1] = p
            keys += 1
            logged += 1
            if not maybe:
                set_block(words, firsts[i], hashes[i], k)
        if maybe:
            probes += 1
            false_hits += 1
    counts[0] = keys
    counts[1] = logged
    counts[2] = zero
    counts[3] = probes
    counts[4] = false_hits
    return done


@kernel
def split_table(table: NDArray[np.uint64], larger: NDArray[np.uint64]) -> None:
    """Copy a table into an empty one of twice the size."""
    mask = np.uint64(larger.size // 2 - 1)
    shift = _home_shift(larger)
    for i in range(table.size // 2):
        h = table[2 * i]
        p = table[2 * i + 1]
        if h | p != _0:
            at = hash_key(h, p) >> shift
            while larger[at << _1] | larger[(at << _1) | _1] != _0:
                at = (at + _1) & mask
            larger[at << _1] = h
            larger[(at << _1) | _1] = p


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
