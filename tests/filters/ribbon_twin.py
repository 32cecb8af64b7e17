"""The ribbon filter in plain Python, from blob to answer and from keys to blob, and keys to try it with."""

from __future__ import annotations

import struct

import numpy as np
import xxhash

ALL_BITS = (1 << 64) - 1


def random_keys(seed, count):
    generator = np.random.default_rng(seed)
    table = generator.integers(0, ALL_BITS, (count, 2), np.uint64, endpoint=True)
    return table[:, 0].copy(), table[:, 1].copy()


def columns(keys):
    table = np.array(list(keys), np.uint64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def sealed(body):
    return bytes(body) + xxhash.xxh64_intdigest(bytes(body)).to_bytes(8, "little")


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & ALL_BITS
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & ALL_BITS
    return z ^ (z >> 31)


def hash_of(host, path):
    return mix((path + mix((host + 0x9E3779B97F4A7C15) & ALL_BITS)) & ALL_BITS)


def equation(hashed, seed, slots, bits):
    """Slots whose XOR is the fingerprint, and the fingerprint."""
    seeded = mix((hashed + (seed + 1) * 0xD1B54A32D192ED03) & ALL_BITS)
    start = seeded * (slots - 64) >> 64
    product = seeded * 0xD6E8FEB86659FD93 & ALL_BITS
    band = (product ^ product >> 32) | 1
    return [start + i for i in range(64) if band >> i & 1], seeded & (1 << bits) - 1


def solution(hashes, seed, slots, bits):
    """Contents of the slots, free ones 0, or None; by Gaussian elimination from the last slot on."""
    rows = {}
    for hashed in hashes:
        where, right = equation(hashed, seed, slots, bits)
        left = sum(1 << slot for slot in where)
        while left:
            lead = (left & -left).bit_length() - 1
            if lead not in rows:
                rows[lead] = (left, right)
                break
            left ^= rows[lead][0]
            right ^= rows[lead][1]
        else:
            if right:
                return None
    table = [0] * slots
    for lead in sorted(rows, reverse=True):
        left, value = rows[lead]
        for slot in range(lead + 1, slots):
            if left >> slot & 1:
                value ^= table[slot]
        table[lead] = value
    return table


def packed(table, bits):
    """Slots as a blob has them: segments of 32, a u32 for each bit."""
    out = b""
    for segment in range(0, len(table), 32):
        for j in range(bits):
            word = sum((table[segment + i] >> j & 1) << i for i in range(32))
            out += word.to_bytes(4, "little")
    return out


def twin_blob(keys, bits, chunks, segments_of):
    """The blob of kind 1 of distinct keys; `segments_of` says how many segments so many keys of a chunk get."""
    hashes = [hash_of(host, path) for host, path in keys]
    entries, words, slots = b"", b"", 0
    for chunk in range(chunks):
        mine = [hashed for hashed in hashes if hashed * chunks >> 64 == chunk]
        segments = segments_of(len(mine))
        seed = next(seed for seed in range(64) if not mine or solution(mine, seed, segments * 32, bits) is not None)
        entries += struct.pack("<HH", segments, seed)
        words += packed(solution(mine, seed, segments * 32, bits) if mine else [], bits)
        slots += segments * 32
    return sealed(struct.pack("<BBBBIQQ", 1, 1, bits, 0, chunks, len(keys), slots) + entries + words)


def twin_answer(blob, host, path):
    """What a blob of kind 1 or 2 says of a key."""
    _, kind, bits, _, parts, _, _ = struct.unpack_from("<BBBBIQQ", blob)
    at = 24
    hashed = hash_of(host, path)
    first, chunks, total, rest = 0, parts, parts, hashed
    if kind == 2:
        counts = [struct.unpack_from("<QII", blob, at + 16 * shard)[1] for shard in range(parts)]
        at += 16 * parts
        shard = hashed * parts >> 64
        first, chunks, total = sum(counts[:shard]), counts[shard], sum(counts)
        rest = hashed * parts & ALL_BITS
    chunk = first + (rest * chunks >> 64)
    entries = [struct.unpack_from("<HH", blob, at + 4 * i) for i in range(total)]
    at += 4 * (total + sum(segments for segments, _ in entries[:chunk]) * bits)
    segments, seed = entries[chunk]
    if not segments:
        return False
    where, fingerprint = equation(hashed, seed, segments * 32, bits)
    for slot in where:
        for j in range(bits):
            word = int.from_bytes(blob[at + 4 * (slot // 32 * bits + j) :][:4], "little")
            fingerprint ^= (word >> slot % 32 & 1) << j
    return fingerprint == 0
