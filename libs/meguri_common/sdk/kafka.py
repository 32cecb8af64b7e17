"""Sending over Kafka: an idempotent producer that waits for all in-sync replicas and reports every delivery."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from meguri_common.errors import BrokerUnreachable, BusError, DeliveryFailed
from meguri_common.kafka import kafka_module
from meguri_common.topics import PAGES, PAGES_MESSAGE_BYTES

if TYPE_CHECKING:
    from meguri_common.config import KafkaSettings

__all__ = ["KafkaTransport"]

_QUEUE_KIB = 64 << 10
_POLL_SECONDS = 0.1
_logger = logging.getLogger("meguri.kafka")
_logger.addHandler(logging.NullHandler())


class KafkaTransport:
    """See `Transport`. Up to 64 MiB wait for the broker; then `send` waits."""

    def __init__(self, settings: KafkaSettings, *, delivery_seconds: float = 120.0) -> None:
        """Set up; the first question connects.

        Args:
            settings: where the brokers are, and as whom to come.
            delivery_seconds: time that a message may take before it counts as failed, broker outages included.

        Raises:
            ConfigError: no broker is given.
            MissingExtra: there is no Kafka client.
            BusError: the client doesn't take a setting.
        """
        self._kafka = kafka_module()
        self._topic = settings.topic(PAGES)
        self._where = settings.bootstrap
        self._delivery_seconds = delivery_seconds
        self._failed: list[tuple[bytes, str]] = []
        config = settings.client_config(
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            linger_ms=20,
            message_max_bytes=PAGES_MESSAGE_BYTES,
            delivery_timeout_ms=round(delivery_seconds * 1000),
            queue_buffering_max_kbytes=_QUEUE_KIB,
        )
        try:
            self._producer: Any = self._kafka.Producer(config, logger=_logger)
        except self._kafka.KafkaException as problem:
            msg = f"the settings for Kafka: {problem.args[0].str()}"
            raise BusError(msg) from problem

    def partitions(self) -> int:
        """See `Transport`.

        Raises:
            BrokerUnreachable: no broker answers.
            BusError: there is no such topic.
        """
        try:
            found = self._producer.list_topics(self._topic, timeout=min(self._delivery_seconds, 30.0))
        except self._kafka.KafkaException as problem:
            msg = f"no broker answers at {self._where}: {problem.args[0].str()}"
            raise BrokerUnreachable(msg) from problem
        topic = found.topics[self._topic]
        if topic.error is not None or not topic.partitions:
            msg = f"{self._topic}: {topic.error or 'there is no such topic'}. Make it with: meguri topics create"
            raise BusError(msg)
        return len(topic.partitions)

    def send(self, partition: int, payload: bytes) -> None:
        """See `Transport`."""
        deadline = time.monotonic() + self._delivery_seconds
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    payload,
                    partition=partition,
                    on_delivery=lambda error, _message: self._delivered(payload, error),
                )
                break
            except BufferError:
                # Full of messages that wait for the broker; each of them ends within the time for deliveries.
                self._producer.poll(_POLL_SECONDS)
                if time.monotonic() > deadline:
                    self._failed.append((payload, "the queue stays full: the broker takes nothing"))
                    break
            except self._kafka.KafkaException as problem:
                self._failed.append((payload, problem.args[0].str()))
                break
        self._producer.poll(0)
        self._raise_failed()

    def flush(self, timeout: float | None) -> None:
        """See `Transport`."""
        left = self._producer.flush(self._delivery_seconds + 5.0 if timeout is None else timeout)
        self._raise_failed()
        if left:
            msg = f"{left} messages have not been acknowledged in time; they are still being sent"
            raise DeliveryFailed(msg)

    def close(self) -> None:
        """See `Transport`."""
        self._producer.flush(0)

    def _delivered(self, payload: bytes, error: Any) -> None:
        if error is not None:
            self._failed.append((payload, error.str()))

    def _raise_failed(self) -> None:
        if self._failed:
            failed, self._failed = self._failed, []
            msg = f"{len(failed)} messages were not acknowledged; the first: {failed[0][1]}"
            raise DeliveryFailed(msg, [payload for payload, _ in failed])
