"""The document that `/api/state` gives and the page shows: typed, and made of the fleet and its history alone."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "STATE_VERSION",
    "AdviceItem",
    "FleetState",
    "HearingState",
    "InstanceState",
    "PartitionItem",
    "SeenSetState",
    "ServiceState",
    "Shares",
    "SnapshotState",
    "SuspectHost",
    "Suspects",
]

STATE_VERSION: Literal[1] = 1


class InstanceState(msgspec.Struct, frozen=True, kw_only=True):
    """An instance."""

    name: str
    state: Literal["running", "silent", "left"]
    heard_seconds_ago: float
    up_seconds: float
    partitions: int
    memory_bytes: int
    failed_steps: int
    dropped_reports: int


class PartitionItem(msgspec.Struct, frozen=True, kw_only=True):
    """A partition."""

    partition: int
    state: str
    problem: str
    instance: str
    position: int | None
    end: int | None
    lag: int | None
    snapshot_offset: int | None
    snapshot_age: float | None
    """Seconds, now."""


class ServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """A service."""

    service: str
    links_per_second: float | None
    """Links of the pages that pass it; None if nothing was heard of it lately."""
    estimated: bool
    """From the pages that pass it and the mean links of a page, since the links end at dedup."""
    lag: int | None
    """Messages, by offsets."""
    lag_direction: str
    lag_slope: float | None
    """Messages a second."""
    drain_seconds: float | None
    messages_consumed: float
    """Offsets a second."""
    messages_arrived: float
    """Offsets a second."""
    busy: float | None
    """Mean share of the time that its instances spend in steps."""
    cpu: float | None
    """Mean share of a core that they take."""
    instances: list[InstanceState]
    partitions: list[PartitionItem]
    history: list[tuple[float, float | None, int | None]]
    """Of each span of ten seconds: when it began, links a second, lag."""


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """What became of links: shares that add up to 1."""

    links: int
    new: float
    known: float
    rejected: float


class SeenSetState(msgspec.Struct, frozen=True, kw_only=True):
    """What knowing a URL costs, over all partitions."""

    keys: int
    bits_per_url: float
    target_fpr: float
    measured_fpr: float


class SnapshotState(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest snapshot."""

    service: str
    partition: int
    age: float
    offset: int
    behind: int | None
    """Offsets of the inbox that a restore would read again."""


class SuspectHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that is flagged as a trap."""

    host: str
    urls: int
    url_budget: int


class Suspects(msgspec.Struct, frozen=True, kw_only=True):
    """Hosts that are flagged as traps."""

    count: int | None
    """By telemetry; None if not known."""
    hosts: list[SuspectHost]
    """The largest of those that the store knows of."""
    problem: str = ""
    """Why they can't be listed."""


class AdviceItem(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next."""

    severity: str
    action: str
    service: str
    text: str
    why: str
    instances: int | None


class HearingState(msgspec.Struct, frozen=True, kw_only=True):
    """How well the fleet is heard."""

    last_heard: float | None
    """Epoch seconds."""
    samples: int
    lost_reports: int
    repeated: int
    late: int
    unreadable: int
    foreign: int
    crowded_out: int
    last_problem: str


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    schema: Literal[1] = STATE_VERSION
    at: float
    """Epoch seconds."""
    campaign: str | None
    services: list[ServiceState]
    advice: list[AdviceItem]
    links_lately: Shares | None
    """Within five minutes."""
    links_total: Shares | None
    seen_set: SeenSetState | None
    oldest_snapshot: SnapshotState | None
    suspects: Suspects
    hearing: HearingState
