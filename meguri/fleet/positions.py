"""Where each service of a fleet stands in its inbox, and whether all of them have nothing left to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri_common.topics import DELTAS, FRONTIER, LINKS, PAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meguri.fleet.cluster import Cluster

__all__ = ["INBOXES", "Place", "ServicePlace", "drained", "read_places"]

INBOXES: Mapping[str, str] = {"canonicalizer": PAGES, "dedup": LINKS, "prioritizer": FRONTIER, "store": DELTAS}
"""The services in the order in which events flow through them, and the topic that each reads."""


@dataclass(frozen=True, slots=True)
class Place:
    """A service in one partition of its inbox."""

    partition: int
    first: int
    """First offset that is kept."""
    end: int
    """Behind all that was appended, the markers of transactions included."""
    committed: int | None
    """The service's position; None where it never committed."""

    @property
    def lag(self) -> int:
        """Offsets still to be read; those of markers count, too."""
        return max(self.end - max(self.committed or 0, self.first), 0)


@dataclass(frozen=True, slots=True)
class ServicePlace:
    """A service in its inbox."""

    service: str
    topic: str
    instances: int
    places: Sequence[Place]

    @property
    def lag(self) -> int:
        """Offsets still to be read in all partitions."""
        return sum(place.lag for place in self.places)


def read_places(cluster: Cluster) -> list[ServicePlace]:
    """Where all services stand: each a moment after the one before it, down the flow.

    Raises:
        BusError: a topic is missing, or no broker answers.
    """
    found = []
    for service, name in INBOXES.items():
        topic, group = cluster.settings.topic(name), cluster.settings.group(service)
        committed = cluster.committed(group, topic, cluster.partitions(topic))
        ends = cluster.ends(topic)
        places = [
            Place(number, first, end, position)
            for number, ((first, end), position) in enumerate(zip(ends, committed, strict=True))
        ]
        found.append(ServicePlace(service, topic, cluster.members(group), places))
    return found


def drained(before: Sequence[ServicePlace], now: Sequence[ServicePlace]) -> bool:
    """Whether nothing was left to read at some moment between two readings.

    One reading isn't enough: its partitions were read one after the other, and a step may have taken a message from
    one that came later and sent it to one that had been read. If two readings in a row show no lag and the same ends,
    nothing was appended to any partition between the two, so the moment at which the last one of the first reading
    was read is such a moment.

    Args:
        before: a reading.
        now: the next one.
    """
    if any(each.lag for each in (*before, *now)):
        return False
    return [[place.end for place in each.places] for each in before] == [
        [place.end for place in each.places] for each in now
    ]
