"""What an operator should do next, and why: a pure function of what is known of the services."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meguri_monitor.windows import Trend

__all__ = ["PATH", "Advice", "Condition", "advise"]

PATH = ("canonicalizer", "dedup", "prioritizer", "store")
"""The services of the data path, in the order in which a link passes them."""

_BUSY = 0.7
"""Share of the time in steps from which on an instance is taken to work as much as it can."""
_TARGET = 0.8
"""Share at which instances are planned for."""
_IDLE = 0.15
_PATIENCE = 60.0
"""Seconds that it may take until all is read before more instances are worth it."""
_SKEW = 0.5
"""Share of the lag in one partition from which on other instances can't take it over."""
_REREAD_BYTES = 256 << 20
"""Bytes that a restore would read again from which on a snapshot is overdue: four times the worker's own bound."""

Severity = Literal["act", "watch", "fine"]
Action = Literal[
    "start", "mend", "restart", "scale_up", "spread", "unblock", "snapshot", "wait", "scale_down", "nothing"
]
_ORDER: dict[Severity, int] = {"act": 0, "watch": 1, "fine": 2}


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A service as the decision sees it."""

    service: str
    instances: int
    """That speak."""
    partitions: int
    trend: Trend
    consumed: float = 0.0
    """Offsets of the inbox read, a second."""
    arrived: float = 0.0
    """Offsets that came to the inbox, a second."""
    busy: float | None = None
    """Mean share of the time in steps; None if not known."""
    largest_lag: tuple[int, int] | None = None
    """The partition with the most to read, and how much."""
    silent: tuple[str, ...] = ()
    """Instances that should have said something."""
    stopped: tuple[tuple[int, str], ...] = ()
    """Partitions that stand still, and why."""
    restoring: int = 0
    reread_bytes: int = 0
    """The most that the restore of a partition would read again."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to do."""

    severity: Severity
    action: Action
    service: str
    """Empty: the fleet."""
    text: str
    """What to do."""
    why: str
    instances: int | None = None
    """How many there should be, for those that scale."""


def advise(conditions: Sequence[Condition]) -> list[Advice]:
    """What to do, the most urgent first; never empty.

    At most one service is named to scale up: the next one shows once that one keeps up.

    Args:
        conditions: services of the data path; one that was never heard of may be absent.
    """
    known = {condition.service: condition for condition in conditions}
    if not known:
        why = "No telemetry has come yet; running services speak about once a second."
        return [Advice(severity="act", action="start", service="", text="Start the services.", why=why)]
    if len(known) > 1 and all(condition.silent and not condition.instances for condition in known.values()):
        why = "No instance of any service is heard any more: they, or this monitor, are cut off from the brokers."
        return [Advice(severity="act", action="unblock", service="", text="See whether the brokers answer.", why=why)]
    found = [advice for service in PATH for advice in _troubles(service, known.get(service))]
    found += _scaling([known[service] for service in PATH if service in known])
    if not found:
        found.append(
            Advice(severity="fine", action="nothing", service="", text="Nothing to do.", why="All services keep up.")
        )
    return sorted(found, key=lambda advice: _ORDER[advice.severity])


def _troubles(service: str, condition: Condition | None) -> list[Advice]:
    """What more instances wouldn't mend."""
    found: list[Advice] = []

    def add(severity: Severity, action: Action, text: str, why: str) -> None:
        found.append(Advice(severity=severity, action=action, service=service, text=text, why=why))

    if condition is None or not (condition.instances or condition.silent):
        lag = condition.trend.lag if condition else None
        waiting = f", and {lag:,} messages wait for it" if lag else ""
        add("act", "start", f"Start {service}.", f"No instance of it speaks{waiting}.")
        return found
    for partition, problem in condition.stopped:
        add("act", "mend", f"Mend or skip the message at which {service} partition {partition} stands still.", problem)
    if condition.silent:
        names = ", ".join(condition.silent[:3]) + (" and others" if len(condition.silent) > 3 else "")  # noqa: PLR2004 - names enough to begin with
        add(
            "act",
            "restart",
            f"Look after {service}: {names}.",
            "It stopped speaking without a word: dead, paused or cut off.",
        )
    if condition.restoring:
        plural = "partition is" if condition.restoring == 1 else "partitions are"
        add("watch", "wait", f"Wait for {service}.", f"{condition.restoring} {plural} being restored.")
    if condition.reread_bytes > _REREAD_BYTES:
        size = f"{condition.reread_bytes / (1 << 20):,.0f} MiB"
        add("watch", "snapshot", f"See why {service} writes no snapshots.", f"A restart would read {size} again.")
    return found


def _scaling(conditions: Sequence[Condition]) -> list[Advice]:
    behind = [condition for condition in conditions if condition.instances and _is_behind(condition)]
    if behind:
        return [_for_the_slowest(max(behind, key=_urgency))]
    idle = [condition for condition in conditions if _could_be_fewer(condition)]
    return [_fewer(condition) for condition in idle]


def _is_behind(condition: Condition) -> bool:
    trend = condition.trend
    if not trend.lag:
        return False
    if trend.direction == "growing":
        return True
    if trend.direction == "steady":
        # A lag that stays, of less than a few seconds' work, is what is on its way.
        return trend.lag > condition.consumed * _PATIENCE
    return trend.drain_seconds is not None and trend.drain_seconds > _PATIENCE


def _urgency(condition: Condition) -> tuple[float, float]:
    """The longest time until all is read; among those that never will, the one that works hardest."""
    drain = condition.trend.drain_seconds
    return (math.inf if drain is None else drain, condition.busy or 0.0)


def _for_the_slowest(condition: Condition) -> Advice:
    service, trend, busy = condition.service, condition.trend, condition.busy
    why = _why_behind(condition)

    def advice(action: Action, text: str, more: str, instances: int | None = None) -> Advice:
        return Advice(
            severity="act" if action == "scale_up" else "watch",
            action=action,
            service=service,
            text=text,
            why=f"{why} {more}".strip(),
            instances=instances,
        )

    if busy is not None and busy < _BUSY and trend.direction != "shrinking":
        text = f"See what {service} waits for before adding instances."
        return advice("unblock", text, f"Yet its instances are busy {busy:.0%} of the time: broker, disk or network.")
    if condition.largest_lag is not None and trend.lag and condition.partitions > 1:
        partition, lag = condition.largest_lag
        if lag > _SKEW * trend.lag and condition.instances > 1:
            text = f"More instances of {service} don't help: wait for partition {partition}."
            return advice("spread", text, f"It holds {lag / trend.lag:.0%} of that, and one instance works on it.")
    if condition.instances >= condition.partitions:
        text = f"{service} can't be spread further: give its machines more, or publish more slowly."
        return advice("spread", text, f"Each of its {condition.partitions} partitions has an instance of its own.")
    wanted = _instances_wanted(condition)
    text = f"Scale {service} from {condition.instances} to {wanted} instances."
    return advice("scale_up", text, "" if busy is None else f"Its instances are busy {busy:.0%} of the time.", wanted)


def _why_behind(condition: Condition) -> str:
    trend = condition.trend
    if trend.direction == "growing":
        return f"{trend.lag:,} messages wait, {trend.slope:,.1f} more a second."
    if trend.drain_seconds is None:
        return f"{trend.lag:,} messages wait, and they don't become fewer."
    return f"{trend.lag:,} messages wait; at this rate they are read in {duration(trend.drain_seconds)}."


def _instances_wanted(condition: Condition) -> int:
    """Enough to keep up with what arrives at the target share; one more at least, all partitions at most."""
    wanted = condition.instances + 1.0
    if condition.consumed > 0 and condition.arrived > 0:
        share = condition.busy or 1.0
        wanted = max(wanted, condition.instances * share * condition.arrived / condition.consumed / _TARGET)
    return math.ceil(min(wanted, condition.partitions))


def _could_be_fewer(condition: Condition) -> bool:
    return (
        condition.instances > 1
        and condition.busy is not None
        and condition.busy < _IDLE
        and condition.trend.direction in {"drained", "steady", "shrinking"}
        and not condition.restoring
    )


def _fewer(condition: Condition) -> Advice:
    busy = condition.busy or 0.0
    wanted = max(1, math.ceil(condition.instances * busy / (_TARGET / 2)))
    return Advice(
        severity="fine",
        action="scale_down",
        service=condition.service,
        text=f"{wanted} of the {condition.instances} instances of {condition.service} would do.",
        why=f"It keeps up, and they are busy {busy:.0%} of the time.",
        instances=wanted,
    )


def duration(seconds: float) -> str:
    """A span of time for people."""
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:,.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds / 3600:,.1f} h"
