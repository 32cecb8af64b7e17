"""Reports onto Kafka: handed over at once or dropped, never waited for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from meguri_common.telemetry.kafka import KafkaEmitter
from meguri_common.topics import TELEMETRY


class Client:
    """A producer whose queue takes two messages."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.queue: list[tuple[str, bytes, bytes]] = []
        self.flushed: list[float] = []

    def produce(self, topic: str, *, key: bytes, value: bytes) -> None:
        if len(self.queue) == 2:
            raise BufferError
        self.queue.append((topic, key, value))

    def poll(self, timeout: float) -> int:
        assert timeout == 0, "nothing waits"
        return 0

    def flush(self, timeout: float) -> int:
        self.flushed.append(timeout)
        return len(self.queue)


def test_a_full_queue_drops() -> None:
    clients = []

    def make(config: dict[str, Any]) -> Client:
        clients.append(Client(config))
        return clients[0]

    emitter = KafkaEmitter({"bootstrap.servers": "a:1", "sasl.username": "me", "acks": "all"}, client=make)
    (client,) = clients
    assert [emitter.send("dedup", b"%d" % number) for number in range(3)] == [True, True, False]
    assert client.queue == [(TELEMETRY, b"dedup", b"0"), (TELEMETRY, b"dedup", b"1")]
    assert (client.config["sasl.username"], client.config["bootstrap.servers"]) == ("me", "a:1")
    assert client.config["acks"] == "1", "loss is cheap here, whatever the data path uses"
    emitter.close()
    assert client.flushed == [1.0]


def test_a_broker_that_is_away_costs_no_time() -> None:
    """With the real client: two megabytes a second at nobody, for as long as its queue takes them and beyond."""
    pytest.importorskip("confluent_kafka", reason="no confluent-kafka (the extra `kafka`)")
    emitter = KafkaEmitter({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    worst = 0.0
    answers = []
    for _ in range(40):
        began = time.perf_counter()
        answers.append(emitter.send("dedup", b"x" * 200_000))
        worst = max(worst, time.perf_counter() - began)
    assert answers[0]
    assert not answers[-1], "the queue is bounded"
    assert worst < 0.25
    began = time.perf_counter()
    emitter.close()
    assert time.perf_counter() - began < 3
