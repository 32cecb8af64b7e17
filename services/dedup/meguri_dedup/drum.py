"""DRUM, the exact set on disk: sorted runs that batches are checked against, front to back.

H. Lee, D. Leonard, X. Wang, D. Loguinov, "IRLbot: Scaling to 6 Billion Pages and Beyond" (2008): a batch of keys is put
in order once and merged with sorted buckets on disk. Here the bucket is a stretch of a run, found through a directory
in memory; new keys become a run of their own, and runs are merged as they add up, so that no batch rewrites the set.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from meguri_dedup.budget import first_to_merge
from meguri_dedup.kernels.runs import lower_bound, merge_rows, search_runs
from meguri_dedup.run_file import PIECE_ROWS, ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from meguri_dedup.run_file import Run, RunFolder

__all__ = ["Drum", "MergeFigures", "merged"]


@dataclass
class MergeFigures:
    """What was written and read to keep the runs few, since the set was made."""

    runs_written: int = 0
    """Runs of new keys."""
    merges: int = 0
    """Merges of runs."""
    bytes_written: int = 0
    """By both."""
    bytes_read: int = 0
    """By merges of runs."""
    seconds: float = 0.0
    """Elapsed in both."""


class Drum:
    """The runs of a set. Its own memory are their directories."""

    def __init__(self, folder: RunFolder, buckets: int) -> None:
        """No runs yet.

        Args:
            folder: where they are written.
            buckets: least number of buckets of a run, rounded up to a power of two.
        """
        self.folder = folder
        self.buckets = buckets
        self.runs: tuple[Run, ...] = ()
        """In the order of their making, which is from large to small."""
        self.figures = MergeFigures()
        self.keys = 0
        """Keys in all runs."""
        self._book = np.zeros((0, 4), np.uint64)
        self._named: set[str] = set()
        self._superseded: list[Run] = []

    @property
    def directory_bytes(self) -> int:
        """Memory of the directories."""
        return sum(run.directory.nbytes for run in self.runs)

    def search(
        self,
        rows: NDArray[np.int64],
        host: NDArray[np.uint64],
        path: NDArray[np.uint64],
        seen: NDArray[np.bool_],
        cache: NDArray[np.uint64],
    ) -> NDArray[np.int64]:
        """Look keys up, once sorted, in each run from front to back: seen[row] = True for those that one has.

        Args:
            rows: numbers of the keys in the columns, (m,); their order is changed.
            host: host keys, (n,).
            path: path keys, (n,).
            seen: the verdicts, (n,).
            cache: takes the keys that were found.

        Returns:
            Numbers of the keys that no run has; of equal keys the first one comes first.
        """
        return rows[: search_runs(self._book, cache, host, path, rows, seen)]

    def add(self, data: NDArray[np.uint64]) -> Run:
        """Write rows that no run has, in order, as a new run: (2m,).

        Raises:
            OSError: they couldn't be written; nothing is changed.
        """
        start = self.folder.timer()
        run = self.folder.write(partial(_pieces, data), data.size // 2, self.buckets)
        self._set((*self.runs, run))
        self.figures.runs_written += 1
        self.figures.bytes_written += run.reference.size
        self.figures.seconds += self.folder.timer() - start
        return run

    def tidy(self) -> None:
        """Merge runs where they have added up.

        Raises:
            OSError: the merged run couldn't be written; the ones before stay.
            CorruptSnapshot: they don't hold what they say.
        """
        first = first_to_merge([len(run) for run in self.runs])
        old = self.runs[first:]
        if not old:
            return
        start = self.folder.timer()
        run = self.folder.write(partial(merged, old), sum(len(one) for one in old), self.buckets)
        self._set((*self.runs[:first], run))
        self._superseded += old
        self.figures.merges += 1
        self.figures.bytes_read += sum(len(one) for one in old) * ROW_BYTES
        self.figures.bytes_written += run.reference.size
        self.figures.seconds += self.folder.timer() - start

    def name(self) -> tuple[Run, ...]:
        """The runs, for a snapshot that is to name them: from now on they are no longer this set's alone.

        One whose file was taken away meanwhile, since no snapshot named it, is written again.

        Raises:
            OSError: it couldn't be.
        """
        files, runs = self.folder.files, list(self.runs)
        for number, run in enumerate(runs):
            if files.size(run.reference.path) is None:
                runs[number] = self.folder.write(run.pieces, len(run), self.buckets)
                self.figures.bytes_written += run.reference.size
        self.adopt(runs)
        return self.runs

    def adopt(self, runs: Sequence[Run]) -> None:
        """Go on from runs that a snapshot names."""
        self._set(runs)
        self._named.update(run.reference.path for run in runs)

    def back_to(self, runs: tuple[Run, ...]) -> None:
        """Go back to the runs before; nothing was let go in between. The files made since go with the next `let_go`."""
        kept = {run.reference.path for run in runs}
        self._superseded = [run for run in (*self.runs, *self._superseded) if run.reference.path not in kept]
        self._set(runs)

    def _set(self, runs: Sequence[Run]) -> None:
        self.runs = tuple(runs)
        self.keys = sum(len(run) for run in runs)
        rows = [(run.data.ctypes.data, run.directory.ctypes.data, run.bits, len(run)) for run in runs]
        self._book = np.array(rows, np.uint64).reshape(-1, 4)

    def let_go(self) -> None:
        """Remove files that are no longer of use, where no snapshot ever named them: nobody else knows of them.

        One that can't be removed is tried again the next time.
        """
        stuck = []
        for run in self._superseded:
            if run.reference.path not in self._named:
                try:
                    self.folder.files.remove(run.reference.path)
                except OSError:
                    stuck.append(run)
        self._superseded = stuck


def merged(runs: Sequence[Run]) -> Iterator[NDArray[np.uint64]]:
    """The rows of all runs in order, from front to back: pieces of a bounded size, (2m,)."""
    if not runs:
        return
    total = sum(len(run) for run in runs)
    bits = max(-(-total // PIECE_ROWS) - 1, 1).bit_length()
    starts = [0] * len(runs)
    for piece in range(1 << bits):
        if piece + 1 < 1 << bits:
            bound = np.uint64((piece + 1) << (64 - bits))
            ends = [lower_bound(run.data, run.directory, run.bits, bound) for run in runs]
        else:
            ends = [len(run) for run in runs]
        parts = [run.data[2 * a : 2 * b] for run, a, b in zip(runs, starts, ends, strict=True) if b > a]
        starts = ends
        while len(parts) > 1:  # from the small end on, so that little is copied more than once
            small, large = parts.pop(), parts.pop()
            out = np.empty(small.size + large.size, np.uint64)
            merge_rows(small, large, out)
            parts.append(_read_only(out))
        yield from parts


def _pieces(data: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    data = _read_only(data)
    for start in range(0, data.size, 2 * PIECE_ROWS):
        yield data[start : start + 2 * PIECE_ROWS]


def _read_only(data: NDArray[np.uint64]) -> NDArray[np.uint64]:
    view = data.view()
    view.flags.writeable = False
    return view
