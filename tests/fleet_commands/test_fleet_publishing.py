"""Publishing to a fleet: every line once and in order, whatever fails, dies, or comes twice at the same time."""

from __future__ import annotations

import base64
import json
from collections import Counter

import pytest
from fleet_world import PARTITIONS, FleetWorld, page_line
from greenlet import getcurrent, greenlet

from meguri.embedded import bundles
from meguri.fleet import publishing
from meguri.fleet.publishing import FleetPublisher
from meguri_common.bus.port import TopicPartition
from meguri_common.bus.simulated import Faults
from meguri_common.errors import BusError, Fenced, InputUnreadable
from meguri_common.sdk import group_of_event, pages_partition
from meguri_common.topics import LEDGER, PAGES, REJECTS

HOSTS = [f"h{number}.example" for number in range(12)]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Bundles of some lines and transactions of some bundles, so that little content makes many of them."""
    monkeypatch.setattr(bundles, "BUNDLE_BYTES", 300)
    monkeypatch.setattr(bundles, "LINE_LIMIT", 2000)
    monkeypatch.setattr(publishing, "_TRANSACTION_BYTES", 900)


def content_of(world: FleetWorld, lines: int) -> list[bytes]:
    return [page_line(world.rng.choice(HOSTS), number, world.rng.randrange(80)) for number in range(lines)]


def publisher_on(world: FleetWorld, view, **more) -> FleetPublisher:
    return FleetPublisher(view, now=world.bus.now, sleep=world.sleep, clock=lambda: 0.0, **more)


def publish(world: FleetWorld, view, data: bytes, chunk: int = 777, **more) -> bool:
    publisher = publisher_on(world, view, **more)
    done = publisher.publish("in.jsonl", iter([data[at : at + chunk] for at in range(0, len(data), chunk)]))
    publisher.close()
    return done


def check(world: FleetWorld, lines: list[bytes]) -> None:
    """Each line is there once, in the partition of its host, in order."""
    found = world.pages()
    assert Counter(line for part in found for line in part) == Counter(lines)
    for number, part in enumerate(found):
        assert part == [line for line in lines if pages_partition(group_of_event(line), PARTITIONS) == number]


@pytest.mark.parametrize("seed", range(60))
def test_every_line_arrives_once_and_in_order_whatever_fails(seed):
    world = FleetWorld(seed, deadly=0.01, faults=Faults(abort=0.1, unknown=0.15, timeout=400, markers=seed % 2 == 0))
    lines = content_of(world, 150)
    data = b"\n".join(lines) + b"\n"
    lives = 0
    while not world.run(lambda view: publish(world, view, data)):
        lives += 1
        if lives > 60:
            world.deadly = 0.0
    world.calm()
    check(world, lines)
    assert publish(world, world.bus.view("again"), data), "publishing it again changes nothing"
    check(world, lines)


def test_the_faults_that_are_meant_really_strike(say):
    struck, deaths = Counter(), 0
    for seed in range(20):
        world = FleetWorld(seed, deadly=0.01, faults=Faults(abort=0.1, unknown=0.15, timeout=400, markers=True))
        data = b"\n".join(content_of(world, 150))
        while not world.run(lambda view, world=world, data=data: publish(world, view, data)):
            pass
        struck += world.bus.struck
        deaths += world.deaths
    say("publishing to a fleet", f"20 worlds: {deaths} deaths, {dict(struck)}")
    assert deaths > 20
    assert min(struck[name] for name in ("aborted", "unknown outcome", "power failure")) >= 3


def test_what_was_acknowledged_survives_a_power_failure():
    world = FleetWorld(12)
    lines = content_of(world, 50)
    assert publish(world, world.bus.view("a"), b"\n".join(lines))
    world.bus.power_failure()
    check(world, lines)


def test_an_input_that_grew_goes_on_where_it_ended():
    world = FleetWorld(1)
    lines = content_of(world, 120)
    for count in (1, 50, 51, 120):
        assert publish(world, world.bus.view(f"run {count}"), b"".join(line + b"\n" for line in lines[:count]))
        check(world, lines[:count])


def test_a_last_line_without_its_end_is_published_and_goes_on():
    world = FleetWorld(2)
    lines = content_of(world, 40)
    assert publish(world, world.bus.view("a"), b"\n".join(lines[:30]))
    check(world, lines[:30])
    assert publish(world, world.bus.view("b"), b"\n".join(lines) + b"\n")
    check(world, lines)


def test_other_inputs_are_published_in_full():
    world = FleetWorld(3)
    first, second = content_of(world, 30), content_of(world, 30)
    assert publish(world, world.bus.view("a"), b"\n".join(first))
    assert publish(world, world.bus.view("b"), b"\n".join(second))
    check(world, first + second)


def test_figures_tell_what_was_done():
    world = FleetWorld(4)
    lines = content_of(world, 60)
    data = b"".join(line + b"\n" for line in lines)
    heard: list[int] = []
    first = publisher_on(world, world.bus.view("a"), on_lines=heard.append)
    half = b"".join(line + b"\n" for line in lines[:30])
    assert first.publish("x", iter([half]))
    assert (first.total.lines, first.total.bytes, first.total.already) == (30, len(half), 0)
    assert heard[-1] == 30
    assert heard == sorted(heard)
    second = publisher_on(world, world.bus.view("b"))
    assert second.publish("x", iter([data]))
    assert (second.total.lines, second.total.bytes, second.total.already) == (30, len(data) - len(half), len(half))
    third = publisher_on(world, world.bus.view("c"))
    assert third.publish("x", iter([data]))
    assert (third.total.messages, third.total.lines, third.total.already) == (0, 0, len(data))


def test_headers_name_file_and_line_of_each_line():
    world = FleetWorld(5)
    lines = content_of(world, 80)
    lines[7] = lines[20] = b""
    assert publish(world, world.bus.view("a"), b"\n".join(lines))
    seen = 0
    for number in range(PARTITIONS):
        for message in world.messages(TopicPartition(PAGES, number)):
            headers = json.loads(message.headers)
            assert headers["file"] == "in.jsonl"
            here = bytes(message.payload).split(b"\n")[:-1]
            runs = headers["lines"] if "lines" in headers else [[headers["line"], len(here)]]
            numbers = [first + more for first, count in runs for more in range(count)]
            assert [lines[at - 1] for at in numbers] == here
            seen += len(here)
    assert seen == 78


def test_a_line_that_is_too_long_is_a_reject_once():
    world = FleetWorld(6)
    lines = content_of(world, 10)
    long = b'{"url":"https://a.example/","text":"' + b"y" * 5000 + b'"}'
    data = b"\n".join([*lines[:5], long, *lines[5:]]) + b"\n"
    for name in ("a", "b"):
        assert publish(world, world.bus.view(name), data)
        check(world, lines)
        (reject,) = [json.loads(message.payload) for message in world.messages(TopicPartition(REJECTS, 0))]
        assert reject["reason"] == "too_large"
        assert reject["origin"] == {"file": "in.jsonl", "line": 6}
        assert long.startswith(base64.b64decode(reject["payload"]))


def test_what_comes_before_a_break_is_published_and_the_break_is_told():
    world = FleetWorld(7)
    lines = content_of(world, 40)
    data = b"".join(line + b"\n" for line in lines)

    def broken(at: int):
        yield data[:at]
        raise InputUnreadable("cut off")

    whole = data[:1000].count(b"\n")
    for name in ("a", "b"):
        with pytest.raises(InputUnreadable, match="cut off"):
            publisher_on(world, world.bus.view(name)).publish("in.jsonl", broken(1000))
        check(world, lines[:whole])
    assert publish(world, world.bus.view("c"), data)
    check(world, lines)


def test_nothing_and_blank_lines_are_no_events():
    world = FleetWorld(8)
    assert publish(world, world.bus.view("a"), b"")
    assert publish(world, world.bus.view("b"), b"\n\n \r\n\n")
    check(world, [])


def test_stopped_in_order_it_goes_on():
    world = FleetWorld(9)
    lines = content_of(world, 100)
    data = b"\n".join(lines)
    asked = iter(range(1000))
    assert not publish(world, world.bus.view("a"), data, stopping=lambda: next(asked) > 3)
    assert 0 < sum(map(len, world.pages())) < len(lines)
    assert publish(world, world.bus.view("b"), data)
    check(world, lines)


def test_brokers_that_refuse_for_too_long_are_an_error_and_nothing_is_lost():
    world = FleetWorld(10, faults=Faults(abort=1.0))
    lines = content_of(world, 20)
    publisher = FleetPublisher(
        world.bus.view("a"), sleep=world.sleep, clock=lambda: world.seconds, patience=30.0, now=world.bus.now
    )
    with pytest.raises(BusError, match="refused"):
        publisher.publish("in.jsonl", iter([b"\n".join(lines)]))
    assert world.seconds >= 30
    world.calm()
    assert publish(world, world.bus.view("b"), b"\n".join(lines))
    check(world, lines)


def test_on_a_slow_line_less_is_tried_at_once():
    """As where a transaction of the usual size takes longer than its timeout: the broker fences its producer."""
    world = FleetWorld(13)
    lines = content_of(world, 60)
    view = world.bus.view("a")
    new_producer, sizes = view.producer, []

    def slow(name: str):
        producer, size = new_producer(name), [0]
        publish_one, commit = producer.publish, producer.commit

        def count(target, payload, **more) -> None:
            size[0] += len(payload)
            publish_one(target, payload, **more)

        def commit_if_small() -> None:
            sizes.append(size[0])
            if size[0] > 1000:
                new_producer(name)
            size[0] = 0
            commit()

        producer.publish, producer.commit = count, commit_if_small
        return producer

    view.producer = slow
    assert publish(world, view, b"\n".join(lines))
    assert max(sizes) > 1000 > min(sizes)
    check(world, lines)


@pytest.mark.parametrize("seed", range(25))
def test_two_publishers_of_one_input_at_once_publish_it_once(seed):
    world = FleetWorld(seed, faults=Faults(markers=True, timeout=2000))
    lines = content_of(world, 100)
    data = b"\n".join(lines)
    main, before = getcurrent(), world.bus.before

    def switching(operation: str, instance: str) -> None:
        before(operation, instance)
        if getcurrent() is not main:
            main.switch()

    world.bus.before = switching
    outcomes: list[object] = []

    def body(name: str) -> None:
        try:
            outcomes.append(publish(world, world.bus.view(name), data))
        except Fenced as problem:
            outcomes.append(problem)

    running = [greenlet(lambda name=name: body(name)) for name in ("a", "b")]
    while running:
        world.rng.choice(running).switch()
        running = [each for each in running if not each.dead]
    assert True in outcomes or all(isinstance(each, Fenced) for each in outcomes)
    world.bus.before = before
    assert publish(world, world.bus.view("again"), data)
    check(world, lines)


def test_the_ledger_waits_for_what_it_may_not_see_yet():
    """Rows behind another publisher's open transaction are committed, but can't be read before it ends."""
    world = FleetWorld(11)
    lines = content_of(world, 10)
    data = b"".join(line + b"\n" for line in lines)
    assert publish(world, world.bus.view("a"), data)
    ledger = TopicPartition(LEDGER, 0)
    true_end = world.outside.watermarks(ledger)[1]
    view = world.bus.view("b")
    hidden = [True]
    seen = view.watermarks
    view.watermarks = lambda source: (0, 1 if hidden[0] and source == ledger else seen(source)[1])

    def sleep(seconds: float) -> None:
        world.sleep(seconds)
        hidden[0] = world.seconds < 5

    publisher = FleetPublisher(view, ledger_end=lambda: true_end, sleep=sleep, clock=lambda: world.seconds)
    assert publisher.publish("in.jsonl", iter([data]))
    check(world, lines)
    hidden[0] = True
    stuck = FleetPublisher(
        view, ledger_end=lambda: true_end, sleep=world.sleep, clock=lambda: world.seconds, patience=200.0
    )
    with pytest.raises(BusError, match="stays open"):
        stuck.publish("in.jsonl", iter([data]))
    check(world, lines)
