"""Rejected events: reading their records, and publishing the events anew, each record's once."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from meguri.fleet.ledger import TopicLedger, encode_row
from meguri.fleet.reading import message_at, span
from meguri_common.bus.port import TopicPartition
from meguri_common.events.rejects import RejectRecord
from meguri_common.sdk.grouping import group_of_event, pages_partition
from meguri_common.topics import LEDGER, PAGES, REJECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meguri_common.bus.port import Bus, Message

__all__ = ["FoundReject", "RejectFilter", "Retried", "Retrier"]

_TRANSACTION_BYTES = 16 << 20
_TRANSACTION_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class FoundReject:
    """A record on the rejects topic."""

    source: TopicPartition
    offset: int
    at: int
    """When it was rejected, epoch seconds."""
    record: RejectRecord

    @property
    def row(self) -> str:
        """The ledger's row that says that it was retried."""
        return f"retry/{self.source.topic}/{self.source.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class RejectFilter:
    """Which rejects are meant: those that fit everything that is given."""

    reason: str | None = None
    service: str | None = None
    file: str | None = None

    def fits(self, record: RejectRecord) -> bool:
        """Whether it is one of those."""
        return (
            self.reason in {None, record.reason}
            and self.service in {None, record.at_service}
            and (self.file is None or (record.origin is not None and record.origin.file == self.file))
        )


@dataclass
class Retried:
    """What a retry did."""

    retried: int = 0
    already: int = 0
    """Retried before."""
    gone: list[FoundReject] = field(default_factory=list)
    """Their event isn't in its topic any more."""


class Retrier:
    """Reads rejects and retries them. Taking it over from another that is at work fences that one."""

    def __init__(
        self, bus: Bus, *, topic: Callable[[str], str] = lambda name: name, ledger_end: Callable[[], int] | None = None
    ) -> None:
        """Take a bus.

        Args:
            bus: the fleet's.
            topic: name on the bus of a topic.
            ledger_end: see `TopicLedger`.

        Raises:
            BusError: there are no such topics, or no broker answers.
        """
        self._bus = bus
        self._topic = topic
        self._rejects = topic(REJECTS)
        self._pages = topic(PAGES)
        self._ledger_source = TopicPartition(topic(LEDGER), 0)
        self._partitions = bus.partitions(self._pages)
        self._ledger = TopicLedger(bus, topic(LEDGER), end=ledger_end)
        self._last: tuple[TopicPartition, int, Message | None] | None = None

    def find(self, wanted: RejectFilter) -> Iterator[FoundReject]:
        """The rejects that were there when this began, by partition, oldest first."""
        for number in range(self._bus.partitions(self._rejects)):
            source = TopicPartition(self._rejects, number)
            for placed in span(self._bus, source, 0, self._bus.watermarks(source)[1]):
                record = msgspec.json.decode(placed.message.payload, type=RejectRecord)
                if wanted.fits(record):
                    yield FoundReject(source, placed.message.offset, placed.message.appended_at, record)

    def retried_before(self, found: FoundReject) -> bool:
        """Whether its event was published anew; counts once `refresh` or `retry` was called."""
        return found.row in self._ledger

    def refresh(self) -> None:
        """Know what has been retried up to now."""
        self._ledger.refresh()

    def retry(self, wanted: RejectFilter) -> Retried:
        """Publish the events of all that fit and weren't retried yet.

        Raises:
            BusError: the brokers don't take it; what was retried before that is known to the next call.
        """
        producer = self._bus.producer("retry")
        self._ledger.refresh()
        done = Retried()
        held: list[tuple[FoundReject, bytes]] = []

        def settle() -> None:
            if not held:
                return
            producer.begin()
            for found, line in held:
                partition = pages_partition(group_of_event(line), self._partitions)
                producer.publish(TopicPartition(self._pages, partition), line, headers=_headers(found.record))
                producer.publish(self._ledger_source, encode_row(found.row))
            producer.commit()
            self._bus.barrier()
            self._ledger.add(found.row for found, _ in held)
            done.retried += len(held)
            held.clear()

        for found in self.find(wanted):
            if found.row in self._ledger:
                done.already += 1
                continue
            line = self._event(found.record)
            if line is None:
                done.gone.append(found)
                continue
            held.append((found, line + b"\n"))
            if len(held) >= _TRANSACTION_EVENTS or sum(len(each) for _, each in held) >= _TRANSACTION_BYTES:
                settle()
        settle()
        producer.close()
        return done

    def _event(self, record: RejectRecord) -> bytes | None:
        """The event as it was read then; None if it isn't there any more."""
        source = TopicPartition(self._topic(record.topic), record.partition)
        if record.offset < 0 or source.topic != self._pages:
            return None
        if self._last is None or self._last[:2] != (source, record.offset):
            self._last = (source, record.offset, message_at(self._bus, source, record.offset))
        message = self._last[2]
        lines = bytes(message.payload).split(b"\n") if message is not None else []
        if record.line >= len(lines):
            return None
        line = lines[record.line]
        # A topic that was made anew has other events at the same place.
        return line if line.startswith(base64.b64decode(record.payload)) else None


def _headers(record: RejectRecord) -> bytes:
    where = {"file": record.origin.file, "line": record.origin.line} if record.origin else {}
    return msgspec.json.encode({**where, "attempts": record.attempts})
