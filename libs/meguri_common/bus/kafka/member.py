"""Membership in a consumer group, kept by a thread of its own.

The thread polls, so that heartbeats and rebalances go on while the worker restores, steps or snapshots; the worker
hears of changes when it polls. The group's partitions stay paused here: they are read by position, elsewhere. Only
the thread touches the client: a second one that asks it something can block both for good.

What makes late commits impossible: a partition goes to another member only after the callback that takes it from
this one has returned, and the callback tells the worker first. So a commit goes out under the last generation seen
only while no loss of its partitions is on the way to the worker; otherwise it is refused here.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from meguri_common.bus.kafka.failures import error_of, log
from meguri_common.bus.port import Assigned, Lost, Revoked
from meguri_common.errors import BusError, Fenced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from meguri_common.bus.kafka.settings import KafkaSettings
    from meguri_common.bus.port import MembershipEvent

__all__ = ["KafkaMember"]

_POLL = 0.1
_CLOSE = 10.0
_REJOIN = 2.0
_GENERATION = struct.Struct("<i")
_METADATA_MARK = b"CGMDv2:"


class KafkaMember:
    """See `bus.port.Member`."""

    def __init__(self, group: str, topic: str, settings: KafkaSettings, *, last_use: Callable[[], float]) -> None:
        """Join.

        Args:
            group: name of the group on the bus.
            topic: whose partitions it shares.
            settings: of the bus.
            last_use: monotonic time at which the bus was last used: a worker that hangs must not keep its partitions.
        """
        self.group = group
        self.topic = topic
        self._last_use = last_use
        self._stall = settings.stall_timeout
        self._changed = threading.Condition()
        self._events: deque[MembershipEvent] = deque()
        self._owned: set[int] = set()
        """Partitions that the worker knows to be its own."""
        self._asked_for: set[int] = set()
        """Partitions that the worker has been asked to give up; its next poll says that it has."""
        self._given_up: set[int] = set()
        self._metadata: Any = None
        """The group's metadata as last seen by the thread."""
        self._leaving = False
        self._settings = settings
        self._consumer = self._subscribed()
        self._thread = threading.Thread(target=self._take_part, name=f"member of {group}", daemon=True)
        self._thread.start()

    def poll(self) -> Sequence[MembershipEvent]:
        """See `Member`; partitions it was asked to give up are given up when it polls again."""
        with self._changed:
            self._given_up |= self._asked_for
            self._asked_for.clear()
            self._changed.notify_all()
            events, self._events = list(self._events), deque()
            for event in events:
                match event:
                    case Assigned(partitions):
                        self._owned.update(partitions)
                    case Lost(partitions):
                        self._owned.difference_update(partitions)
                    case Revoked(partitions):
                        self._asked_for.update(partitions)
            return events

    def wait(self, seconds: float) -> None:
        """Wait until there is something to poll for."""
        with self._changed:
            if not self._events:
                self._changed.wait(seconds)

    def leave(self) -> None:
        """See `Member`."""
        with self._changed:
            self._leaving = True
            self._owned.clear()
            self._events.clear()
            self._changed.notify_all()
        self._thread.join(_CLOSE)

    def metadata_for(self, partitions: Iterable[int]) -> Any:
        """The group's metadata, for a transaction that commits these partitions.

        Raises:
            Fenced: the member has left, or one of them isn't its own any more.
        """
        with self._changed:
            if self._leaving:
                msg = f"{self.group}: this member has left"
                raise Fenced(msg)
            lost = {number for event in self._events if isinstance(event, Lost) for number in event.partitions}
            gone = sorted(number for number in partitions if number in lost or number not in self._owned)
            if gone:
                msg = f"{self.group}: {self.topic}[{gone[0]}] isn't this member's any more"
                raise Fenced(msg)
            metadata = self._metadata
        # Without a generation the broker would take the offsets of anybody.
        if not _in_group(metadata):
            msg = f"{self.group}: this member is out of the group, and on its way back"
            raise Fenced(msg)
        return metadata

    def _subscribed(self) -> Consumer:
        consumer = Consumer(self._settings.member(self.group), logger=log)
        topic = self._settings.topic(self.topic)
        consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        return consumer

    def _take_part(self) -> None:
        while not self._leaving:
            try:
                self._poll_until_leaving()
            except (KafkaException, RuntimeError) as problem:
                log.error("group %s: joining anew: %s", self.group, error_of(problem).str())
                with self._changed:
                    self._forget_assignments(None)
                    self._lose(self._owned)
                    self._changed.wait(_REJOIN)
                    self._consumer.close()
                    self._consumer = self._subscribed()
        self._consumer.close()

    def _poll_until_leaving(self) -> None:
        while not self._leaving:
            if time.monotonic() - self._last_use() > self._stall:
                time.sleep(_POLL)
                continue
            message = self._consumer.poll(_POLL)
            self._note_generation(self._consumer)
            error = message.error() if message is not None else None
            if error is not None and error.code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - a public constant
                log.warning("group %s: %s (%s)", self.group, error.str(), error.name())

    def _on_assign(self, consumer: Any, partitions: list[ClientPartition]) -> None:
        # Read elsewhere; a position at the end keeps the client from asking for committed ones.
        positions = [ClientPartition(one.topic, one.partition, OFFSET_END) for one in partitions]
        self._call(consumer.incremental_assign, positions)
        self._call(consumer.pause, positions)
        self._note_generation(consumer)
        if partitions:
            with self._changed:
                self._events.append(Assigned(tuple(sorted(one.partition for one in partitions))))
                self._changed.notify_all()

    def _on_revoke(self, consumer: Any, partitions: list[ClientPartition]) -> None:
        numbers = {one.partition for one in partitions}
        self._note_generation(consumer)
        with self._changed:
            # What the worker hasn't heard of yet it need not give up.
            heard = numbers & self._owned
            self._forget_assignments(numbers - heard)
            if heard and not self._leaving:
                self._given_up -= heard
                self._events.append(Revoked(tuple(sorted(heard))))
                self._changed.notify_all()
                deadline = time.monotonic() + self._settings.give_up_timeout
                while not (self._leaving or heard <= self._given_up):
                    self._changed.wait(_POLL)
                    self._note_generation(consumer)
                    if time.monotonic() > deadline or not _in_group(self._metadata):
                        self._lose(heard - self._given_up)
                        break
            self._owned -= heard
            self._asked_for -= heard
        self._call(consumer.incremental_unassign, partitions)

    def _on_lost(self, consumer: Any, partitions: list[ClientPartition]) -> None:
        numbers = {one.partition for one in partitions}
        with self._changed:
            self._forget_assignments(numbers - self._owned)
            self._lose(numbers & self._owned)
        self._call(consumer.incremental_unassign, partitions)

    def _note_generation(self, consumer: Any) -> None:
        try:
            found = consumer.consumer_group_metadata()
        except (KafkaException, RuntimeError):
            # There is none while the member is on its way in, or out.
            found = None
        with self._changed:
            self._metadata = found

    def _lose(self, numbers: Iterable[int]) -> None:
        """Tell the worker of a loss."""
        lost = tuple(sorted(numbers))
        if lost:
            self._events.append(Lost(lost))
            self._changed.notify_all()

    def _forget_assignments(self, numbers: set[int] | None) -> None:
        """Take back what the worker hasn't heard of: these partitions, or all."""
        kept: deque[MembershipEvent] = deque()
        for event in self._events:
            if isinstance(event, Assigned):
                left = tuple(number for number in event.partitions if numbers is not None and number not in numbers)
                if left:
                    kept.append(Assigned(left))
            else:
                kept.append(event)
        self._events = kept

    def _call(self, method: Any, *arguments: Any) -> Any:
        """Call the client from a callback, where nobody could catch what it raises."""
        try:
            return method(*arguments)
        except (KafkaException, RuntimeError) as problem:
            log.warning("group %s: %s: %s", self.group, getattr(method, "__name__", method), error_of(problem).str())
            return None


def _in_group(metadata: Any) -> bool:
    """Whether the client's group metadata has a generation: without one the broker takes offsets from anybody.

    Raises:
        BusError: it has a form that this program doesn't know.
    """
    if metadata is None:
        return False
    if not isinstance(metadata, bytes) or not metadata.startswith(_METADATA_MARK):
        msg = "the client's group metadata has a form that this program doesn't know"
        raise BusError(msg)
    generation: int = _GENERATION.unpack_from(metadata, len(_METADATA_MARK))[0]
    return generation >= 0
