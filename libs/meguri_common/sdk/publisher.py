"""The publisher: events in, checked and batched, onto the pages; errors are raised, never dropped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from meguri_common.config import KafkaSettings
from meguri_common.errors import DeliveryFailed
from meguri_common.events.decode import decode_event
from meguri_common.events.model import ControlEvent, PageEvent, SeedEvent, SignalEvent, SitemapEvent
from meguri_common.sdk.batching import BUNDLE_BYTES, Batcher
from meguri_common.sdk.kafka import KafkaTransport
from meguri_common.sdk.transport import BusTransport, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from meguri_common.bus.port import Bus
    from meguri_common.events.model import Event

__all__ = ["Publisher"]

_EVENTS = (PageEvent, SeedEvent, SitemapEvent, SignalEvent, ControlEvent)


class Publisher:
    """Publishes events, for one thread. Use it in a `with`, or call `close` at the end.

    Events are collected by partition. A message goes out when about 1 MiB has come together for it, when an event
    comes and the oldest one has waited for `linger` seconds, and at a `flush`. A program that pauses for long flushes
    before.
    """

    def __init__(
        self,
        target: Bus | Transport,
        *,
        linger: float = 1.0,
        bundle_bytes: int = BUNDLE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a bus, or another transport.

        Args:
            target: where to publish.
            linger: seconds that an event may wait for others.
            bundle_bytes: bytes of a message, about; a larger event travels alone.
            clock: monotonic seconds.

        Raises:
            BusError: the pages topic can't be found.
        """
        self._transport = target if isinstance(target, Transport) else BusTransport(target)
        self._batcher = Batcher(self._transport.partitions(), limit=bundle_bytes)
        self._linger = linger
        self._clock = clock
        self._oldest: float | None = None

    @classmethod
    def connect(
        cls, bootstrap: str | KafkaSettings, *, delivery_seconds: float = 120.0, linger: float = 1.0, **client: str
    ) -> Self:
        """A publisher onto Kafka.

        Args:
            bootstrap: HOST:PORT of brokers, with commas between; or settings, as `load_settings` gives them.
            delivery_seconds: time that a message may take before it counts as failed, broker outages included.
            linger: see the constructor.
            client: settings of librdkafka for TLS and SASL, underscores for dots: `security_protocol="SSL"`.

        Raises:
            MissingExtra: there is no Kafka client.
            BrokerUnreachable: no broker answers.
            BusError: a setting is wrong, or there is no such topic.
        """
        if isinstance(bootstrap, str):
            names = {name.replace("_", "."): value for name, value in client.items()}
            bootstrap = KafkaSettings(bootstrap=bootstrap, client=names)
        return cls(KafkaTransport(bootstrap, delivery_seconds=delivery_seconds), linger=linger)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def page(self, **fields: Any) -> None:
        """Publish a fetch: `url` and `fetched_at` are required, the others as in the schema of a page."""
        self.publish({"type": "page", **fields})

    def seed(self, **fields: Any) -> None:
        """Publish start URLs of one host group: `urls`, `observed_at`, `cash`."""
        self.publish({"type": "seed", **fields})

    def sitemap(self, **fields: Any) -> None:
        """Publish a sitemap: `url`, `observed_at`, `entries`."""
        self.publish({"type": "sitemap", **fields})

    def signal(self, **fields: Any) -> None:
        """Publish imported reputation: `epoch`, `hosts`, `urls`."""
        self.publish({"type": "signal", **fields})

    def control(self, **fields: Any) -> None:
        """Publish a decision: `at`, `action`, `host` or `url`, `value`."""
        self.publish({"type": "control", **fields})

    def publish(self, event: Event | Mapping[str, Any] | bytes) -> None:
        """Publish an event: typed, a mapping, or its line of JSON.

        Raises:
            EventRejected: it would be rejected: a field is missing or wrong; names it.
            DeliveryFailed: events before it were not acknowledged; `undelivered` holds them.
        """
        line = event if isinstance(event, bytes) else msgspec.json.encode(event)
        line = line.rstrip(b"\r\n")
        decode_event(line)
        if b"\n" in line:
            line = msgspec.json.encode(msgspec.json.decode(line))  # one event is one line
        full = self._batcher.add(line)
        now = self._clock()
        if full is not None:
            self._transport.send(full.partition, full.payload)
        if self._oldest is None:
            self._oldest = now
        elif now - self._oldest >= self._linger:
            self._send_all()

    def flush(self, timeout: float | None = None) -> None:
        """Send what has been collected, and return when all of it has been acknowledged.

        Args:
            timeout: seconds to wait; by default the time that deliveries may take.

        Raises:
            DeliveryFailed: something wasn't acknowledged; `undelivered` holds it.
        """
        self._send_all()
        self._transport.flush(timeout)

    def close(self) -> None:
        """Flush, and release the connection.

        Raises:
            DeliveryFailed: something wasn't acknowledged.
        """
        try:
            self.flush()
        finally:
            self._transport.close()

    def _send_all(self) -> None:
        self._oldest = None
        failures: list[DeliveryFailed] = []
        for packed in self._batcher.drain():
            try:
                self._transport.send(packed.partition, packed.payload)
            except DeliveryFailed as problem:  # about earlier ones: what has been collected is sent all the same
                failures.append(problem)
        if failures:
            raise DeliveryFailed(str(failures[0]), [line for problem in failures for line in problem.undelivered])
