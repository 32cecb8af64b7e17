"""What the monitor is told, what it keeps, and whether it still reads on.

Around a restart messages are read again, or one is skipped: spans remember up to which message they count.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meguri_common.errors import BusError
from meguri_common.telemetry.model import decode_report
from meguri_common.topics import TELEMETRY
from meguri_monitor.broker import ends_of
from meguri_monitor.fleet import Fleet
from meguri_monitor.windows import KEPT_SECONDS, SPAN_SECONDS, Moment, from_table, with_increase

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from meguri_monitor.state import Suspects

__all__ = ["CHANGELOG_SETTINGS", "Monitor", "MonitorSettings", "Stalled", "changelog_topic"]

_log = logging.getLogger(__name__)
_OLD = KEPT_SECONDS
"""Seconds after which telemetry is passed over: a monitor that was off for a day doesn't read that day."""

CHANGELOG_SETTINGS = {"cleanup.policy": "compact,delete", "retention.ms": str(round(1000 * KEPT_SECONDS))}
"""Of the topic that keeps the table."""


class Stalled(Exception):
    """There is telemetry, and Faust doesn't read on: seen after outages of the broker."""


@dataclass(frozen=True, kw_only=True)
class MonitorSettings:
    """What the monitor is given."""

    bootstrap: str
    """HOST:PORT of brokers, separated by commas."""
    data: Path
    """The state root, for the names of suspect hosts."""
    host: str = "127.0.0.1"
    """Where the page is served."""
    port: int = 6066
    topic: str = TELEMETRY
    """Name on the cluster."""
    group: str = "meguri.monitor"
    """Consumer group, and what the names of the tables' topics begin with."""
    campaign: str | None = None
    """Only telemetry of this campaign counts; None: of the one that is heard."""
    client: Mapping[str, str] | None = None
    """Settings of librdkafka, for TLS and SASL."""


def _table_name(partitions: int) -> str:
    # A table's changelog must have as many partitions as the topic, so one of another number is another table.
    return f"spans-{partitions}"


def changelog_topic(group: str, partitions: int) -> str:
    """Name of the topic in which Faust keeps the table of an application that listens to so many partitions."""
    return f"{group}-{_table_name(partitions)}-changelog"


class Monitor:
    """What the agent writes and the views read; all on one event loop."""

    def __init__(self, app: Any, settings: MonitorSettings, partitions: int) -> None:
        self.app = app
        self.settings = settings
        self.fleet = Fleet(settings.campaign)
        self.suspects: Suspects | None = None
        self.partitions = partitions
        self._taken: dict[int, int] = {}
        """Of each partition, the offset behind the last message that was taken in."""
        self._places: dict[int, int] = {}
        self._idle: dict[int, int] = {}
        self._away = False
        table = app.Table(_table_name(partitions), default=dict, partitions=partitions)
        self._spans = table.tumbling(SPAN_SECONDS, expires=KEPT_SECONDS)

    def take(self, message: bytes, partition: int, offset: int, written: float, now: float) -> None:
        """Take in one message of the topic, within the agent.

        Args:
            message: lines of samples.
            partition: of the topic; a service's messages are all in one.
            offset: where it stands in it.
            written: when it was written, epoch seconds.
            now: epoch seconds.
        """
        self._taken[partition] = offset + 1
        if now - written > _OLD:
            return
        samples, problems = decode_report(message)
        for problem in problems:
            self.fleet.unreadable(problem)
        for service, increase in self.fleet.hear(samples, written).items():
            self._spans[service] = with_increase(from_table(self._spans[service].value()), increase, offset)

    def history(self, now: float) -> dict[str, list[Moment]]:
        """Spans of each service that was heard of, in order of time."""
        last = int(now // SPAN_SECONDS)
        starts = [SPAN_SECONDS * (last - ago) for ago in reversed(range(int(KEPT_SECONDS // SPAN_SECONDS)))]
        found: dict[str, list[Moment]] = {service: [] for service in self.fleet.services()}
        for start in starts:
            table = self._spans.relative_to(start)
            for service, moments in found.items():
                if service in table and (span := from_table(table[service].value())) is not None:
                    moments.append(Moment(start, span))
        return found

    async def look_after_itself(self) -> None:
        """See whether the consumer reads on.

        Raises:
            Stalled: where there was something to read twice in a row, and it stood where it had stood before.
        """
        assigned = [place for place in self.app.consumer.assignment() if place.topic == self.settings.topic]
        # What the consumer has fetched says nothing of what the agent gets, but for one that got nothing yet.
        places = {
            place.partition: self._taken.get(place.partition) or await self.app.consumer.position(place)
            for place in assigned
        }
        standing = {number for number, place in places.items() if self._places.get(number) == place}
        self._places = places
        if not standing or self.app.rebalancing:
            self._idle = {}
            return
        try:
            ends = await ends_of(
                self.settings.bootstrap, self.settings.topic, self.partitions, self.settings.client or {}
            )
        except BusError as problem:
            if not self._away:
                _log.warning("%s; going on when one does", problem)
            self._away = True
            return
        self._away = False
        waiting = {number for number in standing if ends[number] > places[number]}
        self._idle = {number: self._idle.get(number, 0) + 1 for number in waiting}
        for number, times in self._idle.items():
            if times > 1:
                msg = f"{self.settings.topic}[{number}] is read up to {places[number]} of {ends[number]}, and not on"
                raise Stalled(msg)

    @property
    def listening(self) -> bool:
        """Whether partitions of the topic are assigned and the table is recovered."""
        return bool(self.app.consumer.assignment()) and not self.app.rebalancing
