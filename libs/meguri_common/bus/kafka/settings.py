"""What the adapter's clients are set to, in one place: each property with why it is so."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meguri_common.bus.kafka.names import PREFIX, TOPIC_PREFIX, group_id, transactional_id

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KafkaSettings"]

_FRESH = {"topic.metadata.refresh.interval.ms": 10_000}
"""A broker that has just started may answer that it knows of no partitions. The client believes it until it asks again,
by default for five minutes: a group assigns nothing meanwhile, and ends can't be read."""

_MESSAGE_BYTES = 10 << 20
_HEARTBEAT_SECONDS = 2.0
_FETCHED_AHEAD_KIB = 32 << 10
_QUEUE_BACKOFF_MS = 20


@dataclass(frozen=True)
class KafkaSettings:
    """How the bus talks to its brokers. Times are in seconds."""

    client: Mapping[str, Any]
    """Properties for every client: `bootstrap.servers`, and what TLS and SASL need."""
    transaction_timeout: float = 15.0
    """After it the broker gives up a transaction; a killed instance's holds readers back for as long."""
    session_timeout: float = 10.0
    """After it a silent instance's partitions go to others."""
    give_up_timeout: float = 120.0
    """Time to finish a step and to snapshot when partitions are asked for; the instance is taken for lost after it."""
    stall_timeout: float = 300.0
    """An instance that hasn't used the bus for as long stops taking part in its group: others go on."""
    request_timeout: float = 30.0
    """Time that a call waits for the brokers before it fails; the caller tries again."""
    protocol: str = "classic"
    """Rebalance protocol: `classic` (cooperative), or `consumer` (KIP-848: the broker states the session's timeout)."""
    prefix: str = PREFIX
    """What the names of groups and the transactional ids begin with."""
    topic_prefix: str = TOPIC_PREFIX
    """What topics whose names begin with `meguri.` begin with on the brokers instead."""
    linger: float = 0.2
    """Time that messages may wait for others before a step takes them: small steps cost several times as much."""
    message_bytes: int = _MESSAGE_BYTES
    """A message's size at most; the topics' own limit is the broker's."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Properties that override all others, for tests."""

    def topic(self, name: str) -> str:
        """The broker's name of a topic."""
        renamed = self.topic_prefix != TOPIC_PREFIX and name.startswith(TOPIC_PREFIX)
        return self.topic_prefix + name.removeprefix(TOPIC_PREFIX) if renamed else name

    def producer(self, name: str) -> dict[str, Any]:
        """Properties of a transactional producer."""
        return {
            **self.client,
            **_FRESH,
            "transactional.id": transactional_id(name, self.prefix),
            "transaction.timeout.ms": round(self.transaction_timeout * 1000),
            # Writes wait for all in-sync copies (implied by a transaction): what has committed is durable.
            "acks": "all",
            "compression.type": "zstd",
            "message.max.bytes": self.message_bytes,
            "linger.ms": 5,
            **self.extra,
        }

    def reader(self, *, wait_ms: int) -> dict[str, Any]:
        """Properties of a consumer that reads assigned partitions and commits nothing.

        Args:
            wait_ms: how long the broker holds a fetch back when there is nothing: also how late an end is noticed.
        """
        return {
            **self.client,
            **_FRESH,
            # The client wants a name; nothing is ever committed under it.
            "group.id": group_id("reader", self.prefix),
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            # Never a silent gap: a position that isn't in the log is an error.
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": wait_ms,
            "fetch.error.backoff.ms": 100,
            "queued.max.messages.kbytes": _FETCHED_AHEAD_KIB,
            # A full queue is looked at again after so long (a second by default, in which all of it has been read).
            "fetch.queue.backoff.ms": _QUEUE_BACKOFF_MS,
            **self.extra,
        }

    def member(self, group: str) -> dict[str, Any]:
        """Properties of a consumer that takes part in a group; its partitions stay paused."""
        shared = {
            **self.client,
            **_FRESH,
            "group.id": group_id(group, self.prefix),
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "max.poll.interval.ms": round(max(self.give_up_timeout, self.session_timeout) * 1000),
        }
        if self.protocol == "consumer":
            return {**shared, "group.protocol": "consumer", **self.extra}
        return {
            **shared,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": round(self.session_timeout * 1000),
            # A member learns of a rebalance from the answer to a heartbeat, however long it may be silent.
            "heartbeat.interval.ms": round(min(self.session_timeout / 5, _HEARTBEAT_SECONDS) * 1000),
            **self.extra,
        }

    def admin(self) -> dict[str, Any]:
        """Properties of the client for questions about topics and groups."""
        return {**self.client, **self.extra}
