"""The simulated bus's own faults: each really strikes, and does what the real one does."""

from __future__ import annotations

import random

import pytest

from meguri_common.bus.port import Assigned, Commit, Lost, Revoked, TopicPartition
from meguri_common.bus.simulated import Faults, InstanceDead, SimulatedBus, SimulatedMember, View
from meguri_common.errors import BusError, Fenced, OutcomeUnknown, TransactionAborted

TOPICS = {"in": 4, "out": 1}
IN, OUT = TopicPartition("in", 0), TopicPartition("out", 0)


def make(seed: int = 1, **faults: float) -> SimulatedBus:
    return SimulatedBus(TOPICS, rng=random.Random(seed), now=lambda: 5.0, faults=Faults(**faults))


def step(view: View, member: SimulatedMember, name: str = "p", offset: int = 1) -> None:
    producer = view.producer(name)
    producer.begin()
    producer.publish(OUT, b"x")
    producer.commit_offsets(member, {0: Commit(offset)})
    producer.commit()


def alone(bus: SimulatedBus, instance: str = "a") -> tuple[View, SimulatedMember]:
    view = bus.view(instance)
    member = view.join("g", "in")
    assert list(member.poll()) == [Assigned((0, 1, 2, 3))]
    return view, member


def effect(view: View) -> bool:
    """Whether `step` has taken effect: both halves or none."""
    seen, position = view.read(OUT, 0), view.committed("g", IN)
    assert bool(seen) == bool(position)
    return bool(seen)


def test_the_hook_hears_of_every_call_with_the_caller() -> None:
    bus = make()
    heard: list[tuple[str, str]] = []
    bus.before = lambda operation, instance: heard.append((operation, instance))
    view, member = alone(bus)
    step(view, member)
    assert heard == [
        (operation, "a")
        for operation in (
            "bus.join",
            "member.poll",
            "bus.producer",
            "producer.begin",
            "producer.publish",
            "producer.commit_offsets",
            "producer.commit",
            "producer.committed",
        )
    ]
    heard.clear()
    bus.view("b").read(OUT, 0)
    assert heard == [("bus.read", "b")]


def test_a_crash_in_the_hook_leaves_the_call_undone() -> None:
    class Crash(BaseException):
        pass

    def crash(operation: str, _instance: str) -> None:
        if operation == "producer.commit":
            raise Crash

    bus = make()
    view, member = alone(bus)
    bus.before = crash
    with pytest.raises(Crash):
        step(view, member)
    bus.before = lambda _operation, _instance: None
    # The open transaction holds the offset until somebody settles it.
    assert bus.held("g", IN)
    view.producer("p")
    assert not effect(view)


def test_an_aborted_commit_leaves_nothing() -> None:
    bus = make(abort=1.0)
    view, member = alone(bus)
    with pytest.raises(TransactionAborted):
        step(view, member)
    assert not effect(view)
    assert bus.struck["aborted"] == 1


def test_an_unknown_outcome_is_settled_either_way_by_the_next_producer() -> None:
    seen: dict[tuple[bool, bool], int] = {}
    for seed in range(80):
        bus = make(seed, unknown=1.0)
        view, member = alone(bus)
        with pytest.raises(OutcomeUnknown):
            step(view, member)
        at_once = not bus.held("g", IN)
        if not at_once:
            assert view.read(OUT, 0) == []
        view.producer("p")
        key = (at_once, effect(view))
        seen[key] = seen.get(key, 0) + 1
        assert bus.struck["unknown outcome"] == 1
    assert len(seen) == 4
    assert min(seen.values()) > 5, seen


def test_an_unknown_outcome_may_settle_by_itself_and_committed_waits_for_it() -> None:
    waited = set()
    for seed in range(60):
        bus = make(seed, unknown=1.0, timeout=500, settle_within=20)
        view, member = alone(bus)
        with pytest.raises(OutcomeUnknown):
            step(view, member)
        turns: list[str] = []
        bus.before = lambda operation, _instance, turns=turns: turns.append(operation)
        position = bus.view("b").committed("g", IN)
        waits = turns.count("bus.committed.wait")
        assert (waits > 0) == bool(bus.struck["waited for a stable offset"])
        assert (position is not None) == bool(view.read(OUT, 0))
        waited.add("not" if not waits else "some" if waits <= 20 else "timeout")
    assert waited == {"not", "some", "timeout"}


def test_after_an_unknown_outcome_the_producer_is_of_no_more_use() -> None:
    bus = make(unknown=1.0)
    view, _ = alone(bus)
    producer = view.producer("p")
    producer.begin()
    with pytest.raises(OutcomeUnknown):
        producer.commit()
    producer.abort()
    with pytest.raises(BusError, match="take a new producer"):
        producer.begin()


def test_abort_does_not_decide_an_unknown_outcome() -> None:
    outcomes = set()
    for seed in range(60):
        bus = make(seed, unknown=1.0)
        view, member = alone(bus)
        producer = view.producer("p")
        producer.begin()
        producer.publish(OUT, b"x")
        producer.commit_offsets(member, {0: Commit(1)})
        with pytest.raises(OutcomeUnknown):
            producer.commit()
        if bus.held("g", IN):
            producer.close()
            assert bus.held("g", IN)
            view.producer("p")
            outcomes.add(effect(view))
    assert outcomes == {False, True}


def test_committed_gives_up_if_nobody_settles() -> None:
    bus = make()
    view, member = alone(bus)
    producer = view.producer("p")
    producer.begin()
    producer.commit_offsets(member, {0: Commit(1)})
    with pytest.raises(BusError, match="nobody settles"):
        view.committed("g", IN)
    assert view.committed("g", TopicPartition("in", 1)) is None
    bus.faults.stable = False
    assert view.committed("g", IN) is None


def test_a_transaction_that_takes_too_long_is_fenced() -> None:
    bus = make(timeout=3)
    view, member = alone(bus)
    producer = view.producer("p")
    producer.begin()
    producer.publish(OUT, b"x")
    producer.commit_offsets(member, {0: Commit(1)})
    for _ in range(3):
        bus.tick()
    assert bus.held("g", IN)
    bus.tick()
    assert not bus.held("g", IN)
    with pytest.raises(Fenced):
        producer.commit()
    assert not effect(view)
    assert bus.struck["transaction timed out"] == bus.struck["fenced by epoch"] == 1


def test_a_paused_instance_comes_back_to_nothing() -> None:
    bus = make()
    view, member = alone(bus)
    producer = view.producer("p")
    producer.begin()
    producer.publish(OUT, b"late")
    other = bus.view("b")
    heir = other.join("g", "in")
    bus.rebalance("g", without=["a"])
    heir.poll()
    step(other, heir, "q", 7)
    with pytest.raises(Fenced):
        producer.commit_offsets(member, {0: Commit(1)})
    with pytest.raises(BusError):
        producer.commit()
    assert list(member.poll()) == [Lost((0, 1, 2, 3))]
    assert len(view.read(OUT, 0)) == 1
    assert view.committed("g", IN) == Commit(7)
    assert bus.struck["fenced by generation"] == 1
    # Polling brought it back into the group; in time partitions are shared with it again.
    given: set[int] = set()
    for _ in range(50):
        bus.rebalance("g")
        heir.poll()
        given |= {part for event in member.poll() if isinstance(event, Assigned) for part in event.partitions}
    assert given == {0, 1, 2, 3}


def test_without_fencing_the_late_commit_goes_through() -> None:
    bus = make(fencing=False)
    view, member = alone(bus)
    bus.view("b").join("g", "in")
    bus.rebalance("g", without=["a"])
    step(view, member)
    assert effect(view)


def test_all_members_lost_and_back() -> None:
    bus = make()
    _, member = alone(bus)
    bus.rebalance("g", without=["a"])
    assert list(member.poll()) == [Lost((0, 1, 2, 3))]
    assert list(member.poll()) == [Assigned((0, 1, 2, 3))]


def test_lost_and_assigned_again_in_between_is_told() -> None:
    bus = make()
    _, member = alone(bus)
    heir = bus.view("b").join("g", "in")
    bus.rebalance("g", without=["a"])
    heir.poll()
    heir.leave()
    assert list(member.poll()) == [Lost((0, 1, 2, 3))]
    assert list(member.poll()) == [Assigned((0, 1, 2, 3))]


def test_partitions_have_one_owner_at_a_time_and_are_asked_for_or_taken() -> None:
    events_seen: set[type] = set()
    for seed in range(30):
        rng, bus = random.Random(seed), make(seed)
        members = {name: bus.view(name).join("g", "in") for name in "abc"}
        held: dict[str, set[int]] = {name: set() for name in members}
        asked: dict[str, set[int]] = {name: set() for name in members}
        for _ in range(300):
            if rng.random() < 0.1:
                bus.rebalance("g", without=[name for name in members if rng.random() < 0.2])
            name = rng.choice("abc")
            member = members[name]
            # What was asked for is still its own until it polls again.
            held[name] -= asked[name]
            asked[name] = set()
            for event in member.poll():
                events_seen.add(type(event))
                partitions = set(event.partitions)
                if isinstance(event, Assigned):
                    assert not partitions & held[name]
                    held[name] |= partitions
                else:
                    assert partitions <= held[name]
                    if isinstance(event, Revoked):
                        asked[name] = partitions
                    else:
                        held[name] -= partitions
            group = bus.groups["g"]
            current = [other for other in members if group.current(members[other].membership)]
            owned = [partition for other in current for partition in held[other]]
            assert len(owned) == len(set(owned)), "two members of the current generation own a partition"
    assert events_seen == {Assigned, Revoked, Lost}


def test_a_killed_instance_runs_no_further() -> None:
    bus = make()
    view, member = alone(bus)
    producer = view.producer("p")
    producer.begin()
    producer.publish(OUT, b"x")
    producer.commit_offsets(member, {0: Commit(1)})
    bus.kill("a")
    for call in (lambda: view.read(OUT, 0), view.barrier, member.poll, producer.commit, producer.abort):
        with pytest.raises(InstanceDead):
            call()
    # Another life of it settles what it had open, and gets what it owned.
    again, reborn = alone(bus)
    again.producer("p")
    assert not effect(again)
    step(again, reborn)
    assert effect(again)
    with pytest.raises(InstanceDead):
        view.get("row")


def test_an_instance_killed_while_others_ran_does_not_end_its_call() -> None:
    bus = make()
    view, member = alone(bus)
    bus.before = lambda operation, instance: bus.kill(instance) if operation == "producer.commit" else None
    with pytest.raises(InstanceDead):
        step(view, member)
    bus.before = lambda _operation, _instance: None
    other = bus.view("b")
    other.producer("p")
    assert not effect(other)


def test_partitions_of_a_killed_instance_go_to_others_at_the_next_rebalance() -> None:
    bus = make()
    alone(bus)
    heir = bus.view("b").join("g", "in")
    bus.kill("a")
    bus.rebalance("g")
    assert list(heir.poll()) == [Assigned((0, 1, 2, 3))]


@pytest.mark.parametrize("markers", [False, True])
def test_a_power_failure_undoes_all_since_the_barrier(markers: bool) -> None:
    bus = make(markers=markers)
    view, member = alone(bus)
    step(view, member, offset=1)
    step(view, member, offset=2)
    writer = view.producer("rows")
    writer.begin()
    writer.put("kept", b"1")
    writer.put("changed", b"1")
    writer.commit()
    first = view.read(OUT, 0)[1].offset
    view.trim(OUT, first)
    view.barrier()
    before = (view.watermarks(OUT), view.read(OUT, first), view.scan(""))

    step(view, member, offset=3)
    view.trim(OUT, view.watermarks(OUT)[1])
    writer.begin()
    writer.delete(["kept"])
    writer.put("changed", b"2")
    writer.put("new", b"2")
    writer.commit()
    open_one = view.producer("open")
    open_one.begin()
    open_one.commit_offsets(member, {0: Commit(9)})
    bus.power_failure()

    assert (view.watermarks(OUT), view.read(OUT, first), view.scan("")) == before
    assert view.committed("g", IN) == Commit(2)
    with pytest.raises(Fenced):
        open_one.commit()
    with pytest.raises(Fenced):
        step(view, member)
    view, member = alone(bus, "b")
    step(view, member, offset=3)
    assert len(view.read(OUT, first)) == 2
    assert bus.struck["power failure"] == 1


def test_before_any_barrier_a_power_failure_leaves_nothing() -> None:
    bus = make()
    view, member = alone(bus)
    step(view, member)
    bus.power_failure()
    assert view.watermarks(OUT) == (0, 0)
    assert not effect(view)


def test_markers_leave_holes() -> None:
    bus = make(markers=True)
    view, member = alone(bus)
    step(view, member)
    producer = view.producer("p")
    producer.begin()
    producer.publish(OUT, b"aborted")
    producer.abort()
    step(view, member)
    assert [message.offset for message in view.read(OUT, 0)] == [0, 4]
    assert view.watermarks(OUT) == (0, 6)


def test_a_topic_made_anew_is_another_one() -> None:
    bus = make()
    view, member = alone(bus)
    step(view, member)
    ids = view.topic_id("in"), view.topic_id("out")
    bus.recreate("in")
    assert view.topic_id("in") != ids[0]
    assert view.topic_id("out") == ids[1]
    assert view.committed("g", IN) is None
    assert len(view.read(OUT, 0)) == 1


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> tuple[list[int], dict[str, int]]:
        bus = make(seed, abort=0.3, unknown=0.3)
        view, member = alone(bus)
        for number in range(40):
            try:
                step(view, member, offset=number)
            except BusError:
                continue
        return [message.offset for message in view.read(OUT, 0)], dict(bus.struck)

    assert run(3) == run(3)
    assert run(3) != run(4)
