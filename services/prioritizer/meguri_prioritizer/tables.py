"""Growing tables of records with an index: rows are appended, and their numbers never change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.records import NO_DEPTH
from meguri_prioritizer.kernels.index import (
    find_keys,
    find_urls,
    locate_keys,
    locate_urls,
    rebuild_keys,
    rebuild_pairs,
    rebuild_urls,
)
from meguri_prioritizer.layout import PAIR, url_template

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["KeyTable", "PairTable", "Table", "UrlTable"]

_FIRST_ROWS = 64
_GROWTH = 1.5
"""Tables grow by half. The space that waits for rows is address space alone: nothing has been written there."""
_SHRINK = 16
"""An index that is this many times larger than its last use asked for is made anew."""


class Table:
    """Records and, for each, a slot of the index; `len` of them are in use."""

    def __init__(self, template: np.void, rebuild: Callable[[NDArray[np.uint32], NDArray[Any], int], None]) -> None:
        """An empty table; `template` is what a new record holds beside its key."""
        self._template = template
        self._rebuild = rebuild
        self._start()

    def _start(self) -> None:
        self.records: NDArray[Any] = np.zeros(_FIRST_ROWS, self._template.dtype)
        self.slots = np.zeros(_FIRST_ROWS * 2, np.uint32)
        self.count = np.zeros(1, np.int64)
        self._saved = 0  # rows that the last snapshot has

    def __len__(self) -> int:
        return int(self.count[0])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A field of all rows in use, as a view."""
        field: NDArray[Any] = self.records[name][: len(self)]
        return field

    def changed(self, field: str, bit: int) -> NDArray[np.int64]:
        """Rows that the last snapshot lacks or has otherwise: those with a bit set, and all made since; ascending.

        New rows count even if nothing was ever set in them: leaving one out would give its number to another.
        """
        marked = np.flatnonzero(self.records[field][: self._saved] & bit)
        return np.concatenate([marked, np.arange(self._saved, len(self))])

    def mark_saved(self) -> None:
        """A snapshot has all rows as they are; the caller clears the bits."""
        self._saved = len(self)

    def reserve(self, more: int) -> None:
        """Make room for `more` rows."""
        need = len(self) + more
        if need > len(self.records):
            grown = np.zeros(max(need, int(len(self.records) * _GROWTH)), self.records.dtype)
            # As bytes: numpy would copy records field by field.
            used = len(self) * self.records.itemsize
            grown.view(np.uint8)[:used] = self.records.view(np.uint8)[:used]
            self.records = grown
        size = self.slots.size
        while need * 4 > size * 3:
            size *= 2
        if size > self.slots.size:
            self.slots = np.zeros(size, np.uint32)
            self._rebuild(self.slots, self.records, len(self))

    def load(self, rows: NDArray[np.int64], columns: dict[str, NDArray[Any]]) -> None:
        """Overwrite rows by number, new ones included; `reindex` makes the index follow."""
        total = max(len(self), int(rows.max()) + 1 if len(rows) else 0)
        self.reserve(total - len(self))
        self.records[len(self) : total] = self._template
        self.count[0] = total
        for name, values in columns.items():
            self.records[name][rows] = values

    def reindex(self) -> None:
        """Make the index anew."""
        self.slots.fill(0)
        self._rebuild(self.slots, self.records, len(self))

    def nbytes(self) -> int:
        """Bytes of the records in use and of the index."""
        return len(self) * self.records.itemsize + self.slots.nbytes


class UrlTable(Table):
    """Records of URLs, keyed by host row and path key."""

    def __init__(self) -> None:
        super().__init__(url_template(NO_DEPTH), rebuild_urls)

    def locate(self, hosts: NDArray[np.int64], paths: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Rows of URLs, appended where they aren't there; columns (n,), gives (n,) i64."""
        self.reserve(len(paths))
        rows = np.empty(len(paths), np.int64)
        locate_urls(self.slots, self.records, self.count, hosts, paths, rows, True)
        return rows

    def find(self, host: int, path: int) -> int:
        """Row of a URL, or -1."""
        return int(find_urls(self.slots, self.records, self.count, host, np.uint64(path)))


class KeyTable(Table):
    """Records keyed by the one word `key`."""

    def __init__(self, template: np.void) -> None:
        super().__init__(template, rebuild_keys)

    def locate(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Rows of keys, appended where they aren't there; (n,) u64 -> (n,) i64."""
        self.reserve(len(keys))
        rows, before = np.empty(len(keys), np.int64), len(self)
        locate_keys(self.slots, self.records, self.count, keys, rows, True)
        if len(self) > before:
            new = self.records[before : len(self)]
            made = new["key"].copy()
            new[:] = self._template
            new["key"] = made
        return rows

    def find(self, key: int) -> int:
        """Row of a key, or -1."""
        return int(find_keys(self.slots, self.records, self.count, np.uint64(key)))


class PairTable(Table):
    """What a step sums: cleared at its start."""

    def __init__(self) -> None:
        super().__init__(np.zeros(1, PAIR)[0], rebuild_pairs)

    def clear(self) -> None:
        """Forget all rows; space far beyond what was used is given back."""
        if self.slots.size > _SHRINK * max(len(self), _FIRST_ROWS):
            self._start()
        else:
            self.slots.fill(0)
            self.count[0] = 0
