"""The reporter in the worker's loop: what it says of a real worker, how often, and that it never holds that up."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meguri_common.bus.port import TopicPartition
from meguri_common.bus.simulated import SimulatedBus
from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.partition import Surroundings
from meguri_common.runtime.service import ServiceSpec
from meguri_common.runtime.simulated import SimulatedFiles
from meguri_common.runtime.worker import Worker
from meguri_common.telemetry.model import InstanceSample, PartitionSample, decode_report
from meguri_common.telemetry.reporter import Reporter, SystemProcess
from meguri_common.telemetry.sampling import InstanceName

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from meguri_common.bus.port import Message
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter
    from meguri_common.telemetry.model import Sample

PARTITIONS = 3
IDENTITY = CampaignIdentity(
    campaign="c", partitions=PARTITIONS, group_by="host", policy="", suffix_list="", url_parser=""
)


class Counting:
    """Counts its messages; one that says `bad` can't be handled."""

    def __init__(self) -> None:
        self.count = self.handled = 0

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        del outputs
        for message in messages:
            if bytes(message.payload) == b"bad":
                raise ValueError("can't be handled")
        self.count += len(messages)
        self.handled += len(messages)

    def save(self, writer: SnapshotWriter) -> None:
        writer.scalars["count"] = self.count

    def saved(self) -> None:
        pass

    def load(self, reader: SnapshotReader) -> None:
        self.count = reader.scalars["count"]

    def stats(self) -> dict[str, dict[str, float]]:
        return {"counters": {"messages": self.count}, "passed": {"handled": self.handled}, "gauges": {"half": 0.5}}


@dataclass
class Clock:
    """A process whose time stands still until it is told otherwise."""

    at: float = 1000.0
    cpu: float = 0.25

    def now(self) -> float:
        return self.at

    def elapsed(self) -> float:
        return self.at - 500

    def cpu_seconds(self) -> float:
        return self.cpu

    def memory_bytes(self) -> int:
        return 1 << 20


@dataclass
class Ear:
    """Hears what is emitted."""

    messages: list[tuple[str, bytes]] = field(default_factory=list)
    full: bool = False
    broken: bool = False
    closed: bool = False

    def send(self, key: str, message: bytes) -> bool:
        if self.broken:
            raise RuntimeError("no way out")
        if not self.full:
            self.messages.append((key, message))
        return not self.full

    def close(self) -> None:
        self.closed = True

    def samples(self) -> list[Sample]:
        """What was heard since the last call."""
        found: list[Sample] = []
        for _, message in self.messages:
            samples, problems = decode_report(message)
            assert not problems
            found += samples
        self.messages.clear()
        return found


class Scene:
    """A worker over the simulated bus, and a reporter."""

    def __init__(self, create: Any = Counting) -> None:
        self.clock, self.ear = Clock(), Ear()
        self.bus = SimulatedBus({"in": PARTITIONS}, rng=random.Random(1), now=self.clock.now)
        view = self.bus.view("a")
        files = SimulatedFiles(self.clock.now)
        files.make_folder("state")
        around = Surroundings(view, files, IDENTITY, self.clock.now, iter(f"{n:04x}" for n in range(10**6)).__next__)
        self.spec = ServiceSpec("counting", "in", lambda _partition, _parameters: create())
        self.worker = Worker(self.spec, around, "a", wants_snapshot=lambda loaded: loaded.position >= 10)
        name = InstanceName("counting", "counting-a", "c", self.clock.now())
        self.reporter = Reporter(name, self.ear, self.clock)
        self.feeder = view.producer("feeder")

    def feed(self, partition: int, *payloads: bytes) -> None:
        self.feeder.begin()
        for payload in payloads:
            self.feeder.publish(TopicPartition("in", partition), payload)
        self.feeder.commit()

    def run(self) -> None:
        while self.worker.run_once():
            pass

    def tick(self) -> bool:
        return self.reporter.tick(
            self.worker._loaded.values(),
            restoring=self.worker._assigned.keys() - self.worker._loaded.keys() - self.worker.stopped.keys(),
            stopped=self.worker.stopped,
            end_of=self.end,
        )

    def end(self, partition: int) -> int:
        return self.bus.view("a").watermarks(TopicPartition("in", partition))[1]

    def heard(self) -> tuple[InstanceSample, dict[int, PartitionSample]]:
        """The one report that was made since the last call."""
        first, *others = self.ear.samples()
        assert isinstance(first, InstanceSample)
        found = {sample.partition: sample for sample in others if isinstance(sample, PartitionSample)}
        assert len(found) == len(others)
        return first, found


def test_a_worker_is_told_as_it_is() -> None:
    scene = Scene()
    scene.feed(0, *[b"x"] * 4)
    scene.feed(1, *[b"x"] * 12)
    scene.run()
    scene.feed(0, b"x", b"x")
    scene.reporter.worked(messages=16, nbytes=16, seconds=0.5)
    assert scene.tick()
    instance, partitions = scene.heard()
    assert (instance.service, instance.instance, instance.campaign, instance.state) == (
        "counting", "counting-a", "c", "running",
    )  # fmt: skip
    assert (instance.partitions, instance.sequence, instance.at, instance.started_at) == (3, 0, 1000.0, 1000.0)
    assert (instance.work.steps, instance.work.messages, instance.work.busy_seconds) == (1, 16, 0.5)
    assert (instance.work.cpu_seconds, instance.work.memory_bytes) == (0.25, 1 << 20)
    assert sorted(partitions) == [0, 1, 2]
    assert [partitions[number].counters["messages"] for number in range(3)] == [4, 12, 0]
    assert [partitions[number].passed["handled"] for number in range(3)] == [4, 12, 0]
    assert partitions[0].gauges == {"half": 0.5}
    assert partitions[0].lag == 2
    assert partitions[1].lag == 0
    assert all(sample.state == "running" and sample.loaded_at == 1000.0 for sample in partitions.values())


def test_snapshots_are_told_with_their_age() -> None:
    scene = Scene()
    scene.feed(1, *[b"x"] * 12)
    scene.run()
    scene.clock.at += 30
    scene.tick()
    _, partitions = scene.heard()
    snapshot = partitions[1].snapshot
    assert snapshot is not None
    assert (snapshot.offset, snapshot.age) == (partitions[1].position, 30.0)
    assert partitions[0].snapshot is not None
    assert partitions[0].snapshot.offset == 0, "it holds the parameters"
    scene.feed(1, b"x")
    scene.run()
    scene.clock.at += 5
    scene.tick()
    _, partitions = scene.heard()
    newer = partitions[1].snapshot
    assert newer is not None
    assert newer.offset > snapshot.offset
    assert newer.age == 5.0


def test_counts_begin_anew_with_a_restored_state() -> None:
    scene = Scene()
    scene.feed(0, *[b"x"] * 12)
    scene.run()
    scene.tick()
    assert scene.heard()[1][0].passed == {"handled": 12}
    scene.clock.at += 10
    scene.worker._loaded.clear()
    scene.feed(0, b"x")
    scene.run()
    scene.tick()
    sample = scene.heard()[1][0]
    assert sample.counters == {"messages": 13}
    assert sample.passed == {"handled": 1}
    assert sample.loaded_at == 1010.0


def test_a_partition_that_stands_still_is_told_loudly() -> None:
    scene = Scene()
    scene.feed(2, b"x", b"bad", b"x")
    scene.run()
    scene.tick()
    instance, partitions = scene.heard()
    assert instance.partitions == 3
    assert partitions[2].state == "stopped"
    assert partitions[2].problem == "offset 1: can't be handled"
    assert (partitions[2].position, partitions[2].lag) == (
        1,
        scene.bus.view("a").watermarks(TopicPartition("in", 2))[1] - 1,
    )
    assert partitions[0].state == "running"


def test_partitions_that_are_being_restored_are_told() -> None:
    scene = Scene()
    scene.worker.run_once()
    assert len(scene.worker._loaded) == 1
    scene.tick()
    _, partitions = scene.heard()
    assert sorted(sample.state for sample in partitions.values()) == ["restoring", "restoring", "running"]


def test_about_once_a_second() -> None:
    scene = Scene()
    scene.run()
    told = 0
    for _ in range(100):
        told += scene.tick()
        scene.clock.at += 0.1
    assert told == 10
    assert [sample.sequence for sample in scene.ear.samples() if isinstance(sample, InstanceSample)] == list(range(10))


def test_costly_reports_are_rare() -> None:
    class Slow(Counting):
        def stats(self) -> dict[str, dict[str, float]]:
            scene.clock.at += 0.05
            return super().stats()

    scene = Scene(Slow)
    scene.run()
    told, spent = 0, 0.0
    for _ in range(6000):
        before = scene.clock.at
        told += scene.tick()
        spent += scene.clock.at - before
        scene.clock.at += 0.1
    assert told > 10
    assert spent <= 0.0101 * (scene.clock.at - 1000)


def test_nothing_that_fails_reaches_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Counting):
        def stats(self) -> dict[str, dict[str, float]]:
            raise ZeroDivisionError("ours")

    scene = Scene(Broken)
    scene.feed(0, b"x")
    scene.run()
    scene.tick()
    _, partitions = scene.heard()
    assert partitions[0].position == scene.worker._loaded[0].position
    assert partitions[0].counters == {}
    scene.ear.broken = True
    for _ in range(50):
        scene.clock.at += 2
        assert scene.tick()
    assert 2 <= len(caplog.messages) <= 8, "it is said, and not every second"
    scene.reporter.leave()
    assert scene.worker.run_once() is False


def test_dropped_reports_are_counted() -> None:
    scene = Scene()
    scene.run()
    scene.ear.full = True
    for _ in range(3):
        scene.tick()
        scene.clock.at += 1
    scene.ear.full = False
    scene.tick()
    instance, _ = scene.heard()
    assert (instance.work.dropped_reports, instance.sequence) == (3, 3)


def test_the_last_word() -> None:
    scene = Scene()
    scene.run()
    scene.reporter.leave()
    instance, partitions = scene.heard()
    assert (instance.state, partitions) == ("left", {})
    assert scene.ear.closed


def test_many_partitions_make_several_messages() -> None:
    class Talkative(Counting):
        def stats(self) -> dict[str, dict[str, float]]:
            return {"counters": {f"counter_{number}": number for number in range(8000)}}

    scene = Scene(Talkative)
    scene.run()
    scene.tick()
    assert len(scene.ear.messages) > 1
    assert all(key == "counting" for key, _ in scene.ear.messages)
    assert len(scene.heard()[1]) == PARTITIONS


def test_failed_steps_are_counted() -> None:
    scene = Scene()
    scene.run()
    scene.reporter.failed(seconds=1.5)
    scene.tick()
    work = scene.heard()[0].work
    assert (work.failed_steps, work.steps, work.busy_seconds) == (1, 0, 1.5)


def test_the_system_process() -> None:
    process = SystemProcess()
    assert process.now() > 1.7e9
    assert process.elapsed() <= process.elapsed()
    assert process.cpu_seconds() > 0
    assert 1 << 20 < process.memory_bytes() < 1 << 40
