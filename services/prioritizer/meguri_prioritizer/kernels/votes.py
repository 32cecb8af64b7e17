"""Counting distinct sources: exact pairs, and the registers of a HyperLogLog."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["add_to_sketch", "count_exact"]

_INDEX_BITS = 10


@kernel
def count_exact(
    rows: NDArray[np.int64], before: int, hosts: NDArray[np.int64], in_degree: NDArray[np.uint32]
) -> NDArray[np.bool_]:
    """Add 1 to the in-degree of hosts[i] for each pair row that is new, i.e. at or above `before` and met first."""
    grown = np.zeros(rows.size, np.bool_)
    following = before
    for i in range(rows.size):
        if rows[i] == following:
            following += 1
            in_degree[hosts[i]] += np.uint32(1)
            grown[i] = True
    return grown


@kernel
def add_to_sketch(registers: NDArray[np.uint8], sources: NDArray[np.uint64]) -> bool:
    """Fold sources into 1,024 registers; whether one has grown. Keys are mixed by splitmix64's finaliser."""
    grew = False
    for i in range(sources.size):
        h = sources[i] + np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h ^= h >> np.uint64(31)
        index = np.int64(h >> np.uint64(64 - _INDEX_BITS))
        rest = h << np.uint64(_INDEX_BITS)
        rank = 1
        while rank <= 64 - _INDEX_BITS and rest >> np.uint64(63) == np.uint64(0):
            rest <<= np.uint64(1)
            rank += 1
        if registers[index] < rank:
            registers[index] = rank
            grew = True
    return grew
