"""Similarity hashes: texts that share most of their tokens differ in few of 64 bits.

Method: Moses Charikar, Similarity Estimation Techniques from Rounding Algorithms (2002), over xxh64 of the tokens.
A simhash of 0 is empty: it says nothing, and is near nothing, not even another one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import xxhash

from meguri_common.content.tokens import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NEAR_BITS", "PIPELINE_VERSION", "distance", "near", "simhash", "simhash_hashes", "simhash_text"]

PIPELINE_VERSION = "terms/1"
"""Names normalisation, tokens, hash and Unicode tables; only fingerprints made under one name can be compared."""

NEAR_BITS = 3
"""Distance up to which two simhashes are near one another."""

_BITS = 64


def simhash_hashes(features: Iterable[tuple[int, int]]) -> int:
    """Simhash of (u64 hash, weight) pairs: bit i is 1 iff more weight has it set than not.

    Sums are exact, so they can't overflow and the order of the features doesn't matter. A tie gives 0. Weights count
    as given, negative ones too.
    """
    total = 0
    ones = [0] * _BITS
    for hashed, weight in features:
        total += weight
        for bit in range(_BITS):
            if hashed >> bit & 1:
                ones[bit] += weight
    return sum(1 << bit for bit in range(_BITS) if 2 * ones[bit] > total)


def simhash(features: Iterable[tuple[str, int]]) -> int:
    """Simhash of (token, weight) pairs; a token's hash is xxh64 of its UTF-8. No features: 0, empty."""
    return simhash_hashes((xxhash.xxh64_intdigest(token.encode()), weight) for token, weight in features)


def simhash_text(text: str | bytes) -> int:
    """Simhash of a text's tokens under `PIPELINE_VERSION`, weighted by how often each occurs. No tokens: 0, empty."""
    return simhash(Counter(tokens(text)).items())


def distance(left: int, right: int) -> int:
    """Bits in which two simhashes differ, 0 to 64."""
    return (left ^ right).bit_count()


def near(left: int, right: int, bits: int = NEAR_BITS) -> bool:
    """Whether two simhashes differ in at most `bits` bits; an empty one is near nothing."""
    return left != 0 and right != 0 and distance(left, right) <= bits
