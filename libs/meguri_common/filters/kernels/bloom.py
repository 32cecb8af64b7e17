"""Blocked Bloom filter: hash of a key, adding and probing columns of keys.

A filter's bits are blocks of 512 (one cache line, 8 words of u64). A key touches one block, chosen by its hash, and
sets k bits in it, each drawn by 9 fresh bits of a SplitMix64 sequence that starts at the hash, 6 draws a number.
Methods: F. Putze, P. Sanders, J. Singler, "Cache-, Hash- and Space-Efficient Bloom Filters" (2007), without its
patterns; G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators" (2014) for the mixing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import prefetch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "AHEAD",
    "add_keys",
    "block_of",
    "hash_key",
    "mix",
    "probe_block",
    "probe_keys",
    "set_block",
]

AHEAD = 32
"""Keys between asking for a cache line and using it."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_0 = np.uint64(0)
_1 = np.uint64(1)
_DRAW = np.uint64(9)
_WORD = np.uint64(7)
_TO_BIT = np.uint64(3)
_BIT = np.uint64(63)
_DRAWS = 6
"""Draws of one random number: a constant, so that the compiler unrolls them."""


@inline_kernel
def mix(z: np.uint64) -> np.uint64:
    """The finaliser of SplitMix64: a bijection of u64."""
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@inline_kernel
def hash_key(host: np.uint64, path: np.uint64) -> np.uint64:
    """The 64 bits that all filters and the exact set place a key by; keys of one host never collide."""
    return mix(path + mix(host + _GOLDEN))


@inline_kernel
def block_of(hashed: np.uint64, blocks: np.uint64) -> np.uint64:
    """First word of the key's block, (hashed * blocks >> 64) * 8, for blocks < 2^32: all bits of the hash count."""
    return (((hashed >> _32) * blocks + (((hashed & _LOW) * blocks) >> _32)) >> _32) << np.uint64(3)


@inline_kernel
def probe_block(words: NDArray[np.uint64], first: np.uint64, hashed: np.uint64, k: int) -> bool:
    """Whether all k bits of the key are set in the block that starts at word `first`."""
    state = hashed
    hit = _1
    left = k
    while left >= _DRAWS:
        state += _GOLDEN
        draws = mix(state)
        for _ in range(_DRAWS):
            hit &= words[first + (draws & _WORD)] >> ((draws >> _TO_BIT) & _BIT)
            draws >>= _DRAW
        left -= _DRAWS
    if left > 0:
        draws = mix(state + _GOLDEN)
        for _ in range(left):
            hit &= words[first + (draws & _WORD)] >> ((draws >> _TO_BIT) & _BIT)
            draws >>= _DRAW
    return bool(hit != _0)


@inline_kernel
def set_block(words: NDArray[np.uint64], first: np.uint64, hashed: np.uint64, k: int) -> np.uint64:
    """Set the key's k bits; gives how many of them weren't set before."""
    state = hashed
    fresh = _0
    left = k
    while left >= _DRAWS:
        state += _GOLDEN
        draws = mix(state)
        for _ in range(_DRAWS):
            before = words[first + (draws & _WORD)]
            bit = (draws >> _TO_BIT) & _BIT
            fresh += ~(before >> bit) & _1
            words[first + (draws & _WORD)] = before | (_1 << bit)
            draws >>= _DRAW
        left -= _DRAWS
    if left > 0:
        draws = mix(state + _GOLDEN)
        for _ in range(left):
            before = words[first + (draws & _WORD)]
            bit = (draws >> _TO_BIT) & _BIT
            fresh += ~(before >> bit) & _1
            words[first + (draws & _WORD)] = before | (_1 << bit)
            draws >>= _DRAW
    return fresh


@kernel
def probe_keys(
    words: NDArray[np.uint64],
    k: int,
    host: NDArray[np.uint64],
    path: NDArray[np.uint64],
    found: NDArray[np.bool_],
) -> None:
    """found[i] |= whether key i may be in; columns (n,), words (8 * blocks,)."""
    n = found.size
    blocks = np.uint64(words.size // 8)
    hashes = np.empty(n, np.uint64)
    firsts = np.empty(n, np.uint64)
    for i in range(n):  # apart from the probes, so that it is vectorised
        hashed = hash_key(host[i], path[i])
        hashes[i] = hashed
        firsts[i] = block_of(hashed, blocks)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(words, np.int64(firsts[i + AHEAD]))
        if not found[i]:
            found[i] = probe_block(words, firsts[i], hashes[i], k)


@kernel
def add_keys(
    words: NDArray[np.uint64],
    k: int,
    host: NDArray[np.uint64],
    path: NDArray[np.uint64],
    found: NDArray[np.bool_],
    capacity: int,
    full_bits: int,
    counts: NDArray[np.int64],
) -> int:
    """Add the keys that aren't `found` yet, until the layer is full; gives how many keys were dealt with.

    found[i] becomes whether key i may have been in before its turn. counts (2,) are keys added and bits set so far;
    the layer is full when they reach both `capacity` and `full_bits`: repeats fill no layer.
    """
    n = found.size
    blocks = np.uint64(words.size // 8)
    hashes = np.empty(n, np.uint64)
    firsts = np.empty(n, np.uint64)
    for i in range(n):  # apart from the probes, so that it is vectorised
        hashed = hash_key(host[i], path[i])
        hashes[i] = hashed
        firsts[i] = block_of(hashed, blocks)
    keys, bits = counts
    done = n
    for i in range(n):
        if i + AHEAD < n:
            prefetch(words, np.int64(firsts[i + AHEAD]))
        if not found[i]:
            if keys >= capacity and bits >= full_bits:
                done = i
                break
            fresh = np.int64(set_block(words, firsts[i], hashes[i], k))
            keys += 1
            bits += fresh
            found[i] = fresh == 0
    counts[0] = keys
    counts[1] = bits
    return done
