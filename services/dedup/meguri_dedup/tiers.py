"""The tiers of a seen-set: filter, cache, table of recent keys, runs on disk; how a batch goes through them.

The filter grows by being made anew from the keys, so that it keeps its rate in one layer, at no more than 1.4 times the
bits of a Bloom filter made for just these keys from a million of them on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.layer import Layer
from meguri_common.filters.sizing import blocks_for, shape_for
from meguri_dedup.budget import Shares, divide, filter_bits, next_capacity
from meguri_dedup.exact import ExactTable
from meguri_dedup.kernels.exact import DEFER, INSERT, OPEN, TRUST, merge_keys, merge_resident, settle_keys
from meguri_dedup.kernels.growth import fill_blocks
from meguri_dedup.kernels.runs import fill_rows, table_rows
from meguri_dedup.pages import zeroed_words
from meguri_dedup.rows import keys_of_rows
from meguri_dedup.undo import BatchStart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from meguri_dedup.drum import Drum
    from meguri_dedup.run_file import Run

__all__ = ["Tiers"]

_PIECE = 32_768
"""Keys of a batch that are dealt with at once: bounds what a large one takes of memory."""
_CACHE_TAKES = 0.95
_CACHE_KEPT = 0.75
"""A cache takes a little less than its share, and isn't made anew, empty, until it is beyond it or far below."""


class Tiers:
    """Where a set's keys are, and what of memory each part may take."""

    def __init__(self, capacity: int, fp_rate: float, drum: Drum | None, memory_bytes: int) -> None:
        """No keys; `memory_bytes` 0 is no bound."""
        self.fp_rate = fp_rate
        self.memory_bytes = memory_bytes
        self.drum = drum
        self.may_write = True
        """Whether keys may be written to disk."""
        self.table = ExactTable()
        """Keys that are in no run."""
        self.cache: NDArray[np.uint64] = np.zeros(0, np.uint64)
        """Some of the keys that are in runs; see `kernels.exact.merge_keys`."""
        self.spills = 0
        """How often the table was emptied to a run."""
        self.spilled_unsaved = 0
        """Keys that went to runs before any snapshot had them."""
        self.run_probes = 0
        """Decisions that went on to the runs."""
        self._filter: Layer | None = Layer.sized(capacity, fp_rate)
        self._capacity = capacity
        self._open: NDArray[np.int64] = np.zeros(0, np.int64)
        self._shares = Shares(0, 0)
        self._start: BatchStart | None = None
        self.share_memory()

    def __len__(self) -> int:
        """Distinct keys."""
        return len(self.table) + self.on_disk

    @property
    def on_disk(self) -> int:
        """Keys in runs."""
        return self.drum.keys if self.drum else 0

    @property
    def memory(self) -> int:
        """Bytes of all that is resident."""
        directories = self.drum.directory_bytes if self.drum else 0
        return self.bloom.words.nbytes + self.table.nbytes + self.cache.nbytes + directories

    @property
    def bloom(self) -> Layer:
        """The filter; made from the keys where there is none."""
        if self._filter is None:
            while self._capacity < len(self):
                self._capacity = next_capacity(self._capacity, self.fp_rate)
            layer = _layer(self._capacity, self.fp_rate)
            for run in self.drum.runs if self.drum else ():
                for piece in run.pieces():
                    fill_rows(layer.words, layer.probes, piece)
            fill_blocks(layer.words, layer.probes, self.table.table, self.table.counts)
            self._filter = layer
        return self._filter

    def decide(self, host: NDArray[np.uint64], path: NDArray[np.uint64], mode: int) -> NDArray[np.bool_]:
        """Test n keys and add the new ones, all or, if it raises, none. Shapes (n,).

        Raises:
            OSError: keys couldn't be written to disk.
        """
        seen = np.zeros(host.size, np.bool_)
        if not self._bounded:
            self._pass(host, path, seen, mode | INSERT)
            return seen
        assert self.drum is not None, "a bound needs a folder"
        self._start = BatchStart(self)
        try:
            for at in range(0, host.size, _PIECE):
                part = slice(at, at + _PIECE)
                self._pass(host[part], path[part], seen[part], mode | INSERT)
        except BaseException:
            self._start.undo(self)
            raise
        finally:
            self._start = None
        self.drum.let_go()
        return seen

    def contains(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Test n keys. Shapes (n,)."""
        seen = np.zeros(host.size, np.bool_)
        counts, run_probes = self.table.counts, self.run_probes
        self.table.counts = counts.copy()
        self._pass(host, path, seen, 0)
        self.table.counts, self.run_probes = counts, run_probes
        return seen

    def adopt(self, runs: Sequence[Run]) -> None:
        """Go on from runs that a snapshot names; the set was empty before."""
        assert self.drum is not None, "runs are opened by a folder"
        self.drum.adopt(runs)
        self.forget_filter()
        self.share_memory()

    def recent_rows(self) -> NDArray[np.uint64]:
        """Rows of the keys that are in no run, in the order of a run, (2m,)."""
        rows = self.table.table.copy()
        return rows[: 2 * table_rows(rows, self.table.counts)]

    def forget_filter(self) -> None:
        """Let the filter be made anew from the keys when it is next asked."""
        self._filter = None

    def share_memory(self) -> None:
        """Divide the budget anew: the keys, and with them the filter, have become more."""
        if not self.memory_bytes:
            return
        most = filter_bits(self._capacity, len(self), self.fp_rate) // 8
        now = self._filter.words.nbytes if self._filter else most
        directories = self.drum.directory_bytes if self.drum else 0
        self._shares = divide(self.memory_bytes, len(self), now, most, directories)
        words, lines = self.cache.size, self._shares.lines if self.on_disk else 0
        if not 8 * lines * _CACHE_KEPT <= words <= 8 * lines:
            self.cache = np.zeros(0, np.uint64)  # gone before there is a new one
            self.cache = zeroed_words(8 * int(lines * _CACHE_TAKES))

    @property
    def _bounded(self) -> bool:
        return self.drum is not None and self.memory_bytes > 0 and self.may_write

    def _pass(self, host: NDArray[np.uint64], path: NDArray[np.uint64], seen: NDArray[np.bool_], mode: int) -> None:
        n, start = host.size, 0
        while start < n:
            rest = host[start:], path[start:], seen[start:]
            bloom, table = self.bloom, self.table
            room = min(table.room, bloom.capacity - self.on_disk)
            if self._bounded:
                room = min(room, self._shares.recent)
            if self.on_disk:
                mode |= DEFER
                if self._open.size < n:
                    self._open = np.zeros(n, np.int64)
            if mode & (TRUST | DEFER):
                done = merge_keys(
                    bloom.words,
                    bloom.probes,
                    table.table,
                    table.log,
                    room,
                    table.counts,
                    self.cache,
                    self._open,
                    *rest,
                    mode,
                )
            else:
                insert = bool(mode & INSERT)
                done = merge_resident(
                    bloom.words, bloom.probes, table.table, table.log, room, table.counts, *rest, insert
                )
            del bloom, table  # they may be made anew, and there is no memory for two
            if self.table.counts[OPEN]:
                self._settle(*rest, insert=bool(mode & INSERT))
            start += done
            if start < n:
                self._make_room()

    def _settle(
        self, host: NDArray[np.uint64], path: NDArray[np.uint64], seen: NDArray[np.bool_], *, insert: bool
    ) -> None:
        assert self.drum is not None, "keys are left open where there are runs"
        count = int(self.table.counts[OPEN])
        self.run_probes += count
        rows = self.drum.search(self._open[:count], host, path, seen, self.cache)
        if insert:
            if self._bounded and len(self.table) and len(self.table) + rows.size > self._shares.recent:
                self._spill()
            self.table.grow(rows.size)
        settle_keys(self.table.table, self.table.log, self.table.counts, host, path, rows, seen, insert)

    def _make_room(self) -> None:
        """In front of a new key: of table, log and filter one is full."""
        if self._bounded and len(self.table) >= self._shares.recent:
            self._spill()
        self.table.grow()
        if len(self) >= self.bloom.capacity:
            self._capacity = next_capacity(self._capacity, self.fp_rate)
            if self.on_disk:
                self.forget_filter()  # not two at a time: memory is short
            else:
                larger = _layer(self._capacity, self.fp_rate)
                fill_blocks(larger.words, larger.probes, self.table.table, self.table.counts)
                self._filter = larger
            self.share_memory()

    def _spill(self) -> None:
        """Write the keys of the table to a run; as things are now if that fails.

        Raises:
            OSError: they couldn't be written.
        """
        assert self.drum is not None, "only a set with a folder writes"
        table = self.table
        rows = table.table[: 2 * table_rows(table.table, table.counts)]
        try:
            run = self.drum.add(rows)
        except BaseException:
            self.table = ExactTable.of(keys_of_rows(rows), table.log, table.counts)
            raise
        if self._start is not None:
            self._start.spilled(run, table)
        self.spills += 1
        self.spilled_unsaved += table.logged
        counts = table.counts
        self.table = ExactTable(1)
        del table, rows  # gone before there is a new one
        self.table = ExactTable(self._shares.slots, self._shares.recent)
        self.table.take_figures(counts)
        self.drum.tidy()
        self.share_memory()


def _layer(capacity: int, fp_rate: float) -> Layer:
    bits_per_key, probes = shape_for(fp_rate)
    return Layer(zeroed_words(8 * blocks_for(capacity, bits_per_key)), probes, capacity, 0, 0)
