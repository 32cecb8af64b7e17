"""A service's process without a broker: names of instances, the loop, health, bounds of steps, bad messages."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from meguri_common.bus.port import TopicPartition
from meguri_common.bus.simulated import Faults, SimulatedBus
from meguri_common.errors import BusError, DataFolderError, TopicMissing
from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.fleet import FleetProcess
from meguri_common.runtime.health import Health, HealthServer
from meguri_common.runtime.instances import InstanceSlot
from meguri_common.runtime.partition import Surroundings
from meguri_common.runtime.service import ServiceSpec
from meguri_common.runtime.simulated import SimulatedFiles
from meguri_common.runtime.worker import Step, Worker, WorkerLimits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from meguri_common.bus.port import Message
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter

PARTITIONS = 3


@dataclass
class Scene:
    """One worker over a simulated bus; a message takes as long as its first byte says, `!` can't be handled."""

    limits: WorkerLimits = field(default_factory=WorkerLimits)
    clock: float = 0.0
    steps: list[Step] = field(default_factory=list)
    handled: dict[int, list[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bus = SimulatedBus({"in": PARTITIONS}, rng=random.Random(1), now=lambda: 0.0, faults=Faults())
        identity = CampaignIdentity(
            campaign="c", partitions=PARTITIONS, group_by="host", policy="", suffix_list="", url_parser=""
        )
        self.around = Surroundings(
            bus=self.bus.view("a"),
            files=SimulatedFiles(lambda: 0.0),
            identity=identity,
            now=lambda: 0.0,
            token=iter(f"{number:08x}" for number in range(1 << 20)).__next__,
        )
        self.spec = ServiceSpec("counting", "in", lambda number, _parameters: _Counting(self, number))

    def worker(self) -> Worker:
        return Worker(
            self.spec, self.around, "a", limits=self.limits, on_step=self.steps.append, clock=lambda: self.clock
        )

    def send(self, number: int, *payloads: bytes) -> None:
        producer = self.bus.view("outside").producer("outside")
        producer.begin()
        for payload in payloads:
            producer.publish(TopicPartition("in", number), payload)
        producer.commit()


class _Counting:
    def __init__(self, scene: Scene, number: int) -> None:
        self._scene = scene
        self.seen: list[bytes] = []
        scene.handled[number] = self.seen

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        del outputs
        for message in messages:
            payload = bytes(message.payload)
            if payload.startswith(b"!"):
                raise ValueError("can't be handled")
            self._scene.clock += payload[0]
            self.seen.append(payload)

    def save(self, writer: SnapshotWriter) -> None:
        writer.scalars["seen"] = [payload.hex() for payload in self.seen]

    def saved(self) -> None:
        pass

    def load(self, reader: SnapshotReader) -> None:
        self.seen.extend(bytes.fromhex(text) for text in reader.scalars["seen"])


def work(worker: Worker) -> None:
    while worker.run_once():
        pass


def test_a_step_takes_all_partitions_together() -> None:
    scene = Scene()
    worker = scene.worker()
    work(worker)
    for number in range(PARTITIONS):
        scene.send(number, b"\0a", b"\0b")
    work(worker)
    assert [(step.messages, step.bytes, step.failed) for step in scene.steps] == [(6, 12, False)]
    assert scene.handled == {number: [b"\0a", b"\0b"] for number in range(PARTITIONS)}


def test_steps_that_take_too_long_become_smaller_and_grow_again() -> None:
    scene = Scene(WorkerLimits(step_bytes=64, step_seconds=10.0))
    worker = scene.worker()
    work(worker)
    scene.send(0, *[b"\x02" + bytes(7)] * 40)
    work(worker)
    sizes = [step.messages for step in scene.steps]
    assert sum(sizes) == 40
    assert sizes[0] == 8
    assert max(step.seconds for step in scene.steps[2:]) <= 10.0
    scene.send(0, *[bytes(8)] * 40)
    work(worker)
    assert scene.steps[-2].messages == 8


def test_the_message_that_cannot_be_handled_stops_its_partition_alone() -> None:
    scene = Scene()
    worker = scene.worker()
    work(worker)
    scene.send(0, b"\0", b"\0")
    scene.send(1, b"\0", b"\0", b"!bad", b"\0")
    scene.send(2, b"\0")
    work(worker)
    assert {number: still.offset for number, still in worker.stopped.items()} == {1: 2}
    assert sorted(worker.loaded) == [0, 2]
    assert worker.restoring == set()
    scene.send(2, b"\0", b"\0")
    work(worker)
    assert [len(scene.handled[number]) for number in (0, 2)] == [2, 3]
    assert any(step.failed for step in scene.steps)
    committed = [scene.around.bus.committed("counting", TopicPartition("in", number)) for number in range(PARTITIONS)]
    assert [commit.offset for commit in committed if commit] == [2, 2, 3]


def test_others_go_on_while_a_bad_message_is_sought() -> None:
    scene = Scene()
    worker = scene.worker()
    work(worker)
    scene.send(1, *[b"\0"] * 30, b"!")
    for _ in range(8):
        worker.run_once()
    scene.send(0, b"\0")
    for _ in range(4):
        worker.run_once()
    assert scene.handled[0] == [b"\0"]
    assert 1 not in worker.stopped
    work(worker)
    assert worker.stopped[1].offset == 30


def test_a_passing_failure_leaves_no_partition_behind() -> None:
    scene = Scene()
    worker = scene.worker()
    work(worker)
    honest, failing = _Counting.apply, [True]

    def once(self: Any, messages: Sequence[Message], outputs: Outputs) -> None:
        if failing.pop() if failing else False:
            raise MemoryError
        honest(self, messages, outputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Counting, "apply", once)
        scene.send(0, b"\0", b"\0", b"\0")
        work(worker)
        for _ in range(5):
            worker.run_once()
    assert not worker.stopped
    assert scene.handled[0] == [b"\0"] * 3
    scene.send(0, *[b"\0"] * 4)
    work(worker)
    assert scene.steps[-1].messages == 4, "no longer one at a time"


def test_names_of_instances(tmp_path: Path) -> None:
    first, second = (InstanceSlot.take(tmp_path, "dedup", "host") for _ in range(2))
    assert (first.name, second.name) == ("host-0", "host-1")
    assert InstanceSlot.take(tmp_path, "store", "host").name == "host-0", "each service counts for itself"
    first.close()
    again = InstanceSlot.take(tmp_path, "dedup", "host")
    assert again.name == "host-0", "what was open is settled by who comes back"
    named = InstanceSlot.take(tmp_path, "dedup", "host", name="a/b c")
    assert named.name == "a_b_c"
    with pytest.raises(DataFolderError, match="another process is the dedup instance a/b c"):
        InstanceSlot.take(tmp_path, "dedup", "host", name="a/b c")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFolderError, match="--instance"):
        InstanceSlot.take(tmp_path / "file", "dedup", "host")


class _Stub:
    """A worker whose pieces of work are scripted: True, False, or a failure."""

    waits = False

    def __init__(self, script: list[bool | None], stop: BaseException | None = None) -> None:
        self.spec = ServiceSpec("stub", "in", lambda *_: None)  # type: ignore[arg-type, return-value]  # never made
        self.failures = 0
        self.script = script
        self.stopped_in_order = False
        self._stop = stop

    def run_once(self) -> bool:
        done = self.script.pop(0)
        self.failures = self.failures + 1 if done is None else 0
        return done is not False

    def stop(self) -> None:
        if self._stop:
            raise self._stop
        self.stopped_in_order = True


def run(worker: Any, stops_when: Any, make: Any = None) -> tuple[bool, list[float]]:
    pauses: list[float] = []
    process = FleetProcess(make or (lambda: worker), stopping=stops_when, sleep=pauses.append)
    return process.run(), pauses


def test_the_loop_waits_longer_after_each_failure_and_stops_in_order() -> None:
    worker = _Stub([True, None, None, None, True, False] + [None] * 12)
    done, pauses = run(worker, lambda: not worker.script)
    assert done
    assert worker.stopped_in_order
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.05]
    assert max(pauses) == 5.0


def test_the_loop_waits_for_brokers_but_not_for_topics() -> None:
    worker = _Stub([True])
    answers: list[Any] = [BusError("nobody there"), BusError("nobody there"), worker]

    def make() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, BusError):
            raise answer
        return answer

    assert run(worker, lambda: not worker.script, make) == (True, [0.05, 0.1])

    def missing() -> Any:
        raise TopicMissing("no topic")

    with pytest.raises(TopicMissing):
        run(worker, lambda: False, missing)
    assert run(worker, lambda: True, missing) == (True, [])


def test_a_stop_that_the_brokers_do_not_hear_of_is_told() -> None:
    worker = _Stub([True], stop=BusError("gone"))
    assert run(worker, lambda: not worker.script)[0] is False


def test_health() -> None:
    scene = Scene()
    now = [0.0]
    health = Health(lambda: now[0])
    worker = scene.worker()
    server = HealthServer(health, "127.0.0.1", 0)
    try:
        health.note(worker)
        assert ask(server, "ready") == (200, 0)
        work(worker)
        health.note(worker)
        assert ask(server, "ready") == (200, PARTITIONS)
        scene.send(0, b"!")
        work(worker)
        health.note(worker)
        assert ask(server, "ready") == (503, PARTITIONS - 1)
        assert ask(server, "live") == (200, PARTITIONS - 1)
        now[0] = 1000.0
        assert ask(server, "live") == (503, PARTITIONS - 1), "the loop hangs"
    finally:
        server.close()


def ask(server: HealthServer, question: str) -> tuple[int, int]:
    try:
        with urllib.request.urlopen(f"http://{server.address}/{question}", timeout=10) as answer:
            return answer.status, json.load(answer)["loaded"]
    except urllib.error.HTTPError as problem:
        return problem.code, json.load(problem)["loaded"]
