"""What a message costs to receive, by client; and what Faust commits when a message isn't done.

Run as `python bench/consumers.py HOST:PORT`, with the extras `kafka` and `monitor`, against a broker that nobody else
uses. Each measurement is a process of its own: the processor time of all its threads from one tenth of the messages to
the last, divided by their number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 200
CLIENTS = ("confluent-kafka", "aiokafka", "faust")
FATES = ("raises", "unacknowledged head")


class Meter:
    """Processor time between a tenth of the messages and all of them."""

    def __init__(self, messages: int) -> None:
        self.messages, self.seen = messages, 0
        self._warm = messages // 10
        self._began: tuple[int, float] | None = None

    def count(self, more: int) -> bool:
        """Count messages; whether all have come."""
        self.seen += more
        if self._began is None and self.seen >= self._warm:
            self._began = (self.seen, time.process_time())
        return self.seen >= self.messages

    def microseconds(self) -> float:
        """Processor time a message."""
        assert self._began is not None
        return 1e6 * (time.process_time() - self._began[1]) / (self.seen - self._began[0])


def make_topic(bootstrap: str, messages: int, size: int = SIZE) -> str:
    """A topic of one partition with messages in it."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 10**6})
    for number in range(messages):
        producer.produce(name, b"%0*d" % (size, number))
    if producer.flush(120):
        raise SystemExit("messages couldn't be published")
    return name


def with_confluent(bootstrap: str, topic: str, messages: int) -> float:
    """Batches of 500."""
    meter = Meter(messages)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    total = 0
    while True:
        batch = consumer.consume(500, 1.0)
        total += sum(len(message.value()) for message in batch)
        if meter.count(len(batch)):
            assert total == messages * SIZE
            return meter.microseconds()


def with_aiokafka(bootstrap: str, topic: str, messages: int) -> float:
    """`getmany`, as much as has come."""
    from aiokafka import AIOKafkaConsumer  # noqa: PLC0415 - what isn't measured isn't loaded
    from aiokafka import TopicPartition as Place  # noqa: PLC0415 - see above

    async def receive() -> float:
        meter = Meter(messages)
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        consumer.assign([Place(topic, 0)])
        await consumer.start()
        total = 0
        while True:
            found = await consumer.getmany(timeout_ms=1000)
            batch = [message for some in found.values() for message in some]
            total += sum(len(message.value) for message in batch)
            if meter.count(len(batch)):
                assert total == messages * SIZE
                result = meter.microseconds()
                await consumer.stop()
                return result

    return asyncio.run(receive())


def with_faust(bootstrap: str, topic: str, messages: int) -> float:
    """An agent that does nothing but count."""
    meter, total = Meter(messages), 0

    async def receive(events: Any, done: asyncio.Event) -> None:
        nonlocal total
        async for value in events:
            total += len(value)
            if meter.count(1):
                done.set()

    asyncio.run(run_agent(bootstrap, topic, receive, 600))
    assert total >= messages * SIZE
    return meter.microseconds()


async def run_agent(bootstrap: str, topic: str, receive: Callable[..., Any], patience: float) -> None:
    """Run a Faust application of one agent until it says that it is done."""
    import faust  # noqa: PLC0415 - what isn't measured isn't loaded

    done = asyncio.Event()
    app = faust.App(
        topic, broker=f"kafka://{bootstrap}", store="memory://", web_enabled=False, topic_disable_leader=True,
        datadir=tempfile.mkdtemp(), broker_commit_interval=0.5,
    )  # fmt: skip
    source = app.topic(topic, value_type=bytes, value_serializer="raw", key_serializer="raw")

    @app.agent(source)
    async def agent(events: Any) -> None:
        await receive(events, done)

    await app.start()
    try:
        async with asyncio.timeout(patience):
            await done.wait()
    finally:
        await app.stop()


def faust_commits(bootstrap: str, fate: str) -> dict[str, int]:
    """What is committed when message 5 of 20 raises, or when the first five of 20 are never acknowledged."""
    topic = make_topic(bootstrap, 20)
    handled: list[int] = []

    async def raises(events: Any, done: asyncio.Event) -> None:
        async for value in events:
            number = int(value)
            if number == 5 and number not in handled:
                handled.append(number)
                raise ValueError("message 5 can't be handled")
            handled.append(number)
            if number == 19:
                asyncio.get_running_loop().call_later(3, done.set)

    async def leaves_the_head(events: Any, done: asyncio.Event) -> None:
        async for event in events.noack().events():
            if int(event.value) >= 5:
                event.ack()
            handled.append(int(event.value))
            if int(event.value) == 19:
                asyncio.get_running_loop().call_later(3, done.set)

    asyncio.run(run_agent(bootstrap, topic, raises if fate == "raises" else leaves_the_head, 60))
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
    consumer.close()
    return {"committed": committed.offset, "times message 5 was handled": handled.count(5)}


def main() -> None:
    """Measure all, or (called by itself) one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("CLIENT", "TOPIC"), help=argparse.SUPPRESS)
    parser.add_argument("--fate", choices=FATES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.getLogger("faust").setLevel(logging.CRITICAL)
    logging.getLogger("mode").setLevel(logging.CRITICAL)
    if arguments.fate:
        print(json.dumps(faust_commits(arguments.bootstrap, arguments.fate)))
        return
    if arguments.one:
        client, topic = arguments.one
        measure = {"confluent-kafka": with_confluent, "aiokafka": with_aiokafka, "faust": with_faust}[client]
        print(measure(arguments.bootstrap, topic, arguments.messages))
        return
    again = [sys.executable, __file__, arguments.bootstrap, "--messages", str(arguments.messages)]
    for client in CLIENTS:
        figures = []
        for _ in range(arguments.times):
            topic = make_topic(arguments.bootstrap, arguments.messages)
            figures.append(float(subprocess.check_output([*again, "--one", client, topic]).split()[-1]))
        spread = f"{min(figures):.2f} to {max(figures):.2f}"
        print(f"{client:16} {statistics.median(figures):8.2f} us of CPU a message ({spread})", flush=True)
    for fate in FATES:
        said = subprocess.check_output([*again, "--fate", fate]).splitlines()[-1]
        print(f"faust, {fate}: {said.decode()}", flush=True)


if __name__ == "__main__":
    main()
