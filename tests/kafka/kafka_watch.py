"""What a running fleet has spent and read: processor time by process, and ends and positions of its topics."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from meguri.fleet.positions import INBOXES
from meguri_common.config import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafka_cluster import Cluster
    from kafka_fleet import Fleet

__all__ = ["MIDDLE", "Look", "Watch", "cpu_of", "spent", "standstills"]

_TICKS = os.sysconf("SC_CLK_TCK")
_USER = 11
"""Field of user time behind the name in /proc/PID/stat; that of the system follows."""
_EARLY, _LATE = 0.1, 0.8
MIDDLE = _LATE - _EARLY
"""Share of an inbox that `Watch.middle_seconds` is the time of."""
_NOT_YET = {"GROUP_ID_NOT_FOUND", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"}
"""What is said of a group that nobody has joined yet."""


def cpu_of(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER]) + int(fields[_USER + 1])) / _TICKS


def spent(fleet: Fleet, brokers: Cluster) -> dict[str, float]:
    """Processor seconds so far: by service, of the instances that run, and `kafka`."""
    found = {service: sum(cpu_of(each.pid) for each in fleet.running.get(service, [])) for service in INBOXES}
    return {**found, "kafka": sum(map(cpu_of, brokers.pids()))}


@dataclass(frozen=True)
class Look:
    """Ends and committed positions of each service's inbox at about one moment."""

    at: float
    ends: dict[str, list[int]]
    committed: dict[str, list[int]]

    def passed(self, service: str, marks: list[int]) -> bool:
        """Whether a service has read up to there in all partitions."""
        return all(at >= mark for at, mark in zip(self.committed[service], marks, strict=True))

    @property
    def drained(self) -> bool:
        """Whether nobody has anything left to read."""
        return all(self.passed(service, self.ends[service]) for service in INBOXES)

    @property
    def messages(self) -> int:
        """Offsets appended to the inboxes, markers of transactions included."""
        return sum(map(sum, self.ends.values()))


class Watch:
    """Looks at all inboxes at once; what a transaction still holds back counts as not committed."""

    def __init__(self, fleet: Fleet) -> None:
        kafka = KafkaSettings(bootstrap=fleet.bootstrap, prefix=fleet.prefix)
        self._admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
        self._topics = {service: kafka.topic(topic) for service, topic in INBOXES.items()}
        self._groups = {service: kafka.group(service) for service in INBOXES}
        topics = self._admin.list_topics(timeout=15).topics
        self._counts = {service: len(topics[topic].partitions) for service, topic in self._topics.items()}

    def look(self) -> Look:
        """Positions first, ends after them: what is read up to the ends now was so when they were looked at."""
        asked = {
            service: self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self._groups[service], self._places(service))], require_stable=False
            )
            for service in INBOXES
        }
        committed = {}
        for service, answers in asked.items():
            (answer,) = answers.values()
            committed[service] = [max(place.offset, 0) for place in _result(answer).topic_partitions]
        ends_asked = {
            service: self._admin.list_offsets({place: OffsetSpec.latest() for place in self._places(service)})
            for service in INBOXES
        }
        at = time.monotonic()
        ends = {}
        for service, answers in ends_asked.items():
            found = {place.partition: _result(answer).offset for place, answer in answers.items()}
            ends[service] = [found[number] for number in range(self._counts[service])]
        return Look(at, ends, committed)

    def await_shared(self, service: str, instances: int, seconds: float = 60.0) -> None:
        """Wait until so many instances share a service's partitions, each with some.

        Raises:
            TimeoutError: they don't.
        """
        group = self._groups[service]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                members = _result(self._admin.describe_consumer_groups([group])[group]).members
            except KafkaException as problem:
                if problem.args[0].name() not in _NOT_YET:
                    raise
                members = []  # nobody has joined yet
            having = [len(member.assignment.topic_partitions) for member in members]
            if len(having) == instances and all(having) and sum(having) == self._counts[service]:
                return
            time.sleep(0.2)
        msg = f"{service}'s partitions aren't shared by {instances} instances within {seconds:g} s"
        raise TimeoutError(msg)

    def middle_seconds(self, service: str, *, seconds: float = 900.0, interval: float = 0.2) -> float:
        """How long a service takes for the middle of its inbox, between a tenth and four fifths of its offsets.

        Neither waking up counts nor an uneven rest that one instance reads alone. Linear between two looks.

        Raises:
            TimeoutError: it hasn't come so far.
        """
        began = time.monotonic()
        looks: list[tuple[float, float]] = []
        while not looks or looks[-1][1] < _LATE:
            if time.monotonic() > began + seconds:
                msg = f"{service} hasn't read most of its inbox within {seconds:g} s"
                raise TimeoutError(msg)
            now = self.look()
            looks.append((now.at, sum(now.committed[service]) / max(sum(now.ends[service]), 1)))
            time.sleep(interval)
        first, last = (
            next(
                before[0] + (after[0] - before[0]) * (share - before[1]) / (after[1] - before[1])
                for before, after in itertools.pairwise([(began, 0.0), *looks])
                if after[1] >= share
            )
            for share in (_EARLY, _LATE)
        )
        return last - first

    def await_drained(self, *services: str, seconds: float = 900.0, interval: float = 0.1) -> float:
        """Wait until some services (default: all) have read all; the moment (monotonic seconds).

        Raises:
            TimeoutError: they haven't.
        """
        before: Look | None = None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            now = self.look()
            wanted = services or tuple(INBOXES)
            if before is not None and all(
                before.ends[each] == now.ends[each] and before.passed(each, now.ends[each]) for each in wanted
            ):
                return before.at
            before = now
            time.sleep(interval)
        msg = f"{', '.join(services) or 'the services'} haven't read all within {seconds:g} s: {before}"
        raise TimeoutError(msg)

    def _places(self, service: str) -> list[TopicPartition]:
        return [TopicPartition(self._topics[service], number) for number in range(self._counts[service])]


def standstills(looks: Sequence[Look]) -> dict[tuple[str, int], float]:
    """The longest time for which a service had something to read in a partition and committed nothing, in seconds.

    Args:
        looks: in order of time; the distance between them is how exact it is.
    """
    longest: dict[tuple[str, int], float] = {}
    since: dict[tuple[str, int], tuple[float, int]] = {}
    for look in looks:
        for service, positions in look.committed.items():
            for number, (position, end) in enumerate(zip(positions, look.ends[service], strict=True)):
                place = service, number
                longest.setdefault(place, 0.0)
                began, stood_at = since.get(place, (look.at, position))
                if place in since:
                    longest[place] = max(longest[place], look.at - began)
                if position != stood_at:
                    began = look.at
                if position < end:
                    since[place] = began, position
                else:
                    since.pop(place, None)
    return longest


def _result(answer: Any) -> Any:
    return answer.result(timeout=30)
