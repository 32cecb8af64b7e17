"""The resident exact set: a table of 128-bit keys, and a log of those that no snapshot has yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_dedup.kernels.exact import list_keys, split_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["ExactTable"]

_FIRST_SLOTS = 1024
_FIRST_LOGGED = 512
_CHUNK = 1 << 14


class ExactTable:
    """Keys in a table that is at most four fifths full: 20 to 40 bytes a key once it has grown.

    The log is 16 bytes more for each key added since the last snapshot.
    """

    def __init__(self) -> None:
        self.table = np.zeros(2 * _FIRST_SLOTS, np.uint64)
        """Slots, as `kernels.exact` has them."""
        self.log = np.zeros(2 * _FIRST_LOGGED, np.uint64)
        """Keys that were added and not yet forgotten, in order, host and path in turn."""
        self.counts = np.zeros(5, np.int64)
        """As `kernels.exact.merge_keys` keeps them."""

    def __len__(self) -> int:
        """Number of keys."""
        return int(self.counts[0])

    @property
    def logged(self) -> int:
        """Keys in the log."""
        return int(self.counts[1])

    @property
    def room(self) -> int:
        """Keys that fit without growing."""
        return min(self._limit, len(self) - self.logged + self.log.size // 2)

    @property
    def nbytes(self) -> int:
        """Memory of table and log; the end of the log was never touched, so that no page stands behind it."""
        return self.table.nbytes + 16 * self.logged

    def grow(self) -> None:
        """Make room for at least one more key."""
        if self.logged >= self.log.size // 2:
            longer = np.zeros(2 * self.log.size, np.uint64)
            longer[: self.log.size] = self.log
            self.log = longer
        if len(self) >= self._limit:
            larger = np.zeros(2 * self.table.size, np.uint64)
            split_table(self.table, larger)
            self.table = larger

    def forget(self, count: int) -> None:
        """Drop the first `count` keys of the log; they stay in the table."""
        rest = self.log[2 * count : 2 * self.logged]
        self.log = np.zeros(max(2 * _FIRST_LOGGED, rest.size), np.uint64)
        self.log[: rest.size] = rest
        self.counts[1] -= count

    def pairs(self) -> Iterator[NDArray[np.uint64]]:
        """All keys in the order of the table, a bounded number at a time: shapes (m, 2), host and path."""
        if self.counts[2]:
            yield np.zeros((1, 2), np.uint64)
        slot = 0
        while slot < self.table.size // 2:
            some = np.empty((_CHUNK, 2), np.uint64)
            count, slot = list_keys(self.table, slot, some)
            yield some[:count]

    @property
    def _limit(self) -> int:
        return self.table.size // 2 * 4 // 5
