"""What stands in a fleet's topics and how far it has come, asked by a process that may break."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from meguri.fleet.cluster import Cluster as Questions
from meguri_common.config import KafkaSettings
from meguri_common.errors import BrokerUnreachable, BusError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafka_fleet import Fleet

__all__ = ["Asking"]

_AGAIN_SECONDS = 0.2


class Asking:
    """Ends and positions of a fleet's topics, asked by a process of its own.

    librdkafka may bring the process down that asks a coordinator whose connection drops (a failed assertion in
    `rd_kafka_enq_once_del_source_return`, its proposed change 5397); the run is to outlive that.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._settings = KafkaSettings(bootstrap=fleet.bootstrap, prefix=fleet.prefix)
        self._pool: ProcessPoolExecutor | None = None
        self.crashed = 0

    def ends(self, topic: str) -> list[int]:
        """The end of each partition of a topic; none if that can't be had now."""
        return self._asked(_ends, topic)

    def committed(self, service: str, topic: str, count: int) -> list[int]:
        """How far a service has committed in each partition; none if that can't be had now."""
        return self._asked(_committed, service, topic, count)

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _asked(self, question: Callable[..., list[int]], *arguments: object) -> list[int]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), initializer=_connect, initargs=(self._settings,)
            )
        try:
            return self._pool.submit(question, *arguments).result()
        except BrokenProcessPool:
            self.crashed += 1
            self.close()
        except (BrokerUnreachable, BusError):
            time.sleep(_AGAIN_SECONDS)
        return []


_asker: list[Questions] = []
"""The connection, in the process that asks."""


def _connect(settings: KafkaSettings) -> None:
    _asker.append(Questions(settings))


def _ends(topic: str) -> list[int]:
    (questions,) = _asker
    return [end for _, end in questions.ends(questions.settings.topic(topic))]


def _committed(service: str, topic: str, count: int) -> list[int]:
    (questions,) = _asker
    settings = questions.settings
    return [at or 0 for at in questions.committed(settings.group(service), settings.topic(topic), count)]
