"""Two ways of reading by position.

`Follower` gives what has come for many partitions at once, fetched ahead, for steps; `Rereader` gives all that was
committed in a range, for restores. Neither has anything to do with a group.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from meguri_common.bus.kafka.failures import error_of, log
from meguri_common.bus.kafka.names import HEADERS_KEY
from meguri_common.bus.port import Batch, Message, TopicPartition
from meguri_common.errors import BusError, PositionGone

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from meguri_common.bus.kafka.failures import Patience
    from meguri_common.bus.kafka.settings import KafkaSettings

__all__ = ["Follower", "Rereader"]

_AT_ONCE = 16
"""Messages that are taken over at once: a few MiB beyond a step's bound at most."""
_MOMENT = 0.05
_FOLLOWER_WAIT_MS = 100
_REREADER_WAIT_MS = 10
_OUT_OF_LOG = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001 - the client's public constants
)


@dataclass
class _Inbox:
    """What has come of a partition and not been taken yet."""

    next: int
    """Where the next batch begins."""
    behind: int
    """The position behind all that has come: behind markers, too, at the partition's end."""
    messages: deque[Message] = field(default_factory=deque)
    size: int = 0
    since: float = 0.0
    """When the oldest of it came."""


class Follower:
    """Follows partitions by position."""

    def __init__(self, settings: KafkaSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._linger = settings.linger
        self._clock = clock
        self._consumer = Consumer(settings.reader(wait_ms=_FOLLOWER_WAIT_MS), logger=log)
        self._inboxes: dict[TopicPartition, _Inbox] = {}

    def follow(self, positions: Mapping[TopicPartition, int], *, max_bytes: int, wait: float) -> list[Batch]:
        """See `bus.port.FollowingBus`."""
        self._assign(positions)
        deadline = self._clock() + wait
        while True:
            # What is due is taken first: what has come beyond a step's bound stays with the client.
            now = self._clock()
            if not self._due(now, max_bytes):
                self._put_all(self._consumer.consume(_AT_ONCE, 0))
                now = self._clock()
            if self._due(now, max_bytes):
                return self._take(max_bytes, now)
            if now >= deadline:
                return []
            if positions:
                self._put_all(self._consumer.consume(1, min(deadline - now, _MOMENT)))
            else:
                time.sleep(deadline - now)

    def close(self) -> None:
        """Release the client."""
        self._consumer.close()

    def last_end(self, source: TopicPartition) -> int | None:
        """The partition's end as last heard, open transactions included."""
        if source not in self._inboxes:
            return None
        found = self._consumer.get_watermark_offsets(ClientPartition(source.topic, source.partition), cached=True)
        return int(found[1]) if found is not None and found[1] >= 0 else None

    def _assign(self, positions: Mapping[TopicPartition, int]) -> None:
        moved = [
            source
            for source, inbox in self._inboxes.items()
            if source not in positions or positions[source] != inbox.next
        ]
        if moved:
            self._consumer.incremental_unassign([ClientPartition(at.topic, at.partition) for at in moved])
            for source in moved:
                del self._inboxes[source]
        added = [source for source in positions if source not in self._inboxes]
        if added:
            self._consumer.incremental_assign([ClientPartition(at.topic, at.partition, positions[at]) for at in added])
            for source in added:
                self._inboxes[source] = _Inbox(positions[source], positions[source])

    def _put_all(self, messages: list[Any]) -> None:
        for message in messages:
            self._put(message)

    def _put(self, message: Any) -> None:
        source = TopicPartition(message.topic(), message.partition())
        inbox = self._inboxes.get(source)
        error = message.error()
        if inbox is None:
            return
        if error is None:
            if message.offset() < inbox.behind:
                return
            if inbox.behind == inbox.next:
                inbox.since = self._clock()
            inbox.messages.append(_converted(message))
            inbox.size += len(message.value() or b"")
            inbox.behind = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - see above
            if message.offset() > inbox.behind:
                if inbox.behind == inbox.next:
                    inbox.since = self._clock()
                inbox.behind = message.offset()
        else:
            del self._inboxes[source]
            self._consumer.incremental_unassign([ClientPartition(source.topic, source.partition)])
            if error.code() in _OUT_OF_LOG:
                msg = f"{source}: offset {inbox.behind} isn't in the log: {error.str()}"
                raise PositionGone(msg, source)
            msg = f"{source}: {error.str()} ({error.name()})"
            raise BusError(msg)

    def _due(self, now: float, max_bytes: int) -> bool:
        size = 0
        for inbox in self._inboxes.values():
            if inbox.behind > inbox.next and now - inbox.since >= self._linger:
                return True
            size += inbox.size
        return size >= max_bytes

    def _take(self, max_bytes: int, now: float) -> list[Batch]:
        """What has come, up to the bound; what has waited longest comes first."""
        batches: list[Batch] = []
        room = max_bytes
        waiting = [source for source, inbox in self._inboxes.items() if inbox.behind > inbox.next]
        for source in sorted(waiting, key=lambda source: self._inboxes[source].since):
            inbox = self._inboxes[source]
            messages = []
            while inbox.messages and (room > 0 or not batches):
                message = inbox.messages.popleft()
                messages.append(message)
                size = len(message.payload)  # type: ignore[arg-type]  # bytes, from the client
                inbox.size -= size
                room -= size
                if room <= 0:
                    break
            inbox.next = messages[-1].offset + 1 if inbox.messages else inbox.behind
            inbox.since = now
            batches.append(Batch(source, messages, inbox.next))
            if room <= 0:
                break
        return batches


class Rereader:
    """Reads ranges, one partition at a time; goes on where the last read ended without fetching anew."""

    def __init__(self, settings: KafkaSettings, patience: Patience) -> None:
        self._patience = patience
        self._consumer = Consumer(settings.reader(wait_ms=_REREADER_WAIT_MS), logger=log)
        self._source: TopicPartition | None = None
        self._next = -1
        self._eof = -1
        """The partition's end as last heard of: behind markers."""
        self._left: deque[Message] = deque()

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        """First offset kept, and the end of what readers may see."""

        def ask(left: float) -> tuple[int, int]:
            try:
                found = self._consumer.get_watermark_offsets(ClientPartition(source.topic, source.partition), left)
            except KafkaException as problem:
                if error_of(problem).code() != KafkaError._UNKNOWN_PARTITION:  # noqa: SLF001 - a public constant
                    raise
                # What a broker that had just started said of its topics; the client is to ask again.
                self._consumer.list_topics(source.topic, timeout=left)
                raise KafkaException(KafkaError(KafkaError._WAIT_CACHE)) from problem  # noqa: SLF001 - see above
            if found is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - a public constant
            return found

        first, end = self._patience.ask(f"{source}: its ends", ask)
        return first, end

    def read(self, source: TopicPartition, start: int, *, end: int | None, max_bytes: int | None) -> list[Message]:
        """See `bus.port.Bus.read`."""
        first, stop = self.watermarks(source)
        if start < first:
            msg = f"{source}: offset {start} is gone, the log begins at {first}"
            raise PositionGone(msg, source)
        if end is not None:
            stop = min(stop, end)
        if start >= stop:
            return []
        if self._source != source or self._next != start:
            self._consumer.assign([ClientPartition(source.topic, source.partition, start)])
            self._source, self._next, self._eof = source, start, -1
            self._left.clear()
        try:
            return self._collect(source, stop, max_bytes)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Fetch nothing ahead any more."""
        if self._source is not None:
            self._consumer.unassign()
            self._source = None
            self._left.clear()

    def close(self) -> None:
        """Release the client."""
        self._consumer.close()

    def _collect(self, source: TopicPartition, stop: int, max_bytes: int | None) -> list[Message]:
        out: list[Message] = []
        size = 0
        deadline = self._patience.deadline()
        while max_bytes is None or size < max_bytes:
            if self._left:
                if self._left[0].offset >= stop:
                    break
                out.append(self._left.popleft())
                size += len(out[-1].payload)  # type: ignore[arg-type]  # bytes, from the client
                self._next = out[-1].offset + 1
            elif max(self._next, self._eof) >= stop:
                break
            else:
                messages = self._consumer.consume(_AT_ONCE, 0) or self._consumer.consume(1, _MOMENT)
                if messages:
                    deadline = self._patience.deadline()
                elif self._patience.over(deadline):
                    msg = f"{source}: no answer from the brokers at offset {self._next}"
                    raise BusError(msg)
                for message in messages:
                    self._put(source, message)
        return out

    def _put(self, source: TopicPartition, message: Any) -> None:
        if (message.topic(), message.partition()) != (source.topic, source.partition):
            return
        error = message.error()
        if error is None:
            if message.offset() >= self._next:
                self._left.append(_converted(message))
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - see above
            self._eof = message.offset()
        elif error.code() in _OUT_OF_LOG:
            msg = f"{source}: offset {self._next} isn't in the log: {error.str()}"
            raise PositionGone(msg, source)
        else:
            msg = f"{source}: {error.str()} ({error.name()})"
            raise BusError(msg)


def _converted(message: Any) -> Message:
    headers = next((value for key, value in message.headers() or () if key == HEADERS_KEY), b"")
    return Message(message.offset(), message.value() or b"", headers or b"", max(message.timestamp()[1], 0) // 1000)
