"""Sharded ribbon filters: of keys in memory, of keys on disk, and of keys that stream by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.errors import FilterBuildError
from meguri_common.filters.layer import key_columns
from meguri_common.filters.ribbon import BuiltRibbon
from meguri_common.filters.ribbon_sizing import check_shards, clamped_bits, ribbon_shard_count
from meguri_common.filters.ribbon_solving import Shard, distinct_keys, hashes_of, partitioned, shard_of, solve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Keys = tuple[NDArray[np.uint64], NDArray[np.uint64]]

__all__ = [
    "build_sharded_ribbon",
    "build_sharded_ribbon_from_disk",
    "freeze_keys",
    "ribbon_shard_index",
    "ribbon_shard_index_batch",
    "solve_from_disk",
]


def ribbon_shard_index(host: int, path: int, count: int) -> int:
    """The shard, of `count`, that a key belongs to."""
    return int(ribbon_shard_index_batch(np.array([host], np.uint64), np.array([path], np.uint64), count)[0])


def ribbon_shard_index_batch(host: NDArray[np.uint64], path: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """The shard, of `count`, that each key belongs to; shapes (n,).

    It is the top log2(count) bits of the hash that filters know the key by; what places the key within the shard is
    that hash mixed again, under the shard's seed.

    Raises:
        ValueError: `count` isn't a power of two from 1 to 65,536.
    """
    check_shards(count)
    return _indexes(hashes_of(*key_columns(host, path)), count)


def freeze_keys(host: NDArray[np.uint64], path: NDArray[np.uint64], bits: int = 7) -> bytes:
    """The blob of n keys, in as many shards as `ribbon_shard_count` says; shapes (n,). Repeats count once.

    Raises:
        FilterBuildError: no seed and number of slots gave a solution.
    """
    bits = clamped_bits(bits)
    host, path = key_columns(host, path)
    shards = _solve_all(hashes_of(host, path), bits, distinct=False)
    if shards is None:
        shards = _solve_all(hashes_of(*distinct_keys(host, path)), bits, distinct=True)
        assert shards is not None
    return BuiltRibbon(bits, shards).marshal()


def build_sharded_ribbon(shard_keys: Sequence[Keys], bits: int = 7) -> bytes:
    """The blob of keys that are routed already: host and path columns of each shard. Repeats count once.

    One shard gives a blob of kind 1, more give one of kind 2.

    Raises:
        ValueError: their number isn't a power of two up to 65,536, or a key is in a shard that isn't its own.
        FilterBuildError: no seed and number of slots gave a solution.
    """
    check_shards(len(shard_keys))
    bits = clamped_bits(bits)
    shards = [_routed(keys, shard, len(shard_keys), bits)[1] for shard, keys in enumerate(shard_keys)]
    return BuiltRibbon(bits, shards).marshal()


def build_sharded_ribbon_from_disk(count: int, n: int, load: Callable[[int], Keys], bits: int = 7) -> bytes:
    """The blob of keys that are loaded shard by shard; see `solve_from_disk`."""
    return solve_from_disk(count, n, load, bits).marshal()


def solve_from_disk(count: int, n: int, load: Callable[[int], Keys], bits: int = 7) -> BuiltRibbon:
    """Solve shard after shard; no more than one shard's keys are kept. Repeats count once.

    Args:
        count: number of shards.
        n: keys in all of them, repeats included.
        load: gives host and path columns of a shard; called once for each, in order.
        bits: bits a slot, brought to within 1 to 16.

    Raises:
        ValueError: `count` isn't a power of two up to 65,536, or a key is in a shard that isn't its own.
        FilterBuildError: `n` isn't the number of keys that were loaded, or a shard has no solution.
    """
    check_shards(count)
    bits = clamped_bits(bits)
    loaded = 0
    shards = []
    for shard in range(count):
        size, solved = _routed(load(shard), shard, count, bits)
        loaded += size
        shards.append(solved)
    if loaded != n:
        msg = f"a ribbon filter of {n:,} keys was asked for, but {loaded:,} were loaded from {count:,} shards"
        raise FilterBuildError(msg)
    return BuiltRibbon(bits, shards)


def _solve_all(hashes: NDArray[np.uint64], bits: int, *, distinct: bool) -> list[Shard] | None:
    count = ribbon_shard_count(hashes.size)
    skip = count.bit_length() - 1
    hashes, ends = partitioned(hashes, 0, count)
    shards = []
    for shard in range(count):
        solved = solve(hashes[ends[shard] : ends[shard + 1]], skip, bits, distinct=distinct)
        if solved is None:
            return None
        shards.append(solved)
    return shards


def _routed(keys: Keys, shard: int, count: int, bits: int) -> tuple[int, Shard]:
    """Number of a shard's keys, and the shard; a key in the wrong shard would be missed by every reader."""
    host, path = key_columns(*keys)
    elsewhere = np.flatnonzero(_indexes(hashes_of(host, path), count) != shard)
    if elsewhere.size:
        row = int(elsewhere[0])
        msg = f"key {row} of shard {shard}, ({host[row]:#x}, {path[row]:#x}), belongs to another of the {count} shards"
        raise ValueError(msg)
    return host.size, shard_of(host, path, count.bit_length() - 1, bits)


def _indexes(hashes: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    return ((hashes >> np.uint64(1)) >> np.uint64(64 - count.bit_length())).astype(np.int64)
