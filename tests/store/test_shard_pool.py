"""The pool: every shard is worked on once, by one worker; failures stay with their shard."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from meguri_common.errors import CorruptGeneration
from meguri_store.pool import ShardResult, WorkerDied, run_shards

if TYPE_CHECKING:
    from pathlib import Path


def work(folder: Path, partition: int) -> tuple[int, int]:
    """Leaves a trace; some shards fail, some take their worker along."""
    with (folder / str(partition)).open("a") as trace:
        trace.write(f"{os.getpid()}\n")
    match partition:
        case 3:
            msg = "g1/urls.parquet: row 7: isn't above"
            raise CorruptGeneration(msg)
        case 5:
            raise OSError(28, "No space left on device", "urls.parquet")
        case 7:
            os.kill(os.getpid(), signal.SIGKILL)
    return partition * 10, os.getpid()


def traces(folder: Path) -> dict[int, list[str]]:
    return {int(path.name): path.read_text().split() for path in folder.iterdir()}


def test_in_this_process(tmp_path):
    told: list[ShardResult[tuple[int, int]]] = []
    results = run_shards([0, 3, 4, 5], partial(work, tmp_path), on_done=told.append)
    assert [result.partition for result in results] == [0, 3, 4, 5]
    assert [result.result and result.result[0] for result in results] == [0, None, 40, None]
    assert isinstance(results[1].error, CorruptGeneration)
    assert "row 7" in str(results[1].error)
    assert isinstance(results[3].error, OSError)
    assert told == results
    assert traces(tmp_path) == {partition: [str(os.getpid())] for partition in (0, 3, 4, 5)}


def test_in_processes_a_dead_worker_is_replaced(tmp_path):
    partitions = [7, 0, 1, 2, 3, 4, 5, 6, 8]
    results = run_shards(partitions, partial(work, tmp_path), jobs=2)
    assert [result.partition for result in results] == partitions
    by_partition = {result.partition: result for result in results}
    assert {key for key, result in by_partition.items() if result.error is None} == {0, 1, 2, 4, 6, 8}
    assert isinstance(by_partition[7].error, WorkerDied)
    assert "shard 7" in str(by_partition[7].error)
    assert "-9" in str(by_partition[7].error)
    assert isinstance(by_partition[3].error, CorruptGeneration)
    assert isinstance(by_partition[5].error, OSError)
    assert by_partition[5].error.filename == "urls.parquet"
    found = traces(tmp_path)
    assert {key: len(pids) for key, pids in found.items()} == dict.fromkeys(partitions, 1)
    pids = {pid for each in found.values() for pid in each}
    assert str(os.getpid()) not in pids
    assert len(pids) <= 3, "two workers, and one in place of the dead one"


def test_nothing_to_do_and_refused_arguments():
    assert run_shards([], str, jobs=4) == []
    with pytest.raises(ValueError, match="0 jobs"):
        run_shards([1], str, jobs=0)
