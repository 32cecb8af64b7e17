"""What tests on a broker share: topics, settings with short times, a bus that shows at once what has committed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import IsolationLevel
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from meguri_common.bus.kafka.bus import KafkaBus
from meguri_common.bus.kafka.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meguri_common.bus.port import Message, TopicPartition

__all__ = ["PatientBus", "make_topics", "short_settings"]

_MARKERS_WITHIN = 0.5


def make_topics(bootstrap: str, topics: Mapping[str, int], *, copies: int = 1) -> None:
    """Create topics, as internal ones are meant to be."""
    config = {"retention.ms": "-1", "compression.type": "producer", "max.message.bytes": str(11 << 20)}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = [
        NewTopic(name, num_partitions=count, replication_factor=copies, config=config) for name, count in topics.items()
    ]
    for future in admin.create_topics(wanted).values():
        future.result(30)
    # The brokers hear of them a moment later.
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        known = admin.list_topics(timeout=10).topics
        if all(name in known and len(known[name].partitions) == count for name, count in topics.items()):
            return
        time.sleep(0.02)
    raise AssertionError(f"topics {sorted(topics)} don't appear")


def short_settings(bootstrap: str, **changes: Any) -> KafkaSettings:
    """Settings under which what is lost is missed within seconds."""
    times = {"transaction_timeout": 8.0, "session_timeout": 1.5, "give_up_timeout": 1.5, "linger": 0.02}
    return KafkaSettings({"bootstrap.servers": bootstrap}, **{**times, **changes})


class PatientBus(KafkaBus):
    """Waits for the markers of what has committed before it reads: they come a moment after the commit."""

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        self._await_markers(source)
        return super().watermarks(source)

    def read(
        self, source: TopicPartition, start: int, *, end: int | None = None, max_bytes: int | None = None
    ) -> list[Message]:
        self._await_markers(source)
        return super().read(source, start, end=end, max_bytes=max_bytes)

    def _await_markers(self, source: TopicPartition) -> None:
        deadline = time.monotonic() + _MARKERS_WITHIN
        at = ClientPartition(source.topic, source.partition)
        self._check(source)
        while time.monotonic() < deadline:
            ends = {
                self._admin.list_offsets({at: OffsetSpec.latest()}, isolation_level=level)[at].result().offset
                for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            }
            if len(ends) == 1:
                return
