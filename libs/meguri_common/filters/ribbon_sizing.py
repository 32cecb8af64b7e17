"""How many bits, slots, chunks and shards a ribbon filter takes."""

from __future__ import annotations

import math

__all__ = [
    "BAND",
    "LEAST_SEGMENTS",
    "MAX_BITS",
    "MAX_SHARDS",
    "SEGMENT",
    "SHARD_KEYS",
    "check_shards",
    "chunks_for",
    "clamped_bits",
    "larger",
    "ribbon_bits_for_fpr",
    "ribbon_shard_count",
    "segments_for",
]

MAX_BITS = 16
SEGMENT = 32
"""Slots come in whole segments."""
BAND = 64
"""Slots that a key's equation spans."""
LEAST_SEGMENTS = 3
"""Segments that the smallest system has: a band may touch so many."""
SHARD_KEYS = 131_072
MAX_SHARDS = 65_536

_CHUNK_KEYS = 3072
"""Keys of a chunk on average: at 1.04 slots a key 83 of 100 random sets of so many have a solution."""
_CHUNK_KEYS_OF_ONE_BIT = 12_288
"""The same for filters of 1 bit, for which smaller chunks' entries in the directory would take too much."""
_SPACE = 1.04
_MOST_SPACE = 1.05
"""Slots a key, and what they and the frame may take together."""
_FEW_KEYS = 10_000
"""Keys of a filter up to which a slot more doesn't matter."""
_FRAME_BITS = 8 * (24 + 8)
_CHUNK_BITS = 8 * 4
_GROWTH = 1.05


def clamped_bits(bits: int) -> int:
    """`bits` within 1 to 16."""
    return min(max(bits, 1), MAX_BITS)


def ribbon_bits_for_fpr(fp_rate: float) -> int:
    """Fewest bits a slot whose rate, 2^-bits, is at most `fp_rate`; within 1 to 16.

    Raises:
        ValueError: not a number.
    """
    if math.isnan(fp_rate):
        msg = "a false-positive rate must be a number"
        raise ValueError(msg)
    return next((bits for bits in range(1, MAX_BITS) if 2.0**-bits <= fp_rate), MAX_BITS)


def ribbon_shard_count(keys: int) -> int:
    """Shards for so many keys: the smallest power of two that leaves each at most `SHARD_KEYS` on average.

    Raises:
        ValueError: a negative number of keys.
    """
    if keys < 0:
        msg = f"a filter can't have {keys} keys"
        raise ValueError(msg)
    least = -(-keys // SHARD_KEYS)
    return min(1 << max(least - 1, 0).bit_length(), MAX_SHARDS)


def check_shards(count: int) -> None:
    """Refuse a number of shards that no filter has.

    Raises:
        ValueError: not a power of two from 1 to 65,536.
    """
    if not 1 <= count <= MAX_SHARDS or count & (count - 1):
        msg = f"a ribbon filter has 1, 2, 4, ... or {MAX_SHARDS:,} shards, not {count:,}"
        raise ValueError(msg)


def chunks_for(keys: int, bits: int) -> int:
    """Chunks that a shard of so many keys is cut into."""
    return max(1, -(-keys // (_CHUNK_KEYS if bits > 1 else _CHUNK_KEYS_OF_ONE_BIT)))


def segments_for(chunk_keys: int, shard_keys: int, bits: int) -> int:
    """Segments of a chunk in a shard.

    From 10,000 keys on, slots, directory and frame together take at most 1.05 times `bits` a key.
    """
    if not chunk_keys:
        return 0
    if shard_keys < _FEW_KEYS:
        slots = chunk_keys * _MOST_SPACE + BAND / 2
        return max(math.ceil(slots / SEGMENT), LEAST_SEGMENTS)
    frame = _FRAME_BITS + _CHUNK_BITS * chunks_for(shard_keys, bits)
    space = min(
        _SPACE + SEGMENT / 2 * chunks_for(shard_keys, bits) / shard_keys, _MOST_SPACE - frame / shard_keys / bits
    )
    return max(int(chunk_keys * space / SEGMENT), LEAST_SEGMENTS)


def larger(segments: int) -> int:
    """Segments for another try, after all seeds have failed."""
    return math.ceil((segments * SEGMENT * _GROWTH + BAND) / SEGMENT)
