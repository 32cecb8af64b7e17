"""What every bus must do: one suite for the embedded and the simulated adapter, and for those to come."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.bus.port import Assigned, Commit, TopicPartition
from meguri_common.bus.simulated import SimulatedBus
from meguri_common.errors import BusError, Fenced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from meguri_common.bus.port import RowBus

TOPICS = {"in": 1, "out": 3}
IN, OUT = TopicPartition("in", 0), TopicPartition("out", 2)


class Harness:
    """A bus whose content outlives the object: `again` is another life of the same instance."""

    def __init__(self, make: Callable[[], RowBus]) -> None:
        self._make = make
        self.bus = make()

    def again(self) -> RowBus:
        self.bus.close()
        self.bus = self._make()
        return self.bus


@pytest.fixture(params=["embedded", "simulated"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "embedded":
        made = Harness(lambda: EmbeddedBus(tmp_path / "bus.db", topics=TOPICS, now=lambda: 1000.0))
    else:
        shared = SimulatedBus(TOPICS, rng=random.Random(1), now=lambda: 1000.0)
        made = Harness(lambda: shared.view("a"))
    yield made
    made.bus.close()


def publish(bus: RowBus, target: TopicPartition, *payloads: bytes) -> None:
    producer = bus.producer("p")
    producer.begin()
    for payload in payloads:
        producer.publish(target, payload)
    producer.commit()


def payloads(bus: RowBus, source: TopicPartition, start: int = 0, **bounds: int) -> list[bytes]:
    return [bytes(message.payload) for message in bus.read(source, start, **bounds)]


def test_a_transaction_takes_effect_as_a_whole(harness: Harness) -> None:
    bus = harness.bus
    member, producer = bus.join("g", "in"), bus.producer("p")
    assert list(member.poll()) == [Assigned((0,))]
    producer.begin()
    producer.publish(IN, b"one", headers=b"h", at=7)
    producer.publish(OUT, b"two")
    producer.commit_offsets(member, {0: Commit(5, "mark")})
    producer.put("row", b"value")
    producer.commit()
    (message,) = bus.read(IN, 0)
    assert (message.offset, bytes(message.payload), message.headers, message.appended_at) == (0, b"one", b"h", 7)
    assert bus.read(OUT, 0)[0].appended_at == 1000
    assert bus.committed("g", IN) == Commit(5, "mark")
    assert bus.get("row") == b"value"
    assert harness.again().committed("g", IN) == Commit(5, "mark")


def test_an_aborted_or_abandoned_transaction_leaves_nothing(harness: Harness) -> None:
    bus = harness.bus
    for end in ("abort", "close", "abandon"):
        member, producer = bus.join("g", "in"), bus.producer("p")
        member.poll()
        producer.begin()
        producer.publish(IN, b"gone")
        producer.put("row", b"gone")
        producer.commit_offsets(member, {0: Commit(1)})
        if end != "abandon":
            getattr(producer, end)()
        bus.producer("p")
        assert bus.read(IN, 0) == []
        assert bus.get("row") is None
        assert bus.committed("g", IN) is None
        assert bus.watermarks(IN) == (0, 0)


def test_offsets_grow_and_are_never_used_twice(harness: Harness) -> None:
    bus = harness.bus
    publish(bus, IN, b"0", b"1", b"2")
    bus.trim(IN, 3)
    assert bus.watermarks(IN) == (3, 3)
    bus.trim(IN, 99)
    bus.trim(IN, 1)
    bus = harness.again()
    assert bus.watermarks(IN) == (3, 3)
    publish(bus, IN, b"3")
    assert [message.offset for message in bus.read(IN, 3)] == [3]
    assert bus.watermarks(OUT) == (0, 0)


def test_reads_are_bounded_and_refuse_what_is_gone(harness: Harness) -> None:
    bus = harness.bus
    publish(bus, IN, *(bytes([65 + number]) * 100 for number in range(6)))
    assert payloads(bus, IN, 2, end=4) == [b"C" * 100, b"D" * 100]
    assert len(payloads(bus, IN, 0, max_bytes=250)) == 3
    assert len(payloads(bus, IN, 0, max_bytes=1)) == 1
    assert payloads(bus, IN, 6) == []
    bus.trim(IN, 2)
    with pytest.raises(BusError, match="offset 1"):
        bus.read(IN, 1)
    assert len(payloads(bus, IN, 2)) == 4


def test_a_newer_producer_of_the_name_fences(harness: Harness) -> None:
    bus = harness.bus
    old = bus.producer("p")
    old.begin()
    old.publish(IN, b"lost")
    new = bus.producer("p")
    for use in (old.commit, lambda: old.publish(IN, b"late"), old.begin):
        with pytest.raises(Fenced):
            use()
    new.begin()
    new.publish(IN, b"kept")
    new.commit()
    assert payloads(bus, IN) == [b"kept"]


def test_a_newer_member_fences(harness: Harness) -> None:
    bus = harness.bus
    old = bus.join("g", "in")
    old.poll()
    producer = bus.producer("p")
    producer.begin()
    producer.publish(OUT, b"lost")
    new = bus.join("g", "in")
    with pytest.raises(Fenced):
        producer.commit_offsets(old, {0: Commit(1)})
    producer = bus.producer("p")
    assert list(new.poll()) == [Assigned((0,))]
    producer.begin()
    producer.commit_offsets(new, {0: Commit(2)})
    producer.commit()
    assert bus.committed("g", IN) == Commit(2)
    assert bus.read(OUT, 0) == []


def test_one_transaction_at_a_time_and_none_outside(harness: Harness) -> None:
    producer = harness.bus.producer("p")
    with pytest.raises(BusError):
        producer.publish(IN, b"x")
    with pytest.raises(BusError):
        producer.commit()
    producer.begin()
    with pytest.raises(BusError):
        producer.begin()


def test_rows(harness: Harness) -> None:
    bus = harness.bus
    producer = bus.producer("p")
    producer.begin()
    for key in ("a/1", "a/2", "b/1", "a"):
        producer.put(key, key.encode())
    producer.put("a/2", b"later")
    producer.commit()
    assert bus.scan("a/") == [("a/1", b"a/1"), ("a/2", b"later")]
    producer.begin()
    producer.delete(["a/1", "none"])
    producer.commit()
    assert [key for key, _ in harness.again().scan("")] == ["a", "a/2", "b/1"]


def test_what_is_not_there(harness: Harness) -> None:
    bus = harness.bus
    assert bus.committed("nobody", IN) is None
    assert bus.partitions("out") == 3
    assert bus.topic_id("in") != bus.topic_id("out")
    for unknown in (TopicPartition("out", 3), TopicPartition("none", 0)):
        with pytest.raises(BusError):
            bus.watermarks(unknown)


def test_large_messages_and_a_barrier(harness: Harness) -> None:
    bus = harness.bus
    publish(bus, IN, b"x" * (9 << 20), b"")
    bus.barrier()
    assert [len(payload) for payload in payloads(harness.again(), IN)] == [9 << 20, 0]
