"""The SDK's transport with the client alone: its mock cluster, and brokers that aren't there."""

from __future__ import annotations

import time
from functools import partial

import pytest

from meguri_common.config import KafkaSettings
from meguri_common.errors import BrokerUnreachable, BusError, ConfigError, DeliveryFailed
from meguri_common.sdk import Publisher
from meguri_common.sdk.kafka import KafkaTransport

pytest.importorskip("confluent_kafka")

NOBODY = "127.0.0.1:1"


def test_against_the_mock_cluster_everything_is_acknowledged():
    mock = KafkaSettings(bootstrap="mock", client={"test.mock.num.brokers": "3"})
    with Publisher.connect(mock, delivery_seconds=20) as publisher:
        for number in range(300):
            publisher.page(url=f"https://h{number % 11}.example/", fetched_at=number, text="x" * 10_000)
        publisher.flush()
    publisher = Publisher.connect(mock, delivery_seconds=20)
    publisher.page(url="https://a.example/", fetched_at=1)
    publisher.close()


def test_no_broker_is_told_at_once():
    with pytest.raises(BrokerUnreachable, match=NOBODY):
        Publisher.connect(NOBODY, delivery_seconds=1)


def test_messages_that_nobody_takes_come_back():
    transport = KafkaTransport(KafkaSettings(bootstrap=NOBODY), delivery_seconds=1.0)
    transport.send(0, b"one\n")
    transport.send(1, b"two\n")
    with pytest.raises(DeliveryFailed, match="2 messages were not acknowledged") as failed:
        transport.flush(None)
    assert sorted(failed.value.undelivered) == [b"one\n", b"two\n"]
    transport.flush(0)  # nothing is left
    transport.close()


def test_a_flush_that_is_short_says_that_messages_are_still_being_sent():
    transport = KafkaTransport(KafkaSettings(bootstrap=NOBODY), delivery_seconds=30.0)
    transport.send(0, b"one\n")
    with pytest.raises(DeliveryFailed, match="still being sent") as failed:
        transport.flush(0.05)
    assert failed.value.undelivered == ()


def test_a_full_queue_waits_and_its_failures_are_raised():
    few = KafkaSettings(bootstrap=NOBODY, client={"queue.buffering.max.messages": "2"})
    transport = KafkaTransport(few, delivery_seconds=1.0)
    begun, undelivered = time.monotonic(), []
    sends = [partial(transport.send, 0, b"%d\n" % number) for number in range(5)]
    for work in [*sends, partial(transport.flush, None)]:
        try:  # which call learns of a failure, the clock decides
            work()
        except DeliveryFailed as problem:
            undelivered += problem.undelivered
    assert sorted(undelivered) == [b"%d\n" % number for number in range(5)]
    assert time.monotonic() - begun > 1.0


def test_wrong_settings_are_told():
    with pytest.raises(ConfigError, match="--bootstrap"):
        Publisher.connect("")
    with pytest.raises(BusError, match="TELEPATHY"):
        Publisher.connect(NOBODY, security_protocol="TELEPATHY")
