"""Solving a shard of a ribbon filter: its keys are cut into chunks; for each, seeds are tried, then more slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meguri_common.errors import FilterBuildError
from meguri_common.filters.kernels.ribbon import hash_keys, partition_hashes, solve_chunks
from meguri_common.filters.ribbon_sizing import SEGMENT, chunks_for, larger, segments_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SEEDS", "Shard", "distinct_keys", "hashes_of", "partitioned", "shard_of", "solve"]

SEEDS = 64
"""Seeds tried for a number of slots."""
_GROWTHS = 4
_MOST_SEGMENTS = (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class Shard:
    """A solved shard."""

    keys: int
    """Distinct keys."""
    segments: NDArray[np.uint16]
    """Of each chunk, shape (chunks,)."""
    seeds: NDArray[np.uint16]
    """Of each chunk."""
    words: NDArray[np.uint32]
    """Its segments, shape (sum of segments * bits,)."""


def hashes_of(host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What filters know keys by; columns of one length as from `key_columns`."""
    out = np.empty(host.size, np.uint64)
    hash_keys(host, path, out)
    return out


def distinct_keys(host: NDArray[np.uint64], path: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Both halves of each key once, in order; read-only, shapes (distinct,)."""
    order = np.lexsort((path, host))
    host, path = host[order], path[order]
    first = np.ones(host.size, np.bool_)
    first[1:] = (host[1:] != host[:-1]) | (path[1:] != path[:-1])
    host, path = host[first], path[first]
    host.flags.writeable = path.flags.writeable = False
    return host, path


def partitioned(hashes: NDArray[np.uint64], skip: int, parts: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes (n,) by what their bits below the top `skip` say.

    Part i, of `parts`, lies between places i and i + 1 of the second array, shape (parts + 1,).
    """
    if parts == 1:
        return hashes, np.array([0, hashes.size], np.int64)
    out = np.empty_like(hashes)
    ends = np.empty(parts + 1, np.int64)
    partition_hashes(hashes, skip, parts, ends, out)
    return out, ends


def shard_of(host: NDArray[np.uint64], path: NDArray[np.uint64], skip: int, bits: int) -> Shard:
    """The shard of n keys, repeats included; columns as from `key_columns`.

    Raises:
        FilterBuildError: no seed and number of slots gave a solution.
    """
    shard = solve(hashes_of(host, path), skip, bits, distinct=False)
    if shard is None:
        shard = solve(hashes_of(*distinct_keys(host, path)), skip, bits, distinct=True)
        assert shard is not None
    return shard


def solve(hashes: NDArray[np.uint64], skip: int, bits: int, *, distinct: bool) -> Shard | None:
    """Solve the chunks of a shard; None if hashes are repeated and the keys aren't known to be `distinct`.

    Repeated equations do no harm to the solution, but to its size. They follow from one another, so that nothing need
    be looked through unless equations do. The order of the hashes doesn't matter.

    Args:
        hashes: of the shard's keys, (n,).
        skip: top bits of a hash that have chosen the shard.
        bits: bits a slot.
        distinct: whether keys that have the same hash are others.

    Raises:
        FilterBuildError: no seed and number of slots gave a solution.
    """
    chunks = chunks_for(hashes.size, bits)
    hashes, ends = partitioned(hashes, skip, chunks)
    sizes = np.diff(ends)
    segments = [segments_for(size, hashes.size, bits) for size in sizes.tolist()]
    grown = [0] * chunks
    while True:
        if max(segments) > _MOST_SEGMENTS:
            raise _unsolved(sizes, segments, segments.index(max(segments)))
        taken = np.array(segments, np.uint16)
        seeds = np.empty(chunks, np.uint16)
        words = np.empty(sum(segments) * bits, np.uint32)
        failed, redundant = solve_chunks(hashes, ends, bits, SEEDS, taken, seeds, words)
        if not distinct and (redundant or failed >= 0) and _repeated(hashes):
            return None
        if failed < 0:
            return Shard(hashes.size, taken, seeds, words)
        if grown[failed] == _GROWTHS:
            raise _unsolved(sizes, segments, failed)
        segments[failed] = larger(segments[failed])
        grown[failed] += 1


def _repeated(hashes: NDArray[np.uint64]) -> bool:
    ordered = np.sort(hashes)
    return bool((ordered[1:] == ordered[:-1]).any())


def _unsolved(sizes: NDArray[np.int64], segments: list[int], chunk: int) -> FilterBuildError:
    return FilterBuildError(
        f"no ribbon filter came about of {int(sizes.sum()):,} keys: chunk {chunk} of {len(segments)} has "
        f"{sizes[chunk]:,} keys and no solution in {segments[chunk] * SEGMENT:,} slots, nor in fewer, with any of "
        f"{SEEDS} seeds each: another number of bits, or a Bloom filter, will do"
    )
