"""Runs: keys in the order of their hashes, as rows of two words, hash and host key.

The hash is that of the filters (`meguri_common.filters.kernels.bloom.hash_key`): for one host it is a bijection of the
path key, so that hash and host key say as much as host and path key, and hashes are uniform whatever the keys are. A
run's directory holds the first row of each bucket, that is of each value of the hash's top bits; within a bucket the
hash itself says about where its row is (interpolation search: Y. Perl, A. Itai, H. Avni, 1978).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.kernels.bloom import AHEAD, block_of, hash_key, set_block
from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import prefetch
from meguri_dedup.kernels.exact import WAYS, ZERO
from meguri_dedup.kernels.pointers import halves_at, words_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "check_rows",
    "count_rows",
    "fill_rows",
    "lower_bound",
    "merge_rows",
    "search_runs",
    "table_rows",
]

_0 = np.uint64(0)
_1 = np.uint64(1)
_2 = np.uint64(2)
_32 = np.uint64(32)
_64 = np.uint64(64)


@inline_kernel
def _sort_open_rows(host: NDArray[np.uint64], path: NDArray[np.uint64], rows: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Put row numbers (m,) in the order of their keys' hashes, equal ones as they were; gives the hashes (m,).

    One pass routes them to buckets of about two, the next moves each to its place.
    """
    m = rows.size
    bits = _1
    while (_2 << bits) < np.uint64(m):
        bits += _1
    shift = _64 - bits
    unsorted = np.empty(m, np.uint64)
    starts = np.zeros(np.int64(_1 << bits) + 1, np.int64)
    for i in range(m):
        hashed = hash_key(host[rows[i]], path[rows[i]])
        unsorted[i] = hashed
        starts[np.int64(hashed >> shift) + 1] += 1
    for b in range(starts.size - 1):
        starts[b + 1] += starts[b]
    before = rows.copy()
    hashes = np.empty(m, np.uint64)
    for i in range(m):
        bucket = np.int64(unsorted[i] >> shift)
        at = starts[bucket]
        starts[bucket] += 1
        hashes[at] = unsorted[i]
        rows[at] = before[i]
    for i in range(1, m):
        hashed = hashes[i]
        row = rows[i]
        at = i
        while at > 0 and hashes[at - 1] > hashed:
            hashes[at] = hashes[at - 1]
            rows[at] = rows[at - 1]
            at -= 1
        hashes[at] = hashed
        rows[at] = row
    return hashes


@inline_kernel
def _guess(directory: NDArray[np.uint32], bits: np.uint64, hashed: np.uint64) -> np.uint64:
    """About where the hash's row is, within its bucket or right behind it."""
    bucket = hashed >> (_64 - bits)
    low = np.uint64(directory[bucket])
    width = np.uint64(directory[bucket + _1]) - low
    guess: np.uint64 = low + ((((hashed << bits) >> _32) * width) >> _32)
    return guess


@inline_kernel
def _step(data: NDArray[np.uint64], hashed: np.uint64, guess: np.uint64, rows: np.uint64) -> np.uint64:
    """First row whose hash isn't smaller, from a guess near it. Unsigned: no index is checked for being negative."""
    at = guess
    while at < rows and data[at << _1] < hashed:
        at += _1
    while at > _0 and data[(at << _1) - _2] >= hashed:
        at -= _1
    return at


@kernel
def lower_bound(data: NDArray[np.uint64], directory: NDArray[np.uint32], bits: int, hashed: np.uint64) -> int:
    """First row of a run whose hash isn't smaller."""
    rows = np.uint64(data.size // 2)
    return int(_step(data, hashed, _guess(directory, np.uint64(bits), hashed), rows))


@kernel
def search_runs(
    book: NDArray[np.uint64],
    cache: NDArray[np.uint64],
    host: NDArray[np.uint64],
    path: NDArray[np.uint64],
    rows: NDArray[np.int64],
    seen: NDArray[np.bool_],
) -> int:
    """Look a batch's open keys up in every run, front to back: seen[row] = True for those found; the cache takes them.

    Those that no run has stay at the front of `rows`, equal ones in their order; gives how many.

    Args:
        book: of each run the addresses of rows and directory, the bits of a bucket, and the number of rows, (runs, 4).
        cache: as `kernels.exact.merge_keys` has it.
        host: host keys, (n,).
        path: path keys, (n,).
        rows: numbers of the open keys in the columns, (m,).
        seen: the verdicts, (n,).
    """
    left = rows.size
    lines = np.uint64(cache.size // 8)
    hashes = _sort_open_rows(host, path, rows)
    guesses = np.empty(left, np.uint64)
    for run in range(len(book)):
        bits = book[run, 2]
        last = book[run, 3]
        data = words_at(book[run, 0], np.int64(last << _1))
        directory = halves_at(book[run, 1], np.int64((_1 << bits) + _1))
        m = left
        left = 0
        for i in range(m):
            guesses[i] = _guess(directory, bits, hashes[i])
        for i in range(m):
            if i + AHEAD < m:  # the row is rarely more than a line from where it is looked for
                ahead = np.int64(guesses[i + AHEAD] << _1)
                prefetch(data, ahead)
                prefetch(data, max(ahead - 8, 0))
                prefetch(data, min(ahead + 8, data.size - 1))
            hashed = hashes[i]
            row = rows[i]
            at = _step(data, hashed, guesses[i], last)
            found = False
            while at < last and data[at << _1] == hashed and not found:
                found = data[(at << _1) | _1] == host[row]
                at += _1
            if not found:
                hashes[left] = hashed
                rows[left] = row
                left += 1
                continue
            seen[row] = True
            if lines > _0 and host[row] | path[row] != _0:
                here = block_of(hashed, lines)
                for _ in range(WAYS - 1):  # an empty place, or else the last one
                    if cache[here] | cache[here | _1] == _0:
                        break
                    here += _2
                cache[here] = host[row]
                cache[here | _1] = path[row]
    return left


@kernel
def table_rows(table: NDArray[np.uint64], counts: NDArray[np.int64]) -> int:
    """Make the keys of a table (see `kernels.exact`) rows of a run, in its own memory, from the front; gives how many.

    They lie nearly in the order of their hashes but for those that were pushed beyond the table's end to its front.
    """
    slots = table.size // 2
    bits = _0
    while (1 << np.int64(bits)) < slots:
        bits += _1
    shift = _64 - bits
    wrapped = np.empty(64, np.uint64)
    beyond = 0
    count = 0
    for slot in range(slots):
        h = table[2 * slot]
        p = table[2 * slot + 1]
        if h | p == _0:
            continue
        hashed = hash_key(h, p)
        if np.int64(hashed >> shift) > slot:
            if beyond + 2 > wrapped.size:
                longer = np.empty(2 * wrapped.size, np.uint64)
                longer[: wrapped.size] = wrapped
                wrapped = longer
            wrapped[beyond] = hashed
            wrapped[beyond + 1] = h
            beyond += 2
            continue
        table[2 * count] = hashed
        table[2 * count + 1] = h
        count += 1
    for i in range(0, beyond, 2):
        table[2 * count] = wrapped[i]
        table[2 * count + 1] = wrapped[i + 1]
        count += 1
    if counts[ZERO]:
        table[2 * count] = hash_key(_0, _0)
        table[2 * count + 1] = _0
        count += 1
    for i in range(1, count):
        hashed = table[2 * i]
        h = table[2 * i + 1]
        at = i
        while at > 0 and table[2 * at - 2] > hashed:
            table[2 * at] = table[2 * at - 2]
            table[2 * at + 1] = table[2 * at - 1]
            at -= 1
        table[2 * at] = hashed
        table[2 * at + 1] = h
    return count


@kernel
def merge_rows(left: NDArray[np.uint64], right: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    """Two pieces of runs into one: two pointers, one pass. Sizes (2a,), (2b,), (2a + 2b,)."""
    i = 0
    j = 0
    at = 0
    while i < left.size and j < right.size:
        one = left[i]
        other = right[j]
        mine = one <= other
        out[at] = one if mine else other
        out[at + 1] = left[i + 1] if mine else right[j + 1]
        i += 2 if mine else 0
        j += 0 if mine else 2
        at += 2
    if i < left.size:
        out[at:] = left[i:]
    else:
        out[at:] = right[j:]


@kernel
def count_rows(data: NDArray[np.uint64], bits: int, counts: NDArray[np.uint32]) -> None:
    """counts[b + 1] += rows of bucket b: summed up, they are a directory."""
    shift = _64 - np.uint64(bits)
    for i in range(0, data.size, 2):
        counts[np.int64(data[i] >> shift) + 1] += np.uint32(1)


@kernel
def fill_rows(words: NDArray[np.uint64], k: int, data: NDArray[np.uint64]) -> None:
    """Add rows to a filter that is being made; in the order of their hashes they walk it from front to back."""
    blocks = np.uint64(words.size // 8)
    for i in range(0, data.size, 2):
        set_block(words, block_of(data[i], blocks), data[i], k)


@kernel
def check_rows(data: NDArray[np.uint64], before: np.uint64, first: bool) -> int:
    """Number of the first row of a piece that isn't behind the row before it, or has its key; -1 if all are.

    before: hash of the row before the piece, where it isn't the `first` one of its run. Rows of one hash are told
    apart by their hosts.
    """
    last = before
    for i in range(0, data.size, 2):
        hashed = data[i]
        if (i > 0 or not first) and hashed < last:
            return i // 2
        at = i - 2
        while at >= 0 and data[at] == hashed:
            if data[at + 1] == data[i + 1]:
                return i // 2
            at -= 2
        last = hashed
    return -1
