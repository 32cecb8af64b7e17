"""Growing columns with an index: append-only rows whose numbers never change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_prioritizer.kernels.index import (
    find_pairs,
    find_singles,
    locate_pairs,
    locate_singles,
    rebuild_pairs,
    rebuild_singles,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import DTypeLike, NDArray

__all__ = ["PairTable", "SingleTable"]

_FIRST_ROWS = 64
_GROWTH = 1.5
"""Columns grow by half: the space that waits for rows stays a third."""


class _Table:
    """Columns of equal capacity; `rows` of them are in use."""

    def __init__(self, fields: Mapping[str, tuple[DTypeLike, Any]]) -> None:
        self._fields = dict(fields)
        self.columns: dict[str, NDArray[Any]] = {
            name: np.full(_FIRST_ROWS, initial, dtype) for name, (dtype, initial) in fields.items()
        }
        self.count = np.zeros(1, np.int64)
        self.slots = np.zeros(_FIRST_ROWS * 2, np.int32)

    def __len__(self) -> int:
        return int(self.count[0])

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]

    def clear(self) -> None:
        """Forget all rows; the space stays."""
        self.count[0] = 0
        self.slots.fill(0)

    def reserve(self, more: int) -> None:
        """Make room for `more` rows."""
        need = len(self) + more
        capacity = len(next(iter(self.columns.values())))
        if need > capacity:
            capacity = max(need, int(capacity * _GROWTH))
            for name, (dtype, initial) in self._fields.items():
                grown = np.full(capacity, initial, dtype)
                grown[: len(self)] = self.columns[name][: len(self)]
                self.columns[name] = grown
        if need * 4 > self.slots.size * 3:
            size = self.slots.size
            while need * 4 > size * 3:
                size *= 2
            self.slots = np.zeros(size, np.int32)
            self._rebuild()

    def _rebuild(self) -> None:
        raise NotImplementedError  # abstract: which key columns there are


class PairTable(_Table):
    """Rows keyed by two words, columns `host_key` and `path_key` or as named."""

    def __init__(self, keys: tuple[str, str], fields: Mapping[str, tuple[DTypeLike, Any]]) -> None:
        self._keys = keys
        super().__init__({keys[0]: (np.uint64, 0), keys[1]: (np.uint64, 0), **fields})

    def locate(self, first: NDArray[np.uint64], second: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Rows of keys, appended where they aren't there; shape (n,) i64."""
        self.reserve(len(first))
        rows = np.empty(len(first), np.int64)
        a, b = self._keys
        locate_pairs(self.slots, self.columns[a], self.columns[b], self.count, first, second, rows)
        return rows

    def find(self, first: int, second: int) -> int:
        """Row of a key, or -1."""
        rows = np.empty(1, np.int64)
        a, b = self._keys
        one, two = np.array([first], np.uint64), np.array([second], np.uint64)
        find_pairs(self.slots, self.columns[a], self.columns[b], one, two, rows)
        return int(rows[0])

    def _rebuild(self) -> None:
        a, b = self._keys
        rebuild_pairs(self.slots, self.columns[a], self.columns[b], len(self))


class SingleTable(_Table):
    """Rows keyed by one word."""

    def __init__(self, key: str, fields: Mapping[str, tuple[DTypeLike, Any]]) -> None:
        self._key = key
        super().__init__({key: (np.uint64, 0), **fields})

    def locate(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Rows of keys, appended where they aren't there; shape (n,) i64."""
        self.reserve(len(keys))
        rows = np.empty(len(keys), np.int64)
        locate_singles(self.slots, self.columns[self._key], self.count, keys, rows)
        return rows

    def find(self, key: int) -> int:
        """Row of a key, or -1."""
        rows = np.empty(1, np.int64)
        find_singles(self.slots, self.columns[self._key], np.array([key], np.uint64), rows)
        return int(rows[0])

    def _rebuild(self) -> None:
        rebuild_singles(self.slots, self.columns[self._key], len(self))
