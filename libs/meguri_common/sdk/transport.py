"""What carries a publisher's messages: a port, and the adapter for any bus of this project."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from meguri_common.bus.port import TopicPartition
from meguri_common.errors import BusError, DeliveryFailed, OutcomeUnknown
from meguri_common.topics import PAGES

if TYPE_CHECKING:
    from meguri_common.bus.port import Bus, Producer

__all__ = ["BusTransport", "Transport"]


@runtime_checkable
class Transport(Protocol):
    """Where messages of the pages go."""

    def partitions(self) -> int:
        """How many partitions the pages have."""
        ...

    def send(self, partition: int, payload: bytes) -> None:
        """Take a message over.

        Raises:
            DeliveryFailed: it, or one before it, won't arrive.
        """
        ...

    def flush(self, timeout: float | None) -> None:
        """Return when all that was sent has been acknowledged.

        Args:
            timeout: seconds to wait; None: as long as the transport does by itself.

        Raises:
            DeliveryFailed: something wasn't; it says how much.
        """
        ...

    def close(self) -> None:
        """Release resources; what hasn't been flushed may be lost."""
        ...


class BusTransport:
    """Sends over a bus; each flush is one transaction, which takes effect as a whole or not at all."""

    def __init__(self, bus: Bus, *, name: str = "publisher", topic: str = PAGES) -> None:
        """Take the bus.

        Args:
            bus: any adapter of the bus's port.
            name: the transactional id; a newer publisher of the name takes over from an older one.
            topic: name of the pages topic on this bus.
        """
        self._bus = bus
        self._name = name
        self._topic = topic
        self._producer: Producer | None = None
        self._waiting: list[tuple[int, bytes]] = []

    def partitions(self) -> int:
        """See `Transport`."""
        return self._bus.partitions(self._topic)

    def send(self, partition: int, payload: bytes) -> None:
        """See `Transport`; kept until the flush."""
        self._waiting.append((partition, payload))

    def flush(self, timeout: float | None) -> None:
        """See `Transport`; what failed is given up, as the error says. The bus has its own time limit."""
        del timeout
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        try:
            if self._producer is None:
                self._producer = self._bus.producer(self._name)
            self._producer.begin()
            for partition, payload in waiting:
                self._producer.publish(TopicPartition(self._topic, partition), payload)
            self._producer.commit()
        except BusError as problem:
            self._producer = None  # the next one of the name settles what is open
            may = "may or may not have been published" if isinstance(problem, OutcomeUnknown) else "were not published"
            msg = f"{len(waiting)} messages {may}: {problem}"
            raise DeliveryFailed(msg, [payload for _, payload in waiting]) from problem
        self._bus.barrier()

    def close(self) -> None:
        """See `Transport`; the bus stays open, it is the caller's."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
