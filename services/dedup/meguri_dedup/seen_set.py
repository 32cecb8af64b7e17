"""The seen-set of a partition: says of every key, exactly, whether it was there before.

A blocked Bloom filter answers "certainly new" by itself; an exact set settles the rest. The newest keys are in a table
in memory; where memory is bounded, those that it has no room for are in runs on disk, with a cache before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.layer import key_columns
from meguri_common.filters.sizing import check_size
from meguri_dedup.drum import Drum, MergeFigures
from meguri_dedup.exact import FIGURES
from meguri_dedup.figures import SeenFigures
from meguri_dedup.kernels.exact import TRUST
from meguri_dedup.marshal import bloom_blob, ribbon_blob
from meguri_dedup.rows import keys_of_rows
from meguri_dedup.tiers import Tiers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from meguri_dedup.run_file import Run, RunFolder

__all__ = ["SeenSet"]


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
        self.fp_rate = fp_rate
        self.trust_filter = trust_filter
        self._tiers = Tiers(capacity, fp_rate, Drum(folder, buckets) if folder else None, memory_bytes)
        self._decisions = self._batches = 0

    def __len__(self) -> int:
        """Distinct keys."""
        return len(self._tiers)

    @property
    def bits_per_url(self) -> float:
        """Bits of the filter per key; 0 for an empty set."""
        return self._tiers.bloom.bits / len(self) if len(self) else 0.0

    @property
    def memory_bytes(self) -> int:
        """The bound; 0 for none."""
        return self._tiers.memory_bytes

    @property
    def may_write(self) -> bool:
        """Whether keys may be written to disk: those who only look at a set keep all that they add in memory."""
        return self._tiers.may_write

    @may_write.setter
    def may_write(self, value: bool) -> None:
        self._tiers.may_write = value

    @property
    def drum(self) -> Drum | None:
        """The exact set on disk; None without a folder."""
        return self._tiers.drum

    @property
    def spills(self) -> int:
        """How often keys went from memory to a run."""
        return self._tiers.spills

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
        return self._tiers.contains(*key_columns(host, path))

    def contains(self, host: int, path: int) -> bool:
        """Whether the key is in, exactly."""
        return bool(self.contains_batch(*_one(host, path))[0])

    def maybe_contains(self, host: int, path: int) -> bool:
        """What the filter alone says."""
        found = np.zeros(1, np.bool_)
        self._tiers.bloom.probe(*key_columns(*_one(host, path)), found)
        return bool(found[0])

    def pairs(self) -> Iterator[NDArray[np.uint64]]:
        """All keys, a bounded number at a time, in no order that means anything: shapes (m, 2), host and path."""
        for run in self.drum.runs if self.drum else ():
            for piece in run.pieces():
                yield keys_of_rows(piece)
        yield from self._tiers.table.pairs()

    def keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Host and path keys of all, in no order that means anything; shapes (len,)."""
        return _columns(np.concatenate(list(self.pairs())))

    def recent_keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Host and path keys of those that are in no run; shapes (recent,)."""
        return _columns(np.concatenate(list(self._tiers.table.pairs())))

    @property
    def recent(self) -> int:
        """Number of keys that are in no run."""
        return len(self._tiers.table)

    @property
    def unsaved(self) -> int:
        """Number of keys added since `mark_saved` that are in no run."""
        return self._tiers.table.logged

    def unsaved_keys(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Copies of the host and path keys added since `mark_saved`, in order; shapes (unsaved,)."""
        return _columns(self._tiers.table.log[: 2 * self._tiers.table.logged].reshape(-1, 2))

    def mark_saved(self, count: int) -> None:
        """The first `count` of the unsaved keys are kept elsewhere now."""
        self._tiers.table.forget(count)

    def adopt(self, runs: Sequence[Run], spills: int) -> None:
        """Go on from runs, and as many spills, that a snapshot names; the set was empty before."""
        self._tiers.spills = spills
        if runs:
            self._tiers.adopt(runs)

    @property
    def spilled_unsaved(self) -> int:
        """Keys that went to runs since `runs_saved` and were in no snapshot before."""
        return self._tiers.spilled_unsaved

    def runs_saved(self) -> None:
        """A snapshot names all runs there are."""
        self._tiers.spilled_unsaved = 0

    def figures(self) -> SeenFigures:
        """Counts that go on over restarts."""
        probes, false_hits, trusted = (int(self._tiers.table.counts[place]) for place in FIGURES)
        return SeenFigures(self._decisions, self._batches, probes, false_hits, trusted, self._tiers.run_probes)

    def take_figures(self, figures: SeenFigures) -> None:
        """Go on from the counts of a set before."""
        self._decisions, self._batches, self._tiers.run_probes = figures.decisions, figures.batches, figures.run_probes
        self._tiers.table.counts[list(FIGURES)] = figures.probes, figures.false_hits, figures.trusted

    def stats(self) -> dict[str, float]:
        """Figures of the set.

        keys, keys_on_disk, runs; table_bytes, cache_bytes, memory_bytes (all of it, filter included); filter_bits,
        bits_per_url; target_fpr and measured_fpr (of the decisions on new keys, the share that the filter didn't
        settle); decisions, batches, hits (seen), misses (new); base_probes (decisions that went past the filter) and
        base_share; run_probes (those that went past memory, to the runs) and run_share; trusted (hits by the filter's
        word alone); and of this process: runs_written, merges (of runs), merge_bytes_read, merge_bytes_written,
        merge_seconds.
        """
        tiers, drum = self._tiers, self.drum
        made = drum.figures if drum else MergeFigures()
        return {
            "keys": len(self),
            "keys_on_disk": tiers.on_disk,
            "runs": len(drum.runs) if drum else 0,
            "table_bytes": tiers.table.nbytes,
            "cache_bytes": tiers.cache.nbytes,
            "memory_bytes": tiers.memory,
            "filter_bits": tiers.bloom.bits,
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
        return bloom_blob(self._tiers.bloom, len(self), self.fp_rate)

    def marshal_ribbon(self, bits: int = 7) -> bytes:
        """The exact keys, frozen into a ribbon filter of 2^-bits false positives; the same keys give the same bytes.

        Raises:
            FilterBuildError: it has no solution.
        """
        runs = [run.data for run in self.drum.runs] if self.drum else []
        return ribbon_blob([*runs, self._tiers.recent_rows()], bits)

    def _decide(self, host: NDArray[np.uint64], path: NDArray[np.uint64], mode: int) -> NDArray[np.bool_]:
        seen = self._tiers.decide(*key_columns(host, path), mode)
        self._decisions += seen.size
        self._batches += 1
        return seen


def _one(host: int, path: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return np.array([host], np.uint64), np.array([path], np.uint64)


def _columns(pairs: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return pairs[:, 0].copy(), pairs[:, 1].copy()
