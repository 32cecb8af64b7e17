"""Skipping messages: the partition goes on, every re-read skips them too, and nothing is skipped that was handled."""

from __future__ import annotations

import base64
import json
import random
from typing import TYPE_CHECKING

import pytest

from meguri_common.bus.port import TopicPartition
from meguri_common.bus.simulated import Faults, SimulatedBus
from meguri_common.errors import DataFolderError, EnvelopeError
from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.partition import Surroundings
from meguri_common.runtime.restore import restore
from meguri_common.runtime.service import ServiceSpec
from meguri_common.runtime.simulated import SimulatedFiles
from meguri_common.runtime.skips import FleetSkips, SkipRequest
from meguri_common.runtime.worker import Worker
from meguri_common.topics import REJECTS, SKIPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meguri_common.bus.port import Message
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter


class Adding:
    """Adds up numbers, one a line; what isn't a number can't be handled. Skipped numbers go to another sum."""

    def __init__(self) -> None:
        self.sum = self.written_off = self.messages = 0

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        del outputs
        for message in messages:
            self.sum += sum(int(line) for line in bytes(message.payload).split(b"\n") if line)
            self.messages += 1

    def skip(self, message: Message) -> int:
        try:
            lost = int(bytes(message.payload).removeprefix(b"bad "))
        except ValueError as problem:
            raise EnvelopeError(str(problem)) from problem
        self.written_off += lost
        return lost

    def save(self, writer: SnapshotWriter) -> None:
        writer.scalars["state"] = [self.sum, self.written_off, self.messages]

    def saved(self) -> None:
        pass

    def load(self, reader: SnapshotReader) -> None:
        self.sum, self.written_off, self.messages = reader.scalars["state"]

    @property
    def state(self) -> tuple[int, int, int]:
        return self.sum, self.written_off, self.messages


class Scene:
    """A bus and a state root; workers come and go."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.bus = SimulatedBus({"in": 2, SKIPS: 1, REJECTS: 1}, rng=random.Random(1), now=lambda: 0.0, faults=Faults())
        self.files = SimulatedFiles(lambda: 0.0)
        self.identity = CampaignIdentity(
            campaign="c", partitions=2, group_by="host", policy="", suffix_list="", url_parser=""
        )
        self.token = iter(f"{number:08x}" for number in range(1 << 20)).__next__
        self.spec = ServiceSpec("adding", "in", lambda _number, _parameters: Adding())
        self.starts = 0

    def around(self, name: str) -> Surroundings:
        view = self.bus.view(name)
        return Surroundings(
            bus=view,
            files=self.files,
            identity=self.identity,
            now=lambda: 0.0,
            token=self.token,
            skips=FleetSkips(self.files, view, self.token),
        )

    def worker(self) -> Worker:
        self.starts += 1
        return Worker(self.spec, self.around(f"a{self.starts}"), f"a{self.starts}", clock=lambda: self.clock)

    def send(self, *payloads: bytes) -> None:
        producer = self.bus.view("outside").producer("outside")
        producer.begin()
        for payload in payloads:
            producer.publish(TopicPartition("in", 0), payload)
        producer.commit()

    def ask(self, offset: int, *lines: int, why: str = "") -> None:
        skips = FleetSkips(self.files, self.bus.view("outside"), self.token)
        skips.ask(SkipRequest(topic="in", partition=0, offset=offset, lines=lines, why=why))

    def work(self, worker: Worker) -> None:
        for _ in range(3):
            self.clock += 10.0
            while worker.run_once():
                pass

    def restored(self) -> tuple[int, int, int]:
        """The state as a re-read of the whole inbox gives it."""
        around = self.around("reader")
        empty = Surroundings(
            bus=around.bus,
            files=SimulatedFiles(lambda: 0.0),
            identity=around.identity,
            now=around.now,
            token=around.token,
            skips=around.skips,
        )
        return restore(self.spec, 0, "adding", empty).service.state  # type: ignore[attr-defined] - it is an Adding

    def read(self, topic: str) -> list[dict]:
        view = self.bus.view("reader")
        source = TopicPartition(topic, 0)
        return [json.loads(bytes(message.payload)) for message in view.read(source, 0, max_bytes=1 << 20)]


def test_it_goes_on_behind_the_message_and_every_reread_skips_it_too() -> None:
    scene = Scene()
    worker = scene.worker()
    scene.send(b"1", b"2", b"bad 40", b"3")
    scene.work(worker)
    assert worker.stopped[0].offset == 2
    scene.ask(2, why="a damaged disk")
    scene.work(worker)
    assert not worker.stopped
    assert worker.loaded[0].service.state == (6, 40, 3)
    assert scene.restored() == (6, 40, 3)
    (record,) = scene.read(SKIPS)
    assert (record["offset"], record["written_off"], record["service"]) == (2, 40, "adding")
    (reject,) = scene.read(REJECTS)
    assert (reject["reason"], reject["detail"], reject["offset"]) == ("skipped", "a damaged disk", 2)
    assert base64.b64decode(reject["payload"]) == b"bad 40"
    assert scene.files.list("skips") == [], "the request has been dealt with"
    worker.stop()
    later = scene.worker()
    scene.send(b"5")
    scene.work(later)
    assert later.loaded[0].service.state == (11, 40, 4)
    assert scene.restored() == (11, 40, 4)


def test_what_cannot_even_be_decoded_is_skipped_and_said_so() -> None:
    scene = Scene()
    worker = scene.worker()
    scene.send(b"garbage", b"3")
    scene.work(worker)
    scene.ask(0)
    scene.work(worker)
    assert worker.loaded[0].service.state == scene.restored() == (3, 0, 1)
    assert scene.read(SKIPS)[0]["written_off"] == -1


def test_a_request_waits_for_an_owner_and_outlives_it() -> None:
    scene = Scene()
    worker = scene.worker()
    scene.send(b"1", b"bad 2", b"3")
    scene.work(worker)
    del worker
    scene.ask(1)
    scene.bus.kill("a1")
    scene.clock += 1000.0
    successor = scene.worker()
    scene.work(successor)
    assert successor.loaded[0].service.state == scene.restored() == (4, 2, 2)


def test_a_message_that_could_be_handled_is_not_skipped() -> None:
    scene = Scene()
    worker = scene.worker()
    scene.ask(1)  # before anybody has come to it
    scene.send(b"1", b"2", b"3")
    scene.work(worker)
    assert worker.loaded[0].service.state == scene.restored() == (6, 0, 3)
    assert scene.read(SKIPS) == []


def test_lines_of_a_message_are_skipped_and_the_others_are_handled() -> None:
    scene = Scene()
    worker = scene.worker()
    scene.send(b"1\nbad\n2\nworse\n4", b"8")
    scene.work(worker)
    scene.ask(0, 1)
    scene.work(worker)
    assert worker.stopped[0].offset == 0, "another line can't be handled either"
    assert scene.read(SKIPS) == scene.read(REJECTS) == []
    scene.ask(0, 1, 3)
    scene.work(worker)
    assert worker.loaded[0].service.state == (15, 0, 2)
    assert scene.read(SKIPS)[0]["lines"] == [1, 3]
    assert [(reject["line"], base64.b64decode(reject["payload"])) for reject in scene.read(REJECTS)] == [
        (1, b"bad"),
        (3, b"worse"),
    ]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"topic": "in", "partition": 0, "offset": 3}'])
def test_a_damaged_request_is_refused_and_harms_nobody(content: bytes) -> None:
    scene = Scene()
    worker = scene.worker()
    scene.send(b"bad 1")
    scene.work(worker)
    scene.ask(0)
    path = "skips/in-0-0.json"
    scene.files.remove(path)
    with scene.files.create(path) as file:
        file.write(content)
        scene.files.sync(file)
    skips = FleetSkips(scene.files, scene.bus.view("outside"), scene.token)
    with pytest.raises(DataFolderError, match=r"in-0-0\.json"):
        skips.requested(TopicPartition("in", 0), 0)
    scene.work(worker)
    assert worker.stopped[0].offset == 0
    scene.ask(0)
    scene.work(worker)
    assert not worker.stopped
