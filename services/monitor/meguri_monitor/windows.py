"""What a service did in a span of ten seconds, in the form that the windowed table keeps; and rates from spans.

A span is a plain JSON object, since the table's changelog holds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, TypedDict

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "KEPT_SECONDS",
    "SPAN_SECONDS",
    "Increase",
    "Moment",
    "Span",
    "Trend",
    "from_table",
    "lag_trend",
    "rates",
    "sums",
    "with_increase",
]

SPAN_SECONDS = 10.0
KEPT_SECONDS = 3600.0
_TREND_SECONDS = 120.0
_STEADY = 0.02
"""Share of the lag by which it must change within a minute to count as growing or shrinking."""


class Span(TypedDict):
    """A service within a span."""

    counts: dict[str, float]
    """Increases by name: those of the partitions, and of the instances' work (`work.busy_seconds` and the like)."""
    lag: int | None
    """Offsets still to be read over all partitions, as last heard; None if not known of any."""
    at: float
    """When that was heard, epoch seconds."""
    instances: int
    """Instances, as last heard."""
    offset: int
    """Of the last message that counted in it: after a restart some are read again."""


@dataclass(frozen=True)
class Increase:
    """What samples of one service add to a span."""

    at: float
    """Epoch seconds."""
    counts: Mapping[str, float] = field(default_factory=dict)
    lag: int | None = None
    instances: int = 0


@dataclass(frozen=True)
class Moment:
    """A span and when it began, epoch seconds."""

    start: float
    span: Span


@dataclass(frozen=True)
class Trend:
    """Where the lag goes."""

    lag: int | None
    """Offsets still to be read; None if not known."""
    slope: float | None
    """Its change, offsets a second; None if too little was heard."""
    direction: str
    """`growing`, `shrinking`, `steady`, `drained`, or `unknown`."""
    drain_seconds: float | None
    """Time until it is 0 if it goes on like this; None if it doesn't shrink, or isn't known."""


def with_increase(span: Span | None, increase: Increase, offset: int) -> Span:
    """The span with what a message adds to it; the argument is left as it is.

    Args:
        span: None: nothing was heard in it yet.
        increase: what the message adds.
        offset: where the message stands in its partition of the topic; one that counted already adds nothing.
    """
    if span is None:
        return Span(
            counts=dict(increase.counts),
            lag=increase.lag,
            at=increase.at,
            instances=increase.instances,
            offset=offset,
        )
    if offset <= span["offset"]:
        return span
    counts = dict(span["counts"])
    for name, count in increase.counts.items():
        counts[name] = counts.get(name, 0) + count
    newer = increase.at >= span["at"]
    return Span(
        counts=counts,
        lag=increase.lag if newer else span["lag"],
        at=max(increase.at, span["at"]),
        instances=increase.instances if newer else span["instances"],
        offset=offset,
    )


def sums(history: Sequence[Moment], now: float, seconds: float) -> dict[str, float]:
    """Counts of the spans that reach into the last `seconds`.

    Args:
        history: spans in order of time.
        now: epoch seconds.
        seconds: how far back.
    """
    totals: dict[str, float] = {}
    for moment in _recent(history, now, seconds):
        for name, count in moment.span["counts"].items():
            totals[name] = totals.get(name, 0) + count
    return totals


def rates(history: Sequence[Moment], now: float, seconds: float = 30.0) -> dict[str, float]:
    """Counts a second over the spans that reach into the last `seconds`; empty if nothing was heard in them.

    Args:
        history: spans in order of time.
        now: epoch seconds.
        seconds: how far back.
    """
    recent = _recent(history, now, seconds)
    if not recent:
        return {}
    # From where the first of them begins: a silent time at the end counts, and so does one in between.
    covered = max(now - recent[0].start, 1.0)
    return {name: total / covered for name, total in sums(recent, now, seconds).items()}


def _recent(history: Sequence[Moment], now: float, seconds: float) -> list[Moment]:
    return [moment for moment in history if moment.start + SPAN_SECONDS > now - seconds and moment.start <= now]


def lag_trend(history: Sequence[Moment], now: float, seconds: float = _TREND_SECONDS) -> Trend:
    """Where the lag goes: the median slope (Theil and Sen), which a few odd samples don't bend.

    Args:
        history: spans in order of time.
        now: epoch seconds.
        seconds: how far back to look.
    """
    points = [
        (moment.span["at"], lag)
        for moment in history
        if now - seconds <= moment.span["at"] <= now + SPAN_SECONDS and (lag := moment.span["lag"]) is not None
    ]
    if not points:
        return Trend(None, None, "unknown", None)
    lag = points[-1][1]
    slopes = [
        (later_lag - earlier_lag) / (later - earlier)
        for position, (earlier, earlier_lag) in enumerate(points)
        for later, later_lag in points[position + 1 :]
        if later - earlier >= 1
    ]
    if not slopes:
        return Trend(lag, None, "drained" if lag == 0 else "unknown", 0.0 if lag == 0 else None)
    slope = median(slopes)
    if lag == 0:
        return Trend(lag, slope, "drained", 0.0)
    if abs(slope) * 60 < max(1.0, _STEADY * lag):
        return Trend(lag, slope, "steady", None)
    if slope > 0:
        return Trend(lag, slope, "growing", None)
    return Trend(lag, slope, "shrinking", lag / -slope)


def from_table(value: object) -> Span | None:
    """A value of the table's changelog as a span; None if it isn't one (written by another version)."""
    try:
        return msgspec.convert(value, Span)
    except msgspec.ValidationError:
        return None
