"""Recrawl: one outcome for every due URL of a shard at once, into its next generation.

The same fold, estimates and schedule as in the live store, over a generation instead of an inbox: rows come in store
order, and the water level ticks along them. Row groups of which nothing is due go over as they are; of the others only
the columns that a visit can change are decoded, and only those in which something changed are written anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meguri_common.records import Status
from meguri_store.compact import Changes, Compacted, publish_generation
from meguri_store.fold import FOLDED, FoldRules, fold_visits
from meguri_store.freshness_plan import host_shares, level_of
from meguri_store.kernels.freshness import schedule
from meguri_store.merge import Piece
from meguri_store.patching import replaced
from meguri_store.publish import url_paths
from meguri_store.recrawl_outcomes import DueRows
from meguri_store.schema import URL_SCHEMA
from meguri_store.water_level import LevelState, scheduled_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem
    from meguri_store.fold import Folded
    from meguri_store.generation import Generation
    from meguri_store.recrawl_outcomes import Outcomes, Visits

__all__ = ["LAST_HOUR", "RecrawlResult", "recrawl"]

LAST_HOUR = 0xFFFFFFFF // 3600
"""The last hour at which a visit can be stated, in seconds of 32 bits."""

_READ = ("host_key", "url", *FOLDED, "priority", "redirect")


@dataclass(frozen=True)
class RecrawlResult:
    """What a recrawl of a shard did."""

    rows: int
    """URLs of the shard."""
    due: int
    """Of these, due ones."""
    visited: int
    """Of these, visited ones; the others stay due."""
    changed: int
    """Visits that showed a real change."""
    unchanged: int
    """Visits that brought a usable answer without one."""
    failed: int
    """Visits that failed."""
    gone: int
    """URLs that are gone since."""
    rescheduled: int
    """URLs that are due again as crawled ones."""
    mean_interval: float
    """Hours from their visit to the next one, on average; 0 where there are none."""
    tau: float
    """Price of a refresh afterwards."""
    seconds: float
    made: Compacted | None
    """The new generation; None where nothing was visited: the base stays."""

    @property
    def due_rows_a_second(self) -> float:
        """Due rows a second."""
        return self.due / self.seconds if self.seconds else 0.0


def recrawl(
    files: FileSystem,
    partition: int,
    base: Generation,
    outcomes: Outcomes,
    rules: FoldRules,
    *,
    now: int,
    identity: CampaignIdentity,
    token: Callable[[], str],
    clock: Callable[[], float] = time.perf_counter,
) -> RecrawlResult:
    """Fold one outcome into each due row, 0 < next_due <= now, and publish the next generation.

    It is one of the same offset as the base, with a sequence above it, and nobody names it yet: who keeps the shard
    writes a snapshot that does. Operations that are in delta files beside the base aren't part of it: compact first.
    Memory is bounded by a row group, the filter, and 40 bytes a host. If anything fails, nothing of it stays.

    Args:
        files: where the shard is.
        partition: the shard.
        base: the generation to recrawl.
        outcomes: gives the visits (see `recrawl_outcomes`).
        rules: parameters of the fold; with `reschedule` the next hours go by worth, under its budget.
        now: the hour.
        identity: the campaign.
        token: a random part of a name.
        clock: seconds, for the result.

    Raises:
        ValueError: `now` is no hour at which a visit can be stated.
        CorruptGeneration: the base can't be read.
        OSError: the next one can't be written.
    """
    if not 0 < now <= LAST_HOUR:
        msg = f"now is {now}: hours from 1 to {LAST_HOUR}"
        raise ValueError(msg)
    began = clock()
    run = _Recrawl(base, outcomes, rules, now)
    made = None
    if any(run.concerns(group) for group in range(base.groups)):
        made = publish_generation(
            files,
            partition,
            run.pieces(),
            run.hosts,
            lambda: Changes(0, run.sums.visited, base.meta.urls - run.sums.visited),
            expected=base.meta.urls,
            offset=base.meta.offset,
            identity=identity,
            token=token,
            base=base,
            level=lambda: run.level,
        )
    sums = run.sums
    return RecrawlResult(
        rows=base.meta.urls,
        due=sums.due,
        visited=sums.visited,
        changed=sums.changed,
        unchanged=sums.unchanged,
        failed=sums.failed,
        gone=sums.gone,
        rescheduled=sums.rescheduled,
        mean_interval=sums.hours / sums.rescheduled if sums.rescheduled else 0.0,
        tau=run.level.tau,
        seconds=clock() - began,
        made=made,
    )


@dataclass
class _Sums:
    due: int = 0
    visited: int = 0
    changed: int = 0
    unchanged: int = 0
    failed: int = 0
    gone: int = 0
    rescheduled: int = 0
    hours: int = 0


@dataclass
class _HostCounts:
    """Visits by host, as they come in store order."""

    host: list[NDArray[np.uint64]] = field(default_factory=list)
    crawls: list[NDArray[np.int64]] = field(default_factory=list)
    errors: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, host: NDArray[np.uint64], crawled: NDArray[np.bool_], failed: NDArray[np.bool_]) -> None:
        """Count visits; hosts ascend."""
        starts = np.flatnonzero(np.append(True, host[1:] != host[:-1]))
        self.host.append(host[starts])
        self.crawls.append(np.add.reduceat(crawled.astype(np.int64), starts))
        self.errors.append(np.add.reduceat(failed.astype(np.int64), starts))

    def total(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
        """Distinct hosts, ascending, with their crawls and errors."""
        host = np.concatenate([np.zeros(0, np.uint64), *self.host])
        if not len(host):
            return host, np.zeros(0, np.int64), np.zeros(0, np.int64)
        starts = np.flatnonzero(np.append(True, host[1:] != host[:-1]))
        sums = (np.add.reduceat(np.concatenate(parts), starts) for parts in (self.crawls, self.errors))
        crawls, errors = sums
        return host[starts], crawls, errors


class _Recrawl:
    """One pass over a generation."""

    def __init__(self, base: Generation, outcomes: Outcomes, rules: FoldRules, now: int) -> None:
        self._base = base
        self._outcomes = outcomes
        self._rules = rules
        self._now = now
        self.level = level_of(base)
        self.sums = _Sums()
        self._counts = _HostCounts()
        self._host, self._share = _politeness(base)

    def concerns(self, group: int) -> bool:
        """Whether the metadata allows for something due in a row group."""
        return 0 < self._base.meta.groups[group].first_due <= self._now

    def pieces(self) -> Iterator[Piece]:
        """The shard's rows, as they are afterwards."""
        for group in range(self._base.groups):
            yield self._group(group) if self.concerns(group) else Piece(None, group)

    def hosts(self) -> Iterator[pa.Table]:
        """The shard's hosts, with their counts of fetches and failures."""
        host, crawls, errors = self._counts.total()
        for table in self._base.hosts():
            _, mine, counted = np.intersect1d(
                table.column("host_key").to_numpy(), host, assume_unique=True, return_indices=True
            )
            for name, counts in (("crawl_total", crawls), ("error_total", errors)):
                place = table.schema.get_field_index(name)
                values = table.column(name).to_numpy().astype(np.int64)
                values[mine] = np.minimum(values[mine] + counts[counted], np.iinfo(np.uint32).max)
                table = table.set_column(place, table.field(place), pa.array(values.astype(np.uint32)))  # noqa: PLW2901
            yield table

    def _group(self, group: int) -> Piece:
        before = self._base.urls(group, _READ)
        hours = before.column("next_due").to_numpy()
        due = np.flatnonzero((hours > 0) & (hours <= self._now))
        self.sums.due += len(due)
        every = len(due) == len(hours)
        columns = {name: before.column(name).to_numpy() for name in ("host_key", *FOLDED, "priority")}
        records = columns if every else {name: values[due] for name, values in columns.items()}
        host = records.pop("host_key")
        urls = before.column("url")
        some = urls if every else urls.take(pa.array(due))
        path = url_paths(some.combine_chunks() if some.num_chunks != 1 else some.chunk(0))
        visits = self._outcomes(DueRows(self._now, host, path, records))
        if not len(visits.row):
            return Piece(None, group)
        if len(visits.row) < len(due):
            records = {name: values[visits.row] for name, values in records.items()}
            host, path, due = host[visits.row], path[visits.row], due[visits.row]
        folded = self._fold(visits, records, host, path)
        self._count(folded, records, host)
        return self._replaced(group, before, due, folded, visits)

    def _fold(
        self,
        visits: Visits,
        records: dict[str, NDArray[Any]],
        host: NDArray[np.uint64],
        path: NDArray[np.uint64],
    ) -> Folded:
        """Fold the visits, and schedule by worth if the rules say so."""
        rules = self._rules
        size = len(path)
        given = np.ones(size, np.uint32) if rules.reschedule else None
        nothing = np.zeros(size, np.bool_)
        folded = fold_visits(
            records,
            visits.facts,
            nothing if visits.etag is None else _filled(visits.etag),
            nothing if visits.redirect is None else _filled(visits.redirect),
            rules,
            given,
        )
        new = folded.records
        held = scheduled_rates(records["status"], records["last_crawled"], records["next_due"])
        after = scheduled_rates(new["status"], new["last_crawled"], new["next_due"])
        if not rules.reschedule:
            self.level = self.level._replace(scheduled=self.level.scheduled + int((after - held).sum()))
            return folded
        tau, scheduled, reschedules = self.level
        level = schedule(
            np.arange(size),
            folded.rescheduled,
            after,
            new["last_crawled"],
            new["lambda"],
            records["priority"].copy(),  # never a read-only view: one type, and so one compiled kernel
            self._share[np.searchsorted(self._host, host)],
            path,
            held,
            (tau, scheduled, reschedules),
            rules.budget,
            rules.tick_every,
            rules.freshness,
            new["next_due"],
        )
        self.level = LevelState(*level)
        return folded

    def _count(self, folded: Folded, records: dict[str, NDArray[Any]], host: NDArray[np.uint64]) -> None:
        new, sums = folded.records, self.sums
        changed = int(np.count_nonzero(new["change_count"] != records["change_count"]))
        gone = (new["status"] == Status.GONE) & (records["status"] != Status.GONE)
        again = folded.rescheduled
        sums.visited += len(host)
        sums.changed += changed
        sums.unchanged += int(np.count_nonzero(folded.crawled)) - changed
        sums.failed += int(np.count_nonzero(folded.failed))
        sums.gone += int(np.count_nonzero(gone))
        sums.rescheduled += int(np.count_nonzero(again))
        sums.hours += int(np.sum(new["next_due"][again].astype(np.int64) - new["last_crawled"][again]))
        self._counts.add(host, folded.crawled, folded.failed)

    def _replaced(self, group: int, before: pa.Table, rows: NDArray[np.int64], folded: Folded, visits: Visits) -> Piece:
        """The row group with the visited rows as they are now."""
        names = [*_READ, "etag"] if folded.takes_etag.any() else list(_READ)
        if "etag" in names:
            before = before.append_column("etag", self._base.urls(group, ["etag"]).column("etag"))
        columns = [self._column(name, before.column(name), rows, folded, visits) for name in names]
        schema = pa.schema([URL_SCHEMA.field(name) for name in names])
        return Piece(pa.Table.from_arrays(columns, schema=schema), group, before)

    @staticmethod
    def _column(
        name: str, stored: pa.ChunkedArray, rows: NDArray[np.int64], folded: Folded, visits: Visits
    ) -> pa.ChunkedArray | pa.Array:
        """A column of the row group with what the visits made of it."""
        if name in folded.records:
            if len(rows) == len(stored):
                return pa.array(folded.records[name])
            values = stored.to_numpy().copy()
            values[rows] = folded.records[name]
            return pa.array(values)
        if name == "etag":
            return replaced(stored, visits.etag, rows, np.where(folded.takes_etag, np.arange(len(rows)), -1), None)
        if name == "redirect":
            given = pa.array([], pa.string()) if visits.redirect is None else visits.redirect
            takes = np.where(folded.takes_redirect, np.arange(len(rows)), -1)
            drops = folded.drops_redirect
            if stored.null_count == len(stored):
                drops = np.zeros(len(rows), np.bool_)
            return replaced(stored, given, rows, takes, drops)
        return stored


def _filled(texts: pa.Array) -> NDArray[np.bool_]:
    filled: NDArray[np.bool_] = pc.greater(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False)
    return filled


def _politeness(base: Generation) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Hosts in ascending order, and the fetches an hour that each leaves a URL of its own."""
    hosts, shares = [np.zeros(0, np.uint64)], [np.zeros(0, np.float64)]
    for table in base.hosts(["host_key", "crawl_delay", "url_count"]):
        hosts.append(table.column("host_key").to_numpy())
        shares.append(host_shares(table.column("crawl_delay").to_numpy(), table.column("url_count").to_numpy()))
    return np.concatenate(hosts), np.concatenate(shares)
