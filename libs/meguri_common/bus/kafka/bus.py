"""The bus over Kafka's topics. See `bus.port.Bus`; it isn't a row bus, and it follows many partitions at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from meguri_common.bus.kafka.failures import Patience, error_of, log
from meguri_common.bus.kafka.member import KafkaMember
from meguri_common.bus.kafka.names import group_id
from meguri_common.bus.kafka.producer import KafkaProducer
from meguri_common.bus.kafka.reading import Follower, Rereader
from meguri_common.bus.kafka.renewing import Renewed
from meguri_common.bus.port import Batch, Commit, TopicPartition
from meguri_common.errors import BusError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from meguri_common.bus.kafka.settings import KafkaSettings
    from meguri_common.bus.port import Message

__all__ = ["KafkaBus"]

_Result = TypeVar("_Result")

_STABLE = 30.0
"""Seconds beyond the transactions' timeout that a stable offset is waited for."""


class KafkaBus:
    """See `bus.port.FollowingBus`. Not for several threads; members keep one of their own."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        now: Callable[[], float] = time.time,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Connect when first used.

        Args:
            settings: brokers and times.
            now: clock for append times, epoch seconds.
            stopping: whether the process is to stop: no call waits for long any more.
        """
        self.settings = settings
        self.patience = Patience(settings.request_timeout, stopping)
        self._now = now
        self._admins = Renewed(lambda: AdminClient(self.settings.admin(), logger=log))
        self._follower: Follower | None = None
        self._rereader: Rereader | None = None
        self._counts: dict[str, int] = {}
        self._producers: dict[str, KafkaProducer] = {}
        self._members: list[KafkaMember] = []
        self._last_use = time.monotonic()

    def partitions(self, topic: str) -> int:
        """See `Bus`; the number is asked for once."""
        self._used()
        if topic not in self._counts:
            self._counts[topic] = len(self._describe(topic).partitions)
        return self._counts[topic]

    def topic_id(self, topic: str) -> str:
        """See `Bus`."""
        self._used()
        return str(self._describe(topic).topic_id)

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        """See `Bus`: the end is that of what readers may see, behind the marker of the last transaction."""
        self._used()
        self._check(source)
        return self._rereading().watermarks(self._real(source))

    def read(
        self, source: TopicPartition, start: int, *, end: int | None = None, max_bytes: int | None = None
    ) -> list[Message]:
        """See `Bus`."""
        self._used()
        self._check(source)
        return self._rereading().read(self._real(source), start, end=end, max_bytes=max_bytes)

    def follow(self, positions: Mapping[TopicPartition, int], *, max_bytes: int, wait: float) -> list[Batch]:
        """See `FollowingBus`."""
        self._used()
        if self._rereader is not None:
            self._rereader.release()
        if self._follower is None:
            self._follower = Follower(self.settings)
        asked = {self._real(source): source for source in positions}
        found = self._follower.follow(
            {real: positions[source] for real, source in asked.items()}, max_bytes=max_bytes, wait=wait
        )
        return [Batch(asked[batch.source], batch.messages, batch.position) for batch in found]

    def committed(self, group: str, source: TopicPartition) -> Commit | None:
        """See `Bus`.

        Raises:
            BusError: a transaction holds an offset of the partition for longer than its timeout.
        """
        self._used()
        self._check(source)
        name = group_id(group, self.settings.prefix)
        asked = ConsumerGroupTopicPartitions(
            name, [ClientPartition(self.settings.topic(source.topic), source.partition)]
        )

        def ask(left: float) -> Commit | None:
            self._used()
            admin = self._admins.client
            futures = admin.list_consumer_group_offsets([asked], require_stable=True, request_timeout=left)
            try:
                (found,) = futures[name].result().topic_partitions
            except KafkaException as problem:
                if error_of(problem).code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return None
                raise
            if found.error is not None:
                raise KafkaException(found.error)
            return Commit(found.offset, found.metadata or "") if found.offset >= 0 else None

        seconds = self.settings.transaction_timeout + _STABLE
        return self._ask(f"{source}: the stable offset of group {group}", ask, seconds)

    def producer(self, transactional_id: str) -> KafkaProducer:
        """See `Bus`."""
        self._used()
        older = self._producers.pop(transactional_id, None)
        if older is not None:
            older.supersede()
        made = KafkaProducer(transactional_id, self.settings, self.patience, now=self._now, check=self._check)
        self._producers[transactional_id] = made
        return made

    def join(self, group: str, topic: str) -> KafkaMember:
        """See `Bus`."""
        self._used()
        self.partitions(topic)
        member = KafkaMember(group, topic, self.settings, last_use=lambda: self._last_use)
        self._members.append(member)
        return member

    def last_end(self, source: TopicPartition) -> int | None:
        """The inbox's end as a fetch has last told, for telemetry: never asks the brokers; None if not known."""
        return self._follower.last_end(self._real(source)) if self._follower is not None else None

    def barrier(self) -> None:
        """See `Bus`: all in-sync copies hold what has committed, since every write waits for them."""
        self._used()

    def trim(self, source: TopicPartition, before: int) -> None:
        """See `Bus`; should the brokers not answer, the messages stay until the next time."""
        self._used()
        self._check(source)
        at = TopicPartition(self.settings.topic(source.topic), source.partition)

        def ask(left: float, position: ClientPartition) -> None:
            for future in self._admins.client.delete_records(
                [position], request_timeout=left, operation_timeout=left
            ).values():
                future.result()

        try:
            first, end = self._rereading().watermarks(at)
            if before > first:
                position = ClientPartition(at.topic, at.partition, min(before, end))
                self._ask(f"{source}: dropping messages below {before}", lambda left: ask(left, position))
        except BusError as problem:
            log.warning("%s; they stay for now", problem)

    def close(self) -> None:
        """See `Bus`: producers and members go, too."""
        for producer in self._producers.values():
            producer.supersede()
        for member in self._members:
            member.leave()
        for reader in (self._follower, self._rereader):
            if reader is not None:
                reader.close()
        self._producers, self._members, self._follower, self._rereader = {}, [], None, None

    def _used(self) -> None:
        self._last_use = time.monotonic()

    def _rereading(self) -> Rereader:
        if self._rereader is None:
            self._rereader = Rereader(self.settings, self.patience)
        return self._rereader

    def _check(self, source: TopicPartition) -> None:
        count = self.partitions(source.topic)
        if not 0 <= source.partition < count:
            msg = f"{source.topic} has partitions 0 to {count - 1}, not {source.partition}"
            raise BusError(msg)

    def _real(self, source: TopicPartition) -> TopicPartition:
        """The broker's name of a partition."""
        return TopicPartition(self.settings.topic(source.topic), source.partition)

    def _describe(self, name: str) -> Any:
        topic = self.settings.topic(name)

        def ask(left: float) -> Any:
            return self._admins.client.describe_topics(TopicCollection([topic]), request_timeout=left)[topic].result()

        return self._ask(f"topic {topic}", ask)

    def _ask(self, what: str, call: Callable[[float], _Result], seconds: float | None = None) -> _Result:
        """Ask through the admin client, and through a new one after failures."""
        return self.patience.ask(what, call, seconds=seconds, again=self._admins.renew)
