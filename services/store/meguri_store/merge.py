"""The streaming merge of a base generation and the delta: every record as it is now, in store order.

One chunk (a row group of the base, with the new rows that fall between its rows) is in memory at a time, beside the
delta. Compaction writes what comes out; queries look at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from meguri_common.wire.schemas import RowKind
from meguri_store.delta import Admissions, Patches
from meguri_store.hosts import HostChanges, merge_hosts
from meguri_store.interleave import interleaved
from meguri_store.kernels.merge import match_rows, merge_rows
from meguri_store.keyed import fixed, keyed
from meguri_store.patching import patch_rows
from meguri_store.schema import URL_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from meguri_store.fold import FoldRules
    from meguri_store.freshness_plan import Plan
    from meguri_store.oplog import OpLog

__all__ = ["CHUNK_ROWS", "Base", "Merge", "Piece"]

CHUNK_ROWS = 131_072
"""Rows of a row group, and of a chunk in memory."""


class Base(Protocol):
    """Where the rows of a generation come from."""

    @property
    def groups(self) -> int:
        """Number of row groups of URLs."""
        ...

    def host_range(self, group: int) -> tuple[int, int]:
        """First and last host key of a row group."""
        ...

    def group_rows(self, group: int) -> int:
        """Rows of a row group."""
        ...

    def urls(self, group: int) -> pa.Table:
        """A row group of URLs."""
        ...

    def hosts(self) -> Iterator[pa.Table]:
        """Host records, in order."""
        ...


@dataclass(frozen=True)
class Piece:
    """Consecutive records, and what the base has of them."""

    rows: pa.Table | None
    """The records; None where they are those of `group`, as they are."""
    group: int | None = None
    """The row group of the base of which they are the rows, neither more nor less; None where there is none."""
    before: pa.Table | None = None
    """The rows of the base that are among them, as they were, where `rows` aren't the same. Where `rows` are those of a
    group, both may be without columns that no row of them has changed in, but for those that meta.json counts by."""
    fresh: NDArray[np.bool_] | None = None
    """Which of the rows the base doesn't have, (rows,); None: none of them."""
    touched: NDArray[np.bool_] | None = None
    """Which of the rows aren't as the base has them, at most, (rows,); None: it isn't known."""


class Merge:
    """One pass over base and delta. `hosts` is for after `rows` has been consumed to its end, nothing skipped."""

    def __init__(
        self,
        base: Base | None,
        log: OpLog,
        rules: FoldRules,
        chunk_rows: int = CHUNK_ROWS,
        plan: Plan | None = None,
    ) -> None:
        """Begin a pass.

        Args:
            base: the generation; None where there is none yet.
            log: the operations since then, or those on some of the keys.
            rules: parameters of the fold.
            chunk_rows: most rows of a chunk without a base.
            plan: hours of the next fetches, where the rules are to reschedule by worth.
        """
        self._base = base
        self._log = log
        self._rules = rules
        self._chunk_rows = chunk_rows
        self.new = Admissions.of(log)
        """New rows, in store order."""
        self._new_keyed = keyed(self.new.rows)
        self._patches = Patches.of(log)
        self._patch_keys = (fixed(self._patches.host), fixed(self._patches.path))
        self._next_new = 0
        self._first_host: list[NDArray[np.uint64]] = []
        self._first_row: list[NDArray[np.int64]] = []
        self._due = plan.of(log.table(RowKind.OUTCOME)[0]) if plan else None
        assert plan or not rules.reschedule, "hours by worth are planned ahead, over the whole delta"
        self.verdicts = np.zeros(self._patches.outcomes.num_rows, np.uint8)
        """What became of each outcome of the delta (see `patching`)."""
        self.count = 0
        """Rows that came out so far."""
        self.inserted = 0
        """Of these, new ones."""
        self.updated = 0
        """Rows of the base, among those that came out, of which the delta said anything."""

    def rows(self, skip: Callable[[int], bool] = lambda _group: False) -> Iterator[pa.Table]:
        """Records in store order, a chunk at a time.

        Args:
            skip: row groups of the base that need not come out where the delta says nothing of their hosts.
        """
        for group in range(self._base.groups if self._base else 0):
            assert self._base is not None
            if skip(group) and not self._concerns(*self._base.host_range(group)):
                continue
            yield from _tables(self._emit(self._base.urls(group)))
        while self._next_new < len(self.new.host):
            yield from _tables(self._emit(URL_SCHEMA.empty_table()))

    def pieces(self) -> Iterator[Piece]:
        """Records in store order as `rows`, but row groups of which the delta says nothing are named, not decoded."""
        starts = _Starts.of(self._base) if self._base else None
        for group in range(self._base.groups if self._base else 0):
            assert self._base is not None
            assert starts is not None
            first, last = self._base.host_range(group)
            if self._waits(last) or self._concerns(first, last):
                yield from self._emit(self._base.urls(group), group)
                continue
            hosts, rows = starts.of_group(group)
            self._begin(hosts, rows + self.count)
            self.count += starts.rows(group)
            yield Piece(None, group)
        while self._next_new < len(self.new.host):
            yield from self._emit(URL_SCHEMA.empty_table())

    def hosts(self, group_by: str) -> Iterator[pa.Table]:
        """Host records in order, as they are after all that was said."""
        changes = HostChanges.of(self._log, self.verdicts)
        host = np.concatenate([*self._first_host, np.zeros(0, np.uint64)])
        row = np.concatenate([*self._first_row, np.zeros(0, np.int64)])
        base = self._base.hosts() if self._base else iter(())
        yield from merge_hosts(base, changes, (host, row, self.count), group_by)

    def _begin(self, hosts: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
        """Note at which row each host begins; the first may have begun before."""
        if len(hosts) and self._first_host and self._first_host[-1][-1] == hosts[0]:
            hosts, rows = hosts[1:], rows[1:]
        if len(hosts):
            self._first_host.append(hosts)
            self._first_row.append(rows)

    def _waits(self, last: int) -> bool:
        """Whether a new row of a host up to `last` hasn't come out yet."""
        return self._next_new < len(self.new.host) and bool(self.new.host[self._next_new] <= np.uint64(last))

    def _concerns(self, first: int, last: int) -> bool:
        """Whether the delta says anything of hosts from `first` to `last`."""
        low, high = np.uint64(first), np.uint64(last)
        return any(
            np.searchsorted(hosts, low) < np.searchsorted(hosts, high, side="right")
            for hosts in (self.new.host, self._patches.host)
        )

    def _emit(self, chunk: pa.Table, group: int | None = None) -> Iterator[Piece]:
        rows, admitted = self._with_new(chunk)
        if not rows.num_rows:
            return
        grown = rows is not chunk
        host, offsets, data = keyed(rows)
        keys = np.full(len(host), -1, np.int64)
        if np.searchsorted(self._patches.host, host[0]) < np.searchsorted(self._patches.host, host[-1], side="right"):
            match_rows(host, offsets, data, *self._patch_keys, keys)
            rows = patch_rows(rows, keys, admitted, self._patches, self._rules, self.verdicts, self._due)
        begins = np.append(0, np.flatnonzero(host[1:] != host[:-1]) + 1)
        self._begin(host[begins], begins + self.count)
        self.count += rows.num_rows
        self.inserted += int(np.count_nonzero(admitted >= 0))
        self.updated += int(np.count_nonzero((admitted < 0) & (keys >= 0)))
        if rows is chunk:
            yield Piece(rows if group is None else None, group)
        elif grown:
            yield Piece(rows, None, chunk, admitted >= 0, (admitted >= 0) | (keys >= 0))
        else:
            yield Piece(rows, group, chunk, None, keys >= 0)

    def _with_new(self, chunk: pa.Table) -> tuple[pa.Table, NDArray[np.int64]]:
        """The chunk with the new rows that belong into it, and the number of each row's admission, or -1."""
        base = keyed(chunk)
        count = len(base[0])
        start = self._next_new
        room = self._chunk_rows if count == 0 else int(np.searchsorted(self.new.host, base[0][-1], side="right"))
        if start == len(self.new.host) or (count and room <= start):
            return chunk, np.full(count, -1, np.int64)
        order = np.empty(count + (room if count == 0 else room - start), np.int64)
        written, self._next_new = merge_rows(*base, *self._new_keyed, start, self._chunk_rows, order)
        if written == count:
            return chunk, np.full(count, -1, np.int64)
        if not count and self._next_new - start == written:  # none passed over: the new rows as they stand
            return self.new.rows.slice(start, written), self.new.number[start : self._next_new]
        order = order[:written]
        fresh = order >= count
        admitted = np.full(written, -1, np.int64)
        admitted[fresh] = self.new.number[order[fresh] - count]
        order[fresh] -= start
        new = self.new.rows.slice(start, self._next_new - start)
        if not count:
            return new.take(pa.array(order)), admitted
        return interleaved(chunk.combine_chunks(), new, order), admitted


@dataclass(frozen=True)
class _Starts:
    """At which row of a base each of its hosts begins; hosts without URLs are left out."""

    host: NDArray[np.uint64]
    row: NDArray[np.int64]
    ends: NDArray[np.int64]
    """First row after each row group, (groups,)."""
    base: Base

    @classmethod
    def of(cls, base: Base) -> _Starts:
        tables = [table.select(["host_key", "first_row"]) for table in base.hosts()]
        host = np.concatenate([np.zeros(0, np.uint64), *(table.column("host_key").to_numpy() for table in tables)])
        row = np.concatenate([np.zeros(0, np.uint64), *(table.column("first_row").to_numpy() for table in tables)])
        row = row.astype(np.int64)
        ends = np.cumsum([base.group_rows(group) for group in range(base.groups)], dtype=np.int64)
        has_urls = row < np.append(row[1:], ends[-1] if len(ends) else 0)
        return cls(host[has_urls], row[has_urls], ends, base)

    def rows(self, group: int) -> int:
        """Rows of a row group."""
        return self.base.group_rows(group)

    def of_group(self, group: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Hosts of which rows are in a row group, and the row of the group at which each begins; the first at 0."""
        begin = int(self.ends[group]) - self.rows(group)
        first = int(np.searchsorted(self.row, begin, side="right")) - 1
        last = int(np.searchsorted(self.row, self.ends[group]))
        return self.host[first:last], np.maximum(self.row[first:last] - begin, 0)


def _tables(pieces: Iterator[Piece]) -> Iterator[pa.Table]:
    for piece in pieces:
        assert piece.rows is not None, "a piece that is of no row group has its rows"
        yield piece.rows
