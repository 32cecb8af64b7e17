"""Reports onto a topic of Kafka: not in the work's transactions, in the background, dropped when the broker is slow."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from meguri_common.kafka import kafka_module
from meguri_common.topics import TELEMETRY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["KafkaEmitter"]

_log = logging.getLogger(__name__)

_SETTINGS: Mapping[str, Any] = {
    "acks": "1",
    "linger.ms": 50,
    "compression.type": "zstd",
    "queue.buffering.max.kbytes": 4096,
    "queue.buffering.max.messages": 1000,
    "message.timeout.ms": 5000,
    "retries": 0,
    "log_level": 2,
}
"""What makes loss cheap: little memory, no retries, and what is older than five seconds isn't worth sending. Of the
brokers' troubles the data path's client tells."""

_CLOSE_SECONDS = 1.0


class _Client(Protocol):
    """What is used of confluent_kafka.Producer."""

    def produce(self, topic: str, *, key: bytes, value: bytes) -> None: ...

    def poll(self, timeout: float) -> int: ...

    def flush(self, timeout: float) -> int: ...


class KafkaEmitter:
    """Sends messages of `meguri.telemetry`, keyed by service."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str = TELEMETRY,
        *,
        client: Callable[[dict[str, Any]], _Client] | None = None,
    ) -> None:
        """Connect in the background; a broker that can't be reached is no error here.

        Args:
            config: librdkafka's settings: where the brokers are, TLS and SASL.
            topic: name on the cluster of `meguri.telemetry`.
            client: makes the producer (default: confluent_kafka's).

        Raises:
            MissingExtra: confluent-kafka isn't installed.
        """
        make = client or kafka_module().Producer
        self._topic = topic
        self._client: _Client = make({**config, **_SETTINGS, "error_cb": _log_error})

    def send(self, key: str, message: bytes) -> bool:
        """Queue a message; False if the queue is full, since the broker is slow or away."""
        self._client.poll(0)
        try:
            self._client.produce(self._topic, key=key.encode(), value=message)
        except BufferError:
            return False
        return True

    def close(self) -> None:
        """Wait for what is queued, for a second at most."""
        self._client.flush(_CLOSE_SECONDS)


def _log_error(problem: object) -> None:
    """The broker's state is the data path's to judge: here it is a note."""
    _log.debug("telemetry: %s", problem)
