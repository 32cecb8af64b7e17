"""What can't be gone on with without a gap is refused, for its partition alone, and says what to do."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as ClientPartition
from kafka_cluster import Cluster, NoBroker
from kafka_stage import Stage
from kafka_world import make_topics

from meguri_common.errors import ParametersChanged, RestoreRefused
from meguri_common.runtime.partition import COMMIT_MARK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stage(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Stage]:
    made = Stage(kafka_bootstrap, tmp_path / "data", partitions=2)
    yield made
    made.close()


def lived(stage: Stage, *, clean: bool = True) -> None:
    """A first life of the service has handled some messages."""
    life = stage.life(snapshot_after=1 if clean else 1 << 30)
    life.run(lambda: len(life.worker.loaded) == 2)
    stage.send(8)
    life.run(stage.drained)
    if clean:
        life.worker.stop()
    else:
        life.end()


def refusal(stage: Stage, number: int, kind: type[Exception] = RestoreRefused, **settings: object) -> str:
    """What the next life says of a partition; the other partition goes on unless all are concerned."""
    life = stage.life(**settings)  # type: ignore[arg-type]  # parameters
    life.run(lambda: number in life.worker.stopped)
    problem = life.worker.stopped[number].problem
    assert isinstance(problem, kind), problem
    life.end()
    return str(problem)


def move_commit(stage: Stage, offset: int, metadata: str) -> None:
    at = ClientPartition(stage.inbox, 0, offset, metadata)
    asked = ConsumerGroupTopicPartitions(f"{stage.settings.prefix}counting", [at])
    for future in stage.admin.alter_consumer_group_offsets([asked]).values():
        assert [position.error for position in future.result(20).topic_partitions] == [None]


def drop_below(stage: Stage, number: int, offset: int) -> None:
    for future in stage.admin.delete_records([ClientPartition(stage.inbox, number, offset)]).values():
        future.result(20)


def test_a_commit_that_another_tool_moved(stage: Stage) -> None:
    lived(stage)
    before = stage.committed(0)
    move_commit(stage, 1, "")
    said = refusal(stage, 0)
    assert "another tool moved it" in said
    assert f"{stage.inbox}[0]" in said
    move_commit(stage, before, COMMIT_MARK)
    again = stage.life()
    again.run(lambda: len(again.worker.loaded) == 2)


def test_a_snapshot_above_the_committed_offset(stage: Stage) -> None:
    lived(stage)
    move_commit(stage, 1, COMMIT_MARK)
    assert "is above the committed offset 1" in refusal(stage, 0)


def test_a_log_that_begins_above_the_state(stage: Stage) -> None:
    lived(stage)
    stage.send(6)
    drop_below(stage, 1, stage.outside.watermarks(stage.sources()[1])[1])
    said = refusal(stage, 1)
    assert "the log begins at" in said
    assert "Restore the log" in said


def test_a_log_cut_under_a_running_service(stage: Stage) -> None:
    life = stage.life()
    life.run(lambda: len(life.worker.loaded) == 2)
    stage.send(6, partition=1)
    drop_below(stage, 1, 4)
    more = stage.send(3, partition=0)
    life.run(lambda: 1 in life.worker.stopped)
    assert "the log begins at 4" in str(life.worker.stopped[1].problem)
    life.run(lambda: len(stage.out()) == len(more))


def test_a_topic_made_anew(stage: Stage) -> None:
    lived(stage)
    for future in stage.admin.delete_topics([stage.inbox]).values():
        future.result(20)
    deadline = time.monotonic() + 20
    while stage.inbox in stage.admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    make_topics(stage.bootstrap, {stage.inbox: 2})
    stage.send(30)
    assert "was made anew since the snapshot" in refusal(stage, 0)


def test_a_log_that_ends_below_the_state(tmp_path: Path) -> None:
    """A broker that comes back without what it had acknowledged, its topics the same: a disk put back from a copy."""
    try:
        cluster = Cluster(tmp_path / "brokers")
    except NoBroker as problem:
        pytest.skip(str(problem))
    try:
        cluster.start()
        stage = Stage(cluster.bootstrap, tmp_path / "data", partitions=2)
        lived(stage)
        snapshot = max(int(path.name.split("-o")[1][:12]) for path in (tmp_path / "data").rglob("p00000/snapshot-*"))
        stage.close()
        cluster.stop()
        (log,) = (tmp_path / "brokers").glob(f"log-*/{stage.inbox}-0")
        for path in log.iterdir():
            if path.name != "partition.metadata":  # the topic's id
                path.unlink()
        cluster.start()
        said = refusal(stage, 0)
        ended = re.search(rf"the log ends at (\d+), below offset {snapshot}", said)
        assert ended, said
        assert int(ended[1]) < snapshot  # where it had been cut, or 0
        assert "Restore the log" in said
    finally:
        cluster.stop()


def test_other_parameters_after_a_kill(stage: Stage) -> None:
    lived(stage, clean=False)
    said = refusal(stage, 0, ParametersChanged, parameters={"weight": 2})
    assert "weight" in said
    assert "Finish that run first" in said


def test_other_parameters_after_a_clean_stop_are_taken_over(stage: Stage) -> None:
    lived(stage)
    life = stage.life(parameters={"weight": 2})
    life.run(lambda: len(life.worker.loaded) == 2)
    assert {tuple(loaded.parameters.items()) for loaded in life.worker.loaded.values()} == {(("weight", 2),)}
