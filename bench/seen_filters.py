"""Filters that say "certainly new" or "maybe seen": this project's, and others that could be used instead.

Each gets keys in the form that suits it best, made before the clock starts, and answers for whole batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from seen_keys import as_bytes, as_integers

from meguri_common.filters.bloom import Filter
from meguri_common.filters.ribbon import RibbonFilter
from meguri_common.filters.sharded import freeze_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seen_keys import Keys

__all__ = ["FILTERS", "RATE", "KeyFilter"]

RATE = 0.01


class KeyFilter(Protocol):
    """What is measured."""

    def prepare(self, keys: Keys) -> Any:
        """Keys in the filter's own form."""
        ...

    def build(self, batches: Sequence[Any]) -> None:
        """Make the filter of prepared keys."""
        ...

    def probe(self, batch: Any) -> int:
        """For how many the answer is "maybe"."""
        ...

    def bits(self) -> float:
        """Size of all of it."""
        ...


class Bloom:
    """The blocked Bloom filter, made for the number of keys."""

    def __init__(self, keys: int) -> None:
        self._filter = Filter(keys, RATE)

    def prepare(self, keys: Keys) -> Keys:
        """As they are."""
        return keys

    def build(self, batches: Sequence[Keys]) -> None:
        """Batch after batch."""
        for batch in batches:
            self._filter.add_batch(*batch)

    def probe(self, batch: Keys) -> int:
        """One pass."""
        return int(self._filter.maybe_contains_batch(*batch).sum())

    def bits(self) -> float:
        """By its own account."""
        return self._filter.bits_per_url * len(self._filter)


class Ribbon:
    """The sharded ribbon filter; all keys are there before it is built."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._blob = b""
        self._filter = RibbonFilter.load(freeze_keys(np.empty(0, np.uint64), np.empty(0, np.uint64), bits))

    def prepare(self, keys: Keys) -> Keys:
        """As they are."""
        return keys

    def build(self, batches: Sequence[Keys]) -> None:
        """From columns to the blob, and its checks when it is read."""
        host = np.concatenate([batch[0] for batch in batches])
        path = np.concatenate([batch[1] for batch in batches])
        self._blob = freeze_keys(host, path, self._bits)
        self._filter = RibbonFilter.load(self._blob)

    def probe(self, batch: Keys) -> int:
        """One pass."""
        return int(self._filter.maybe_contains_batch(*batch).sum())

    def bits(self) -> float:
        """The blob, header included."""
        return 8 * len(self._blob)


class RBloom:
    """rbloom's filter of bytes, by Python's own hash."""

    def __init__(self, keys: int) -> None:
        import rbloom  # noqa: PLC0415 - a peer that needn't be installed

        self._filter = rbloom.Bloom(keys, RATE)

    def prepare(self, keys: Keys) -> list[bytes]:
        """16 bytes each."""
        return as_bytes(keys)

    def build(self, batches: Sequence[list[bytes]]) -> None:
        """Batch after batch."""
        for batch in batches:
            self._filter.update(batch)

    def probe(self, batch: list[bytes]) -> int:
        """One key after another: it takes no batches."""
        held = self._filter
        return sum(key in held for key in batch)

    def bits(self) -> float:
        """By its own account."""
        return float(self._filter.size_in_bits)


class FastBloom:
    """fastbloom-rs's filter of bytes, with its calls for batches."""

    def __init__(self, keys: int) -> None:
        import fastbloom_rs  # noqa: PLC0415 - a peer that needn't be installed

        self._filter = fastbloom_rs.FilterBuilder(keys, RATE).build_bloom_filter()

    def prepare(self, keys: Keys) -> list[bytes]:
        """16 bytes each."""
        return as_bytes(keys)

    def build(self, batches: Sequence[list[bytes]]) -> None:
        """Batch after batch."""
        for batch in batches:
            self._filter.add_bytes_batch(batch)

    def probe(self, batch: list[bytes]) -> int:
        """One call."""
        return sum(self._filter.contains_bytes_batch(batch))

    def bits(self) -> float:
        """Its array."""
        return 8.0 * len(self._filter.get_bytes())


class Fuse:
    """pyfusefilter's binary fuse filter of integers, which are taken as they are.

    It would hash the decimal digits of each: slower, and with xxhash 4 an error. Keys are hashes already.
    """

    def __init__(self, name: str) -> None:
        from pyfusefilter import pyfusefilter  # noqa: PLC0415 - a peer that needn't be installed

        pyfusefilter.hash = int
        self._make = getattr(pyfusefilter, name)
        self._filter = self._make([1, 2])

    def prepare(self, keys: Keys) -> list[int]:
        """The path half."""
        return as_integers(keys)

    def build(self, batches: Sequence[list[int]]) -> None:
        """All at once, from one list."""
        self._filter = self._make([key for batch in batches for key in batch])

    def probe(self, batch: list[int]) -> int:
        """One key after another: it takes no batches."""
        contains = self._filter.contains
        return sum(map(contains, batch))

    def bits(self) -> float:
        """By its own account."""
        return float(8 * self._filter.size_in_bytes())


FILTERS: dict[str, Callable[[int], KeyFilter]] = {
    "Bloom": Bloom,
    "ribbon r = 7": lambda _: Ribbon(7),
    "ribbon r = 14": lambda _: Ribbon(14),
    "rbloom": RBloom,
    "fastbloom-rs": FastBloom,
    "pyfusefilter Fuse8": lambda _: Fuse("Fuse8"),
    "pyfusefilter Fuse16": lambda _: Fuse("Fuse16"),
}
