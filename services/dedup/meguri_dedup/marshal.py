"""A seen-set as a filter for others: its own Bloom filter, or its exact keys frozen into a ribbon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.bloom import Filter
from meguri_common.filters.layer import Layer
from meguri_common.filters.ribbon_sizing import ribbon_shard_count
from meguri_common.filters.sharded import build_sharded_ribbon_from_disk
from meguri_dedup.rows import keys_of_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["bloom_blob", "ribbon_blob"]

_COUNTED = 1 << 16


def bloom_blob(layer: Layer, keys: int, fp_rate: float) -> bytes:
    """A blob of kind 0 of a filter in one layer, for readers; what they add goes to layers of their own."""
    words = layer.words
    bits_set = sum(
        int(np.bitwise_count(words[at : at + _COUNTED]).sum(dtype=np.int64)) for at in range(0, words.size, _COUNTED)
    )
    counted = Layer(words, layer.probes, layer.capacity, keys, bits_set)
    return Filter(layer.capacity, fp_rate, layers=[counted], keys=keys).marshal()


def ribbon_blob(parts: Sequence[NDArray[np.uint64]], bits: int) -> bytes:
    """A ribbon filter of the keys of runs, (2m,) each: of kind 1 where one shard does, else of kind 2.

    Shards are stretches of the hash that orders the rows, so that each is a slice of every part.

    Raises:
        FilterBuildError: a shard has no solution.
    """
    keys = sum(part.size // 2 for part in parts)
    count = ribbon_shard_count(keys)

    def load(shard: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        found = [
            keys_of_rows(part[2 * _first(part, shard, count) : 2 * _first(part, shard + 1, count)]) for part in parts
        ]
        pairs = np.concatenate([*found, np.zeros((0, 2), np.uint64)])
        return pairs[:, 0].copy(), pairs[:, 1].copy()

    return build_sharded_ribbon_from_disk(count, keys, load, bits)


def _first(part: NDArray[np.uint64], shard: int, count: int) -> int:
    """First row of a shard, or of those behind it."""
    rows = part.size // 2
    bound = shard * ((1 << 64) // count)
    low, high = 0, rows
    while low < high:
        middle = (low + high) // 2
        if int(part[2 * middle]) < bound:
            low = middle + 1
        else:
            high = middle
    return low
