"""What every bus must do: one suite for the embedded, the simulated and the Kafka adapter.

Offsets may have holes: no test counts on the next message being at the next offset. A group's changes may take their
time: `events` waits for them. Rows beside the messages are tested where a bus has them.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.bus.port import Assigned, Commit, Lost, RowBus, RowProducer, TopicPartition
from meguri_common.bus.simulated import Faults, SimulatedBus
from meguri_common.errors import BusError, Fenced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from meguri_common.bus.port import Bus, Member, MembershipEvent

PATIENCE = 20.0


class Harness:
    """A bus whose content outlives the object: `again` is another life of the same instance."""

    older_ones_hide = False
    """Whether what was committed stays unseen while an older transaction of the partition is open."""

    def __init__(self, make: Callable[[], Bus], inbox: str = "in", outbox: str = "out") -> None:
        self._make = make
        self.inbox, self.outbox = TopicPartition(inbox, 0), TopicPartition(outbox, 2)
        self.bus = make()

    @property
    def topics(self) -> tuple[str, str]:
        return self.inbox.topic, self.outbox.topic

    @property
    def rows(self) -> RowBus:
        """The bus, where it has rows; elsewhere the test is about nothing."""
        if not isinstance(self.bus, RowBus):
            pytest.skip("this bus has no rows")
        return self.bus

    def again(self) -> Bus:
        self.bus.close()
        self.bus = self._make()
        return self.bus

    def lose(self, member: Member) -> None:
        """What it takes for a member to lose its partitions to a newer one: nothing, on a bus of one process."""

    def come_back(self, member: Member) -> None:
        """The lost member goes on."""

    def close(self) -> None:
        self.bus.close()


class KafkaHarness(Harness):
    """Topics, groups and transactional ids of its own on a broker that others use, too."""

    older_ones_hide = True

    def __init__(self, bootstrap: str) -> None:
        from kafka_world import PatientBus, make_topics, short_settings  # noqa: PLC0415 - needs the extra `kafka`

        run = uuid.uuid4().hex[:8]
        inbox, outbox = f"in-{run}", f"out-{run}"
        make_topics(bootstrap, {inbox: 1, outbox: 3})
        settings = short_settings(bootstrap, prefix=f"{run}.")
        super().__init__(lambda: PatientBus(settings, now=lambda: 1000.9), inbox, outbox)

    def lose(self, member: Any) -> None:
        """The member's process hangs for longer than the group waits."""
        member._stall = -1.0
        time.sleep(2.5)

    def come_back(self, member: Any) -> None:
        member._stall = 300.0


@pytest.fixture(params=["embedded", "simulated", "simulated with markers", "kafka"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    topics = {"in": 1, "out": 3}
    made: Harness
    if request.param == "embedded":
        made = Harness(lambda: EmbeddedBus(tmp_path / "bus.db", topics=topics, now=lambda: 1000.9))
    elif request.param == "kafka":
        made = KafkaHarness(request.getfixturevalue("kafka_bootstrap"))
    else:
        faults = Faults(markers=request.param != "simulated")
        shared = SimulatedBus(topics, rng=random.Random(1), now=lambda: 1000.9, faults=faults)
        made = Harness(lambda: shared.view("a"))
    yield made
    made.close()


def events(member: Member) -> list[MembershipEvent]:
    """What has changed for a member; waits until something has."""
    deadline = time.monotonic() + PATIENCE
    while not (found := list(member.poll())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def publish(bus: Bus, target: TopicPartition, *payloads: bytes) -> None:
    producer = bus.producer("publisher")
    producer.begin()
    for payload in payloads:
        producer.publish(target, payload)
    producer.commit()


def payloads(bus: Bus, source: TopicPartition, start: int | None = None, **bounds: int) -> list[bytes]:
    first = bus.watermarks(source)[0] if start is None else start
    return [bytes(message.payload) for message in bus.read(source, first, **bounds)]


def offsets(bus: Bus, source: TopicPartition) -> list[int]:
    return [message.offset for message in bus.read(source, bus.watermarks(source)[0])]


def test_a_transaction_takes_effect_as_a_whole(harness: Harness) -> None:
    bus = harness.bus
    member, producer = bus.join("g", harness.inbox.topic), bus.producer("p")
    assert events(member) == [Assigned((0,))]
    assert list(member.poll()) == []
    producer.begin()
    producer.publish(harness.inbox, b"one", headers=b"h\0\xff", at=7)
    producer.publish(harness.outbox, memoryview(b"two"))
    producer.commit_offsets(member, {0: Commit(4, "mark")})
    producer.commit_offsets(member, {0: Commit(5, "mark")})

    # Nobody sees a part of it, not even on the connection that writes it.
    assert bus.read(harness.inbox, 0) == bus.read(harness.outbox, 0) == []
    assert bus.watermarks(harness.inbox)[0] == 0

    producer.commit()
    (message,) = bus.read(harness.inbox, 0)
    assert (bytes(message.payload), message.headers, message.appended_at) == (b"one", b"h\0\xff", 7)
    (other,) = bus.read(harness.outbox, 0)
    assert (bytes(other.payload), other.headers, other.appended_at) == (b"two", b"", 1000)
    for life in (lambda: harness.bus, harness.again):
        bus = life()
        assert bus.committed("g", harness.inbox) == Commit(5, "mark")
        assert bus.committed("other", harness.inbox) is None
        assert payloads(bus, harness.inbox) == [b"one"]


@pytest.mark.parametrize("end", ["abort", "close", "abandon", "restart"])
def test_an_aborted_or_abandoned_transaction_leaves_nothing(harness: Harness, end: str) -> None:
    bus = harness.bus
    publish(bus, harness.inbox, b"before")
    member, producer = bus.join("g", harness.inbox.topic), bus.producer("p")
    events(member)
    producer.begin()
    producer.publish(harness.inbox, b"gone")
    producer.commit_offsets(member, {0: Commit(1)})
    if end == "restart":
        bus = harness.again()
    elif end != "abandon":
        getattr(producer, end)()
    settled = bus.producer("p")
    assert payloads(bus, harness.inbox) == [b"before"]
    assert bus.committed("g", harness.inbox) is None
    settled.abort()
    settled.begin()
    settled.publish(harness.inbox, b"after")
    settled.commit()
    assert payloads(bus, harness.inbox) == [b"before", b"after"]


def test_a_producer_goes_on_after_an_abort(harness: Harness) -> None:
    producer = harness.bus.producer("p")
    for end, payload in ((producer.abort, b"no"), (producer.commit, b"yes")):
        producer.begin()
        producer.publish(harness.inbox, payload)
        end()
    assert payloads(harness.bus, harness.inbox) == [b"yes"]


def test_two_producers_have_transactions_of_their_own(harness: Harness) -> None:
    bus = harness.bus
    first, second = bus.producer("p"), bus.producer("q")
    first.begin()
    second.begin()
    first.publish(harness.inbox, b"first")
    second.publish(harness.inbox, b"second")
    second.commit()
    seen = payloads(bus, harness.inbox)
    assert seen == [b"second"] or (harness.older_ones_hide and seen == [])
    bus.producer("q")
    first.commit()
    assert sorted(payloads(bus, harness.inbox)) == [b"first", b"second"]
    assert offsets(bus, harness.inbox) == sorted(set(offsets(bus, harness.inbox)))


def test_a_payload_is_as_it_was_when_published(harness: Harness) -> None:
    producer, memory = harness.bus.producer("p"), bytearray(b"then")
    producer.begin()
    producer.publish(harness.inbox, memory)
    memory[:] = b"late"
    producer.commit()
    assert payloads(harness.bus, harness.inbox) == [b"then"]


def test_offsets_grow_and_are_never_used_twice(harness: Harness) -> None:
    bus = harness.bus
    publish(bus, harness.inbox, b"0", b"1", b"2")
    used = offsets(bus, harness.inbox)
    assert used == sorted(set(used))
    end = bus.watermarks(harness.inbox)[1]
    assert end > used[-1]
    bus.trim(harness.inbox, end)
    assert bus.watermarks(harness.inbox) == (end, end)
    bus.trim(harness.inbox, end + 99)
    bus.trim(harness.inbox, 1)
    bus = harness.again()
    assert bus.watermarks(harness.inbox) == (end, end)
    assert bus.read(harness.inbox, end) == []
    publish(bus, harness.inbox, b"3")
    assert offsets(bus, harness.inbox)[0] >= end
    assert payloads(bus, harness.inbox) == [b"3"]
    assert bus.watermarks(harness.outbox) == (0, 0)


def test_reads_are_bounded_and_refuse_what_is_gone(harness: Harness) -> None:
    bus = harness.bus
    publish(bus, harness.inbox, *(bytes([65 + number]) * 100 for number in range(6)))
    at = offsets(bus, harness.inbox)
    end = bus.watermarks(harness.inbox)[1]
    assert payloads(bus, harness.inbox, at[2], end=at[4]) == [b"C" * 100, b"D" * 100]
    assert payloads(bus, harness.inbox, at[2], end=at[2]) == []
    assert payloads(bus, harness.inbox, at[3], end=at[2]) == []
    assert len(payloads(bus, harness.inbox, 0, max_bytes=250)) == 3
    assert len(payloads(bus, harness.inbox, 0, max_bytes=200)) == 2
    assert len(payloads(bus, harness.inbox, 0, max_bytes=1)) == 1
    assert len(payloads(bus, harness.inbox, 0, max_bytes=10_000)) == 6
    assert payloads(bus, harness.inbox, at[4], end=at[5], max_bytes=1000) == [b"E" * 100]
    for beyond in (end, end + 5):
        assert payloads(bus, harness.inbox, beyond) == payloads(bus, harness.inbox, beyond, end=2) == []
    bus.trim(harness.inbox, at[2])
    assert bus.watermarks(harness.inbox) == (at[2], end)
    with pytest.raises(BusError, match=f"offset {at[1]}"):
        bus.read(harness.inbox, at[1])
    assert len(payloads(bus, harness.inbox, at[2])) == 4
    assert payloads(bus, harness.outbox, 0, max_bytes=1) == []


def test_a_newer_producer_of_the_name_fences(harness: Harness) -> None:
    bus = harness.bus
    old = bus.producer("p")
    old.begin()
    old.publish(harness.inbox, b"lost")
    new = bus.producer("p")
    member = bus.join("g", harness.inbox.topic)
    events(member)
    for use in (
        old.commit,
        lambda: old.publish(harness.inbox, b"late"),
        old.begin,
        lambda: old.commit_offsets(member, {0: Commit(1)}),
    ):
        with pytest.raises(Fenced):
            use()
    new.begin()
    new.publish(harness.inbox, b"kept")
    old.abort()
    old.close()
    new.commit()
    assert payloads(bus, harness.inbox) == [b"kept"]


def test_a_newer_member_fences(harness: Harness) -> None:
    bus = harness.bus
    old = bus.join("g", harness.inbox.topic)
    assert events(old) == [Assigned((0,))]
    producer = bus.producer("p")
    producer.begin()
    producer.publish(harness.outbox, b"lost")
    new = bus.join("g", harness.inbox.topic)
    harness.lose(old)
    with pytest.raises(Fenced):
        producer.commit_offsets(old, {0: Commit(1)})
    with pytest.raises(BusError):
        producer.commit()
    producer = bus.producer("p")
    assert events(new) == [Assigned((0,))]
    harness.come_back(old)
    assert events(old) == [Lost((0,))]
    assert list(old.poll()) == []
    producer.begin()
    producer.commit_offsets(new, {0: Commit(2)})
    producer.commit()
    assert bus.committed("g", harness.inbox) == Commit(2)
    assert bus.read(harness.outbox, 0) == []


def test_groups_do_not_fence_one_another(harness: Harness) -> None:
    bus = harness.bus
    members = [bus.join(name, harness.inbox.topic) for name in ("g", "h")]
    producer = bus.producer("p")
    for number, member in enumerate(members):
        assert events(member) == [Assigned((0,))]
        producer.begin()
        producer.commit_offsets(member, {0: Commit(number)})
        producer.commit()
    assert [bus.committed(name, harness.inbox) for name in ("g", "h")] == [Commit(0), Commit(1)]


def test_who_has_left_commits_no_more(harness: Harness) -> None:
    bus = harness.bus
    member, producer = bus.join("g", harness.inbox.topic), bus.producer("p")
    events(member)
    member.leave()
    producer.begin()
    with pytest.raises(Fenced):
        producer.commit_offsets(member, {0: Commit(1)})
    assert list(member.poll()) == []
    assert events(bus.join("g", harness.inbox.topic)) == [Assigned((0,))]


def test_one_transaction_at_a_time_and_none_outside(harness: Harness) -> None:
    bus = harness.bus
    producer, member = bus.producer("p"), bus.join("g", harness.inbox.topic)
    events(member)
    for use in (
        lambda: producer.publish(harness.inbox, b"x"),
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
    bus = harness.rows
    producer = bus.producer("p")
    assert isinstance(producer, RowProducer)
    producer.begin()
    for key in ("a/1", "a/2", "b/1", "a", "a/\U0010ffff\U0010ffff", "a0"):
        producer.put(key, key.encode())
    producer.put("a/2", b"later")
    producer.put("gone", b"")
    producer.delete(["gone"])
    producer.delete(["back"])
    producer.put("back", b"\0")
    assert bus.scan("") == []
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
    harness.again()
    assert [key for key, _ in harness.rows.scan("")] == ["a", "a/2", "a0", "b/1", "back"]


@pytest.mark.parametrize("end", ["commit", "abort", "close", "abandon", "restart"])
def test_rows_take_effect_with_their_transaction(harness: Harness, end: str) -> None:
    producer, other = harness.rows.producer("p"), harness.rows.producer("q")
    producer.begin()
    producer.publish(harness.inbox, b"message")
    producer.put("row", b"value")
    other.begin()
    other.put("other", b"value")
    assert harness.rows.get("row") is None
    other.commit()
    assert harness.rows.scan("") == [("other", b"value")]
    if end == "restart":
        harness.again()
    elif end != "abandon":
        getattr(producer, end)()
    harness.rows.producer("p")
    for life in (lambda: harness.bus, harness.again):
        life()
        assert harness.rows.get("row") == (b"value" if end == "commit" else None)


def test_rows_are_written_in_a_transaction_by_the_newest_producer_only(harness: Harness) -> None:
    producer = harness.rows.producer("p")
    for use in (lambda: producer.put("row", b""), lambda: producer.delete(["row"])):
        with pytest.raises(BusError):
            use()
    producer.begin()
    harness.rows.producer("p")
    for use in (lambda: producer.put("row", b""), lambda: producer.delete(["row"])):
        with pytest.raises(Fenced):
            use()


def test_what_is_not_there(harness: Harness) -> None:
    bus = harness.bus
    assert bus.committed("nobody", harness.inbox) is None
    assert tuple(map(bus.partitions, harness.topics)) == (1, 3)
    member, producer = bus.join("g", harness.inbox.topic), bus.producer("p")
    events(member)
    producer.begin()
    for unknown in (
        TopicPartition(harness.outbox.topic, 3),
        TopicPartition(harness.outbox.topic, -1),
        TopicPartition("none", 0),
    ):
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
    before = [harness.bus.topic_id(topic) for topic in harness.topics]
    assert len(set(before)) == 2
    assert [harness.again().topic_id(topic) for topic in harness.topics] == before


def test_large_messages_and_a_barrier(harness: Harness) -> None:
    bus = harness.bus
    large = [random.Random(size).randbytes(size) for size in (1 << 20, (1 << 20) + 1, 9 << 20)]
    publish(bus, harness.inbox, *large, b"")
    bus.barrier()
    bus.barrier()
    assert payloads(harness.again(), harness.inbox) == [*large, b""]
    assert payloads(harness.bus, harness.inbox, max_bytes=(1 << 20) + 1) == large[:2]
