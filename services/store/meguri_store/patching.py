"""Applying what was said about keys to the rows that bear them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.records import ParkReason, Status, UpdateField
from meguri_common.wire.columns import numbers
from meguri_store.fold import FOLDED, first_hour, fold_visits
from meguri_store.schema import URL_SCHEMA
from meguri_store.water_level import scheduled_rates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_store.delta import Patches
    from meguri_store.fold import FoldRules

__all__ = ["APPLIED", "CRAWLED", "FAILED", "PATCHED", "Events", "patch_columns", "patch_rows", "replaced"]

APPLIED, CRAWLED, FAILED = 1, 2, 3
"""What became of a visit: folded, folded as a crawl, folded as a failure; 0 = its URL isn't known (yet)."""

PATCHED = (*FOLDED, "priority", "depth")
"""Numeric columns of a record that operations read or change."""

_NOTHING = -1


@dataclass(frozen=True)
class Events:
    """What a schedule by worth has to know of each outcome, filled in when it is folded; all (outcomes,)."""

    row: NDArray[np.int64]
    """Which row it was folded into; -1 none."""
    rescheduled: NDArray[np.bool_]
    parts: NDArray[np.int64]
    """Scheduled rate of the URL afterwards, where it wasn't rescheduled (see `water_level`)."""
    hour: NDArray[np.uint32]
    rate: NDArray[np.float32]
    """Estimated changes an hour."""
    priority: NDArray[np.float32]
    """Of the URL at that time."""

    @classmethod
    def blank(cls, outcomes: int) -> Events:
        """Of outcomes none of which is folded yet."""
        return cls(
            np.full(outcomes, -1, np.int64),
            np.zeros(outcomes, np.bool_),
            np.zeros(outcomes, np.int64),
            np.zeros(outcomes, np.uint32),
            np.zeros(outcomes, np.float32),
            np.zeros(outcomes, np.float32),
        )


class _Patcher:
    """Distinct rows, while their operations are applied."""

    def __init__(self, columns: dict[str, NDArray[Any]], patches: Patches, events: Events | None = None) -> None:
        self.patches = patches
        self.columns = columns
        rows = len(columns["status"])
        self.etag = np.full(rows, _NOTHING, np.int64)  # outcome whose etag counts; NOTHING: the stored one
        self.redirect = np.full(rows, _NOTHING, np.int64)
        self.cleared = np.zeros(rows, np.bool_)  # no redirect, where none is taken over
        self._events = events

    def set_last(self, target: NDArray[np.int64], update: NDArray[np.int64], name: str, field: UpdateField) -> None:
        """Set a column to what the last of the updates that speak of it says; `target` ascends."""
        speaks = numbers(self.patches.updates, "fields")[update] & field != 0
        target, update = target[speaks], update[speaks]
        last = np.ones(len(target), np.bool_)
        last[:-1] = target[1:] != target[:-1]
        self.columns[name][target[last]] = numbers(self.patches.updates, name)[update[last]]

    def note_priorities(self, target: NDArray[np.int64], visit: NDArray[np.bool_], row: NDArray[np.int64]) -> None:
        """For each visit, the priority that its URL has by then; `target` ascends, operations are in inbox order."""
        assert self._events is not None
        places = np.arange(len(target))
        fields = numbers(self.patches.updates, "fields")
        speaks = np.zeros(len(target), np.bool_)
        speaks[~visit] = fields[row[~visit]] & UpdateField.PRIORITY != 0
        last = np.maximum.accumulate(np.where(speaks, places, -1))
        said = last >= np.searchsorted(target, target)
        priority = self.columns["priority"][target]
        priority[said] = numbers(self.patches.updates, "priority")[row[last[said]]]
        self._events.priority[row[visit]] = priority[visit]

    def update(self, target: NDArray[np.int64], update: NDArray[np.int64]) -> None:
        """Release or revive distinct rows."""
        fields = numbers(self.patches.updates, "fields")[update]
        due = first_hour(numbers(self.patches.updates, "at")[update])
        status = self.columns["status"][target]
        released = (fields & UpdateField.RELEASE != 0) & (status == Status.TRAPPED)
        revived = (fields & UpdateField.REVIVE != 0) & np.isin(status, (Status.GONE, Status.EXCLUDED_ROBOTS))
        moved = target[released | revived]
        self.columns["status"][moved] = Status.SCHEDULED
        self.columns["reason"][moved] = ParkReason.NONE
        # A release carries no time of its own: the URL has been waiting since it was discovered.
        due = np.maximum(due, self.columns["first_seen"][target])
        self.columns["next_due"][moved] = due[released | revived]
        self.columns["retry_count"][target[revived]] = 0

    def visit(
        self,
        target: NDArray[np.int64],
        outcome: NDArray[np.int64],
        rules: FoldRules,
        due: NDArray[np.uint32] | None,
        verdicts: NDArray[np.uint8],
    ) -> None:
        """Fold one visit into each of distinct rows."""
        folded = fold_visits(
            {name: self.columns[name][target] for name in FOLDED},
            {name: values[outcome] for name, values in self.patches.facts.items()},
            self.patches.has_etag[outcome],
            self.patches.has_redirect[outcome],
            rules,
            None if due is None else due[outcome],
        )
        for name, values in folded.records.items():
            self.columns[name][target] = values
        self.etag[target[folded.takes_etag]] = outcome[folded.takes_etag]
        self.redirect[target[folded.takes_redirect]] = outcome[folded.takes_redirect]
        self.redirect[target[folded.drops_redirect]] = _NOTHING
        self.cleared[target[folded.drops_redirect]] = True
        verdicts[outcome] = np.where(folded.crawled, CRAWLED, np.where(folded.failed, FAILED, APPLIED))
        if self._events is not None:
            new = folded.records
            self._events.row[outcome] = target
            self._events.rescheduled[outcome] = folded.rescheduled
            self._events.parts[outcome] = scheduled_rates(new["status"], new["last_crawled"], new["next_due"])
            self._events.hour[outcome] = new["last_crawled"]
            self._events.rate[outcome] = new["lambda"]


def patch_rows(
    chunk: pa.Table,
    keys: NDArray[np.int64],
    admitted: NDArray[np.int64],
    patches: Patches,
    rules: FoldRules,
    verdicts: NDArray[np.uint8],
    due: NDArray[np.uint32] | None = None,
) -> pa.Table:
    """Apply the operations on a chunk's rows.

    Args:
        chunk: rows of the store's URL schema, one chunk a column.
        keys: index among the patches' keys of each row, or -1; (n,).
        admitted: number of the operation that admitted each row, -1 if it was there before; operations on a new row
            that came before its admission don't count. (n,)
        patches: what was said.
        rules: parameters of the fold.
        verdicts: what became of each outcome, filled in; (outcomes,).
        due: hour of the next fetch after each outcome, where URLs are rescheduled by worth; (outcomes,).
    """
    rows = np.flatnonzero(keys >= 0)
    target, operation = _counting(keys[rows], admitted[rows], patches)
    if not len(target):
        return chunk
    patcher = _Patcher({name: chunk.column(name).to_numpy()[rows] for name in PATCHED}, patches)
    _apply(patcher, target, operation, rules, due, verdicts)
    return _patched(chunk, rows, patcher)


def patch_columns(
    columns: dict[str, NDArray[Any]],
    keys: NDArray[np.int64],
    admitted: NDArray[np.int64],
    patches: Patches,
    rules: FoldRules,
    verdicts: NDArray[np.uint8],
) -> Events:
    """Apply the operations on rows of which each bears a key, and say what a schedule by worth has to know.

    Args:
        columns: `PATCHED`, changed in place; the hours of the next fetch aren't the ones to come. (n,)
        keys: as `patch_rows` takes them, none of them -1.
        admitted: as `patch_rows` takes them.
        patches: what was said.
        rules: parameters of the fold.
        verdicts: what became of each outcome, filled in; (outcomes,).
    """
    events = Events.blank(patches.outcomes.num_rows)
    target, operation = _counting(keys, admitted, patches)
    patcher = _Patcher(columns, patches, events)
    patcher.note_priorities(target, patches.visit[operation], patches.row[operation])
    _apply(patcher, target, operation, rules, np.ones(patches.outcomes.num_rows, np.uint32), verdicts)
    return events


def _counting(
    keys: NDArray[np.int64], admitted: NDArray[np.int64], patches: Patches
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Operations that count, by row and in inbox order: which row each is about, and which one it is."""
    length = patches.start[keys + 1] - patches.start[keys]
    target = np.repeat(np.arange(len(keys)), length)
    first = np.cumsum(length) - length
    operation = np.arange(len(target)) - first[target] + patches.start[keys][target]
    counts = patches.number[operation] > admitted[target]
    return target[counts], operation[counts]


def _apply(
    patcher: _Patcher,
    target: NDArray[np.int64],
    operation: NDArray[np.int64],
    rules: FoldRules,
    due: NDArray[np.uint32] | None,
    verdicts: NDArray[np.uint8],
) -> None:
    patches = patcher.patches
    visit, row = patches.visit[operation], patches.row[operation]
    patcher.set_last(target[~visit], row[~visit], "priority", UpdateField.PRIORITY)
    patcher.set_last(target[~visit], row[~visit], "depth", UpdateField.DEPTH)

    # What moves a status goes in inbox order: the first such operation of every row, then the second, ...
    moves = visit.copy()
    moves[~visit] = numbers(patches.updates, "fields")[row[~visit]] & (UpdateField.RELEASE | UpdateField.REVIVE) != 0
    target, visit, row = target[moves], visit[moves], row[moves]
    starts = np.flatnonzero(np.append(True, target[1:] != target[:-1])) if len(target) else np.zeros(0, np.int64)
    turn = np.arange(len(target)) - np.repeat(starts, np.diff(np.append(starts, len(target))))
    order = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn)) if len(turn) else ()
    begin = 0
    for end in ends:
        now = order[begin:end]
        begin = end
        seen = visit[now]
        if not seen.all():
            patcher.update(target[now[~seen]], row[now[~seen]])
        if seen.any():
            patcher.visit(target[now[seen]], row[now[seen]], rules, due, verdicts)


def _patched(chunk: pa.Table, rows: NDArray[np.int64], patcher: _Patcher) -> pa.Table:
    columns: list[Any] = []
    for field in URL_SCHEMA:
        column = chunk.column(field.name)
        if field.name in patcher.columns:
            values = column.to_numpy().copy()
            values[rows] = patcher.columns[field.name]
            columns.append(pa.array(values))
        elif field.name == "etag":
            columns.append(replaced(column, patcher.patches.outcomes.column("etag"), rows, patcher.etag, None))
        elif field.name == "redirect":
            columns.append(replaced(column, patcher.patches.redirects, rows, patcher.redirect, patcher.cleared))
        else:
            columns.append(column)
    return pa.Table.from_arrays(columns, schema=URL_SCHEMA)


def replaced(
    column: pa.ChunkedArray,
    given: pa.Array,
    rows: NDArray[np.int64],
    take: NDArray[np.int64],
    cleared: NDArray[np.bool_] | None,
) -> pa.ChunkedArray | pa.Array:
    """The column with `given[take]` at `rows`; where `take` is negative the stored value stays, unless cleared."""
    taken = take >= 0
    empty = ~taken & cleared if cleared is not None else np.zeros(len(rows), np.bool_)
    if not taken.any() and not empty.any():
        return column
    index = np.arange(len(column))
    index[rows[taken]] = len(column) + np.arange(np.count_nonzero(taken))
    absent = np.zeros(len(column), np.bool_)
    absent[rows[empty]] = True
    stored = column.combine_chunks()
    stored = stored.chunk(0) if isinstance(stored, pa.ChunkedArray) else stored
    return pa.concat_arrays([stored, given.take(pa.array(take[taken]))]).take(pa.array(index, mask=absent))
