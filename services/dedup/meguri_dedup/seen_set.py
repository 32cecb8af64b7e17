"""The seen-set of a partition: says of every key, exactly, whether it was there before.

A blocked Bloom filter answers "certainly new" by itself; an exact table settles the rest. Both are in memory and grow
with the keys. The filter grows by being made anew from the table, so that it keeps its rate in one layer, at no more
than 1.4 times the bits of a Bloom filter made for just these keys from a million of them on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.layer import Layer, key_columns
from meguri_common.filters.sizing import check_size, shape_for
from meguri_dedup.exact import ExactTable
from meguri_dedup.kernels.exact import merge_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SeenSet"]

_DOUBLING_ENDS = 1_000_000
"""Keys up to which the filter doubles; from there on it grows by less, to stay within its bits a key."""
_BITS_LIMIT = 1.38
"""Bits of the filter, just after it grew, over those of an unblocked Bloom filter for the keys that are in."""
_LEAST_GROWTH = 1.1


class SeenSet:
    """Exact set of 128-bit keys; a key that was added is never reported absent."""

    def __init__(self, capacity: int = 65_536, fp_rate: float = 0.01) -> None:
        """Make an empty set; `capacity` is the filter's first size, not a limit.

        Raises:
            ValueError: capacity below 1, or a rate outside (0, 1).
        """
        check_size(capacity, fp_rate)
        self.fp_rate = fp_rate
        self._filter = Layer.sized(capacity, fp_rate)
        self._exact = ExactTable()
        self._decisions = 0

    def __len__(self) -> int:
        """Distinct keys."""
        return len(self._exact)

    @property
    def bits_per_url(self) -> float:
        """Bits of the filter per key; 0 for an empty set."""
        return self._filter.bits / len(self) if len(self) else 0.0

    def merge(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Test and add n keys, one after another; True = seen before. Shapes (n,).

        The first occurrence of a key that is repeated in the batch decides; the others are seen.
        """
        host, path = key_columns(host, path)
        seen = np.zeros(host.size, np.bool_)
        start = 0
        while start < host.size:
            start += self._pass(host[start:], path[start:], seen[start:], self._exact.counts, insert=True)
            if start < host.size:
                self._make_room()
        self._decisions += host.size
        return seen

    def insert_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> None:
        """Add n keys; repeats do no harm. Shapes (n,)."""
        self.merge(host, path)

    def check_and_insert(self, host: int, path: int) -> bool:
        """Test and add one key; True = seen before."""
        return bool(self.merge(np.array([host], np.uint64), np.array([path], np.uint64))[0])

    def contains_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Of each key whether it is in, exactly; adds nothing. Shapes (n,)."""
        host, path = key_columns(host, path)
        seen = np.zeros(host.size, np.bool_)
        self._pass(host, path, seen, self._exact.counts.copy(), insert=False)
        return seen

    def contains(self, host: int, path: int) -> bool:
        """Whether the key is in, exactly."""
        return bool(self.contains_batch(np.array([host], np.uint64), np.array([path], np.uint64))[0])

    def maybe_contains(self, host: int, path: int) -> bool:
        """What the filter alone says."""
        found = np.zeros(1, np.bool_)
        self._filter.probe(*key_columns(np.array([host], np.uint64), np.array([path], np.uint64)), found)
        return bool(found[0])

    def keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Host and path keys of all, in no order that means anything; shapes (len,)."""
        return _columns(np.concatenate(list(self._exact.pairs())))

    @property
    def unsaved(self) -> int:
        """Number of keys added since `mark_saved`."""
        return self._exact.logged

    def unsaved_keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Copies of the host and path keys added since `mark_saved`, in order; shapes (unsaved,)."""
        return _columns(self._exact.log[: 2 * self._exact.logged].reshape(-1, 2))

    def mark_saved(self, count: int) -> None:
        """The first `count` of the unsaved keys are kept elsewhere now."""
        self._exact.forget(count)

    def stats(self) -> dict[str, float]:
        """Figures of this object since it was made.

        keys, table_bytes; filter_bits, bits_per_url; target_fpr and measured_fpr (of the decisions on new keys, the
        share that the filter didn't settle); decisions, hits (seen), misses (new); base_probes (decisions that went
        past the filter) and base_share.
        """
        keys, _, _, probes, false_hits = self._exact.counts.tolist()
        hits = probes - false_hits
        misses = self._decisions - hits
        return {
            "keys": keys,
            "table_bytes": self._exact.nbytes,
            "filter_bits": self._filter.bits,
            "bits_per_url": self.bits_per_url,
            "target_fpr": self.fp_rate,
            "measured_fpr": false_hits / misses if misses else 0.0,
            "decisions": self._decisions,
            "hits": hits,
            "misses": misses,
            "base_probes": probes,
            "base_share": probes / self._decisions if self._decisions else 0.0,
        }

    def _pass(
        self,
        host: NDArray[np.uint64],
        path: NDArray[np.uint64],
        seen: NDArray[np.bool_],
        counts: NDArray[np.int64],
        *,
        insert: bool,
    ) -> int:
        bloom, exact = self._filter, self._exact
        room = min(exact.room, bloom.capacity)
        return merge_keys(bloom.words, bloom.probes, exact.table, exact.log, room, counts, host, path, seen, insert)

    def _make_room(self) -> None:
        if len(self) >= self._exact.room:
            self._exact.grow()
        if len(self) >= self._filter.capacity:
            larger = Layer.sized(_next_capacity(self._filter.capacity, self.fp_rate), self.fp_rate)
            for pairs in self._exact.pairs():
                larger.fill(pairs)
            self._filter = larger


def _next_capacity(capacity: int, fp_rate: float) -> int:
    unblocked = -math.log(fp_rate) / math.log(2) ** 2
    growth = max(_BITS_LIMIT * unblocked / shape_for(fp_rate)[0], _LEAST_GROWTH)
    return min(2 * capacity, max(_DOUBLING_ENDS, math.ceil(capacity * growth)))


def _columns(pairs: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return pairs[:, 0].copy(), pairs[:, 1].copy()
