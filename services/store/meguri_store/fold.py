"""Folding a visit's outcome into a URL's record: the state machine of recrawling, as pure functions over columns.

Rows of records and visits are aligned: row i of the visits is folded into row i of the records, so a URL comes once a
call; several visits of one URL are folded in rounds, in inbox order. `now` is the visit's hour, never the clock.

A fetch that brought a usable answer is due again after a fixed gap, or, where visits are rescheduled by worth, at the
hour that the caller gives: that hour depends on the water level, and so on all visits before (see `plan`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.content import observe_changes
from meguri_common.records import FetchError, ParkReason, Status, VisitFlag
from meguri_store.freshness import MOST_HOURS, Freshness, estimate
from meguri_store.water_level import TICK_EVERY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["FOLDED", "VISIT_FACTS", "FoldRules", "Folded", "first_hour", "fold_visits"]

Columns = dict[str, "NDArray[Any]"]

FOLDED = (
    "status",
    "first_seen",
    "last_crawled",
    "last_changed",
    "next_due",
    "lambda",
    "crawl_count",
    "change_count",
    "no_change_streak",
    "last_modified",
    "content_fp",
    "simhash",
    "http_status",
    "retry_count",
    "error_count",
    "reason",
)
"""Numeric columns of a record that a fold reads or writes."""

VISIT_FACTS = ("fetched_at", "status", "error", "flags", "content_fp", "simhash", "last_modified", "retry_after")
"""Numeric columns of a visit that a fold reads."""

_IS_REDIRECT = np.isin(np.arange(1 << 16), (301, 302, 303, 307, 308))
_GONE = 410
_NOT_MODIFIED = 304
_ERRORS = 400
_OK = 200
_LONGEST_BACKOFF = 168
_HOUR = 3600
_FEW = 512
"""Rows up to which estimates aren't worth loading the compiled kernels."""


@dataclass(frozen=True, slots=True)
class FoldRules:
    """Parameters of the fold."""

    flat_gap: int = 168
    """Hours from a fetch to the next one."""
    max_retries: int = 5
    """The failure in a row at which a URL is given up."""
    reschedule: bool = False
    """Whether a fetch is followed by the next one when it is worth it, rather than after the flat gap."""
    budget: float = 0.0
    """Fetches an hour that the partition's schedule is regulated to; 0: the price of a refresh stays."""
    tick_every: int = TICK_EVERY
    """Reschedules from one tick of the water level to the next."""
    freshness: Freshness = field(default_factory=Freshness)
    """Parameters of estimates and schedules."""


@dataclass(frozen=True, slots=True)
class Folded:
    """What a round of visits made of the records."""

    records: Columns
    """The columns `FOLDED`, new arrays."""
    crawled: NDArray[np.bool_]
    """Visits that count as a crawl."""
    failed: NDArray[np.bool_]
    """Visits that count as an error."""
    rescheduled: NDArray[np.bool_]
    """Visits after which the URL is due again as a crawled one."""
    takes_etag: NDArray[np.bool_]
    """Records that take over the visit's etag."""
    takes_redirect: NDArray[np.bool_]
    """Records that take over the visit's redirect target."""
    drops_redirect: NDArray[np.bool_]
    """Records whose stored redirect target is no longer what the URL answers with."""


def first_hour(seconds: NDArray[Any]) -> NDArray[np.uint32]:
    """The hour at which something said at `seconds` becomes due: never 0, which would mean "never"."""
    hours: NDArray[np.uint32] = np.maximum(seconds // _HOUR, 1).astype(np.uint32)
    return hours


def _add(values: NDArray[Any], rows: NDArray[np.bool_]) -> NDArray[Any]:
    """Count one up where `rows`, saturating at the width."""
    most = np.iinfo(values.dtype).max
    counted: NDArray[Any] = values + (rows & (values < most)).astype(values.dtype)
    return counted


def _set(column: NDArray[Any], rows: NDArray[np.bool_], values: NDArray[Any] | int) -> None:
    """Set a column where `rows`: without the copies that indexing by a mask makes."""
    np.copyto(column, values, casting="unsafe", where=rows)


def _later(hour: NDArray[np.int64], gap: NDArray[np.int64] | int) -> NDArray[np.uint32]:
    hours: NDArray[np.uint32] = np.minimum(hour + gap, MOST_HOURS).astype(np.uint32)
    return hours


def fold_visits(
    records: Mapping[str, NDArray[Any]],
    visits: Mapping[str, NDArray[Any]],
    has_etag: NDArray[np.bool_],
    has_redirect: NDArray[np.bool_],
    rules: FoldRules,
    due: NDArray[np.uint32] | None = None,
) -> Folded:
    """Fold one visit into each record.

    Args:
        records: the columns `FOLDED`, shape (n,), dtypes of the store's schema.
        visits: the columns `VISIT_FACTS`, shape (n,), dtypes of the wire's schema; times in epoch seconds.
        has_etag: whether the visit gave one, (n,).
        has_redirect: whether the visit gave a redirect target that is a URL of the frontier, (n,).
        rules: parameters.
        due: the hour of the next fetch, where a URL is rescheduled by worth; without, by the flat gap. (n,)
    """
    new = {name: records[name].copy() for name in FOLDED}
    code, flags = visits["status"], visits["flags"]
    hour = visits["fetched_at"].astype(np.int64) // _HOUR
    was_gone = records["status"] == Status.GONE

    # What kind of answer it was. The order: not modified, redirect, failure, else success.
    answered = code != 0
    forbidden = ~answered & (visits["error"] == FetchError.ROBOTS)
    unmodified = answered & ((code == _NOT_MODIFIED) | (flags & VisitFlag.NOT_MODIFIED != 0))
    judged = answered & ~unmodified
    redirecting = judged & _IS_REDIRECT[code]
    circular = redirecting & (flags & VisitFlag.REDIRECT_SELF != 0)
    removed = judged & (code == _GONE)
    failed = (~answered & ~forbidden) | circular | (judged & (code >= _ERRORS) & ~removed)
    fetched = judged & (code >= _OK) & (code < _OK + 100)
    template = fetched & (flags & VisitFlag.SOFT_404 != 0)
    crawled = answered & ~failed & ~removed
    body = fetched & ~template & (visits["content_fp"] != 0) & (flags & VisitFlag.EMPTY_BODY == 0)

    new["http_status"][:] = code

    # Fetches that brought a usable answer.
    _set(new["retry_count"], crawled, 0)
    _set(new["first_seen"], crawled & (records["first_seen"] == 0), hour)
    _set(new["last_crawled"], crawled, hour)
    new["crawl_count"] = _add(records["crawl_count"], crawled)
    _set(new["last_modified"], crawled & (visits["last_modified"] != 0), visits["last_modified"])

    _compare_bodies(new, visits, body, unmodified, hour)

    # Failures.
    new["error_count"] = _add(records["error_count"], failed | removed)
    new["retry_count"] = _add(new["retry_count"], failed)
    given_up = failed & (new["retry_count"] >= rules.max_retries)
    backoff = np.minimum(1 << np.clip(new["retry_count"].astype(np.int64) - 1, 0, 10), _LONGEST_BACKOFF)
    asked = -(-(visits["fetched_at"].astype(np.int64) % _HOUR + visits["retry_after"]) // _HOUR)
    asked = np.where(visits["retry_after"] != 0, np.minimum(asked, _LONGEST_BACKOFF), 0)

    # Status and schedule; the terminal verdict is taken last, and no gone row is ever scheduled.
    if due is None:
        _set(new["status"], crawled, Status.CRAWLED)
        _set(new["next_due"], crawled, _later(hour, rules.flat_gap))
    else:
        _set(new["status"], crawled, Status.DUE_RECRAWL)
        _set(new["next_due"], crawled, due)
    _set(new["status"], failed, np.where(records["crawl_count"] > 0, Status.DUE_RECRAWL, Status.SCHEDULED))
    _set(new["next_due"], failed, _later(hour, np.maximum(backoff, asked)))
    _set(new["status"], forbidden, Status.EXCLUDED_ROBOTS)
    _set(new["next_due"], forbidden, 0)
    gone = removed | template | given_up | (was_gone & ~fetched)
    _set(new["status"], gone, Status.GONE)
    _set(new["next_due"], gone, 0)
    new["reason"][:] = ParkReason.NONE

    # The change rate is estimated where there will be a next time.
    rescheduled = crawled & ~gone
    _estimate(new, rescheduled, rules.freshness)

    return Folded(
        new,
        crawled=crawled,
        failed=failed | removed,
        rescheduled=rescheduled,
        takes_etag=crawled & has_etag,
        takes_redirect=redirecting & ~circular & has_redirect,
        drops_redirect=crawled & ~unmodified & ~(redirecting & has_redirect),
    )


def _estimate(new: Columns, rows: NDArray[np.bool_], rules: Freshness) -> None:
    """Set the change rate of rows by their counters."""
    names = ("crawl_count", "change_count", "no_change_streak", "first_seen", "last_crawled")
    crawls, changes, streaks, seen, last = (new[name][rows] for name in names)
    rates = np.empty(len(crawls), np.float32)
    if len(rates) > _FEW:
        from meguri_store.kernels.freshness import estimate_rates  # noqa: PLC0415 - numba, which a look-up does without

        estimate_rates(crawls, changes, streaks, seen, last, rules, rates)
    else:
        counters = (column.tolist() for column in (crawls, changes, streaks, seen, last))
        for at, (crawled, changed, streak, first_seen, last_crawled) in enumerate(zip(*counters, strict=True)):
            rates[at] = estimate(crawled, changed, streak, first_seen, last_crawled, rules)
    new["lambda"][rows] = rates


def _compare_bodies(
    new: Columns,
    visits: Mapping[str, NDArray[Any]],
    body: NDArray[np.bool_],
    unmodified: NDArray[np.bool_],
    hour: NDArray[np.int64],
) -> None:
    """Count what bodies, and answers of "not modified", say about change; keep the bodies' signals."""
    before = new["content_fp"], new["simhash"]
    changed = body & observe_changes(before[0], visits["content_fp"], before[1], visits["simhash"], unmodified)
    compared = body & (before[0] != 0)
    stored = body & (before[0] != visits["content_fp"])
    for name in ("content_fp", "simhash"):
        _set(new[name], stored, visits[name])
    new["change_count"] = _add(new["change_count"], changed)
    _set(new["last_changed"], changed, hour)
    new["no_change_streak"] = _add(new["no_change_streak"], unmodified | (compared & ~changed))
    _set(new["no_change_streak"], changed, 0)
