"""What is known of the fleet: the last word of each instance and partition, and what each report adds.

Pure: the caller gives the time at which a report was heard.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meguri_common.telemetry.model import InstanceSample, PartitionSample
from meguri_monitor.counting import LifeCounts, Sequences, StateCounts
from meguri_monitor.windows import Increase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meguri_common.telemetry.model import Sample

__all__ = ["FORGET_AFTER", "SILENT_AFTER", "Fleet", "Hearing", "Instance", "Partition"]

SILENT_AFTER = 10.0
"""Seconds without a word after which an instance counts as silent, and another's earlier clock is listened to."""

FORGET_AFTER = 600.0
"""Seconds without a word after which an instance or a partition is no longer shown."""

_WORK = ("steps", "messages", "bytes", "failed_steps", "busy_seconds", "cpu_seconds", "dropped_reports")
_MOST_INSTANCES = 10_000
_MOST_PARTITIONS = 100_000


@dataclass
class Instance:
    """One instance of a service."""

    latest: InstanceSample
    heard: float
    """When its last report came, epoch seconds."""
    sequences: Sequences = field(default_factory=Sequences)
    work: LifeCounts = field(default_factory=LifeCounts)

    def silent(self, now: float) -> bool:
        """Whether it should have said something by now."""
        return self.latest.state != "left" and now - self.heard > SILENT_AFTER


@dataclass
class Partition:
    """One partition of a service's inbox."""

    latest: PartitionSample
    heard: float
    """When its last sample came, epoch seconds."""
    lag: int | None = None
    """As last known, while it is being restored too."""
    totals: StateCounts = field(default_factory=StateCounts)
    passed: LifeCounts = field(default_factory=LifeCounts)
    places: StateCounts = field(default_factory=StateCounts)


@dataclass
class Hearing:
    """How well the fleet is heard."""

    samples: int = 0
    lost_reports: int = 0
    repeated: int = 0
    """Samples that were heard before."""
    late: int = 0
    """Samples older than what is known."""
    unreadable: int = 0
    foreign: int = 0
    """Samples of another campaign."""
    crowded_out: int = 0
    """Samples of instances and partitions beyond what is kept."""
    last_problem: str = ""


class Fleet:
    """All services of one campaign."""

    def __init__(self, campaign: str | None = None) -> None:
        """Listen to a campaign; None: to the first that is heard, until it is silent and another isn't."""
        self.hearing = Hearing()
        self.campaign = campaign
        self._any_campaign = campaign is None
        self._campaign_heard = 0.0
        self._instances: dict[tuple[str, str], Instance] = {}
        self._partitions: dict[tuple[str, int], Partition] = {}

    def unreadable(self, problem: Exception) -> None:
        """Count a line that isn't a sample."""
        self.hearing.unreadable += 1
        self.hearing.last_problem = str(problem)

    def hear(self, samples: Iterable[Sample], heard: float) -> dict[str, Increase]:
        """Take in samples, in the order they came; gives what they add, by service.

        Args:
            samples: of one or several reports.
            heard: when they came, epoch seconds.
        """
        counts: dict[str, dict[str, float]] = {}
        for sample in samples:
            self.hearing.samples += 1
            if not self._is_ours(sample, heard):
                self.hearing.foreign += 1
                continue
            added = counts.setdefault(sample.service, {})
            increases = (
                self._hear_instance(sample, heard)
                if isinstance(sample, InstanceSample)
                else self._hear_partition(sample, heard)
            )
            for name, increase in increases.items():
                added[name] = added.get(name, 0) + increase
        return {
            service: Increase(
                at=heard, counts=added, lag=self.lag(service), instances=len(list(self.alive(service, heard)))
            )
            for service, added in counts.items()
        }

    def services(self) -> list[str]:
        """Services that were heard of."""
        return sorted({service for service, _ in (*self._instances, *self._partitions)})

    def instances(self, service: str) -> list[Instance]:
        """Instances of a service, by name."""
        return [instance for (of, _), instance in sorted(self._instances.items()) if of == service]

    def alive(self, service: str, now: float) -> Iterator[Instance]:
        """Instances of a service that speak."""
        return (
            instance
            for instance in self.instances(service)
            if instance.latest.state != "left" and not instance.silent(now)
        )

    def partitions(self, service: str) -> list[Partition]:
        """Partitions of a service, in order."""
        return [partition for (of, _), partition in sorted(self._partitions.items()) if of == service]

    def lag(self, service: str) -> int | None:
        """Offsets that a service has still to read; None if not known of any partition."""
        known = [partition.lag for partition in self.partitions(service) if partition.lag is not None]
        return sum(known) if known else None

    def forget(self, now: float) -> None:
        """Let go of what hasn't been heard of for long."""
        self._instances = {
            key: instance for key, instance in self._instances.items() if now - instance.heard <= FORGET_AFTER
        }
        self._partitions = {
            key: partition for key, partition in self._partitions.items() if now - partition.heard <= FORGET_AFTER
        }

    def _is_ours(self, sample: Sample, heard: float) -> bool:
        silent = self.campaign is None or heard - self._campaign_heard > SILENT_AFTER
        if self._any_campaign and sample.campaign != self.campaign and silent:
            self.campaign = sample.campaign
            self._instances.clear()
            self._partitions.clear()
        if sample.campaign != self.campaign:
            return False
        self._campaign_heard = heard
        return True

    def _hear_instance(self, sample: InstanceSample, heard: float) -> dict[str, float]:
        key = (sample.service, sample.instance)
        instance = self._instances.get(key)
        if instance is None:
            if len(self._instances) >= _MOST_INSTANCES:
                self.hearing.crowded_out += 1
                return {}
            instance = self._instances[key] = Instance(sample, heard)
        elif sample.started_at != instance.latest.started_at:
            if not _is_newer(sample, instance.latest, instance.heard, heard):
                self.hearing.late += 1
                return {}
            instance.sequences = Sequences()
        lost = instance.sequences.lost
        if not instance.sequences.hear(sample.sequence):
            self.hearing.repeated += 1
            return {}
        self.hearing.lost_reports += instance.sequences.lost - lost
        if sample.started_at == instance.latest.started_at and sample.sequence < instance.latest.sequence:
            self.hearing.late += 1
            return {}
        seconds = sample.at - instance.latest.at
        instance.latest, instance.heard = sample, heard
        same_life = instance.work.life == sample.started_at
        work = {f"work.{name}": getattr(sample.work, name) for name in _WORK}
        increases = instance.work.advance(sample.started_at, work)
        if same_life and seconds > 0:
            increases["work.watched_seconds"] = seconds
        return increases

    def _hear_partition(self, sample: PartitionSample, heard: float) -> dict[str, float]:
        key = (sample.service, sample.partition)
        partition = self._partitions.get(key)
        if partition is None:
            if len(self._partitions) >= _MOST_PARTITIONS:
                self.hearing.crowded_out += 1
                return {}
            partition = self._partitions[key] = Partition(sample, heard)
        elif not _is_newer(sample, partition.latest, partition.heard, heard):
            if sample.at == partition.latest.at:
                self.hearing.repeated += 1
            else:
                self.hearing.late += 1
            return {}
        partition.latest, partition.heard = sample, heard
        increases: dict[str, float] = {}
        if sample.lag is not None:
            partition.lag = sample.lag
        if sample.state == "running":
            increases.update(partition.totals.advance(heard, sample.counters))
            increases.update(partition.passed.advance((sample.instance, sample.loaded_at), sample.passed))
        places = {"consumed": sample.position, "arrived": sample.end}
        increases.update(
            partition.places.advance(heard, {name: place for name, place in places.items() if place is not None})
        )
        return increases


def _is_newer(sample: Sample, known: Sample, known_heard: float, heard: float) -> bool:
    """Whether a sample says more than what is known.

    By the speakers' clocks; if nobody else speaks, one whose clock is behind is listened to all the same, and one
    whose clock is far ahead counts as speaking when it is heard.
    """
    return min(sample.at, heard) > min(known.at, known_heard) or heard - known_heard > SILENT_AFTER
