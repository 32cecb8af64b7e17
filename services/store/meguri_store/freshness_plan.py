"""Scheduling a delta's visits by worth: which hour each visited URL is due again, in inbox order.

An hour depends on the water level at that point of the inbox, which moves with every visit before it, whosever URL it
was. So the hours are worked out ahead of the merge, over nothing but the rows that the delta touches: these are
gathered from the base and the admissions, all operations are folded into them, and then one pass over the visits in
inbox order gives the hours and moves the level. The merge takes the hours as they come; nothing of it depends on when
generations are made, or looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.records import CRAWL_DELAY_UNSET
from meguri_common.wire.columns import numbers
from meguri_common.wire.schemas import RowKind
from meguri_store.delta import Admissions, Patches
from meguri_store.freshness import DECISECONDS_AN_HOUR, ONE_SECOND
from meguri_store.kernels.freshness import schedule
from meguri_store.kernels.merge import match_rows
from meguri_store.keyed import keyed
from meguri_store.patching import PATCHED, patch_columns
from meguri_store.schema import DEFAULT_CRAWL_DELAY
from meguri_store.water_level import LevelState, scheduled_rates

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from meguri_store.fold import FoldRules
    from meguri_store.generation import Generation
    from meguri_store.oplog import OpLog

__all__ = ["Plan", "host_shares", "level_of", "plan_schedule"]


@dataclass(frozen=True)
class Plan:
    """When the URLs of a delta's outcomes are due again, and where the water stands after it."""

    number: NDArray[np.int64]
    """Numbers of the outcomes, ascending; (outcomes,)."""
    due: NDArray[np.uint32]
    """The hour after each, where its URL was scheduled anew; (outcomes,)."""
    level: LevelState

    def of(self, number: NDArray[np.int64]) -> NDArray[np.uint32]:
        """The hours of some of the outcomes, by number."""
        return self.due[np.searchsorted(self.number, number)]


@dataclass(frozen=True)
class _Rows:
    """The rows that a delta touches; all (rows,)."""

    columns: dict[str, NDArray[Any]]
    keys: NDArray[np.int64]
    admitted: NDArray[np.int64]


def level_of(base: Generation | None) -> LevelState:
    """Where the water stands after a generation.

    Raises:
        CorruptGeneration: it doesn't say what is scheduled, and its records can't be read.
    """
    if base is None:
        return LevelState()
    scheduled = base.meta.scheduled
    if scheduled is None:  # an older release wrote it
        names = ["status", "last_crawled", "next_due"]
        tables = (base.urls(group, names) for group in range(base.groups))
        scheduled = sum(
            int(scheduled_rates(*(table.column(name).to_numpy() for name in names)).sum()) for table in tables
        )
    return LevelState(base.meta.tau, scheduled, base.meta.reschedules)


def plan_schedule(base: Generation | None, log: OpLog, rules: FoldRules) -> Plan | None:
    """Work out the hours of a whole delta's visits; None where they don't depend on worth.

    Memory is bounded by the delta and a row group.

    Raises:
        CorruptGeneration: the base can't be read.
    """
    if not rules.reschedule:
        return None
    patches = Patches.of(log)
    number, outcomes = log.table(RowKind.OUTCOME)
    due = np.zeros(len(number), np.uint32)
    if not len(number):
        return Plan(number, due, level_of(base))
    rows = _gather(base, Admissions.of(log), patches)
    held = scheduled_rates(*(rows.columns[name] for name in ("status", "last_crawled", "next_due")))
    verdicts = np.zeros(len(number), np.uint8)
    events = patch_columns(rows.columns, rows.keys, rows.admitted, patches, rules, verdicts)
    share = _shares(base, log, verdicts)
    folded = np.flatnonzero(verdicts)
    given = np.zeros(len(folded), np.uint32)
    tau, scheduled, reschedules = level_of(base)
    level = schedule(
        events.row[folded],
        events.rescheduled[folded],
        events.parts[folded],
        events.hour[folded],
        events.rate[folded],
        events.priority[folded],
        share[folded],
        numbers(outcomes, "path_key")[folded],
        held,
        (tau, scheduled, reschedules),
        rules.budget,
        rules.tick_every,
        rules.freshness,
        given,
    )
    due[folded] = given
    return Plan(number, due, LevelState(*level))


def _gather(base: Generation | None, new: Admissions, patches: Patches) -> _Rows:
    """The rows that bear the patches' keys: the base's, and admitted ones that the base doesn't have."""
    missing = np.ones(len(patches.host), np.bool_)
    parts = []
    for group in range(base.groups) if base else ():
        assert base is not None
        first, last = base.host_range(group)
        low = np.searchsorted(patches.host, np.uint64(first))
        if low == np.searchsorted(patches.host, np.uint64(last), side="right"):
            continue
        keys = _match(base.urls(group, ["host_key", "url"]), patches)
        found = np.flatnonzero(keys >= 0)
        if len(found):
            missing[keys[found]] = False
            parts.append(_taken(base.urls(group, PATCHED), found, keys[found], np.full(len(found), -1, np.int64)))
    keys = _match(new.rows, patches)
    found = np.flatnonzero(keys >= 0)
    # A key's first admission counts; the rows stand in its order.
    _, first_place = np.unique(keys[found], return_index=True)
    found = found[first_place]
    found = found[missing[keys[found]]]
    parts.append(_taken(new.rows, found, keys[found], new.number[found]))
    return _Rows(
        {name: np.concatenate([part.columns[name] for part in parts]) for name in PATCHED},
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.admitted for part in parts]),
    )


def _match(rows: pa.Table, patches: Patches) -> NDArray[np.int64]:
    """Index among the patches' keys of each row, or -1."""
    out = np.full(rows.num_rows, -1, np.int64)
    if rows.num_rows:
        match_rows(*keyed(rows), patches.host, patches.path, out)
    return out


def _taken(rows: pa.Table, found: NDArray[np.int64], keys: NDArray[np.int64], admitted: NDArray[np.int64]) -> _Rows:
    return _Rows({name: rows.column(name).to_numpy()[found] for name in PATCHED}, keys, admitted)


def host_shares(crawl_delay: NDArray[Any], url_count: NDArray[Any]) -> NDArray[np.float64]:
    """`freshness.host_share` over columns; (n,)."""
    delay = np.where(crawl_delay > 0, crawl_delay, ONE_SECOND)
    shares: NDArray[np.float64] = DECISECONDS_AN_HOUR / delay / np.maximum(url_count, 1)
    return shares


def _shares(base: Generation | None, log: OpLog, verdicts: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Fetches an hour that its host leaves the URL of each outcome, as the host is known by then; (outcomes,)."""
    number, outcomes = log.table(RowKind.OUTCOME)
    host, place = np.unique(numbers(outcomes, "host_key"), return_inverse=True)
    by_operator, stated, urls = _stored_hosts(base, host)

    said_number, said = log.table(RowKind.HOST)
    at = np.minimum(np.searchsorted(host, numbers(said, "host_key")), len(host) - 1)
    known = np.flatnonzero(host[at] == numbers(said, "host_key"))
    last = _last_before(place, number, at[known], said_number[known])
    delay, count = by_operator[place], urls[place]
    delay[last >= 0] = numbers(said, "crawl_delay")[known[last[last >= 0]]]
    count[last >= 0] = numbers(said, "url_count")[known[last[last >= 0]]]

    by_visits = numbers(outcomes, "crawl_delay")
    speaks = np.flatnonzero((by_visits != CRAWL_DELAY_UNSET) & (verdicts > 0))
    last = _last_before(place, number, place[speaks], number[speaks])
    fallback = stated[place]
    fallback[last >= 0] = by_visits[speaks[last[last >= 0]]]
    fallback[fallback == CRAWL_DELAY_UNSET] = DEFAULT_CRAWL_DELAY
    return host_shares(np.where(delay != CRAWL_DELAY_UNSET, delay, fallback), count)


def _stored_hosts(
    base: Generation | None, host: NDArray[np.uint64]
) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint32]]:
    """What a generation says of hosts: delay set by an operator, delay stated by visits, URLs; (h,) each."""
    by_operator = np.full(len(host), CRAWL_DELAY_UNSET, np.uint16)
    stated = np.full(len(host), CRAWL_DELAY_UNSET, np.uint16)
    urls = np.zeros(len(host), np.uint32)
    for table in base.hosts(["host_key", "crawl_delay_set", "crawl_delay_stated", "url_count"]) if base else ():
        _, mine, theirs = np.intersect1d(
            host, table.column("host_key").to_numpy(), assume_unique=True, return_indices=True
        )
        for column, name in ((by_operator, "crawl_delay_set"), (stated, "crawl_delay_stated"), (urls, "url_count")):
            column[mine] = table.column(name).to_numpy()[theirs]
    return by_operator, stated, urls


def _last_before(
    host: NDArray[np.int64], number: NDArray[np.int64], said_host: NDArray[np.int64], said_number: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each operation, the last statement about its host up to its own number, or -1.

    Args:
        host: place of each operation's host, (n,).
        number: its number, (n,).
        said_host: place of each statement's host, (s,).
        said_number: its number, (s,).
    """
    if not len(said_host):
        return np.full(len(host), -1, np.int64)
    span = int(max(number.max(), said_number.max())) + 1
    order = np.argsort(said_host * span + said_number, kind="stable")
    said = (said_host * span + said_number)[order]
    at = np.searchsorted(said, host * span + number, side="right") - 1
    mine = (at >= 0) & (said_host[order[at]] == host)
    return np.where(mine, order[at], -1)
