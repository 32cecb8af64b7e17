"""Fingerprints of bodies: an exact one, and one that near-equal texts share in most bits.

simhash: Charikar, "Similarity Estimation Techniques from Rounding Algorithms", STOC 2002.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from meguri_common.content.tokens import tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = [
    "PIPELINE_VERSION",
    "content_fp",
    "distance",
    "fingerprint_texts",
    "near",
    "normalize_body",
    "simhash",
    "simhash_text",
]

PIPELINE_VERSION = "terms/1"
"""Names normalisation, tokens, hash and Unicode tables. Fingerprints of two versions are never compared."""

_WHITE = re.compile(rb"[ \t\n\r\f\v]+")
_BITS = 64


def normalize_body(body: bytes) -> bytes:
    """Runs of space, tab, LF, CR, FF and VT become one space, the ends are trimmed; all else is untouched."""
    return _WHITE.sub(b" ", body).strip(b" ")


def content_fp(body: bytes) -> int:
    """xxh64 of the given bytes; 1 for a hash of 0, since 0 means "none" in a record."""
    return xxhash.xxh64_intdigest(body) or 1


def simhash(features: Iterable[tuple[str, int]]) -> int:
    """Charikar's fingerprint of (token, weight): bit i is 1 iff the weights with that bit outweigh those without."""
    sums = [0] * _BITS
    for token, weight in features:
        hashed = xxhash.xxh64_intdigest(token.encode())
        for bit in range(_BITS):
            sums[bit] += weight if hashed >> bit & 1 else -weight
    return sum(1 << bit for bit in range(_BITS) if sums[bit] > 0)


def simhash_text(text: str | bytes) -> int:
    """`simhash` of a text's tokens, each weighing its number of occurrences."""
    return _simhash_tokens(tokens(text))


def distance(one: int, other: int) -> int:
    """Bits in which two fingerprints differ."""
    return (one ^ other).bit_count()


def near(one: int, other: int, limit: int = 3) -> bool:
    """Whether two fingerprints differ in at most `limit` bits; the empty one is near nothing, not even itself."""
    return one != 0 and other != 0 and distance(one, other) <= limit


def fingerprint_texts(
    data: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.bool_]]:
    """Fingerprints of a column of texts in UTF-8.

    Args:
        data: the texts, and at least 8 bytes behind them; u8.
        offsets: where they start and end in it; (n + 1,) i64.

    Returns:
        content_fp of the normalised body (n,) u64, simhash (n,) u64, and whether the text is empty, i.e. holds no
        token (n,) bool. An empty text's fingerprints are 0.
    """
    from meguri_common.content.kernels import fingerprint_ascii  # noqa: PLC0415 - those of one text need no numba

    count = len(offsets) - 1
    fps, hashes = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    empty, odd = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    longest = int(np.max(np.diff(offsets), initial=0))
    fingerprint_ascii(data, offsets, np.empty(longest + 8, np.uint8), fps, hashes, empty, odd)
    for row in np.flatnonzero(odd).tolist():
        text = data[offsets[row] : offsets[row + 1]].tobytes()
        found = tokens(text)
        empty[row] = not found
        if found:
            fps[row] = content_fp(normalize_body(text))
            hashes[row] = _simhash_tokens(found)
    return fps, hashes, empty


def _simhash_tokens(found: list[str]) -> int:
    if not found:
        return 0
    hashed = np.array([xxhash.xxh64_intdigest(token.encode()) for token in found], np.uint64)
    bits = np.unpackbits(hashed.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    majority = 2 * bits.sum(axis=0, dtype=np.int64) > len(found)
    return int.from_bytes(np.packbits(majority, bitorder="little").tobytes(), "little")
