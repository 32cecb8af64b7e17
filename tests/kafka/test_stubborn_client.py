"""A client library that doesn't come back from a call, and clients that are replaced: no broker is needed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place

from meguri.fleet.cluster import Cluster
from meguri_common.bus.kafka import producer as producers
from meguri_common.bus.kafka.failures import Patience
from meguri_common.bus.kafka.member import KafkaMember
from meguri_common.bus.kafka.producer import KafkaProducer
from meguri_common.bus.kafka.renewing import Renewed
from meguri_common.bus.kafka.settings import KafkaSettings
from meguri_common.bus.port import Commit
from meguri_common.config import KafkaSettings as Brokers
from meguri_common.errors import BusError, Fenced

if TYPE_CHECKING:
    from collections.abc import Iterator


class Sleeper:
    """A client of a producer that stays in `send_offsets_to_transaction` until it is let go."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.entered = threading.Event()
        self.left = threading.Event()

    def init_transactions(self, _: float) -> None:
        """Nothing to settle."""

    def begin_transaction(self) -> None:
        """Begun."""

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self.entered.set()
        self.released.wait(30)
        self.left.set()


class Insider(KafkaMember):
    """A member that is in the group and has all partitions."""

    def __init__(self) -> None:
        self.group, self.topic = "canonicalizer", "meguri.pages"

    def metadata_for(self, partitions: object) -> object:
        return partitions


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sleeper]:
    made = Sleeper()
    monkeypatch.setattr(producers, "Client", lambda *_args, **_more: made)
    monkeypatch.setattr(producers, "_MARGIN", 0.1)
    monkeypatch.setattr(producers, "_LATE", 0.1)
    yield made
    made.released.set()


def opened(patience: Patience) -> KafkaProducer:
    settings = KafkaSettings({"bootstrap.servers": "127.0.0.1:1"}, transaction_timeout=0.2)
    producer = KafkaProducer("canonicalizer.a", settings, patience, now=time.time, check=lambda _: None)
    producer.begin()
    return producer


def test_offsets_that_are_never_taken_use_the_producer_up(client: Sleeper) -> None:
    producer = opened(Patience(30.0))
    began = time.monotonic()
    with pytest.raises(BusError, match="given up"):
        producer.commit_offsets(Insider(), {0: Commit(5, "")})
    assert 0.3 < time.monotonic() - began < 10
    assert client.entered.is_set()
    assert not client.left.is_set()
    # Whatever becomes of the call: this producer commits nothing any more.
    with pytest.raises(BusError, match="given up"):
        producer.commit()
    with pytest.raises(BusError, match="given up"):
        producer.begin()
    producer.close()
    client.released.set()
    assert client.left.wait(10)


def test_a_process_that_stops_waits_for_no_offsets(client: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "_LATE", 60.0)
    monkeypatch.setattr("meguri_common.bus.kafka.failures._WHEN_STOPPING", 0.2)
    producer = opened(Patience(30.0, client.entered.is_set))
    began = time.monotonic()
    with pytest.raises(BusError, match="given up"):
        producer.commit_offsets(Insider(), {0: Commit(5, "")})
    assert time.monotonic() - began < 10


def test_what_the_client_answers_is_what_it_was(client: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    def fenced(*_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))

    producer = opened(Patience(30.0))
    monkeypatch.setattr(client, "send_offsets_to_transaction", fenced)
    with pytest.raises(Fenced, match="ILLEGAL_GENERATION"):
        producer.commit_offsets(Insider(), {0: Commit(5, "")})
    assert Patience(1.0).bounded("sum", lambda: 2 + 2, seconds=5) == 4


def test_a_replaced_client_is_kept_for_longer_than_its_requests_take() -> None:
    times = iter([0.0, 1.0, 7.9, *(tenth / 10 for tenth in range(80, 3000))])
    alive: set[int] = set()

    class Client:
        count = 0

        def __init__(self) -> None:
            Client.count += 1
            self.number = Client.count
            alive.add(self.number)

        def __del__(self) -> None:
            alive.discard(self.number)

    held = Renewed(Client, lambda: next(times))
    for _ in range(2):
        held.renew()
        assert held.client.number == 1, "a young one stays"
    most = 0
    for _ in range(80, 3000):
        held.renew()
        most = max(most, len(alive))
        assert held.client.number in alive
    assert held.client.number == 38, "one every eight seconds"
    assert most == 10, "those of the last 70 seconds, and the one in use"
    assert 1 not in alive


def test_questions_outlive_a_client_that_is_never_answered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Admin:
        count = 0

        def __init__(self, *_: object, **_more: object) -> None:
            Admin.count += 1
            self.number = Admin.count

        def list_consumer_group_offsets(self, _: object, **_more: object) -> dict[str, Future[Any]]:
            asked.append(self.number)
            answer: Future[Any] = Future()
            if self.number == 1:
                answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
            else:
                answer.set_result(ConsumerGroupTopicPartitions("store", [Place("deltas", 0, 7)]))
            return {"store": answer}

    monkeypatch.setattr("confluent_kafka.admin.AdminClient", Admin)
    monkeypatch.setattr("meguri_common.bus.kafka.renewing._YOUNG", 0.0)
    cluster = Cluster(Brokers(bootstrap="127.0.0.1:1"), timeout=5)
    assert cluster.committed("store", "deltas", 1) == [7]
    assert asked == [1, 2]
