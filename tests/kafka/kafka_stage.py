"""Workers of a counting service on a broker, stepped by the test."""

from __future__ import annotations

import itertools
import secrets
import time
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient
from kafka_world import PatientBus, make_topics, short_settings

from meguri_common.bus.port import TopicPartition
from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.partition import Surroundings
from meguri_common.runtime.service import ServiceSpec
from meguri_common.runtime.worker import Worker, WorkerLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from meguri_common.bus.port import Message
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter

__all__ = ["Counting", "Life", "Stage"]

PATIENCE = 40.0


class Counting:
    """Counts its messages, and sends each on with its number; `bad` can't be handled."""

    def __init__(self, stage: Stage, partition: int) -> None:
        self._stage = stage
        self._partition = partition
        self.count = 0

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        for message in messages:
            if message.payload in self._stage.bad:
                raise ValueError(f"can't handle {bytes(message.payload)!r}")
            self._stage.before_message(bytes(message.payload))
            self.count += 1
            line = b"%d %d %s" % (self._partition, self.count, bytes(message.payload))
            outputs.add_raw(self._stage.outbox.topic, 0, line)

    def save(self, writer: SnapshotWriter) -> None:
        writer.scalars["count"] = self.count

    def saved(self) -> None:
        pass

    def load(self, reader: SnapshotReader) -> None:
        self.count = reader.scalars["count"]


class Life:
    """One instance, from its start to its end."""

    def __init__(self, stage: Stage, name: str, limits: WorkerLimits, parameters: dict[str, Any]) -> None:
        self.stage = stage
        self.bus = PatientBus(stage.settings)
        around = Surroundings(
            bus=self.bus,
            files=LocalFiles(stage.data),
            identity=stage.identity,
            now=time.time,
            token=lambda: secrets.token_hex(6),
        )
        spec = ServiceSpec(
            "counting",
            stage.inbox,
            lambda partition, _parameters: Counting(stage, partition),
            parameters=parameters,
        )
        self.worker = Worker(spec, around, name, limits=limits)

    def run(self, until: Callable[[], bool]) -> None:
        """Work until something holds."""
        self.stage.run(until, self)

    def end(self) -> None:
        """End without a word, as kill -9 does: what it holds is found out about by the others."""
        for producer in self.bus._producers.values():
            producer.supersede()
        for member in self.bus._members:
            member.leave()

    def lose(self) -> None:
        """Hang for longer than the group waits."""
        self.worker._member._stall = -1.0  # type: ignore[attr-defined]  # a Kafka member's

    def come_back(self) -> None:
        self.worker._member._stall = 300.0  # type: ignore[attr-defined]  # see above


class Stage:
    """Topics, group and state root of a test."""

    def __init__(self, bootstrap: str, data: Path, *, partitions: int = 2, copies: int = 1, **settings: Any) -> None:
        run = uuid.uuid4().hex[:8]
        self.inbox, self.outbox = f"in-{run}", TopicPartition(f"out-{run}", 0)
        self.partitions = partitions
        self.data = data
        data.mkdir(parents=True, exist_ok=True)
        self.bad: set[bytes] = set()
        self.before_message: Callable[[bytes], None] = lambda _payload: None
        self.settings = short_settings(bootstrap, prefix=f"{run}.", **settings)
        self.identity = CampaignIdentity(
            campaign=run, partitions=partitions, group_by="host", policy="", suffix_list="", url_parser=""
        )
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.bootstrap = bootstrap
        make_topics(bootstrap, {self.inbox: partitions, self.outbox.topic: 1}, copies=copies)
        self.outside = PatientBus(self.settings)
        self.lives: list[Life] = []
        self._sent = itertools.count()

    def life(self, name: str = "a", *, parameters: dict[str, Any] | None = None, **limits: Any) -> Life:
        made = Life(self, name, WorkerLimits(**{"wait": 0.02, **limits}), parameters or {})
        self.lives.append(made)
        return made

    def send(self, count: int, partition: int | None = None) -> list[bytes]:
        """Messages, all different, in turns to all partitions or to one."""
        made = [b"%d" % next(self._sent) for _ in range(count)]
        producer = self.outside.producer("outside")
        producer.begin()
        for number, payload in enumerate(made):
            at = number % self.partitions if partition is None else partition
            producer.publish(TopicPartition(self.inbox, at), payload)
        producer.commit()
        producer.close()
        return made

    def run(self, until: Callable[[], bool], *lives: Life) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            for life in lives:
                life.worker.run_once()
            if until():
                return
            assert time.monotonic() < deadline, [life.worker.stopped for life in lives]

    def sources(self) -> list[TopicPartition]:
        return [TopicPartition(self.inbox, number) for number in range(self.partitions)]

    def committed(self, number: int) -> int:
        found = self.outside.committed("counting", TopicPartition(self.inbox, number))
        return found.offset if found else 0

    def drained(self) -> bool:
        return all(self.committed(at.partition) == self.outside.watermarks(at)[1] for at in self.sources())

    def out(self) -> list[tuple[int, int, bytes]]:
        """Partition, number and payload of what came out."""
        first = self.outside.watermarks(self.outbox)[0]
        lines = [bytes(message.payload).split(b" ") for message in self.outside.read(self.outbox, first)]
        return [(int(partition), int(number), payload) for partition, number, payload in lines]

    def check(self, sent: Sequence[bytes]) -> None:
        """Each message once, numbered without a gap."""
        found = self.out()
        assert sorted(payload for *_, payload in found) == sorted(sent)
        for partition in range(self.partitions):
            numbers = [number for at, number, _ in found if at == partition]
            assert numbers == list(range(1, len(numbers) + 1))

    def close(self) -> None:
        for life in self.lives:
            life.bus.close()
        self.outside.close()
