"""Events published anew: rejected ones and those of a span; each as often as was asked for, whatever dies when."""

from __future__ import annotations

import base64
import json
from collections import Counter

import pytest
from fleet_world import PARTITIONS, FleetWorld, page_line

from meguri.fleet import replaying, retrying
from meguri.fleet.replaying import Replayer, ReplayPlan
from meguri.fleet.retrying import RejectFilter, Retrier
from meguri_canonicalizer.policy import DEFAULT
from meguri_canonicalizer.service import canonicalizer_spec
from meguri_common.bus.port import TopicPartition
from meguri_common.bus.simulated import Faults
from meguri_common.errors import BusError
from meguri_common.runtime.outputs import Outputs
from meguri_common.sdk import group_of_event, pages_partition
from meguri_common.topics import PAGES, REJECTS

ALL = RejectFilter()


def canonicalize(world: FleetWorld, partition: int, start: int = 0) -> None:
    """What the canonicalizer rejects of a partition of the pages, onto the rejects."""
    spec = canonicalizer_spec(0, 4, DEFAULT)
    messages = [each for each in world.messages(TopicPartition(PAGES, partition)) if each.offset >= start]
    outputs = Outputs(0)
    spec.create(partition, spec.parameters).apply(messages, outputs)
    rejects = [bytes(payload) for target, payload in outputs.envelopes() if target.topic == REJECTS]
    if rejects:
        world.put(TopicPartition(REJECTS, 0), *rejects)


def world_of_rejects(seed: int, count: int, **more) -> tuple[FleetWorld, list[bytes]]:
    """Messages with a bad event among good ones in each, rejected, and the bad events."""
    world, bad = FleetWorld(seed, **more), []
    deadly, world.deadly = world.deadly, 0.0
    faults, world.bus.faults = world.bus.faults, Faults(markers=world.bus.faults.markers)
    for number in range(count):
        host = f"h{number}.example"
        wrong = b'{"url":"https://%s/%d","fetched_at":"soon"}' % (host.encode(), number)
        bad.append(wrong)
        target = TopicPartition(PAGES, pages_partition(group_of_event(wrong), PARTITIONS))
        payload = b"\n".join([page_line(host, 1), b"", wrong, page_line(host, 2)]) + b"\n"
        world.put(target, payload, headers=b'{"file":"in.jsonl","line":%d}' % (10 * number + 1))
    for partition in range(PARTITIONS):
        canonicalize(world, partition)
    world.deadly, world.bus.faults = deadly, faults
    return world, bad


def published_anew(world: FleetWorld, before: list[int]) -> list[bytes]:
    return [line for part, skip in zip(world.pages(), before, strict=True) for line in part[skip:]]


def sizes(world: FleetWorld) -> list[int]:
    return [len(part) for part in world.pages()]


@pytest.mark.parametrize("seed", range(25))
def test_each_reject_is_retried_once_whatever_fails(seed, monkeypatch):
    monkeypatch.setattr(retrying, "_TRANSACTION_EVENTS", 3)
    world, bad = world_of_rejects(seed, 20, deadly=0.01, faults=Faults(abort=0.1, unknown=0.15, markers=True))
    before = sizes(world)

    def retry(view) -> bool:
        try:
            return not Retrier(view).retry(ALL).gone
        except BusError:
            return False

    for _ in range(80):
        if world.run(retry):
            break
    world.calm()
    assert world.run(retry)
    assert Counter(published_anew(world, before)) == Counter(bad)
    done = Retrier(world.bus.view("again")).retry(ALL)
    assert (done.retried, done.already, done.gone) == (0, 20, [])


def test_a_retried_event_keeps_its_origin_and_counts_its_attempts():
    world, (bad,) = world_of_rejects(1, 1)
    (first,) = Retrier(world.outside).find(ALL)
    assert (first.record.attempts, first.record.line) == (1, 2)
    assert (first.record.origin.file, first.record.origin.line) == ("in.jsonl", 3)
    for attempt in (2, 3):
        begun = world.outside.watermarks(TopicPartition(PAGES, first.record.partition))[1]
        assert Retrier(world.bus.view(f"{attempt}")).retry(ALL).retried == 1
        canonicalize(world, first.record.partition, begun)
        last = list(Retrier(world.outside).find(ALL))[-1]
        assert last.record.attempts == attempt
        assert last.record.origin == first.record.origin
        assert last.record.line == 0
    assert bad in published_anew(world, [0] * PARTITIONS)


def test_filters_leave_the_others_for_later():
    world, bad = world_of_rejects(2, 4)
    late = page_line("late.example", 10**12)
    target = TopicPartition(PAGES, pages_partition(group_of_event(late), PARTITIONS))
    (offset,) = world.put(target, late + b"\n", headers=b'{"file":"other.jsonl","line":1}')
    canonicalize(world, target.partition, offset)
    before = sizes(world)
    assert Retrier(world.bus.view("a")).retry(RejectFilter(reason="future")).retried == 1
    assert published_anew(world, before) == [late]
    assert Retrier(world.bus.view("b")).retry(RejectFilter(file="other.jsonl")).already == 1
    assert Retrier(world.bus.view("c")).retry(RejectFilter(service="store")).retried == 0
    done = Retrier(world.bus.view("d")).retry(ALL)
    assert (done.retried, done.already) == (4, 1)
    assert Counter(published_anew(world, before)) == Counter([*bad, late])


def test_what_is_gone_cant_be_retried_and_says_so():
    world, bad = world_of_rejects(3, 8)
    first = next(Retrier(world.outside).find(ALL))
    source = TopicPartition(PAGES, first.record.partition)
    world.outside.trim(source, first.record.offset + 1)
    before = sizes(world)
    done = Retrier(world.bus.view("a")).retry(ALL)
    assert [each.record.offset for each in done.gone] == [first.record.offset]
    assert done.retried == 7
    assert Counter(published_anew(world, before)) == Counter(bad) - Counter([page_of(first)])


def page_of(found) -> bytes:
    return base64.b64decode(found.record.payload)


def test_another_event_at_the_same_place_isnt_taken_for_it():
    """As after the topic was deleted and made anew."""
    world, _ = world_of_rejects(4, 1)
    (found,) = Retrier(world.outside).find(ALL)
    world.bus.recreate(PAGES)
    target = TopicPartition(PAGES, found.record.partition)
    while world.outside.watermarks(target)[1] <= found.record.offset:
        world.put(target, b"\n".join([page_line("x.example", number) for number in range(5)]) + b"\n")
    done = Retrier(world.bus.view("a")).retry(ALL)
    assert (done.retried, len(done.gone)) == (0, 1)


def test_a_line_that_never_was_a_message_is_gone():
    world = FleetWorld(5)
    record = {
        "at_service": "publisher", "topic": PAGES, "partition": 0, "offset": -1, "reason": "too_large",
        "detail": "long", "attempts": 1, "payload": "",
    }  # fmt: skip
    world.put(TopicPartition(REJECTS, 0), json.dumps(record).encode())
    assert len(Retrier(world.bus.view("a")).retry(ALL).gone) == 1


def spans_of(world: FleetWorld) -> ReplayPlan:
    ends = [world.outside.watermarks(TopicPartition(PAGES, number)) for number in range(PARTITIONS)]
    return ReplayPlan(tuple((number, first, end) for number, (first, end) in enumerate(ends)))


def world_of_pages(seed: int, **more) -> FleetWorld:
    world = FleetWorld(seed, **more)
    deadly, world.deadly = world.deadly, 0.0
    faults, world.bus.faults = world.bus.faults, Faults(markers=world.bus.faults.markers)
    for number in range(40):
        world.put(TopicPartition(PAGES, number % PARTITIONS), page_line("h.example", number) + b"\n", headers=b"{}")
    world.deadly, world.bus.faults = deadly, faults
    return world


@pytest.mark.parametrize("seed", range(25))
def test_a_replay_publishes_each_message_of_the_span_once_more(seed, monkeypatch):
    monkeypatch.setattr(replaying, "_TRANSACTION_BYTES", 150)
    world = world_of_pages(seed, deadly=0.01, faults=Faults(abort=0.1, unknown=0.15, markers=True))
    original = world.pages()
    made: list[ReplayPlan] = []

    def plan() -> ReplayPlan:
        made.append(spans_of(world))
        return made[-1]

    def replay(view) -> bool:
        try:
            return not Replayer(view).replay("everything", plan).stopped
        except BusError:
            return False

    for _ in range(80):
        if world.run(replay):
            break
    else:
        world.calm()
        assert world.run(replay)
    world.calm()
    # A commit without an answer may have been the end: then the replay that was started again is a second one.
    times = len(world.pages()[0]) // len(original[0])
    assert [part[: 2 * len(first)] for part, first in zip(world.pages(), original, strict=True)] == [
        first + first for first in original
    ]
    assert all(len(part) == times * len(first) for part, first in zip(world.pages(), original, strict=True))


def test_a_replay_that_ended_replays_anew_and_other_spans_are_other_replays():
    world = world_of_pages(1)
    one = ReplayPlan(((2, 0, 5),))
    for count in (1, 2):
        done = Replayer(world.bus.view(f"{count}")).replay("one", lambda: one)
        assert (done.messages, done.lines, done.resumed) == (5, 5, False)
    done = Replayer(world.bus.view("other")).replay("two", lambda: ReplayPlan(((2, 5, 7),)))
    assert done.messages == 2
    part = world.pages()[2]
    assert part[10:] == [*part[:5], *part[:5], *part[5:7]]
    (last,) = world.messages(TopicPartition(PAGES, 2))[-1:]
    assert last.headers == b"{}"


def test_a_replay_that_was_stopped_keeps_to_its_first_plan(monkeypatch):
    monkeypatch.setattr(replaying, "_TRANSACTION_BYTES", 150)
    world = world_of_pages(2)
    original, asked = world.pages(), iter(range(100))
    stopping = lambda: next(asked) >= 3  # noqa: E731 - a counter
    first = Replayer(world.bus.view("a"), stopping=stopping).replay("all", lambda: spans_of(world))
    assert first.stopped
    assert 0 < first.messages < 40
    second = Replayer(world.bus.view("b")).replay("all", lambda: pytest.fail("it has a plan"))
    assert second.resumed
    assert first.messages + second.messages == 40
    assert world.pages() == [part + part for part in original]
