"""Compaction beside the intake: one at a time, on a thread of its own, given up when the process stops.

A job works on what doesn't change any more: a generation, and the operations that had come in when it was started.
Most of its time goes into kernels and Arrow, which hold no lock of the interpreter, so that intake goes on meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from meguri_common.errors import MeguriError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Abandoned", "Compactor", "Job", "Jobs", "machine_lock"]

T = TypeVar("T")

_ASK_AGAIN = 0.2
_PATIENCE = 4.0
"""Seconds that `Compactor.close` waits for jobs to notice."""


class Abandoned(MeguriError):
    """A compaction was given up before its end; nothing of it stays."""


class Job(Generic[T]):
    """Work that is under way."""

    def __init__(self, work: Callable[[Callable[[], bool]], T]) -> None:
        """Work to do: is given a question whether to give up, which it asks now and then."""
        self._work = work
        self._ended = threading.Event()
        self._given_up = threading.Event()
        self._value: T | None = None
        self._problem: BaseException | None = None

    def run(self) -> None:
        """Do the work."""
        try:
            self._value = self._work(self.given_up)
        except BaseException as problem:  # noqa: BLE001 - it is the owner's, who asks for the result
            self._problem = problem
        finally:
            self._ended.set()

    def given_up(self) -> bool:
        """Whether nobody wants the result any more."""
        return self._given_up.is_set()

    def give_up(self) -> None:
        """Want no result."""
        self._given_up.set()

    def ended(self) -> bool:
        """Whether the result is there, or will never be."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most `timeout` seconds; whether it has come."""
        return self._ended.wait(timeout)

    def result(self) -> T:
        """What came of it, once it has ended; raises what the work raised."""
        if self._problem is not None:
            raise self._problem
        assert self._value is not None, "asked for once it has ended"
        return self._value


class Jobs(Protocol):
    """Who does jobs."""

    def submit(self, work: Callable[[Callable[[], bool]], T]) -> Job[T]:
        """Start work, or let it wait for its turn."""
        ...


@contextmanager
def machine_lock(wanted: Callable[[], bool]) -> Iterator[None]:
    """Held by one compaction of this machine's user at a time, over all processes.

    Args:
        wanted: asked while waiting; False ends it.

    Raises:
        Abandoned: it is wanted no longer.
    """
    path = Path(tempfile.gettempdir()) / f"meguri-compaction-{os.getuid()}.lock"
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wanted():
                    msg = "given up while it waited for another one"
                    raise Abandoned(msg) from None
                time.sleep(_ASK_AGAIN)
        yield


class Compactor:
    """Does the jobs of all shards of a process, one after another. `close` it when the process stops."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._open: set[Job[Any]] = set()

    def submit(self, work: Callable[[Callable[[], bool]], T]) -> Job[T]:
        """See `Jobs`."""

        def alone(given_up: Callable[[], bool]) -> T:
            with machine_lock(lambda: not given_up()):
                return work(given_up)

        job: Job[T] = Job(alone)
        self._open.add(job)

        def turn() -> None:
            with self._turn:
                job.run()
            self._open.discard(job)

        # A daemon: the end of the process doesn't wait for it, and the next start clears away what it leaves.
        threading.Thread(target=turn, name="compaction", daemon=True).start()
        return job

    def close(self) -> None:
        """Give up all jobs, and wait a few seconds for them to clear away what they have begun."""
        jobs = list(self._open)
        for job in jobs:
            job.give_up()
        for job in jobs:
            job.wait(_PATIENCE)
