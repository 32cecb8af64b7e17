"""Exact table and filter in one pass over a batch of keys.

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

__all__ = [
    "COUNTS",
    "DEFER",
    "FALSE_HITS",
    "INSERT",
    "KEYS",
    "LOGGED",
    "OPEN",
    "PROBES",
    "TRUST",
    "TRUSTED",
    "WAYS",
    "ZERO",
    "home_shift",
    "merge_keys",
    "merge_resident",
    "settle_keys",
]

INSERT, TRUST, DEFER = 1, 2, 4
"""Modes of `merge_keys`: add new keys; take the filter's "maybe" for "seen"; leave what isn't resident open."""

KEYS, LOGGED, ZERO, PROBES, FALSE_HITS, TRUSTED, OPEN, COUNTS = range(8)
"""Places in `counts`: keys in the table; keys in the log; whether (0, 0) is one of the table's; decisions that went
past the filter; those of them that were about new keys; those that took the filter's word; keys left open by the last
call. The last one is the number of places."""

WAYS = 4
"""Keys in a line of the cache."""

_AT_ONCE = 256
"""Keys looked up before the new ones among them go to the filter: by then its blocks have come."""
_LINE = 8
"""Words of a line of the processor's cache. A search for a free slot goes on into the next one more often than not."""

_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)


@inline_kernel
def home_shift(table: NDArray[np.uint64]) -> np.uint64:
    """By how much a hash is shifted to give the slot where the search begins."""
    shift: np.uint64 = np.uint64(65) - count_trailing_zeros(np.uint64(table.size))
    return shift


@inline_kernel
def _cached(cache: NDArray[np.uint64], line: np.uint64, h: np.uint64, p: np.uint64) -> bool:
    """Whether the cache's line has the key; one that it has goes one place up, so that the often asked for stay."""
    found = False
    for way in range(WAYS):
        here = line + np.uint64(2 * way)
        if cache[here | _1] == p and cache[here] == h:
            found = h | p != _0
            if way > 0:
                cache[here] = cache[here - _2]
                cache[here | _1] = cache[here - _1]
                cache[here - _2] = h
                cache[here - _1] = p
            break
    return found


@kernel
def merge_resident(
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
    """What `merge_keys` does where the table has all keys: it alone decides, and the filter is only told.

    A key that is in costs one line of memory and a new one two, where asking the filter first costs all of them two.
    The counts come out the same: a key that is in is one that the filter knows, and a new one is a false hit if it
    sets no bit.

    Args:
        words: bits of the filter's blocks, (8 * blocks,).
        k: probes of the filter.
        table: slots of two words, their number a power of two; never full.
        log: takes the new keys in order, host and path in turn.
        room: keys that filter, table and log have room for.
        counts: by the names above, (COUNTS,).
        host: host keys.
        path: path keys.
        seen: the verdicts.
        insert: add new keys.
    """
    n = seen.size
    blocks = np.uint64(words.size // 8)
    mask = np.uint64(table.size // 2 - 1)
    shift = home_shift(table)
    hashes = np.empty(n, np.uint64)
    for i in range(n):  # apart from the look-ups, so that it is vectorised
        hashes[i] = hash_key(host[i], path[i])
    new = np.empty(_AT_ONCE, np.uint64)
    keys = counts[KEYS]
    logged = counts[LOGGED]
    probes = counts[PROBES]
    false_hits = counts[FALSE_HITS]
    done = np.int64(n)
    for start in range(0, n, _AT_ONCE):
        added = np.int64(0)
        for i in range(start, min(start + _AT_ONCE, n)):
            if i + AHEAD < n:
                home = np.int64((hashes[np.uint64(i + AHEAD)] >> shift) << _1)
                prefetch(table, home)
                prefetch(table, home + _LINE)
            row = np.uint64(i)
            h = host[row]
            p = path[row]
            at = hashes[row] >> shift
            found = False
            if h | p == _0:
                found = counts[ZERO] != 0
            else:
                while True:
                    beside = table[(at << _1) | _1]
                    if beside == p and table[at << _1] == h:
                        found = True
                        break
                    if beside == _0 and table[at << _1] == _0:
                        break
                    at = (at + _1) & mask
            seen[row] = found
            if found:
                probes += 1
            elif insert:
                if keys >= room:
                    done = np.int64(i)
                    break
                if h | p == _0:
                    counts[ZERO] = 1
                else:
                    table[at << _1] = h
                    table[(at << _1) | _1] = p
                log[2 * logged] = h
                log[2 * logged + 1] = p
                keys += 1
                logged += 1
                prefetch(words, np.int64(block_of(hashes[row], blocks)))
                new[added] = hashes[row]
                added += 1
        for i in range(added):
            known = set_block(words, block_of(new[i], blocks), new[i], k) == _0
            probes += np.int64(known)
            false_hits += np.int64(known)
        if done < n:
            break
    counts[KEYS] = keys
    counts[LOGGED] = logged
    counts[PROBES] = probes
    counts[FALSE_HITS] = false_hits
    counts[OPEN] = 0
    return int(done)


@kernel
def merge_keys(
    words: NDArray[np.uint64],
    k: int,
    table: NDArray[np.uint64],
    log: NDArray[np.uint64],
    room: int,
    counts: NDArray[np.int64],
    cache: NDArray[np.uint64],
    open_rows: NDArray[np.int64],
    host: NDArray[np.uint64],
    path: NDArray[np.uint64],
    seen: NDArray[np.bool_],
    mode: int,
) -> int:
    """seen[i] = whether key i was in before its turn; new ones are added if `mode` says so. Columns (n,).

    The filter is asked first: keys are in runs too, or its word is trusted. Stops in front of a new key that there is
    no room for; gives how many keys were dealt with. With DEFER, a key that the filter knows and neither cache nor
    table has is left open, for the runs on disk to decide.

    Args:
        words: bits of the filter's blocks, (8 * blocks,).
        k: probes of the filter.
        table: slots of two words, their number a power of two; never full.
        log: takes the new keys in order, host and path in turn.
        room: keys that filter, table and log have room for.
        counts: by the names below, (COUNTS,).
        cache: lines of `WAYS` keys that are in a run, (8 * lines,); may be empty.
        open_rows: takes the numbers of keys left open, (n,); their count is counts[OPEN].
        host: host keys.
        path: path keys.
        seen: the verdicts.
        mode: sum of INSERT, TRUST, DEFER.
    """
    n = seen.size
    insert = mode & INSERT != 0
    trust = mode & TRUST != 0
    defer = mode & DEFER != 0
    blocks = np.uint64(words.size // 8)
    lines = np.uint64(cache.size // 8)
    mask = np.uint64(table.size // 2 - 1)
    shift = home_shift(table)
    hashes = np.empty(n, np.uint64)
    firsts = np.empty(n, np.uint64)
    for i in range(n):  # apart from the look-ups, so that it is vectorised
        hashed = hash_key(host[i], path[i])
        hashes[i] = hashed
        firsts[i] = block_of(hashed, blocks)
    keys = counts[KEYS]
    logged = counts[LOGGED]
    zero = counts[ZERO]
    probes = counts[PROBES]
    false_hits = counts[FALSE_HITS]
    trusted = counts[TRUSTED]
    count = np.int64(n)
    thinned = lines > _0 and not trust
    todo = np.empty(n if thinned else 0, np.uint64)
    if thinned:  # what the cache has needn't ask the filter
        count = np.int64(0)
        for i in range(n):
            if i + AHEAD < n:
                prefetch(cache, np.int64(block_of(hashes[i + AHEAD], lines)))
            seen[i] = _cached(cache, block_of(hashes[i], lines), host[i], path[i])
            todo[count] = np.uint64(i)
            count += np.int64(not seen[i])
        probes += n - count
    left_open = 0
    done = np.int64(n)
    for t in range(count):
        row = todo[t] if thinned else np.uint64(t)  # unsigned, so that no index is checked for being negative
        if t + AHEAD < count:
            ahead = todo[t + AHEAD] if thinned else np.uint64(t + AHEAD)
            prefetch(words, np.int64(firsts[ahead]))
            home = np.int64((hashes[ahead] >> shift) << _1)
            prefetch(table, home)
            prefetch(table, home + _LINE)
        at = hashes[row] >> shift
        h = host[row]
        p = path[row]
        maybe = probe_block(words, firsts[row], hashes[row], k)
        if maybe and trust:
            seen[row] = True
            trusted += 1
            continue
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
        seen[row] = found
        if found:
            probes += 1
            continue
        if maybe and defer:
            open_rows[left_open] = np.int64(row)
            left_open += 1
            probes += 1
            continue
        if insert:
            if keys >= room:
                done = np.int64(row)
                # Those behind it that the cache has are asked for again.
                for later in range(done, n):
                    probes -= np.int64(seen[later])
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
                set_block(words, firsts[row], hashes[row], k)
        if maybe:
            probes += 1
            false_hits += 1
    counts[KEYS] = keys
    counts[LOGGED] = logged
    counts[ZERO] = zero
    counts[PROBES] = probes
    counts[FALSE_HITS] = false_hits
    counts[TRUSTED] = trusted
    counts[OPEN] = left_open
    return int(done)


@kernel
def settle_keys(
    table: NDArray[np.uint64],
    log: NDArray[np.uint64],
    counts: NDArray[np.int64],
    host: NDArray[np.uint64],
    path: NDArray[np.uint64],
    rows: NDArray[np.int64],
    seen: NDArray[np.bool_],
    insert: bool,
) -> None:
    """Decide keys that no run has: the first of equal ones is new, and added if `insert`; rows (m,) of the columns.

    Table and log have room for all of them, and the filter knows them already.
    """
    mask = np.uint64(table.size // 2 - 1)
    shift = home_shift(table)
    keys = counts[KEYS]
    logged = counts[LOGGED]
    false_hits = counts[FALSE_HITS]
    for row in rows:
        h = host[row]
        p = path[row]
        found = False
        if h | p == _0:
            found = counts[ZERO] != 0
            if insert:
                counts[ZERO] = 1
        else:
            at = hash_key(h, p) >> shift
            while table[at << _1] | table[(at << _1) | _1] != _0:
                if table[at << _1] == h and table[(at << _1) | _1] == p:
                    found = True
                    break
                at = (at + _1) & mask
            if insert and not found:
                table[at << _1] = h
                table[(at << _1) | _1] = p
        seen[row] = found
        if not found:
            false_hits += 1
            if insert:
                log[2 * logged] = h
                log[2 * logged + 1] = p
                keys += 1
                logged += 1
    counts[KEYS] = keys
    counts[LOGGED] = logged
    counts[FALSE_HITS] = false_hits
