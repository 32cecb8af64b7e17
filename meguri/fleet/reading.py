"""Reading topics back: the last messages, a span, one message. Only what has committed is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meguri_common.bus.port import Bus, Message, TopicPartition

__all__ = ["Placed", "last_messages", "message_at", "span"]

_READ_BYTES = 8 << 20


class Placed(NamedTuple):
    """A message, and where it stands."""

    source: TopicPartition
    message: Message


def span(bus: Bus, source: TopicPartition, start: int, end: int) -> Iterator[Placed]:
    """The messages with start <= offset < end that are there, in order, some MiB in memory at once."""
    first, last = bus.watermarks(source)
    at, end = max(start, first), min(end, last)
    while at < end:
        messages = bus.read(source, at, end=end, max_bytes=_READ_BYTES)
        if not messages:
            return
        for message in messages:
            yield Placed(source, message)
        at = messages[-1].offset + 1


def last_messages(bus: Bus, sources: Iterable[TopicPartition], count: int) -> list[Placed]:
    """The last messages of some partitions, by time of appending, oldest first."""
    found: list[Placed] = []
    for source in sources:
        found += _last(bus, source, count)
    found.sort(key=lambda each: (each.message.appended_at, each.source, each.message.offset))
    return found[-count:]


def message_at(bus: Bus, source: TopicPartition, offset: int) -> Message | None:
    """The message with this offset; None if it isn't there any more, or never was."""
    if not 0 <= source.partition < bus.partitions(source.topic):
        return None
    return next((each.message for each in span(bus, source, offset, offset + 1)), None)


def _last(bus: Bus, source: TopicPartition, count: int) -> list[Placed]:
    """The last messages of a partition: offsets have holes, so that it may take several looks further back."""
    first, end = bus.watermarks(source)
    width = 2 * count
    while True:
        start = max(first, end - width)
        found = list(span(bus, source, start, end))
        if len(found) >= count or start <= first:
            return found[-count:]
        width *= 4
