"""Messages that an operator has skipped: who asks for it, and the record that every re-read consults.

A message whose handling raises stops its partition. An operator who decides to go on without it leaves a *request*,
a file in the state root. The owner of the partition, which stands at that message, takes it out of the way in one
transaction: the offset behind it, what became of it on the rejects, and a *record* on the topic of skips. Since the
record commits with the offset, whoever reads the inbox again up to a committed offset finds the records of all that
was skipped below it, and a request for a message that could be handled after all changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from meguri_common.bus.port import Message, TopicPartition
from meguri_common.errors import DataFolderError, EnvelopeError
from meguri_common.events.rejects import RejectRecord, encode_reject, payload_text
from meguri_common.runtime.files import write_durably
from meguri_common.topics import REJECTS, SKIPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meguri_common.bus.port import Bus
    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.service import Service

__all__ = [
    "SKIPPED",
    "FleetSkips",
    "SkipBook",
    "SkipRecord",
    "SkipRequest",
    "apply_without_skipped",
    "skip_message",
]

SKIPPED = "skipped"
"""The reason of the rejects."""

_FOLDER = "skips"
_READ_BYTES = 1 << 20


class SkipRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator asks for."""

    topic: str
    partition: int
    offset: int
    lines: tuple[int, ...] = ()
    """Lines of a message of the pages, from 0; none: the whole message."""
    why: str = ""
    schema: Literal[1] = 1

    @property
    def path(self) -> str:
        """Its file in the state root."""
        return f"{_FOLDER}/{self.topic}-{self.partition}-{self.offset}.json"


class SkipRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message, or lines of one, that was skipped."""

    service: str
    topic: str
    partition: int
    offset: int
    lines: tuple[int, ...] = ()
    why: str = ""
    written_off: Annotated[int, Meta(description="cash that was in it, in units of 2^-32; -1 if nobody can tell")] = 0
    schema: Literal[1] = 1


class SkipBook(Protocol):
    """Requests and records, as a worker asks for them."""

    def requested(self, source: TopicPartition, offset: int) -> SkipRequest | None:
        """What is asked for about a message, if anything."""
        ...

    def settle(self, request: SkipRequest) -> None:
        """A request has been dealt with."""
        ...

    def records(self, source: TopicPartition) -> Mapping[int, SkipRecord]:
        """Whole messages of a partition that were skipped, by offset. Asked after the committed offset was read."""
        ...


class FleetSkips:
    """Requests in the state root, records on the topic of skips."""

    def __init__(self, files: FileSystem, bus: Bus, token: Callable[[], str], *, topic: str = SKIPS) -> None:
        """Take the state root, a bus, a source of random name parts, and what the bus calls the topic of skips."""
        self._files = files
        self._bus = bus
        self._token = token
        self._records = TopicPartition(topic, 0)

    def ask(self, request: SkipRequest) -> None:
        """Leave a request, durably; one for the same message is replaced.

        Raises:
            OSError: it can't be written.
        """
        self._files.make_folder(_FOLDER)
        write_durably(self._files, request.path, msgspec.json.encode(request), token=self._token())

    def requested(self, source: TopicPartition, offset: int) -> SkipRequest | None:
        """See `SkipBook`.

        Raises:
            DataFolderError: the file isn't a request for this message.
        """
        path = SkipRequest(topic=source.topic, partition=source.partition, offset=offset).path
        if self._files.size(path) is None:
            return None
        try:
            found = msgspec.json.decode(self._files.read(path), type=SkipRequest)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, OSError) as problem:
            msg = f"{path}: not a request to skip a message: {problem}. Remove it and ask again."
            raise DataFolderError(msg) from problem
        if (found.topic, found.partition, found.offset) != (source.topic, source.partition, offset):
            msg = f"{path}: asks for another message. Remove it and ask again."
            raise DataFolderError(msg)
        return found

    def settle(self, request: SkipRequest) -> None:
        """See `SkipBook`."""
        self._files.remove(request.path)

    def records(self, source: TopicPartition) -> Mapping[int, SkipRecord]:
        """See `SkipBook`."""
        return {record.offset: record for record in self.all() if record.source == source and not record.lines}

    def all(self) -> list[_PlacedRecord]:
        """All records, oldest first."""
        at, end = self._bus.watermarks(self._records)
        found: list[_PlacedRecord] = []
        while at < end:
            messages = self._bus.read(self._records, at, end=end, max_bytes=_READ_BYTES)
            if not messages:
                break
            found += [msgspec.json.decode(bytes(message.payload), type=_PlacedRecord) for message in messages]
            at = messages[-1].offset + 1
        return found


class _PlacedRecord(SkipRecord, frozen=True, kw_only=True):
    @property
    def source(self) -> TopicPartition:
        """The partition of the message."""
        return TopicPartition(self.topic, self.partition)


def apply_without_skipped(
    service: Service, messages: Sequence[Message], skipped: Mapping[int, SkipRecord], outputs: Outputs
) -> None:
    """Apply messages again as they were applied first: what was skipped then is skipped now."""
    begin = 0
    for place, message in enumerate(messages):
        if message.offset in skipped:
            if place > begin:
                service.apply(messages[begin:place], outputs)
            _written_off(service, message)
            begin = place + 1
    if begin < len(messages):
        service.apply(messages[begin:], outputs)


def skip_message(name: str, service: Service, message: Message, request: SkipRequest, outputs: Outputs) -> SkipRecord:
    """Take a message, or the lines of it that are asked for, out of the way, and handle the rest.

    Args:
        name: of the service.
        service: the state at the message.
        message: the message.
        request: what is asked for about it.
        outputs: gets the record, the rejects, and what follows from the rest.

    Returns:
        The record.
    """
    payload = bytes(message.payload)
    written_off = 0
    if request.lines:
        lines = payload.split(b"\n")
        dropped = [(line, lines[line]) for line in request.lines if line < len(lines)]
        for line, _ in dropped:
            lines[line] = b""  # stays a line, so that the others keep their numbers
        rest = Message(message.offset, b"\n".join(lines), message.headers, message.appended_at)
        service.apply([rest], outputs)
    else:
        dropped = [(0, payload)]
        written_off = _written_off(service, message)
    record = SkipRecord(
        service=name,
        topic=request.topic,
        partition=request.partition,
        offset=request.offset,
        lines=request.lines,
        why=request.why,
        written_off=written_off,
    )
    outputs.add_raw(SKIPS, 0, msgspec.json.encode(record))
    for line, content in dropped:
        outputs.add_raw(
            REJECTS,
            0,
            encode_reject(
                RejectRecord(
                    at_service=name,
                    topic=request.topic,
                    partition=request.partition,
                    offset=request.offset,
                    line=line,
                    reason=SKIPPED,
                    detail=request.why or "skipped by an operator",
                    attempts=1,
                    payload=payload_text(content),
                )
            ),
        )
    return record


def _written_off(service: Service, message: Message) -> int:
    """Units of cash that were in a skipped message; -1 where it can't even be decoded."""
    try:
        return service.skip(message)
    except EnvelopeError:
        return -1
