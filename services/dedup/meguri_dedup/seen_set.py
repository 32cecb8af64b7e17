"""The seen-set of a partition: says of every key, exactly, whether it was there before.

A blocked Bloom filter answers "certainly new" by itself; an exact set settles the rest. The newest keys are in a table
in memory; where memory is bounded, those that it has no room for are in runs on disk, with a cache before them. The
filter grows by being made anew from the keys, so that it keeps its rate in one layer, at no more than 1.4 times the
bits of a Bloom filter made for just these keys from a million of them on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.layer import Layer, key_columns
from meguri_common.filters.sizing import check_size, shape_for
from meguri_dedup.budget import Shares, divide
from meguri_dedup.drum import Drum, MergeFigures
from meguri_dedup.exact import ExactTable
from meguri_dedup.figures import SeenFigures
from meguri_dedup.kernels.exact import (
    DEFER,
    FALSE_HITS,
    INSERT,
    OPEN,
    PROBES,
    TRUST,
    TRUSTED,
    merge_keys,
    settle_keys,
)
from meguri_dedup.kernels.runs import fill_rows, table_rows
from meguri_dedup.marshal import bloom_blob, ribbon_blob
from meguri_dedup.rows import keys_of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from meguri_dedup.run_file import Run, RunFolder

__all__ = ["SeenSet"]

_DOUBLING_ENDS = 1_000_000
"""Keys up to which the filter doubles; from there on it grows by less, to stay within its bits a key."""
_BITS_LIMIT = 1.38
"""Bits of the filter, just after it grew, over those of an unblocked Bloom filter for the keys that are in."""
_LEAST_GROWTH = 1.1
_CACHE_TAKES = 0.95
_CACHE_KEPT = 0.75
"""A cache takes a little less than its share, and isn't made anew, empty, until it is beyond it or far below."""
_FIGURES = (PROBES, FALSE_HITS, TRUSTED)


class SeenSet:
    """Exact set of 128-bit keys; a key that was added is never reported absent."""

    def __init__(
        self,
        capacity: int = 1_048_576,
        fp_rate: float = 0.01,
        buckets: int = 256,
        *,
        folder: RunFolder | None = None,
        memory_bytes: int = 0,
        trust_filter: bool = False,
    ) -> None:
        """Make an empty set.

        Args:
            capacity: the filter's first size in keys, not a limit.
            fp_rate: share of new keys that the filter takes for seen, at most.
            buckets: least number of buckets that a run on disk is divided into, rounded up to a power of two; larger
                runs have more.
            folder: where runs are written. Without one all keys stay in memory.
            memory_bytes: what may be used of memory; beyond it keys go to disk. Never less than 2 bytes a key is
                used (and 512 KiB beside the filter). 0: no bound, nothing is written.
            trust_filter: take the filter's "maybe" for "seen" when deciding; new keys are then lost at its rate.

        Raises:
            ValueError: capacity or buckets below 1, a rate outside (0, 1), a bound below 0 or without a folder.
        """
        check_size(capacity, fp_rate)
        if buckets < 1:
            msg = f"a seen-set has at least 1 bucket, not {buckets}"
            raise ValueError(msg)
        if memory_bytes < 0:
            msg = f"memory_bytes is a number of bytes, or 0 for no bound: not {memory_bytes}"
            raise ValueError(msg)
        if memory_bytes and folder is None:
            msg = "a seen-set whose memory is bounded needs a folder for its runs"
            raise ValueError(msg)
        self.capacity = capacity
        self.fp_rate = fp_rate
        self.memory_bytes = memory_bytes
        self.trust_filter = trust_filter
        self.may_write = True
        """Whether keys may be written to disk: those who only look at a set keep all that they add in memory."""
        self.drum = Drum(folder, buckets) if folder is not None else None
        self.spilled_unsaved = 0
        """Keys that went to runs before any snapshot had them."""
        self.spills = 0
        """How often the table was emptied to a run."""
        self._filter: Layer | None = Layer.sized(capacity, fp_rate)
        self._filter_capacity = capacity
        self._table = ExactTable()
        self._cache = np.zeros(0, np.uint64)
        self._shares = Shares(0, 0)
        self._open = np.zeros(0, np.int64)
        self._decisions = self._batches = self._run_probes = 0
        self._share_memory()

    def __len__(self) -> int:
        """Distinct keys."""
        return len(self._table) + self._on_disk

    @property
    def bits_per_url(self) -> float:
        """Bits of the filter per key; 0 for an empty set."""
        return self._bloom.bits / len(self) if len(self) else 0.0

    def merge(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Test and add n keys, one after another; True = seen before. Shapes (n,).

        The first occurrence of a key that is repeated in the batch decides; the others are seen.

        Raises:
            OSError: keys couldn't be written to disk: nothing of the batch is added.
        """
        return self._decide(host, path, TRUST if self.trust_filter else 0)

    def insert_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> None:
        """Add n keys, exactly; repeats do no harm. Shapes (n,).

        Raises:
            OSError: keys couldn't be written to disk: nothing of the batch is added.
        """
        self._decide(host, path, 0)

    def check_and_insert(self, host: int, path: int) -> bool:
        """Test and add one key; True = seen before."""
        return bool(self.merge(*_one(host, path))[0])

    def insert(self, host: int, path: int) -> None:
        """Add one key, exactly."""
        self.insert_batch(*_one(host, path))

    def contains_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Of each key whether it is in, exactly; adds nothing. Shapes (n,)."""
        host, path = key_columns(host, path)
        seen = np.zeros(host.size, np.bool_)
        self._pass(host, path, seen, self._table.counts.copy(), 0)
        return seen

    def contains(self, host: int, path: int) -> bool:
        """Whether the key is in, exactly."""
        return bool(self.contains_batch(*_one(host, path))[0])

    def maybe_contains(self, host: int, path: int) -> bool:
        """What the filter alone says."""
        found = np.zeros(1, np.bool_)
        self._bloom.probe(*key_columns(*_one(host, path)), found)
        return bool(found[0])

    def pairs(self) -> Iterator[NDArray[np.uint64]]:
        """All keys, a bounded number at a time, in no order that means anything: shapes (m, 2), host and path."""
        for run in self.drum.runs if self.drum else ():
            for piece in run.pieces():
                yield keys_of_rows(piece)
        yield from self._table.pairs()

    def keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Host and path keys of all, in no order that means anything; shapes (len,)."""
        return _columns(np.concatenate(list(self.pairs())))

    def recent_keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Host and path keys of those that are in no run; shapes (recent,)."""
        return _columns(np.concatenate(list(self._table.pairs())))

    @property
    def recent(self) -> int:
        """Number of keys that are in no run."""
        return len(self._table)

    @property
    def unsaved(self) -> int:
        """Number of keys added since `mark_saved` that are in no run."""
        return self._table.logged

    def unsaved_keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Copies of the host and path keys added since `mark_saved`, in order; shapes (unsaved,)."""
        return _columns(self._table.log[: 2 * self._table.logged].reshape(-1, 2))

    def mark_saved(self, count: int) -> None:
        """The first `count` of the unsaved keys are kept elsewhere now."""
        self._table.forget(count)

    def adopt(self, runs: list[Run]) -> None:
        """Go on from runs that a snapshot names; the set was empty before."""
        assert self.drum is not None, "runs are opened by the folder of a set that has one"
        self.drum.adopt(runs)
        self._filter = None
        self._share_memory()

    def figures(self) -> SeenFigures:
        """Counts that go on over restarts."""
        probes, false_hits, trusted = (int(self._table.counts[place]) for place in _FIGURES)
        return SeenFigures(self._decisions, self._batches, probes, false_hits, trusted, self._run_probes)

    def take_figures(self, figures: SeenFigures) -> None:
        """Go on from the counts of a set before."""
        self._decisions, self._batches, self._run_probes = figures.decisions, figures.batches, figures.run_probes
        self._table.counts[list(_FIGURES)] = figures.probes, figures.false_hits, figures.trusted

    def stats(self) -> dict[str, float]:
        """Figures of the set.

        keys, keys_on_disk, runs; table_bytes, cache_bytes, memory_bytes (all of it, filter included); filter_bits,
        bits_per_url; target_fpr and measured_fpr (of the decisions on new keys, the share that the filter didn't
        settle); decisions, batches, hits (seen), misses (new); base_probes (decisions that went past the filter) and
        base_share; run_probes (those that went past memory, to the runs) and run_share; trusted (hits by the filter's
        word alone); and of this process: runs_written, merges (of runs), merge_bytes_read, merge_bytes_written,
        merge_seconds.
        """
        drum = self.drum
        made = drum.figures if drum else MergeFigures()
        return {
            "keys": len(self),
            "keys_on_disk": self._on_disk,
            "runs": len(drum.runs) if drum else 0,
            "table_bytes": self._table.nbytes,
            "cache_bytes": self._cache.nbytes,
            "memory_bytes": self._bloom.words.nbytes + self._table.nbytes + self._cache.nbytes + self._directories,
            "filter_bits": self._bloom.bits,
            "bits_per_url": self.bits_per_url,
            "target_fpr": self.fp_rate,
            **self.figures().summary(),
            "runs_written": made.runs_written,
            "merges": made.merges,
            "merge_bytes_read": made.bytes_read,
            "merge_bytes_written": made.bytes_written,
            "merge_seconds": made.seconds,
        }

    def marshal_filter(self) -> bytes:
        """The filter as a blob of kind 0; the same keys give the same bytes."""
        return bloom_blob(self._bloom, len(self), self.fp_rate)

    def marshal_ribbon(self, bits: int = 7) -> bytes:
        """The exact keys, frozen into a ribbon filter of 2^-bits false positives; the same keys give the same bytes.

        Raises:
            FilterBuildError: it has no solution.
        """
        recent = self._table.table.copy()
        count = table_rows(recent, self._table.counts)
        runs = [run.data for run in self.drum.runs] if self.drum else []
        return ribbon_blob([*runs, recent[: 2 * count]], bits)

    @property
    def _on_disk(self) -> int:
        return self.drum.keys if self.drum else 0

    @property
    def _directories(self) -> int:
        return self.drum.directory_bytes if self.drum else 0

    @property
    def _bloom(self) -> Layer:
        """The filter; made from the keys where there is none."""
        if self._filter is None:
            while self._filter_capacity < len(self):
                self._filter_capacity = _next_capacity(self._filter_capacity, self.fp_rate)
            layer = Layer.sized(self._filter_capacity, self.fp_rate)
            for run in self.drum.runs if self.drum else ():
                for piece in run.pieces():
                    fill_rows(layer.words, layer.probes, piece)
            for pairs in self._table.pairs():
                layer.fill(pairs)
            self._filter = layer
        return self._filter

    @property
    def _bounded(self) -> bool:
        return self.drum is not None and self.memory_bytes > 0 and self.may_write

    def _decide(self, host: NDArray[np.uint64], path: NDArray[np.uint64], mode: int) -> NDArray[np.bool_]:
        host, path = key_columns(host, path)
        seen = np.zeros(host.size, np.bool_)
        most = self._shares.recent if self._bounded else max(host.size, 1)
        before = self._checkpoint() if host.size > most else None
        try:
            for start in range(0, host.size, most):
                part = slice(start, start + most)
                self._spill_for(host[part].size)
                self._pass(host[part], path[part], seen[part], self._table.counts, mode | INSERT)
        except BaseException:
            if before is not None:
                self._go_back(*before)
            raise
        if self.drum is not None:
            self.drum.let_go()
        self._decisions += host.size
        self._batches += 1
        return seen

    def _checkpoint(self) -> tuple[tuple[Run, ...], ExactTable, tuple[int, ...]]:
        """What a batch that goes to disk in parts is undone to, should a part fail."""
        assert self.drum is not None, "without a folder a batch is one part"
        return self.drum.runs, self._table.copy(), (self.spills, self.spilled_unsaved, self._run_probes)

    def _go_back(self, runs: tuple[Run, ...], table: ExactTable, numbers: tuple[int, ...]) -> None:
        assert self.drum is not None, "see _checkpoint"
        self.drum.back_to(runs)
        self._table = table
        self.spills, self.spilled_unsaved, self._run_probes = numbers
        self._filter = None  # it has keys that are out again: right, but not what the keys alone would make
        self._cache[:] = 0

    def _pass(
        self,
        host: NDArray[np.uint64],
        path: NDArray[np.uint64],
        seen: NDArray[np.bool_],
        counts: NDArray[np.int64],
        mode: int,
    ) -> None:
        n, start = host.size, 0
        on_disk = self._on_disk
        if self._open.size < n and on_disk:
            self._open = np.zeros(n, np.int64)
        if on_disk:
            mode |= DEFER
        while start < n:
            rest = host[start:], path[start:], seen[start:]
            bloom, table = self._bloom, self._table
            room = min(table.room, bloom.capacity - on_disk)
            done = merge_keys(
                bloom.words, bloom.probes, table.table, table.log, room, counts, self._cache, self._open, *rest, mode
            )
            if counts[OPEN]:
                self._settle(*rest, counts, insert=bool(mode & INSERT))
            start += done
            del bloom
            if start < n:
                self._make_room()

    def _settle(
        self,
        host: NDArray[np.uint64],
        path: NDArray[np.uint64],
        seen: NDArray[np.bool_],
        counts: NDArray[np.int64],
        *,
        insert: bool,
    ) -> None:
        assert self.drum is not None, "keys are left open where there are runs"
        count = int(counts[OPEN])
        self._run_probes += count if insert else 0
        rows = self.drum.search(self._open[:count], host, path, seen, self._cache)
        if insert:
            self._table.grow(rows.size)
        settle_keys(self._table.table, self._table.log, counts, host, path, rows, seen, insert)

    def _spill_for(self, keys: int) -> None:
        """Empty a bounded table to disk if it might not have room for so many more keys."""
        if self._bounded and len(self._table) and len(self._table) + keys > self._shares.recent:
            self.spill()

    def spill(self) -> None:
        """Write the keys of the table to a run.

        Raises:
            OSError: they couldn't be written; the set is as it was.
        """
        assert self.drum is not None, "only a set with a folder writes"
        table = self._table
        count = table_rows(table.table, table.counts)
        try:
            self.drum.add(table.table[: 2 * count])
        except BaseException:
            self._table = table.again(keys_of_rows(table.table[: 2 * count]))
            raise
        self.spills += 1
        self.spilled_unsaved += table.logged
        figures = table.counts[list(_FIGURES)]
        self._table = ExactTable(self._shares.slots, self._shares.recent)
        self._table.counts[list(_FIGURES)] = figures
        self.drum.tidy()
        self._share_memory()

    def _make_room(self) -> None:
        """In front of a new key: of table, log and filter one is full."""
        if len(self._table) >= self._table.room:
            self._table.grow()
        if len(self) >= self._bloom.capacity:
            self._filter_capacity = _next_capacity(self._filter_capacity, self.fp_rate)
            if self._on_disk:
                self._filter = None  # not two at a time: memory is short
            else:
                larger = Layer.sized(self._filter_capacity, self.fp_rate)
                for pairs in self._table.pairs():
                    larger.fill(pairs)
                self._filter = larger
            self._share_memory()

    def _share_memory(self) -> None:
        """Divide the budget anew: the keys, and with them the filter, have become more."""
        if not self.memory_bytes:
            return
        bits = max(shape_for(self.fp_rate)[0] * self._filter_capacity, len(self) * _most_bits(self.fp_rate))
        now = self._filter.words.nbytes if self._filter else int(bits / 8)
        self._shares = divide(self.memory_bytes, len(self), now, int(bits / 8), self._directories)
        words, lines = self._cache.size, self._shares.lines if self._on_disk else 0
        if not 8 * lines * _CACHE_KEPT <= words <= 8 * lines:
            self._cache = np.zeros(0, np.uint64)  # gone before there is a new one
            self._cache = np.zeros(8 * int(lines * _CACHE_TAKES), np.uint64)


def _most_bits(fp_rate: float) -> float:
    """Bits a key of a filter that has just grown, from a million keys on."""
    return -_BITS_LIMIT * math.log(fp_rate) / math.log(2) ** 2


def _next_capacity(capacity: int, fp_rate: float) -> int:
    growth = max(_most_bits(fp_rate) / shape_for(fp_rate)[0], _LEAST_GROWTH)
    return min(2 * capacity, max(_DOUBLING_ENDS, math.ceil(capacity * growth)))


def _one(host: int, path: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return np.array([host], np.uint64), np.array([path], np.uint64)


def _columns(pairs: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return pairs[:, 0].copy(), pairs[:, 1].copy()
