"""The resident exact set: a table of 128-bit keys, and a log of those that no snapshot has yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.layer import key_columns
from meguri_dedup.kernels.exact import (
    COUNTS,
    FALSE_HITS,
    KEYS,
    LOGGED,
    PROBES,
    TRUSTED,
    ZERO,
    settle_keys,
)
from meguri_dedup.kernels.growth import list_keys, split_table
from meguri_dedup.pages import zeroed_words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from numpy.typing import NDArray

__all__ = ["FIGURES", "ExactTable"]

FIGURES = (PROBES, FALSE_HITS, TRUSTED)
"""Places of the counts of decisions."""

_FIRST_SLOTS = 1024
_FIRST_LOGGED = 512
_CHUNK = 1 << 14


class ExactTable:
    """Keys in a table that is at most four fifths full: 20 to 40 bytes a key once it has grown.

    The log is 16 bytes more for each key added since the last snapshot.
    """

    def __init__(self, slots: int = _FIRST_SLOTS, logged: int = _FIRST_LOGGED) -> None:
        """No keys; room for so many in table (a power of two) and log."""
        self.table = zeroed_words(2 * slots)
        """Slots, as `kernels.exact` has them."""
        self.log = zeroed_words(2 * max(logged, _FIRST_LOGGED))
        """Keys that were added and not yet forgotten, in order, host and path in turn."""
        self.counts = np.zeros(COUNTS, np.int64)
        """As `kernels.exact.merge_keys` keeps them."""

    def __len__(self) -> int:
        """Number of keys."""
        return int(self.counts[KEYS])

    @property
    def logged(self) -> int:
        """Keys in the log."""
        return int(self.counts[LOGGED])

    @property
    def room(self) -> int:
        """Keys that the table has when it, or the log, is full."""
        return min(self._limit, len(self) - self.logged + self.log.size // 2)

    @property
    def nbytes(self) -> int:
        """Memory of table and log; the end of the log was never touched, so that no page stands behind it."""
        return self.table.nbytes + 16 * self.logged

    def grow(self, keys: int = 1) -> None:
        """Make room for at least so many more keys."""
        while self.logged + keys > self.log.size // 2:
            longer = zeroed_words(2 * self.log.size)
            longer[: self.log.size] = self.log
            self.log = longer
        while len(self) + keys > self._limit:
            larger = zeroed_words(2 * self.table.size)
            split_table(self.table, larger)
            self.table = larger

    @classmethod
    def of(cls, pairs: NDArray[np.uint64], log: NDArray[np.uint64], counts: NDArray[np.int64]) -> Self:
        """The table of distinct keys, (m, 2), with a log and counts that are given."""
        made = cls()
        made.log = np.zeros(2 * max(len(pairs), 1), np.uint64)
        made.grow(len(pairs))
        host, path = key_columns(pairs[:, 0].copy(), pairs[:, 1].copy())
        rows = np.arange(len(pairs))
        settle_keys(made.table, made.log, made.counts, host, path, rows, np.zeros(len(pairs), np.bool_), True)
        made.log = log if log.size else np.zeros(2 * _FIRST_LOGGED, np.uint64)
        made.counts = counts
        return made

    def take_figures(self, counts: NDArray[np.int64]) -> None:
        """Go on with the counts of decisions of a table before."""
        self.counts[list(FIGURES)] = counts[list(FIGURES)]

    def forget(self, count: int) -> None:
        """Drop the first `count` keys of the log; they stay in the table."""
        rest = self.log[2 * count : 2 * self.logged]
        self.log = np.zeros(max(2 * _FIRST_LOGGED, rest.size), np.uint64)
        self.log[: rest.size] = rest
        self.counts[LOGGED] -= count

    def pairs(self) -> Iterator[NDArray[np.uint64]]:
        """All keys in the order of the table, a bounded number at a time: shapes (m, 2), host and path."""
        if self.counts[ZERO]:
            yield np.zeros((1, 2), np.uint64)
        slot = 0
        while slot < self.table.size // 2:
            some = np.empty((_CHUNK, 2), np.uint64)
            count, slot = list_keys(self.table, slot, some)
            yield some[:count]

    @property
    def _limit(self) -> int:
        return self.table.size // 2 * 4 // 5
