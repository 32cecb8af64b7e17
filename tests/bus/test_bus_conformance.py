"""What every bus must do: one suite for the embedded and the simulated adapter, and for those to come.

Offsets may have holes: no test counts on the next message being at the next offset.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.bus.port import Assigned, Commit, Lost, RowBus, RowProducer, TopicPartition
from meguri_common.bus.simulated import Faults, SimulatedBus
from meguri_common.errors import BusError, Fenced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


@pytest.fixture(params=["embedded", "simulated", "simulated with markers"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    if request.param == "embedded":
        made = Harness(lambda: EmbeddedBus(tmp_path / "bus.db", topics=TOPICS, now=lambda: 1000.9))
    else:
        faults = Faults(markers=request.param != "simulated")
        shared = SimulatedBus(TOPICS, rng=random.Random(1), now=lambda: 1000.9, faults=faults)
        made = Harness(lambda: shared.view("a"))
    yield made
    made.bus.close()


def publish(bus: RowBus, target: TopicPartition, *payloads: bytes) -> None:
    producer = bus.producer("publisher")
    producer.begin()
    for payload in payloads:
        producer.publish(target, payload)
    producer.commit()


def payloads(bus: RowBus, source: TopicPartition, start: int | None = None, **bounds: int) -> list[bytes]:
    first = bus.watermarks(source)[0] if start is None else start
    return [bytes(message.payload) for message in bus.read(source, first, **bounds)]


def offsets(bus: RowBus, source: TopicPartition) -> list[int]:
    return [message.offset for message in bus.read(source, bus.watermarks(source)[0])]


def test_it_is_a_row_bus(harness: Harness) -> None:
    assert isinstance(harness.bus, RowBus)
    assert isinstance(harness.bus.producer("p"), RowProducer)


def test_a_transaction_takes_effect_as_a_whole(harness: Harness) -> None:
    bus = harness.bus
    member, producer = bus.join("g", "in"), bus.producer("p")
    assert list(member.poll()) == [Assigned((0,))]
    assert list(member.poll()) == []
    producer.begin()
    producer.publish(IN, b"one", headers=b"h\0\xff", at=7)
    producer.publish(OUT, memoryview(b"two"))
    producer.commit_offsets(member, {0: Commit(4, "mark")})
    producer.commit_offsets(member, {0: Commit(5, "mark")})
    producer.put("row", b"value")

    # Nobody sees a part of it, not even on the connection that writes it.
    assert bus.read(IN, 0) == bus.read(OUT, 0) == bus.scan("") == []
    assert bus.get("row") is None
    assert bus.watermarks(IN)[0] == 0

    producer.commit()
    (message,) = bus.read(IN, 0)
    assert (bytes(message.payload), message.headers, message.appended_at) == (b"one", b"h\0\xff", 7)
    (other,) = bus.read(OUT, 0)
    assert (bytes(other.payload), other.headers, other.appended_at) == (b"two", b"", 1000)
    for life in (lambda: harness.bus, harness.again):
        bus = life()
        assert bus.committed("g", IN) == Commit(5, "mark")
        assert bus.committed("other", IN) is None
        assert bus.get("row") == b"value"
        assert payloads(bus, IN) == [b"one"]


@pytest.mark.parametrize("end", ["abort", "close", "abandon", "restart"])
def test_an_aborted_or_abandoned_transaction_leaves_nothing(harness: Harness, end: str) -> None:
    bus = harness.bus
    publish(bus, IN, b"before")
    member, producer = bus.join("g", "in"), bus.producer("p")
    member.poll()
    producer.begin()
    producer.publish(IN, b"gone")
    producer.put("row", b"gone")
    producer.commit_offsets(member, {0: Commit(1)})
    if end == "restart":
        bus = harness.again()
    elif end != "abandon":
        getattr(producer, end)()
    settled = bus.producer("p")
    assert payloads(bus, IN) == [b"before"]
    assert bus.get("row") is None
    assert bus.committed("g", IN) is None
    settled.abort()
    settled.begin()
    settled.publish(IN, b"after")
    settled.commit()
    assert payloads(bus, IN) == [b"before", b"after"]


def test_a_producer_goes_on_after_an_abort(harness: Harness) -> None:
    producer = harness.bus.producer("p")
    for end, payload in ((producer.abort, b"no"), (producer.commit, b"yes")):
        producer.begin()
        producer.publish(IN, payload)
        end()
    assert payloads(harness.bus, IN) == [b"yes"]


def test_two_producers_have_transactions_of_their_own(harness: Harness) -> None:
    bus = harness.bus
    first, second = bus.producer("p"), bus.producer("q")
    first.begin()
    second.begin()
    first.publish(IN, b"first")
    second.publish(IN, b"second")
    first.put("row", b"first")
    second.commit()
    assert payloads(bus, IN) == [b"second"]
    assert bus.get("row") is None
    bus.producer("q")
    first.commit()
    assert sorted(payloads(bus, IN)) == [b"first", b"second"]
    assert offsets(bus, IN) == sorted(set(offsets(bus, IN)))


def test_a_payload_is_as_it_was_when_published(harness: Harness) -> None:
    producer, memory = harness.bus.producer("p"), bytearray(b"then")
    producer.begin()
    producer.publish(IN, memory)
    memory[:] = b"late"
    producer.commit()
    assert payloads(harness.bus, IN) == [b"then"]


def test_offsets_grow_and_are_never_used_twice(harness: Harness) -> None:
    bus = harness.bus
    publish(bus, IN, b"0", b"1", b"2")
    used = offsets(bus, IN)
    assert used == sorted(set(used))
    end = bus.watermarks(IN)[1]
    assert end > used[-1]
    bus.trim(IN, end)
    assert bus.watermarks(IN) == (end, end)
    bus.trim(IN, end + 99)
    bus.trim(IN, 1)
    bus = harness.again()
    assert bus.watermarks(IN) == (end, end)
    assert bus.read(IN, end) == []
    publish(bus, IN, b"3")
    assert offsets(bus, IN)[0] >= end
    assert payloads(bus, IN) == [b"3"]
    assert bus.watermarks(OUT) == (0, 0)


def test_reads_are_bounded_and_refuse_what_is_gone(harness: Harness) -> None:
    bus = harness.bus
    publish(bus, IN, *(bytes([65 + number]) * 100 for number in range(6)))
    at = offsets(bus, IN)
    end = bus.watermarks(IN)[1]
    assert payloads(bus, IN, at[2], end=at[4]) == [b"C" * 100, b"D" * 100]
    assert payloads(bus, IN, at[2], end=at[2]) == []
    assert payloads(bus, IN, at[3], end=at[2]) == []
    assert len(payloads(bus, IN, 0, max_bytes=250)) == 3
    assert len(payloads(bus, IN, 0, max_bytes=200)) == 2
    assert len(payloads(bus, IN, 0, max_bytes=1)) == 1
    assert len(payloads(bus, IN, 0, max_bytes=10_000)) == 6
    assert payloads(bus, IN, at[4], end=at[5], max_bytes=1000) == [b"E" * 100]
    assert payloads(bus, IN, end) == payloads(bus, IN, end + 5) == payloads(bus, IN, end + 5, end=2) == []
    bus.trim(IN, at[2])
    assert bus.watermarks(IN) == (at[2], end)
    with pytest.raises(BusError, match=f"offset {at[1]}"):
        bus.read(IN, at[1])
    assert len(payloads(bus, IN, at[2])) == 4
    assert payloads(bus, OUT, 0, max_bytes=1) == []


def test_a_newer_producer_of_the_name_fences(harness: Harness) -> None:
    bus = harness.bus
    old = bus.producer("p")
    old.begin()
    old.publish(IN, b"lost")
    new = bus.producer("p")
    member = bus.join("g", "in")
    member.poll()
    for use in (
        old.commit,
        lambda: old.publish(IN, b"late"),
        old.begin,
        lambda: old.put("row", b""),
        lambda: old.delete(["row"]),
        lambda: old.commit_offsets(member, {0: Commit(1)}),
    ):
        with pytest.raises(Fenced):
            use()
    new.begin()
    new.publish(IN, b"kept")
    old.abort()
    old.close()
    new.commit()
    assert payloads(bus, IN) == [b"kept"]


def test_a_newer_member_fences(harness: Harness) -> None:
    bus = harness.bus
    old = bus.join("g", "in")
    assert list(old.poll()) == [Assigned((0,))]
    producer = bus.producer("p")
    producer.begin()
    producer.publish(OUT, b"lost")
    new = bus.join("g", "in")
    with pytest.raises(Fenced):
        producer.commit_offsets(old, {0: Commit(1)})
    with pytest.raises(BusError):
        producer.commit()
    producer = bus.producer("p")
    assert list(new.poll()) == [Assigned((0,))]
    assert list(old.poll()) == [Lost((0,))]
    assert list(old.poll()) == []
    producer.begin()
    producer.commit_offsets(new, {0: Commit(2)})
    producer.commit()
    assert bus.committed("g", IN) == Commit(2)
    assert bus.read(OUT, 0) == []


def test_groups_do_not_fence_one_another(harness: Harness) -> None:
    bus = harness.bus
    members = [bus.join(name, "in") for name in ("g", "h")]
    producer = bus.producer("p")
    for number, member in enumerate(members):
        assert list(member.poll()) == [Assigned((0,))]
        producer.begin()
        producer.commit_offsets(member, {0: Commit(number)})
        producer.commit()
    assert [bus.committed(name, IN) for name in ("g", "h")] == [Commit(0), Commit(1)]


def test_who_has_left_commits_no_more(harness: Harness) -> None:
    bus = harness.bus
    member, producer = bus.join("g", "in"), bus.producer("p")
    member.poll()
    member.leave()
    producer.begin()
    with pytest.raises(Fenced):
        producer.commit_offsets(member, {0: Commit(1)})
    assert list(member.poll()) == []
    assert list(bus.join("g", "in").poll()) == [Assigned((0,))]


def test_one_transaction_at_a_time_and_none_outside(harness: Harness) -> None:
    bus = harness.bus
    producer, member = bus.producer("p"), bus.join("g", "in")
    member.poll()
    for use in (
        lambda: producer.publish(IN, b"x"),
        lambda: producer.put("row", b""),
        lambda: producer.delete(["row"]),
        lambda: producer.commit_offsets(member, {0: Commit(1)}),
        producer.commit,
    ):
        with pytest.raises(BusError):
            use()
    producer.abort()
    producer.begin()
    with pytest.raises(BusError):
        producer.begin()


def test_rows(harness: Harness) -> None:
    bus = harness.bus
    producer = bus.producer("p")
    producer.begin()
    for key in ("a/1", "a/2", "b/1", "a", "a/\U0010ffff\U0010ffff", "a0"):
        producer.put(key, key.encode())
    producer.put("a/2", b"later")
    producer.put("gone", b"")
    producer.delete(["gone"])
    producer.delete(["back"])
    producer.put("back", b"\0")
    producer.commit()
    assert bus.scan("a/") == [
        ("a/1", b"a/1"),
        ("a/2", b"later"),
        ("a/\U0010ffff\U0010ffff", "a/\U0010ffff\U0010ffff".encode()),
    ]
    assert bus.get("gone") is None
    assert bus.get("back") == b"\0"
    producer.begin()
    producer.delete(key for key in ["a/1", "none", "a/\U0010ffff\U0010ffff"])
    producer.commit()
    assert [key for key, _ in harness.again().scan("")] == ["a", "a/2", "a0", "b/1", "back"]


def test_what_is_not_there(harness: Harness) -> None:
    bus = harness.bus
    assert bus.committed("nobody", IN) is None
    assert (bus.partitions("in"), bus.partitions("out")) == (1, 3)
    member, producer = bus.join("g", "in"), bus.producer("p")
    member.poll()
    producer.begin()
    for unknown in (TopicPartition("out", 3), TopicPartition("out", -1), TopicPartition("none", 0)):
        calls: list[Callable[[], Any]] = [
            lambda at=unknown: bus.watermarks(at),
            lambda at=unknown: bus.read(at, 0),
            lambda at=unknown: bus.committed("g", at),
            lambda at=unknown: bus.trim(at, 1),
            lambda at=unknown: producer.publish(at, b""),
        ]
        for call in calls:
            with pytest.raises(BusError):
                call()
    for call in (lambda: bus.partitions("none"), lambda: bus.topic_id("none"), lambda: bus.join("g", "none")):
        with pytest.raises(BusError):
            call()
    with pytest.raises(BusError):
        producer.commit_offsets(member, {1: Commit(0)})
    with pytest.raises(BusError):
        producer.commit_offsets(member, {0: Commit(-1)})


def test_topics_have_an_identity_that_lasts(harness: Harness) -> None:
    before = [harness.bus.topic_id(topic) for topic in TOPICS]
    assert len(set(before)) == 2
    assert [harness.again().topic_id(topic) for topic in TOPICS] == before


def test_large_messages_and_a_barrier(harness: Harness) -> None:
    bus = harness.bus
    large = [random.Random(size).randbytes(size) for size in (1 << 20, (1 << 20) + 1, 9 << 20)]
    publish(bus, IN, *large, b"")
    bus.barrier()
    bus.barrier()
    assert payloads(harness.again(), IN) == [*large, b""]
    assert payloads(harness.bus, IN, max_bytes=(1 << 20) + 1) == large[:2]
