"""From the fleet and its history to the document that is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_monitor.advice import PATH, Condition, advise
from meguri_monitor.state import (
    AdviceItem,
    FleetState,
    HearingState,
    InstanceState,
    PartitionItem,
    SeenSetState,
    ServiceState,
    Shares,
    SnapshotState,
    Suspects,
)
from meguri_monitor.windows import SPAN_SECONDS, lag_trend, rates, sums

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meguri_monitor.fleet import Fleet, Instance, Partition
    from meguri_monitor.windows import Moment, Trend

__all__ = ["fleet_state"]

_LATELY = 300.0
_SHOWN_SECONDS = 1800.0
_REJECTED = "rejected_"


def fleet_state(
    fleet: Fleet, history: Mapping[str, Sequence[Moment]], now: float, suspects: Suspects | None = None
) -> FleetState:
    """The document.

    Args:
        fleet: what is known.
        history: spans by service, in order of time.
        now: epoch seconds.
        suspects: what the store knows of suspect hosts.
    """
    links_a_page = _links_a_page(fleet)
    services = [name for name in PATH if name in fleet.services()]
    services += [name for name in fleet.services() if name not in PATH]
    states, conditions = [], []
    for name in services:
        past = history.get(name, ())
        trend, lately = lag_trend(past, now), rates(past, now)
        states.append(_service(fleet, name, past, now, links_a_page, trend, lately))
        conditions.append(_condition(fleet, name, now, trend, lately))
    return FleetState(
        at=now,
        campaign=fleet.campaign,
        services=states,
        advice=[
            AdviceItem(
                severity=advice.severity,
                action=advice.action,
                service=advice.service,
                text=advice.text,
                why=advice.why,
                instances=advice.instances,
            )
            for advice in advise(conditions)
        ],
        links_lately=_shares(sums(history.get("dedup", ()), now, _LATELY)),
        links_total=_shares(_totals(fleet, "dedup")),
        seen_set=_seen_set(fleet),
        oldest_snapshot=_oldest_snapshot(fleet, now),
        suspects=_suspects(fleet, suspects),
        hearing=_hearing(fleet),
    )


def _service(
    fleet: Fleet,
    name: str,
    past: Sequence[Moment],
    now: float,
    links_a_page: float,
    trend: Trend,
    lately: Mapping[str, float],
) -> ServiceState:
    cores = lately.get("work.watched_seconds", 0.0)
    return ServiceState(
        service=name,
        links_per_second=_links(name, lately, links_a_page) if lately else None,
        estimated=name not in {"canonicalizer", "dedup"},
        lag=fleet.lag(name),
        lag_direction=trend.direction,
        lag_slope=trend.slope,
        drain_seconds=trend.drain_seconds,
        messages_consumed=lately.get("consumed", 0.0),
        messages_arrived=lately.get("arrived", 0.0),
        busy=min(1.0, lately.get("work.busy_seconds", 0.0) / cores) if cores else None,
        cpu=lately.get("work.cpu_seconds", 0.0) / cores if cores else None,
        instances=[_instance(instance, now) for instance in fleet.instances(name)],
        partitions=[_partition(partition, now) for partition in fleet.partitions(name)],
        history=[
            (
                moment.start,
                _links(name, {key: count / SPAN_SECONDS for key, count in moment.span["counts"].items()}, links_a_page),
                moment.span["lag"],
            )
            for moment in past
            if now - _SHOWN_SECONDS <= moment.start and moment.start + SPAN_SECONDS <= now
        ],
    )


def _condition(fleet: Fleet, name: str, now: float, trend: Trend, lately: Mapping[str, float]) -> Condition:
    partitions = fleet.partitions(name)
    cores = lately.get("work.watched_seconds", 0.0)
    lags = [(partition.lag, partition.latest.partition) for partition in partitions if partition.lag is not None]
    largest = max(lags, default=None)
    return Condition(
        service=name,
        instances=len(list(fleet.alive(name, now))),
        partitions=len(partitions),
        trend=trend,
        consumed=lately.get("consumed", 0.0),
        arrived=lately.get("arrived", 0.0),
        busy=min(1.0, lately.get("work.busy_seconds", 0.0) / cores) if cores else None,
        largest_lag=(largest[1], largest[0]) if largest else None,
        silent=tuple(instance.latest.instance for instance in fleet.instances(name) if instance.silent(now)),
        stopped=tuple(
            (partition.latest.partition, partition.latest.problem)
            for partition in partitions
            if partition.latest.state == "stopped"
        ),
        restoring=sum(partition.latest.state == "restoring" for partition in partitions),
        reread_bytes=max((partition.latest.inbox_bytes for partition in partitions), default=0),
    )


def _instance(instance: Instance, now: float) -> InstanceState:
    latest = instance.latest
    return InstanceState(
        name=latest.instance,
        state="silent" if instance.silent(now) else latest.state,
        heard_seconds_ago=round(max(0.0, now - instance.heard), 1),
        up_seconds=round(max(0.0, latest.at - latest.started_at), 1),
        partitions=latest.partitions,
        memory_bytes=latest.work.memory_bytes,
        failed_steps=latest.work.failed_steps,
        dropped_reports=latest.work.dropped_reports,
    )


def _partition(partition: Partition, now: float) -> PartitionItem:
    latest = partition.latest
    snapshot = latest.snapshot
    return PartitionItem(
        partition=latest.partition,
        state=latest.state,
        problem=latest.problem,
        instance=latest.instance,
        position=latest.position,
        end=latest.end,
        lag=partition.lag,
        snapshot_offset=snapshot.offset if snapshot else None,
        snapshot_age=round(snapshot.age + max(0.0, now - partition.heard), 1) if snapshot else None,
    )


def _links(service: str, counts: Mapping[str, float], links_a_page: float) -> float:
    """Links that passed a service, from counts or rates; see `ServiceState.estimated`."""
    match service:
        case "canonicalizer":
            return counts.get("links", 0.0)
        case "dedup":
            return sum(counts.get(name, 0.0) for name in ("links_new", "links_known")) + _rejected(counts)
        case "prioritizer":
            return (counts.get("visits", 0.0) + counts.get("stale", 0.0)) * links_a_page
        case _:
            return counts.get("visits", 0.0) * links_a_page


def _rejected(counts: Mapping[str, float]) -> float:
    return sum(count for name, count in counts.items() if name.startswith(_REJECTED))


def _shares(counts: Mapping[str, float]) -> Shares | None:
    new, known, rejected = counts.get("links_new", 0.0), counts.get("links_known", 0.0), _rejected(counts)
    links = new + known + rejected
    if not links:
        return None
    return Shares(links=round(links), new=new / links, known=known / links, rejected=rejected / links)


def _totals(fleet: Fleet, service: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for partition in fleet.partitions(service):
        for name, count in partition.totals.highest.items():
            totals[name] = totals.get(name, 0) + count
    return totals


def _links_a_page(fleet: Fleet) -> float:
    totals = _totals(fleet, "dedup")
    return totals["links"] / totals["pages"] if totals.get("pages") else 0.0


def _seen_set(fleet: Fleet) -> SeenSetState | None:
    figures = [partition.latest.seen_set for partition in fleet.partitions("dedup")]
    known = [figure for figure in figures if figure is not None]
    keys = sum(figure.keys for figure in known)
    if not keys:
        return None

    def mean(values: list[float]) -> float:
        return sum(value * figure.keys for value, figure in zip(values, known, strict=True)) / keys

    return SeenSetState(
        keys=keys,
        bits_per_url=mean([figure.bits_per_url for figure in known]),
        target_fpr=max(figure.target_fpr for figure in known),
        measured_fpr=mean([figure.measured_fpr for figure in known]),
    )


def _oldest_snapshot(fleet: Fleet, now: float) -> SnapshotState | None:
    """The oldest among partitions that have moved on since: the others have nothing new to write."""
    found = []
    for service in fleet.services():
        for partition in fleet.partitions(service):
            snapshot, position = partition.latest.snapshot, partition.latest.position
            if snapshot is None or (position is not None and position <= snapshot.offset):
                continue
            age = snapshot.age + max(0.0, now - partition.heard)
            behind = None if position is None else position - snapshot.offset
            found.append((age, service, partition.latest.partition, snapshot.offset, behind))
    if not found:
        return None
    age, service, number, offset, behind = max(found, key=lambda one: one[:3])
    return SnapshotState(service=service, partition=number, age=round(age, 1), offset=offset, behind=behind)


def _suspects(fleet: Fleet, suspects: Suspects | None) -> Suspects:
    counts = [partition.latest.suspect_hosts for partition in fleet.partitions("prioritizer")]
    known = [count for count in counts if count is not None]
    return Suspects(
        count=sum(known) if known else None,
        hosts=suspects.hosts if suspects else [],
        problem=suspects.problem if suspects else "",
    )


def _hearing(fleet: Fleet) -> HearingState:
    hearing = fleet.hearing
    heard = [instance.heard for service in fleet.services() for instance in fleet.instances(service)]
    return HearingState(
        last_heard=max(heard, default=None),
        samples=hearing.samples,
        lost_reports=hearing.lost_reports,
        repeated=hearing.repeated,
        late=hearing.late,
        unreadable=hearing.unreadable,
        foreign=hearing.foreign,
        crowded_out=hearing.crowded_out,
        last_problem=hearing.last_problem,
    )
