"""The client's errors as the bus's, and waiting in slices so that a process can be stopped meanwhile."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from confluent_kafka import KafkaError, KafkaException

from meguri_common.errors import BusError, TopicMissing

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FENCING", "Patience", "error_of", "log"]

_SAID_AGAIN_AFTER = 30.0
_LINES = 1000
_DIGITS = re.compile(r"\d+")


class _Sparing(logging.Filter):
    """Keeps lines back that say, but for numbers, what was said a moment ago: clients repeat themselves in outages."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to say it."""
        said, now = _DIGITS.sub("", record.getMessage()), time.monotonic()
        if now - self._said.get(said, -_SAID_AGAIN_AFTER) < _SAID_AGAIN_AFTER:
            return False
        if len(self._said) > _LINES:
            self._said.clear()
        self._said[said] = now
        return True


log = logging.getLogger("meguri_common.bus.kafka")
"""Takes the client's own lines too."""
log.addFilter(_Sparing())

FENCING = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - the client's public constants begin with an underscore
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.FENCED_MEMBER_EPOCH,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.REBALANCE_IN_PROGRESS,
    }
)
"""Codes that say: a newer producer of the name, or a newer generation of the group, has taken over."""

_SLICE = 0.5
_WHEN_STOPPING = 8.0
"""Seconds that calls may still wait, in all, when the process is to stop."""
_PASSING = frozenset(
    {
        KafkaError._TIMED_OUT,  # noqa: SLF001 - see above
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001 - see above
        KafkaError._TRANSPORT,  # noqa: SLF001 - see above
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - see above
        KafkaError._RESOLVE,  # noqa: SLF001 - see above
        KafkaError._WAIT_COORD,  # noqa: SLF001 - see above
        KafkaError._WAIT_CACHE,  # noqa: SLF001 - see above
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
    }
)

_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001 - see above

_Result = TypeVar("_Result")


def error_of(problem: BaseException) -> KafkaError:
    """What the client has to say."""
    found = problem.args[0] if problem.args else None
    if isinstance(found, KafkaError):
        return found
    return KafkaError(KafkaError._FAIL, str(problem))  # noqa: SLF001 - see above


class Patience:
    """How long calls wait for the brokers, and the end of that when the process is to stop."""

    def __init__(
        self,
        seconds: float,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._stopping = stopping
        self._clock = clock
        self._until = math.inf

    def deadline(self, seconds: float | None = None) -> float:
        """When a call that begins now fails."""
        return self._clock() + (self._seconds if seconds is None else seconds)

    def left(self, deadline: float) -> float:
        """Seconds to a deadline; at least a moment, so that an answer that is there is taken."""
        return max(min(deadline, self._end()) - self._clock(), 0.001)

    def over(self, deadline: float) -> bool:
        """Whether it has passed."""
        return self._clock() >= min(deadline, self._end())

    def _end(self) -> float:
        if self._until == math.inf and self._stopping():
            self._until = self._clock() + _WHEN_STOPPING
        return self._until

    def ask(
        self,
        what: str,
        call: Callable[[float], _Result],
        *,
        seconds: float | None = None,
        again: Callable[[], None] = lambda: None,
    ) -> _Result:
        """Call with a time limit, again while what fails may pass, in slices between which signals are handled.

        Args:
            what: names the call in the error.
            call: takes the seconds that it may wait.
            seconds: time in all (default: this patience's).
            again: called before each further attempt.

        Raises:
            BusError: it failed, or time is up.
        """
        deadline = self.deadline(seconds)
        while True:
            try:
                return call(min(self.left(deadline), _SLICE * 4))
            except KafkaException as problem:
                error = error_of(problem)
                passing = error.code() in _PASSING or error.retriable()
                if error.fatal() or not passing or self.over(deadline):
                    msg = f"{what}: {error.str()} ({error.name()})"
                    if error.code() in _MISSING:
                        raise TopicMissing(f"{msg}. Make it with: meguri topics create") from problem
                    raise BusError(msg) from problem
            time.sleep(min(_SLICE / 10, self.left(deadline)))
            again()

    def bounded(self, what: str, call: Callable[[], _Result], *, seconds: float) -> _Result:
        """Call on a thread of its own, and wait no longer than so: for calls that outstay their own time limits.

        Signals are handled meanwhile. A call that is given up goes on, and keeps alive what it uses.

        Args:
            what: names the call in the error.
            call: raises what it likes.
            seconds: time in all.

        Raises:
            BusError: it hasn't come back.
        """
        answer: Future[_Result] = Future()

        def work() -> None:
            try:
                answer.set_result(call())
            except BaseException as problem:  # noqa: BLE001 - raised where the call is waited for
                answer.set_exception(problem)

        threading.Thread(target=work, name=what, daemon=True).start()
        deadline = self.deadline(seconds)
        while not answer.done():
            if self.over(deadline):
                msg = f"{what}: the client hasn't come back from it; it is given up"
                raise BusError(msg)
            wait((answer,), min(self.left(deadline), _SLICE))
        return answer.result()
