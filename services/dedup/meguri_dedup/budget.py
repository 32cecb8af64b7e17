"""How a seen-set divides its memory, and when its runs are merged: decisions alone, no state."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri_common.filters.sizing import shape_for

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BYTES_PER_KEY", "SLOT_BYTES", "Shares", "divide", "filter_bits", "first_to_merge", "next_capacity"]

BYTES_PER_KEY = 2
"""A budget is never below this: the filter alone takes up to 1.65 at a rate of 1 %."""

SLOT_BYTES = 28.8
"""Memory of a slot of the table of recent keys: 16 for the key, and 16 more in the log for four slots of five."""

_LEAST = 512 << 10
"""Bytes that are left to table and cache, however small the budget."""
_TABLE_SHARE = 0.6
_WORKING = 3 << 19
_WORKING_SHARE = 0.0625
"""Bytes that a batch's own columns and the pieces of a merge take; of a small budget, this share of it."""
_LEAST_SLOTS = 1 << 12
_LINE = 64
_MOST_ROWS = (1 << 32) - 1

_DOUBLING_ENDS = 1_000_000
"""Keys up to which the filter doubles; from there on it grows by less, to stay within its bits a key."""
_BITS_LIMIT = 1.38
"""Bits of the filter, just after it grew, over those of an unblocked Bloom filter for the keys that are in."""
_LEAST_GROWTH = 1.1


@dataclass(frozen=True, slots=True)
class Shares:
    """What a budget is spent on, beside filter and directories."""

    slots: int
    """Slots of the table of recent keys, a power of two."""
    lines: int
    """Lines of the cache of keys that are in a run."""

    @property
    def recent(self) -> int:
        """Keys that the table takes."""
        return self.slots * 4 // 5


def divide(budget: int, keys: int, filter_now: int, filter_most: int, directories: int) -> Shares:
    """Divide a budget in bytes.

    Args:
        budget: bytes in all; at least `BYTES_PER_KEY` a key are spent.
        keys: keys of the whole set.
        filter_now: bytes of the filter.
        filter_most: bytes that it has just after it grew, for that many keys: what the table is measured by, so that
            it needn't shrink while it is full.
        directories: bytes of the runs' directories.
    """
    whole = max(budget, BYTES_PER_KEY * keys)
    whole -= directories + min(_WORKING, int(whole * _WORKING_SHARE))
    for_table = max(whole - filter_most, _LEAST) * _TABLE_SHARE
    slots = _LEAST_SLOTS
    while 2 * slots * SLOT_BYTES <= for_table:
        slots *= 2
    rest = max(whole - filter_now, _LEAST) - slots * SLOT_BYTES
    return Shares(slots, max(int(rest) // _LINE, 1))


def first_to_merge(sizes: Sequence[int]) -> int:
    """From which run on all are merged into one; len(sizes) if none are.

    A run is merged with all behind it once they have reached its size: each is then larger than all behind it together,
    and a key is written again at each doubling alone. (The logarithmic method of J. Bentley and J. Saxe, 1980.)

    Args:
        sizes: rows of the runs, in the order of their making, which is from large to small.
    """
    behind = sum(sizes)
    for number, size in enumerate(sizes[:-1]):
        whole = behind
        behind -= size
        if size <= behind and whole <= _MOST_ROWS:
            return number
    return len(sizes)


def next_capacity(capacity: int, fp_rate: float) -> int:
    """Keys that a full filter is made anew for."""
    growth = max(_most_bits(fp_rate) / shape_for(fp_rate)[0], _LEAST_GROWTH)
    return min(2 * capacity, max(_DOUBLING_ENDS, math.ceil(capacity * growth)))


def filter_bits(capacity: int, keys: int, fp_rate: float) -> int:
    """Most bits of the filter of so many keys: as it is at a capacity, or just after it grew."""
    return math.ceil(max(shape_for(fp_rate)[0] * capacity, _most_bits(fp_rate) * keys))


def _most_bits(fp_rate: float) -> float:
    """Bits a key of a filter that has just grown, from a million keys on."""
    return -_BITS_LIMIT * math.log(fp_rate) / math.log(2) ** 2
