"""Asking a fleet to go on without a message that stops a partition, and waiting for what becomes of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri.fleet.positions import INBOXES
from meguri.fleet.reading import message_at, span
from meguri_common.bus.port import TopicPartition
from meguri_common.config.settings import PREFIX
from meguri_common.errors import ParameterError
from meguri_common.runtime.skips import FleetSkips, SkipRecord, SkipRequest
from meguri_common.topics import PAGES, SKIPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_common.bus.port import Bus
    from meguri_common.config import Settings
    from meguri_common.runtime.files import FileSystem

__all__ = ["Skipper", "Verdict", "inbox_of"]

_PAUSE = 0.5


@dataclass(frozen=True)
class Verdict:
    """What has become of a request."""

    record: SkipRecord | None
    """The record, if the message was skipped."""
    passed: bool
    """The service has gone on beyond the message; without a record, because it could handle it."""


def inbox_of(name: str, settings: Settings) -> str:
    """The inbox that is meant: by its short name, its full one, or the cluster's.

    Raises:
        ParameterError: no service reads such a topic.
    """
    for topic in INBOXES.values():
        if name in {topic, topic.removeprefix(PREFIX), settings.kafka.topic(topic)}:
            return topic
    known = ", ".join(topic.removeprefix(PREFIX) for topic in INBOXES.values())
    msg = f"{name}: no service has this inbox; there are {known}"
    raise ParameterError(msg)


class Skipper:
    """Checks, leaves and follows requests."""

    def __init__(
        self,
        settings: Settings,
        bus: Bus,
        files: FileSystem,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Take a bus that knows topics by the cluster's names, and the state root."""
        self._bus = bus
        self._clock = clock
        self._sleep = sleep
        self._topic = settings.kafka.topic
        self._skips = FleetSkips(files, bus, lambda: secrets.token_hex(6), topic=self._topic(SKIPS))

    def check(self, request: SkipRequest) -> None:
        """Refuse what can't be meant.

        Raises:
            ParameterError: there is no such message, the service is beyond it or not there yet, or there are no such
                lines in it.
            BusError: a topic is missing, or no broker answers.
        """
        source = self._source(request)
        count = self._bus.partitions(source.topic)
        if not 0 <= request.partition < count:
            msg = f"{source.topic} has partitions 0 to {count - 1}, not {request.partition}"
            raise ParameterError(msg)
        first, end = self._bus.watermarks(source)
        committed = self._committed(request)
        if request.offset < committed:
            msg = f"{source}: offset {request.offset} has been handled: the service stands at {committed}"
            raise ParameterError(msg)
        message = message_at(self._bus, source, request.offset)
        if message is None:
            msg = f"{source}: there is no message at offset {request.offset}; the log has {first} to {end - 1}"
            raise ParameterError(msg)
        following = next(placed.message.offset for placed in span(self._bus, source, committed, request.offset + 1))
        if following != request.offset:
            msg = f"{source}: the service comes to offset {following} first: it doesn't stand at {request.offset}"
            raise ParameterError(msg)
        if request.lines and request.topic != PAGES:
            msg = f"{request.topic}: only messages of the pages have lines; skip the whole message"
            raise ParameterError(msg)
        lines = bytes(message.payload).count(b"\n") + 1
        if any(line >= lines for line in request.lines):
            msg = f"{source}: the message at offset {request.offset} has lines 0 to {lines - 1}"
            raise ParameterError(msg)

    def ask(self, request: SkipRequest) -> None:
        """Leave the request in the state root, where whoever owns the partition finds it.

        Raises:
            OSError: it can't be written.
        """
        self._skips.ask(request)

    def wait(self, request: SkipRequest, seconds: float) -> Verdict:
        """Wait until the service is beyond the message, or for so long."""
        until = self._clock() + seconds
        while True:
            passed = self._committed(request) > request.offset
            if passed or self._clock() >= until:
                break
            self._sleep(_PAUSE)
        place = (request.topic, request.partition, request.offset)
        records = [each for each in self._skips.all() if (each.topic, each.partition, each.offset) == place]
        return Verdict(records[-1] if records else None, passed)

    def _source(self, request: SkipRequest) -> TopicPartition:
        return TopicPartition(self._topic(request.topic), request.partition)

    def _committed(self, request: SkipRequest) -> int:
        service = next(service for service, topic in INBOXES.items() if topic == request.topic)
        commit = self._bus.committed(service, self._source(request))  # the bus knows the prefix of groups
        return commit.offset if commit else 0
