"""Names on the broker that are meguri's: of groups, producers and headers. Topics are in `meguri_common.topics`."""

from __future__ import annotations

__all__ = ["HEADERS_KEY", "PREFIX", "TOPIC_PREFIX", "group_id", "transactional_id"]

PREFIX = "meguri."
"""What groups and transactional ids begin with, where nothing else is set."""

TOPIC_PREFIX = "meguri."
"""What names of topics begin with in the program."""

HEADERS_KEY = "meguri"
"""Key of the one Kafka header that carries a message's headers."""


def group_id(group: str, prefix: str = PREFIX) -> str:
    """The consumer group under which a service's offsets are committed: `meguri.dedup` for `dedup`."""
    return prefix + group


def transactional_id(name: str, prefix: str = PREFIX) -> str:
    """A producer's transactional id for its name on the bus."""
    return prefix + name
