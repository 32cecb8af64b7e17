"""How many bits and probes a blocked Bloom filter needs for a false-positive rate.

Blocks get Poisson-distributed numbers of keys, so that the rate is the mean over them (Putze, Sanders and Singler,
2007, section 3), above that of an unblocked filter of the same size. Bits and probes are chosen by this mean.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

__all__ = [
    "BLOCK_BITS",
    "MAX_PROBES",
    "MIN_RATE",
    "blocked_rate",
    "blocks_for",
    "check_size",
    "expected_bits",
    "shape_for",
]

BLOCK_BITS = 512
MAX_PROBES = 16
MIN_RATE = 1e-12
"""Lower rates are treated as this one: no run could tell them apart."""

_MAX_BITS_PER_KEY = 512.0
_CLEAR = 1.0 - 1.0 / BLOCK_BITS
"""Chance that one draw leaves a given bit of the block alone."""


def check_size(capacity: int, fp_rate: float) -> None:
    """Refuse sizes that mean nothing.

    Raises:
        ValueError: capacity below 1, or a rate outside (0, 1).
    """
    if capacity < 1:
        msg = f"a filter's capacity must be at least 1 key, not {capacity}"
        raise ValueError(msg)
    if not 0.0 < fp_rate < 1.0:
        msg = f"a false-positive rate lies between 0 and 1, both excluded: {fp_rate}"
        raise ValueError(msg)


def blocked_rate(bits_per_key: float, probes: int) -> float:
    """False-positive rate of blocks of 512 bits with independent draws, at full capacity."""
    mean = BLOCK_BITS / bits_per_key
    keys = np.arange(int(mean + 12 * math.sqrt(mean)) + 32, dtype=np.float64)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(keys[1:]))])
    weights = np.exp(keys * math.log(mean) - mean - log_factorial)
    return float(np.sum(weights * (1.0 - _CLEAR ** (probes * keys)) ** probes))


@lru_cache(maxsize=256)
def shape_for(fp_rate: float) -> tuple[float, int]:
    """Fewest bits a key, and the number of probes that goes with them, for a rate of at most `fp_rate`."""
    rate = max(fp_rate, MIN_RATE)
    return min(
        (_fewest_bits(rate, probes), probes)
        for probes in range(1, MAX_PROBES + 1)
        if blocked_rate(_MAX_BITS_PER_KEY, probes) <= rate
    )


def blocks_for(capacity: int, bits_per_key: float) -> int:
    """Blocks that hold `capacity` keys at `bits_per_key`."""
    return max(1, math.ceil(capacity * bits_per_key / BLOCK_BITS))


def expected_bits(capacity: int, blocks: int, probes: int) -> int:
    """Bits that `capacity` distinct keys set, on average."""
    clear = math.exp(-(capacity / blocks) * (1.0 - _CLEAR**probes))
    return int(blocks * BLOCK_BITS * (1.0 - clear))


def _fewest_bits(rate: float, probes: int) -> float:
    low, high = 0.01, _MAX_BITS_PER_KEY
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if blocked_rate(middle, probes) <= rate:
            high = middle
        else:
            low = middle
    return high
