"""Keys to ask seen-sets and filters about, as columns and as Python objects, and the order that a crawl asks in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Keys = tuple[NDArray[np.uint64], NDArray[np.uint64]]

__all__ = [
    "BATCH",
    "FRESH",
    "as_bytes",
    "as_integers",
    "batches",
    "columns",
    "crawled",
    "half_known",
    "known",
    "unknown",
]

BATCH = 10_000
FRESH = 1 << 40
"""From this number on keys are never added."""
REDISCOVERED = 0.9
"""Share of a crawl's links that lead to URLs which are known."""

_HOSTS = 65_537
_PATHS = 1 << 48


def columns(numbers: NDArray[np.int64]) -> Keys:
    """Host and path keys of the keys with these numbers; shapes (n,)."""
    whole = numbers.astype(np.uint64)
    return _mixed(whole % np.uint64(_HOSTS)), _mixed(whole + np.uint64(_PATHS))


def as_bytes(keys: Keys) -> list[bytes]:
    """Each key as 16 bytes."""
    raw = np.stack(keys, axis=1).tobytes()
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]


def as_integers(keys: Keys) -> list[int]:
    """Each key's path half, which is as good as unique."""
    numbers: list[int] = keys[1].tolist()
    return numbers


def batches(first: int, count: int) -> Iterator[NDArray[np.int64]]:
    """`count` numbers from `first` on, a batch at a time."""
    for start in range(first, first + count, BATCH):
        yield np.arange(start, min(start + BATCH, first + count))


def known(random: np.random.Generator, size: int, count: int) -> Iterator[NDArray[np.int64]]:
    """Of `size` keys that are in, any, each as likely."""
    for start in range(0, count, BATCH):
        yield random.integers(0, size, min(BATCH, count - start))


def half_known(random: np.random.Generator, size: int, count: int) -> Iterator[NDArray[np.int64]]:
    """Every second one new, each of the others any that is in; `size` are in at first."""
    for start in range(0, count, BATCH):
        batch = random.integers(0, size, min(BATCH, count - start))
        batch[::2] = size + np.arange(batch[::2].size)
        size += batch[::2].size
        yield batch


def unknown(random: np.random.Generator, size: int, count: int) -> Iterator[NDArray[np.int64]]:
    """Keys that are all new, in any order; `size` are in at first."""
    for batch in batches(size, count):
        random.shuffle(batch)
        yield batch


def crawled(random: np.random.Generator, size: int, count: int) -> Iterator[NDArray[np.int64]]:
    """What a crawl asks: nine of ten are known, the k-th discovered with a weight of 1 / k (Zipf); the others are new.

    `size` are in at first.
    """
    for start in range(0, count, BATCH):
        length = min(BATCH, count - start)
        batch = np.minimum(np.exp(random.random(length) * np.log(size)), size).astype(np.int64) - 1
        new = np.flatnonzero(random.random(length) >= REDISCOVERED)
        batch[new] = size + np.arange(new.size)
        size += new.size
        yield batch


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 of each."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
