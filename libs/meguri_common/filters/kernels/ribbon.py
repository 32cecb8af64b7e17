"""Ribbon filter: placing, solving and probing systems of equations over GF(2).

A system has slots of r bits. A key's hash gives a start slot, a band of 64 coefficients that begins there with a 1,
and r bits of fingerprint; the slots are chosen so that the XOR of those under a key's coefficients is its fingerprint.
The fingerprint of an absent key fits by chance alone, 2^-r.

Slots lie in segments of 32, each of r words of u32: bit i of word j is bit j of the segment's slot i. A band touches
at most three segments in a row, so that a probe reads 3r words in one place and each bit of the answer is a parity.

Keys are spread over many small systems (chunks), each with its own seed: the larger a system, the likelier some stretch
of it holds too many keys, and a small one fits the innermost cache while it is solved.

Method: P. Dillinger, S. Walzer, "Ribbon filter: practically smaller than Bloom and Xor" (2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.kernels.bloom import hash_key, mix
from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import band_parities, count_trailing_zeros, popcount, prefetch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["hash_keys", "partition_hashes", "probe_ribbon", "solve_chunks"]

_AHEAD = 32
"""Keys between asking for cache lines and using them."""
_AT_ONCE = 512
"""Keys that a probe hashes before it looks the first one up: they fit the innermost cache."""
_BAND = 64

_SEED = np.uint64(0xD1B54A32D192ED03)
_COEFFICIENTS = np.uint64(0xD6E8FEB86659FD93)
_LOW = np.uint64(0xFFFFFFFF)
_SEED_BITS = np.uint64(0xFFFF)
_SEGMENT_BITS = np.uint64(0xFFFF0000)
_0 = np.uint64(0)
_1 = np.uint64(1)
_5 = np.uint64(5)
_8 = np.uint64(8)
_11 = np.uint64(11)
_31 = np.uint64(31)
_32 = np.uint64(32)
_63 = np.uint64(63)
_64 = np.uint64(64)


@inline_kernel
def _scaled(number: np.uint64, size: np.uint64) -> np.uint64:
    """A u64 brought to the range below `size`, number * size >> 64, for sizes < 2^32."""
    return ((number >> _32) * size + (((number & _LOW) * size) >> _32)) >> _32


@inline_kernel
def _seeded(hashed: np.uint64, seed: np.uint64) -> np.uint64:
    """The hash that all of a key's equation is drawn from; shard and chunk are chosen by `hashed` itself."""
    return mix(hashed + (seed + _1) * _SEED)


@inline_kernel
def _band(seeded: np.uint64) -> np.uint64:
    """Coefficients, from the start slot on; the first is 1."""
    product = seeded * _COEFFICIENTS
    return (product ^ (product >> _32)) | _1


@kernel
def hash_keys(host: NDArray[np.uint64], path: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    """The hash that filters know a key by; columns (n,)."""
    for i in range(out.size):
        out[i] = hash_key(host[i], path[i])


@kernel
def partition_hashes(
    hashes: NDArray[np.uint64], skip: int, parts: int, ends: NDArray[np.int64], out: NDArray[np.uint64]
) -> None:
    """Copy hashes (n,) to `out` by parts; part i comes to lie at out[ends[i]:ends[i + 1]].

    Which part, of `parts` < 2^32, is what the bits below the top `skip` say. ends (parts + 1,) is overwritten.
    """
    above = np.uint64(skip)
    size = np.uint64(parts)
    ends[:] = 0
    for i in range(hashes.size):
        ends[np.int64(_scaled(hashes[i] << above, size)) + 1] += 1
    for part in range(1, ends.size):
        ends[part] += ends[part - 1]
    following = ends[:-1].copy()
    for i in range(hashes.size):
        part = int(_scaled(hashes[i] << above, size))
        out[following[part]] = hashes[i]
        following[part] += 1


@kernel
def _eliminate(
    hashes: NDArray[np.uint64],
    seed: np.uint64,
    mask: np.uint64,
    slots: int,
    band: NDArray[np.uint64],
    fingerprints: NDArray[np.uint16],
) -> int:
    """Bring a chunk's equations into echelon form; gives how many follow from others, or -1 if two contradict.

    band[i] and fingerprints[i] become the equation that slot i leads, 0 if there is none. Which slots lead one, and
    so the solution, doesn't depend on the order of the keys.
    """
    starts = np.uint64(slots - _BAND)
    band[:slots] = 0
    redundant = 0
    for i in range(hashes.size):
        seeded = _seeded(hashes[i], seed)
        slot = int(_scaled(seeded, starts))
        coefficients = _band(seeded)
        fingerprint = np.uint16(seeded & mask)
        while True:
            leading = band[slot]
            if leading == _0:
                band[slot] = coefficients
                fingerprints[slot] = fingerprint
                break
            coefficients ^= leading
            fingerprint ^= fingerprints[slot]
            if coefficients == _0:
                if fingerprint != 0:
                    return -1
                redundant += 1
                break
            skip = count_trailing_zeros(coefficients)
            coefficients >>= skip
            slot += int(skip)
    return redundant


@kernel
def _substitute(
    bits: int,
    segments: int,
    band: NDArray[np.uint64],
    fingerprints: NDArray[np.uint16],
    columns: NDArray[np.uint64],
    words: NDArray[np.uint32],
) -> None:
    """Solve what `_eliminate` left, from the last slot to the first; slots that lead no equation become 0.

    columns (16,) are the last 64 solved bits of each column; words (segments * bits,) the result.
    """
    lanes = (bits + 7) & -8  # whole vectors: the columns past `bits` are worked out and dropped
    columns[:] = 0
    for segment in range(segments - 1, -1, -1):
        for within in range(31, -1, -1):
            slot = segment * 32 + within
            coefficients = band[slot]
            fingerprint = np.uint64(fingerprints[slot])
            for j in range(lanes):
                window = columns[j] << _1
                parity = popcount(window & coefficients) ^ (fingerprint >> np.uint64(j))
                columns[j] = window | (parity & coefficients & _1)
        for j in range(bits):
            words[segment * bits + j] = np.uint32(columns[j] & _LOW)


@kernel
def solve_chunks(
    hashes: NDArray[np.uint64],
    ends: NDArray[np.int64],
    bits: int,
    most_seeds: int,
    segments: NDArray[np.uint16],
    seeds: NDArray[np.uint16],
    words: NDArray[np.uint32],
) -> tuple[int, int]:
    """Solve chunks one after another; gives the first that no seed solved, or -1, and the redundant equations met.

    Args:
        hashes: of the keys, by chunk.
        ends: chunk i is hashes[ends[i]:ends[i + 1]].
        bits: r.
        most_seeds: seeds that are tried for a chunk.
        segments: of each chunk.
        seeds: takes the seed that solved each chunk.
        words: takes the chunks' segments, (sum of segments * bits,).
    """
    mask = (_1 << np.uint64(bits)) - _1
    largest = 0
    for chunk in range(segments.size):
        largest = max(largest, int(segments[chunk]))
    band = np.empty(largest * 32, np.uint64)
    fingerprints = np.empty(largest * 32, np.uint16)
    columns = np.empty(16, np.uint64)
    met = 0
    first = 0
    for chunk in range(segments.size):
        size = int(segments[chunk])
        keys = hashes[ends[chunk] : ends[chunk + 1]]
        seed = 0
        if keys.size > 0:
            while seed < most_seeds:
                redundant = _eliminate(keys, np.uint64(seed), mask, size * 32, band, fingerprints)
                if redundant >= 0:
                    met += redundant
                    break
                seed += 1
            if seed == most_seeds:
                return chunk, met
            _substitute(bits, size, band, fingerprints, columns, words[first : first + size * bits])
        seeds[chunk] = seed
        first += size * bits
    return -1, met


@kernel
def probe_ribbon(
    words: NDArray[np.uint32],
    bits: int,
    skip: int,
    shards: NDArray[np.uint64],
    chunks: NDArray[np.uint64],
    host: NDArray[np.uint64],
    path: NDArray[np.uint64],
    found: NDArray[np.bool_],
) -> None:
    """found[i] = whether key i may be in; columns (n,).

    Args:
        words: segments of all chunks of all shards.
        bits: r.
        skip: log2 of the number of shards: as many top bits of a hash are the shard.
        shards: of each shard the first chunk, from bit 32 on, and the number of chunks.
        chunks: of each chunk the first segment, from bit 32 on, the number of segments, from bit 16 on, and the seed.
        host: host keys.
        path: path keys.
        found: the answers.
    """
    above = np.uint64(skip)
    below = np.uint64(63 - skip)
    mask = (_1 << np.uint64(bits)) - _1
    width = np.uint64(bits)
    reach = 3 * bits
    safe = words.size - 2 * bits - (8 if bits <= 8 else 16)  # whole vectors can be read up to here
    hashes = np.empty(_AT_ONCE, np.uint64)
    entries = np.empty(_AT_ONCE, np.uint64)
    slots = np.empty(_AT_ONCE, np.uint64)
    at = np.empty(_AT_ONCE, np.int64)
    for done in range(0, found.size, _AT_ONCE):
        hosts = host[done : done + _AT_ONCE]
        paths = path[done : done + _AT_ONCE]
        answers = found[done : done + _AT_ONCE]
        for i in range(answers.size):  # small loops apart from the look-ups, so that they are vectorised
            hashes[i] = hash_key(hosts[i], paths[i])
        for i in range(answers.size):
            shard = shards[int((hashes[i] >> _1) >> below)]
            entries[i] = chunks[int((shard >> _32) + _scaled(hashes[i] << above, shard & _LOW))]
        for i in range(answers.size):
            hashes[i] = _seeded(hashes[i], entries[i] & _SEED_BITS)
            slots[i] = _scaled(hashes[i], ((entries[i] & _SEGMENT_BITS) >> _11) - _64)
        for i in range(answers.size):
            at[i] = int(((entries[i] >> _32) + (slots[i] >> _5)) * width)
            if i < _AHEAD:
                for line in range(0, reach, 16):
                    prefetch(words, at[i] + line)
                prefetch(words, at[i] + reach - 1)
        for i in range(answers.size):
            if i + _AHEAD < answers.size:
                for line in range(0, reach, 16):
                    prefetch(words, at[i + _AHEAD] + line)
                prefetch(words, at[i + _AHEAD] + reach - 1)
            if entries[i] & _SEGMENT_BITS == _0:
                answers[i] = False
                continue
            word = at[i]
            offset = slots[i] & _31
            band = _band(hashes[i])
            low = band << offset
            first_mask = np.uint32(low & _LOW)
            second_mask = np.uint32(low >> _32)
            third_mask = np.uint32((band >> _1) >> (_63 - offset))
            if word <= safe:
                value = band_parities(words, word, bits, first_mask, second_mask, third_mask)
                if bits > 8:
                    value |= band_parities(words, word + 8, bits, first_mask, second_mask, third_mask) << _8
            else:
                value = _0
                for j in range(bits):
                    left = (
                        (words[word + j] & first_mask)
                        ^ (words[word + bits + j] & second_mask)
                        ^ (words[word + 2 * bits + j] & third_mask)
                    )
                    value |= (popcount(np.uint64(left)) & _1) << np.uint64(j)
            answers[i] = (value ^ hashes[i]) & mask == _0
