"""Work on many shards: one at a time, or several processes with a shard each. A shard that fails leaves the others be.

Workers are started afresh, not forked: threads of numba and Arrow don't survive a fork.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Generic, TypeVar

from meguri_common.errors import MeguriError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

__all__ = ["ShardResult", "WorkerDied", "run_shards"]

T = TypeVar("T")


class WorkerDied(MeguriError):
    """The process that worked on a shard is gone: killed, or out of memory."""


@dataclass(frozen=True)
class ShardResult(Generic[T]):
    """What became of a shard: a result, or why there is none."""

    partition: int
    result: T | None = None
    error: Exception | None = None


def run_shards(
    partitions: Sequence[int],
    work: Callable[[int], T],
    *,
    jobs: int = 1,
    on_done: Callable[[ShardResult[T]], None] = lambda _result: None,
) -> list[ShardResult[T]]:
    """Do something to each of some shards; each publishes by itself, so that what succeeded stays.

    Args:
        partitions: the shards.
        work: what to do; with more than one job it must be picklable, as must its results.
        jobs: processes; 1 does the work in this one.
        on_done: told of each shard as it ends.

    Returns:
        Results in the order of the shards. Errors that are expected (of meguri, of the disk) are in them.

    Raises:
        ValueError: fewer than one job.
    """
    if jobs < 1:
        msg = f"{jobs} jobs: there must be at least one"
        raise ValueError(msg)
    found: dict[int, ShardResult[T]] = {}

    def keep(result: ShardResult[T]) -> None:
        found[result.partition] = result
        on_done(result)

    if jobs == 1 or len(partitions) <= 1:
        for partition in partitions:
            keep(_attempt(work, partition))
    else:
        _in_processes(partitions, work, min(jobs, len(partitions)), keep)
    return [found[partition] for partition in partitions]


def _attempt(work: Callable[[int], T], partition: int) -> ShardResult[T]:
    try:
        return ShardResult(partition, work(partition))
    except (MeguriError, OSError) as problem:
        return ShardResult(partition, error=problem)


def _serve(work: Callable[[int], T], pipe: Connection) -> None:
    """A worker's life: shards in, results out, until the pipe is closed."""
    while True:
        try:
            partition = pipe.recv()
        except EOFError:
            return
        pipe.send(_attempt(work, partition))


class _Worker(Generic[T]):
    """A process, and the shard that it works on."""

    def __init__(self, work: Callable[[int], T]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(work, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.partition = -1

    def give(self, partition: int) -> None:
        self.partition = partition
        self.pipe.send(partition)

    def result(self) -> ShardResult[T]:
        """Its answer, now that there is something to read."""
        try:
            answer: ShardResult[T] = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode
            died = WorkerDied(f"shard {self.partition}: its process ended with code {code} (negative: by that signal)")
            return ShardResult(self.partition, error=died)
        return answer

    def close(self) -> None:
        self.pipe.close()
        self.process.join()


def _in_processes(
    partitions: Iterable[int], work: Callable[[int], T], jobs: int, keep: Callable[[ShardResult[T]], None]
) -> None:
    waiting = list(partitions)[::-1]
    busy: dict[Connection, _Worker[T]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                worker = _Worker(work)
                busy[worker.pipe] = worker
                worker.give(waiting.pop())
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index] # only pipes were asked about
                result = worker.result()
                keep(result)
                if waiting and not isinstance(result.error, WorkerDied):
                    worker.give(waiting.pop())
                else:
                    del busy[worker.pipe]
                    worker.close()
    finally:
        for worker in busy.values():
            worker.process.terminate()
            worker.close()
