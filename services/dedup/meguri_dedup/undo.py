"""Undoing a batch that couldn't be finished: the keys that it added are taken out again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from meguri_dedup.exact import ExactTable
from meguri_dedup.rows import keys_of_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_dedup.drum import Drum
    from meguri_dedup.run_file import Run

__all__ = ["BatchStart", "Undoable"]

_PAIR = np.dtype([("host", np.uint64), ("path", np.uint64)])


class Undoable(Protocol):
    """What of a set a batch changes (see `tiers.Tiers`)."""

    drum: Drum | None
    table: ExactTable
    cache: NDArray[np.uint64]
    spills: int
    spilled_unsaved: int
    run_probes: int

    def forget_filter(self) -> None:
        """Let the filter be made anew from the keys when it is next asked."""
        ...


class BatchStart:
    """What a set was before a batch. Costs nothing until the table is first emptied; from then on, its log."""

    def __init__(self, tiers: Undoable) -> None:
        assert tiers.drum is not None, "batches without a folder aren't undone"
        self._runs = tiers.drum.runs
        self._counts = tiers.table.counts.copy()
        self._logged = tiers.table.logged
        self._numbers = tiers.spills, tiers.spilled_unsaved, tiers.run_probes
        self._first: tuple[Run, NDArray[np.uint64]] | None = None

    def spilled(self, run: Run, table: ExactTable) -> None:
        """The table of the time was written to a run."""
        if self._first is None:
            self._first = run, table.log[: 2 * table.logged]

    def undo(self, tiers: Undoable) -> None:
        """Make the set what it was."""
        assert tiers.drum is not None, "see above"
        if self._first is None:
            log = tiers.table.log[: 2 * tiers.table.logged]
            pairs = np.concatenate(list(tiers.table.pairs()))
        else:
            run, log = self._first
            pairs = keys_of_rows(run.data)
        added = log[2 * self._logged :].reshape(-1, 2)
        before = pairs[~np.isin(pairs.view(_PAIR).ravel(), added.view(_PAIR).ravel())]
        tiers.drum.back_to(self._runs)
        tiers.table = ExactTable.of(before, log[: 2 * self._logged].copy(), self._counts)
        tiers.spills, tiers.spilled_unsaved, tiers.run_probes = self._numbers
        tiers.cache[:] = 0
        tiers.forget_filter()
