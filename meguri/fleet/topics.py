"""Which topics a campaign needs, and what of those that are there doesn't fit. No broker is asked here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri_common.topics import (
    DELTAS,
    DUE,
    FRONTIER,
    LEDGER,
    LINKS,
    PAGES,
    PAGES_MESSAGE_BYTES,
    REJECTS,
    SKIPS,
    TELEMETRY,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from meguri_common.config import Settings

__all__ = ["FoundTopic", "Mismatch", "TopicPlan", "mismatches", "plan_topics"]

_MIB = 1 << 20
_ENVELOPE_MESSAGE_BYTES = 2 * _MIB
"""An envelope of one row of the largest size, and its headers."""
_DEFAULT_REPLICATION = 3
_FOREVER = "-1"


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic as it must be."""

    topic: str
    """Name on the cluster."""
    partitions: int
    replication: int
    config: Mapping[str, str]
    """Settings of the topic, by the broker's names."""


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as it is."""

    partitions: int
    replication: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One thing about a topic that isn't as it must be."""

    topic: str
    setting: str
    """The broker's name of it; `topic` if the whole topic is missing."""
    found: str
    wanted: str

    def __str__(self) -> str:
        if self.setting == "topic":
            return f"{self.topic} is missing"
        return f"{self.topic}: {self.setting} is {self.found}, wanted is {self.wanted}"


def plan_topics(settings: Settings, partitions: int, brokers: int) -> list[TopicPlan]:
    """All topics of a campaign.

    Args:
        settings: names, numbers of partitions, times.
        partitions: the campaign's number of partitions.
        brokers: how many there are; bounds the default of the replication.
    """
    topics = settings.topics
    replication = topics.replication or min(_DEFAULT_REPLICATION, brokers)
    in_sync = topics.min_insync_replicas or max(replication - 1, 1)

    def plan(topic: str, count: int, *, hours: int | None, bytes_: int, **more: str) -> TopicPlan:
        config = {
            "cleanup.policy": "delete",
            "compression.type": "zstd",
            "max.message.bytes": str(bytes_),
            "min.insync.replicas": str(in_sync),
            "retention.bytes": _FOREVER,
            "retention.ms": _FOREVER if hours is None else str(hours * 3_600_000),
            "unclean.leader.election.enable": "false",
            **{name.replace("_", "."): value for name, value in more.items()},
        }
        return TopicPlan(settings.kafka.topic(topic), count, replication, config)

    return [
        # An event's time is judged by the time at which the broker had it, not by the fetcher's clock.
        plan(
            PAGES,
            topics.pages_partitions,
            hours=topics.pages_retention_hours,
            bytes_=PAGES_MESSAGE_BYTES,
            message_timestamp_type="LogAppendTime",
        ),
        # Inboxes of services with state have no time limit: their owners delete what no kept snapshot needs.
        *(plan(topic, partitions, hours=None, bytes_=_ENVELOPE_MESSAGE_BYTES) for topic in (LINKS, FRONTIER, DELTAS)),
        plan(DUE, topics.due_partitions, hours=topics.due_retention_hours, bytes_=_MIB),
        plan(REJECTS, topics.rejects_partitions, hours=topics.rejects_retention_hours, bytes_=_MIB),
        plan(TELEMETRY, topics.telemetry_partitions, hours=topics.telemetry_retention_hours, bytes_=_MIB),
        plan(LEDGER, 1, hours=None, bytes_=_MIB),
        plan(SKIPS, 1, hours=None, bytes_=_MIB),
    ]


def mismatches(plans: Sequence[TopicPlan], found: Mapping[str, FoundTopic]) -> list[Mismatch]:
    """What isn't as planned, topics and settings in the plan's order. Settings that no plan names don't matter."""
    return [mismatch for plan in plans for mismatch in _mismatches(plan, found.get(plan.topic))]


def _mismatches(plan: TopicPlan, found: FoundTopic | None) -> Iterator[Mismatch]:
    if found is None:
        yield Mismatch(plan.topic, "topic", "missing", "there")
        return
    for setting, is_, wanted in (
        ("partitions", found.partitions, plan.partitions),
        ("replication.factor", found.replication, plan.replication),
    ):
        if is_ != wanted:
            yield Mismatch(plan.topic, setting, str(is_), str(wanted))
    for setting, wanted_text in plan.config.items():
        value = found.config.get(setting)
        if value != wanted_text:
            yield Mismatch(plan.topic, setting, "not set" if value is None else value, wanted_text)
