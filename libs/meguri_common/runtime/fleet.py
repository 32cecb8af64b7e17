"""The loop of a service's process in the fleet: work, wait, tell, and stop in order.

An outage of the brokers or of the disk stops nothing for good: what fails is tried again, at growing intervals.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from meguri_common.errors import BusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_common.runtime.worker import Worker

__all__ = ["FleetProcess"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 5.0
_IDLE_PAUSE = 0.05


class FleetProcess:
    """Runs a worker until it is asked to stop."""

    def __init__(
        self,
        worker: Callable[[], Worker],
        *,
        stopping: Callable[[], bool],
        tick: Callable[[Worker], None] = lambda _worker: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set up.

        Args:
            worker: makes the worker; called again while the brokers don't answer.
            stopping: asked between two pieces of work; true ends the loop.
            tick: called between two pieces of work: telemetry, readiness.
            sleep: waits.
        """
        self._make = worker
        self._stopping = stopping
        self._tick = tick
        self._sleep = sleep

    def run(self) -> bool:
        """Work until asked to stop, then snapshot and leave; whether that went well.

        Raises:
            TopicMissing: the topics aren't there.
        """
        worker = self._start()
        if worker is None:
            return True
        while not self._stopping():
            busy = worker.run_once()
            self._tick(worker)
            if worker.failures:
                self._sleep(min(_FIRST_PAUSE * 2 ** min(worker.failures, 10), _LONGEST_PAUSE))
            elif not busy and not worker.waits:
                self._sleep(_IDLE_PAUSE)
        began = time.monotonic()
        try:
            worker.stop()
        except BusError as problem:
            _log.warning("%s: left without a word to the brokers: %s", worker.spec.name, problem)
            return False
        _log.info("%s: stopped in order within %.1f s", worker.spec.name, time.monotonic() - began)
        return True

    def _start(self) -> Worker | None:
        pause = _FIRST_PAUSE
        while not self._stopping():
            try:
                return self._make()
            except BusError as problem:
                if not problem.passes:
                    raise
                _log.warning("waiting for the brokers: %s", problem)
            self._sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        return None
