"""The publisher: what it takes, how it batches, and that no failed delivery goes unsaid."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meguri_common.bus.port import TopicPartition
from meguri_common.bus.simulated import Faults, SimulatedBus
from meguri_common.errors import DeliveryFailed
from meguri_common.events import EventRejected, PageEvent
from meguri_common.sdk import Batcher, BusTransport, Publisher, Transport, group_of_event, pages_partition
from meguri_common.topics import PAGES


class Wire:
    """A transport that keeps what it was given, and fails when told to."""

    def __init__(self, partitions: int = 4) -> None:
        self.count = partitions
        self.sent: list[tuple[int, bytes]] = []
        self.flushes = 0
        self.timeouts: list[float | None] = []
        self.fails: list[DeliveryFailed] = []
        self.closed = False

    def partitions(self) -> int:
        return self.count

    def send(self, partition: int, payload: bytes) -> None:
        self.sent.append((partition, payload))
        if self.fails:
            raise self.fails.pop()

    def flush(self, timeout: float | None) -> None:
        self.flushes += 1
        self.timeouts.append(timeout)

    def close(self) -> None:
        self.closed = True

    def lines(self) -> list[bytes]:
        return [line for _, payload in self.sent for line in payload.split(b"\n")[:-1]]


def page(number: int, host: str = "example.org") -> dict[str, object]:
    return {"url": f"https://{host}/{number}", "fetched_at": number}


def test_all_kinds_of_events_arrive_as_they_were_given():
    wire = Wire()
    with Publisher(wire) as publisher:
        publisher.page(url="https://example.org/", fetched_at=1, status=200, links=["a", {"href": "b"}], text=None)
        publisher.seed(urls=["https://example.org/"], observed_at=1)
        publisher.sitemap(url="https://example.org/s", observed_at=1, entries=[{"loc": "https://example.org/x"}])
        publisher.signal(epoch=1, hosts=[{"host": "example.org", "score": 1.5}])
        publisher.control(at=1, action="vouch", host="example.org")
        publisher.publish(PageEvent(url="https://example.org/typed", fetched_at=2))
        publisher.publish(b'{"url":"https://example.org/line","fetched_at":3}\r\n')
        publisher.publish(b'{"url":\n"https://example.org/lines",\n"fetched_at":3}')
    events = [json.loads(line) for line in wire.lines()]
    kinds = [event.get("type", "page") for event in events]
    assert kinds == ["page", "seed", "sitemap", "signal", "control", "page", "page", "page"]
    assert events[0]["links"] == ["a", {"href": "b"}]
    assert [event["url"] for event in events[5:]] == [
        f"https://example.org/{name}" for name in ("typed", "line", "lines")
    ]
    assert wire.flushes == 1
    assert wire.closed


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "https://example.org/"}, "fetched_at"),
        ({"url": "https://example.org/", "fetched_at": "now"}, r"\$\.fetched_at"),
        ({"url": "https://example.org/", "fetched_at": 1, "links": [7]}, r"\$\.links\[0\]"),
        ({"url": "https://example.org/", "fetched_at": 1, "status": 99}, "status"),
        ({"url": "https://example.org/", "fetched_at": 1, "links": ["x"] * 50_001}, "50001"),
    ],
)
def test_what_would_be_rejected_is_refused_here(fields, said):
    wire = Wire()
    publisher = Publisher(wire)
    with pytest.raises(EventRejected, match=said):
        publisher.page(**fields)
    publisher.page(**page(1))
    publisher.close()
    assert len(wire.lines()) == 1


def test_a_message_goes_out_when_it_is_full_or_old():
    wire, now = Wire(1), [0.0]
    publisher = Publisher(wire, linger=2.0, bundle_bytes=300, clock=lambda: now[0])
    for number in range(6):
        publisher.page(**page(number))
    assert wire.sent, "300 bytes are together"
    assert all(len(payload) <= 300 for _, payload in wire.sent)
    before = len(wire.lines())
    now[0] = 1.9
    publisher.page(**page(7))
    assert len(wire.lines()) == before
    now[0] = 2.1
    publisher.page(**page(8))
    assert [json.loads(line)["fetched_at"] for line in wire.lines()] == [0, 1, 2, 3, 4, 5, 7, 8]
    assert wire.flushes == 0
    publisher.flush(timeout=3.0)
    assert wire.timeouts == [3.0]


def test_failures_are_raised_and_what_came_after_is_sent_all_the_same():
    wire = Wire()
    publisher = Publisher(wire)
    for number in range(8):
        publisher.page(**page(number, f"h{number}.example"))
    wire.fails = [DeliveryFailed("no answer", [b"first\n"]), DeliveryFailed("no answer", [b"second\n"])]
    with pytest.raises(DeliveryFailed, match="no answer") as failed:
        publisher.flush()
    assert set(failed.value.undelivered) == {b"first\n", b"second\n"}
    assert len(wire.lines()) == 8
    publisher.close()


def test_events_that_were_given_before_the_program_failed_are_sent():
    wire = Wire()

    def crawl() -> float:
        with Publisher(wire) as publisher:
            publisher.page(**page(1))
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        crawl()
    assert len(wire.lines()) == 1
    assert wire.closed


def bus(faults: Faults | None = None) -> SimulatedBus:
    return SimulatedBus({PAGES: 4}, rng=random.Random(1), now=lambda: 0.0, faults=faults)


def on_bus(simulated: SimulatedBus) -> list[bytes]:
    view = simulated.view("reader")
    payloads = [view.read(TopicPartition(PAGES, number), 0) for number in range(4)]
    return [line for part in payloads for each in part for line in bytes(each.payload).split(b"\n")[:-1]]


def test_over_a_bus_a_flush_takes_effect_as_a_whole():
    simulated = bus()
    with Publisher(simulated.view("a")) as publisher:
        for number in range(20):
            publisher.page(**page(number, f"h{number}.example"))
        assert on_bus(simulated) == []
        publisher.flush()
        assert len(on_bus(simulated)) == 20
        simulated.power_failure()
        assert len(on_bus(simulated)) == 20, "acknowledged is durable"
        publisher.flush()
        assert len(on_bus(simulated)) == 20


def test_over_a_bus_a_refused_flush_gives_the_events_back():
    simulated = bus(Faults(abort=1.0))
    publisher = Publisher(simulated.view("a"))
    publisher.page(**page(1))
    with pytest.raises(DeliveryFailed, match="were not published") as failed:
        publisher.flush()
    assert on_bus(simulated) == []
    simulated.faults = Faults()
    for message in failed.value.undelivered:
        publisher.publish(message)
    publisher.close()
    assert len(on_bus(simulated)) == 1


def test_over_a_bus_an_outcome_that_isnt_known_is_said_to_be_unknown():
    simulated = bus(Faults(unknown=1.0))
    publisher = Publisher(simulated.view("a"))
    publisher.page(**page(1))
    with pytest.raises(DeliveryFailed, match="may or may not") as failed:
        publisher.flush()
    assert len(failed.value.undelivered) == 1


def test_a_bus_and_a_transport_are_told_apart():
    assert isinstance(Wire(), Transport)
    assert isinstance(BusTransport(bus().view("a")), Transport)
    assert not isinstance(bus().view("a"), Transport)


@given(
    st.lists(st.tuples(st.sampled_from(["a.example", "b.example", "c.example"]), st.integers(0, 200)), max_size=60),
    st.integers(1, 500),
    st.integers(1, 5),
)
def test_batches_hold_every_line_once_in_order_and_number_them(drawn, limit, partitions):
    lines = [
        b'{"url":"https://%s/","n":%d,"x":"%s"}' % (host.encode(), at, b"x" * size)
        for at, (host, size) in enumerate(drawn)
    ]
    batcher, packed = Batcher(partitions, limit=limit), []
    for number, line in enumerate(lines, 1):
        full = batcher.add(line, number)
        packed += [full] if full else []
    packed += batcher.drain()
    assert list(batcher.drain()) == []
    for partition in range(partitions):
        mine = [each for each in packed if each.partition == partition]
        found = [line for each in mine for line in each.payload.split(b"\n")[:-1]]
        want = [line for line in lines if pages_partition(group_of_event(line), partitions) == partition]
        assert found == want
        numbers = [first + more for each in mine for first, count in each.runs for more in range(count)]
        assert [lines[number - 1] for number in numbers] == want
    for each in packed:
        assert each.size == len(each.payload)
        assert each.size <= limit or len(each.lines) == 1
        assert each.lines
