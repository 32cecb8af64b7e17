"""The vocabulary of URL and host records: codes that are written to disk and to the wire.

Values never change meaning; new ones are added at the end.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = [
    "CRAWL_DELAY_UNSET",
    "LINK_REJECT_REASONS",
    "NO_DEPTH",
    "ControlAction",
    "FetchError",
    "HostFlag",
    "ParkReason",
    "Source",
    "Status",
    "UpdateField",
    "VisitFlag",
    "hours",
]

NO_DEPTH = 0xFFFF
"""Depth of a URL whose distance from a seed nobody has stated; greater than any stated depth."""

CRAWL_DELAY_UNSET = 0xFFFF
"""A visit or host row that says nothing about the crawl delay."""

LINK_REJECT_REASONS = ("scheme", "no_base", "empty_host", "bad_host", "bad_port", "too_long", "too_much")
"""Why a link can't be used; the position is the column of a visit's ``rejected`` counts and code - 1 in batches."""


class Status(IntEnum):
    """Crawl state of a URL record."""

    DISCOVERED = 0
    SCHEDULED = 1
    READY = 2
    IN_FLIGHT = 3
    CRAWLED = 4
    DUE_RECRAWL = 5
    GONE = 6
    EXCLUDED_ROBOTS = 7
    TRAPPED = 8


class Source(IntEnum):
    """How a URL was first admitted."""

    SEED = 0
    LINK = 1
    SITEMAP = 2
    REDIRECT = 3
    MANUAL = 4


class ParkReason(IntEnum):
    """Why a URL is parked (status trapped)."""

    NONE = 0
    DEPTH = 1
    BUDGET = 2
    CALENDAR = 3
    FACETED = 4
    SESSION = 5
    REPETITION = 6
    NESTING = 7
    SAME_CONTENT = 8
    OPERATOR = 9


class HostFlag(IntFlag):
    """Flags of a host record."""

    TRAP_SUSPECT = 1
    ROBOTS_MISSING = 2
    DEAD = 4
    GROUPING_OVERRIDE = 8
    VOUCHED = 16


class FetchError(IntEnum):
    """Why a fetch brought no response (status 0)."""

    NONE = 0
    DNS = 1
    CONNECT = 2
    TIMEOUT = 3
    TLS = 4
    ROBOTS = 5
    OTHER = 6


class ControlAction(IntEnum):
    """What an operator decides about a host or a URL."""

    VOUCH = 1
    UNVOUCH = 2
    BUDGET = 3
    DEPTH_CAP = 4
    RELEASE = 5
    FLAG = 6
    ROBOTS_CHANGED = 7
    CRAWL_DELAY = 8


class VisitFlag(IntFlag):
    """Facts of a visit beside its status code."""

    NOT_MODIFIED = 1
    REDIRECT_UNUSABLE = 2
    """A redirect status whose target was given but is no URL of the frontier."""
    REDIRECT_SELF = 4
    """A redirect status whose target is the URL itself: counts as a failure."""
    EMPTY_BODY = 8
    """Text was given and holds no token: counted as a crawl, without a verdict."""
    SOFT_404 = 16
    """A 2xx whose body is the host's "not found" template: the URL is gone."""


class UpdateField(IntFlag):
    """Which columns of an update row speak."""

    PRIORITY = 1
    DEPTH = 2
    RELEASE = 4
    """Parked -> scheduled, if still parked."""
    REVIVE = 8
    """Gone or excluded -> scheduled, next due at the row's ``at``: a new seed, or changed robots rules."""


def hours(epoch_seconds: int) -> int:
    """Epoch hours of epoch seconds, by floor division."""
    return epoch_seconds // 3600
