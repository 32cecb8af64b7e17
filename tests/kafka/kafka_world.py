"""What tests on a broker share: topics, settings with short times, a bus that shows at once what has committed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient, NewTopic

from meguri_common.bus.kafka.bus import KafkaBus
from meguri_common.bus.kafka.reading import Rereader
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

    _uncommitted: Rereader | None = None

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        self._await_markers(source)
        return super().watermarks(source)

    def read(
        self, source: TopicPartition, start: int, *, end: int | None = None, max_bytes: int | None = None
    ) -> list[Message]:
        self._await_markers(source)
        return super().read(source, start, end=end, max_bytes=max_bytes)

    def close(self) -> None:
        super().close()
        if self._uncommitted is not None:
            self._uncommitted.close()

    def _await_markers(self, source: TopicPartition) -> None:
        deadline = time.monotonic() + _MARKERS_WITHIN
        self._check(source)
        if self._uncommitted is None:
            everything = {**self.settings.extra, "isolation.level": "read_uncommitted"}
            self._uncommitted = Rereader(replace(self.settings, extra=everything), self.patience)
        real = self._real(source)
        while time.monotonic() < deadline and super().watermarks(source) != self._uncommitted.watermarks(real):
            time.sleep(0.01)
