"""The fleet's worker on a real broker: exactly once, whatever befalls it; one bad message stops one partition."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException
from kafka_stage import Stage

from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.snapshots import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def stage(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(kafka_bootstrap, tmp_path / "data")
    yield made
    made.close()


def newest(stage: Stage, number: int) -> int:
    """Offset of a partition's newest snapshot."""
    store = SnapshotStore(LocalFiles(stage.data), "counting", number, token=str, now=lambda: 0.0, grace=0.0)
    return store.whole()[0].offset


def test_each_message_once_and_no_lag_in_the_end(stage: Stage) -> None:
    life = stage.life(step_bytes=20)
    sent = stage.send(30)
    life.run(stage.drained)
    sent += stage.send(1)
    life.run(stage.drained)
    stage.check(sent)
    life.worker.stop()
    assert [newest(stage, number) for number in range(2)] == [stage.committed(number) for number in range(2)]
    again = stage.life()
    sent += stage.send(5)
    again.run(stage.drained)
    stage.check(sent)


def test_a_message_that_cannot_be_handled_stops_its_partition_alone(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    good = stage.send(10)
    (bad,) = stage.send(1, partition=1)
    stage.bad.add(bad)
    behind = stage.send(3, partition=1)
    life = stage.life()
    with caplog.at_level(logging.ERROR):
        life.run(lambda: 1 in life.worker.stopped)
    more = stage.send(4, partition=0)
    life.run(lambda: stage.committed(0) == stage.outside.watermarks(stage.sources()[0])[1])
    stage.check(good + more)
    still = life.worker.stopped[1]
    (message,) = stage.outside.read(stage.sources()[1], still.offset, end=still.offset + 1)
    assert message.payload == bad
    assert f"{stage.inbox}[1] stands still at offset {still.offset}" in caplog.text
    assert stage.outside.read(stage.sources()[1], stage.committed(1))[0].payload == bad, "all before it is done"
    life.worker.stop()
    # A release that can handle it goes on.
    stage.bad.clear()
    again = stage.life()
    again.run(stage.drained)
    stage.check([*good, *more, bad, *behind])


def test_others_go_on_while_a_bad_message_is_sought(stage: Stage) -> None:
    life = stage.life()
    life.run(lambda: len(life.worker.loaded) == 2)
    good = stage.send(40, partition=1)
    stage.bad.update(stage.send(1, partition=1))
    life.run(lambda: 1 in life.worker._one_by_one)
    good += stage.send(5, partition=0)
    life.run(lambda: sum(at == 0 for at, *_ in stage.out()) == 5)
    assert 1 not in life.worker.stopped
    life.run(lambda: 1 in life.worker.stopped)
    stage.check(good)


def test_a_second_instance_takes_what_the_first_gives_up(stage: Stage) -> None:
    first = stage.life("a")
    sent = stage.send(20)
    first.run(stage.drained)
    second = stage.life("b")
    stage.run(lambda: len(first.worker.loaded) == len(second.worker.loaded) == 1, first, second)
    (given,) = second.worker.loaded
    assert newest(stage, given) == stage.committed(given), "snapshotted before it was given up"
    sent += stage.send(20)
    stage.run(stage.drained, first, second)
    stage.check(sent)
    first.worker.stop()
    second.run(lambda: len(second.worker.loaded) == 2)
    sent += stage.send(4)
    second.run(stage.drained)
    stage.check(sent)


def test_a_paused_instance_does_no_harm(stage: Stage) -> None:
    paused, other = stage.life("paused"), stage.life("other")
    stage.run(lambda: len(paused.worker.loaded) == len(other.worker.loaded) == 1, paused, other)
    sent: list[bytes] = []
    happened: list[str] = []

    def pause(_payload: bytes) -> None:
        stage.before_message = lambda _payload: None
        paused.lose()
        other.run(lambda: len(other.worker.loaded) == 2 and stage.drained())
        happened.append("others went on")
        paused.come_back()

    stage.before_message = pause
    sent += stage.send(10)
    paused.run(lambda: bool(happened))
    stage.run(lambda: len(paused.worker.loaded) == 1, paused, other)
    sent += stage.send(10)
    stage.run(stage.drained, paused, other)
    stage.check(sent)


@pytest.mark.parametrize("really", [True, False])
def test_a_commit_without_an_answer_is_settled(stage: Stage, really: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    life = stage.life()
    life.run(lambda: len(life.worker.loaded) == 2)
    sent = stage.send(6)
    producer: Any = life.worker._producer
    honest: Callable[[float], None] = producer._client.commit_transaction

    class Unanswering:
        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

        def commit_transaction(self, timeout: float) -> None:
            if really:
                honest(timeout)
            raise KafkaException(KafkaError(KafkaError._FAIL, "no answer"))

    client = producer._client
    monkeypatch.setattr(producer, "_client", Unanswering())
    life.run(lambda: life.worker.failures > 0)
    life.run(stage.drained)
    stage.check(sent)


def test_a_killed_instance_is_succeeded_at_once(stage: Stage) -> None:
    life = stage.life("a")
    life.run(lambda: len(life.worker.loaded) == 2)
    sent = stage.send(6)

    def die(_payload: bytes) -> None:
        raise SystemExit

    stage.before_message = die
    with pytest.raises(SystemExit):
        life.run(stage.drained)
    stage.before_message = lambda _payload: None
    life.end()
    again = stage.life("a")
    again.run(stage.drained)
    stage.check(sent)
