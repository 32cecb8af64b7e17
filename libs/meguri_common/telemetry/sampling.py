"""From a partition in memory to its sample: pure, but for asking the service for its figures."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from meguri_common.telemetry.model import (
    InstanceSample,
    PartitionSample,
    SeenSetFigures,
    SnapshotFigures,
    WorkFigures,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from meguri_common.telemetry.model import PartitionState

__all__ = ["InstanceName", "PartitionView", "Reporting", "instance_sample", "partition_sample"]

_SUSPECTS = "hosts_flagged"
"""Gauge of the service that judges hosts."""
_SEEN_SET = ("keys", "bits_per_url", "target_fpr", "measured_fpr")
"""Gauges of the service that keeps the seen-set."""
_PROBLEM_LENGTH = 1000
_MOST = 2**63 - 1


@runtime_checkable
class Reporting(Protocol):
    """A service that says more about its state than its position."""

    def stats(self) -> Mapping[str, Mapping[str, float]]:
        """Figures by group.

        `counters`: totals of the state, a function of the inbox alone. `passed`: counts since it was loaded.
        `gauges`: what is there now. Each group may be absent.
        """
        ...


@dataclass(frozen=True, slots=True)
class InstanceName:
    """Who reports."""

    service: str
    instance: str
    campaign: str
    started_at: float
    """Epoch seconds."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What a worker knows of one of its partitions."""

    number: int
    state: PartitionState
    problem: str = ""
    position: int | None = None
    end: int | None = None
    """The inbox's next free offset, as last heard: asking the bus for it isn't worth a wait."""
    loaded_at: float | None = None
    """Epoch seconds."""
    snapshot_offset: int | None = None
    snapshot_at: float | None = None
    """Epoch seconds."""
    inbox_bytes: int = 0


def partition_sample(
    name: InstanceName, view: PartitionView, stats: Mapping[str, Mapping[str, float]], *, at: float, sequence: int
) -> PartitionSample:
    """The sample of a partition.

    Args:
        name: who reports.
        view: what its worker knows.
        stats: what its service says, see `Reporting`; empty if it says nothing.
        at: epoch seconds.
        sequence: number of the report.
    """
    gauges = {_name(name): float(value) for name, value in stats.get("gauges", {}).items() if math.isfinite(value)}
    snapshot = None
    if view.snapshot_offset is not None:
        age = 0.0 if view.snapshot_at is None else max(0.0, at - view.snapshot_at)
        snapshot = SnapshotFigures(offset=view.snapshot_offset, age=round(age, 3))
    return PartitionSample(
        service=name.service,
        instance=name.instance,
        campaign=name.campaign,
        at=at,
        started_at=name.started_at,
        sequence=sequence,
        partition=view.number,
        state=view.state,
        problem=view.problem[:_PROBLEM_LENGTH],
        position=view.position,
        end=view.end,
        loaded_at=view.loaded_at,
        counters=_counts(stats.get("counters", {})),
        passed=_counts(stats.get("passed", {})),
        gauges=gauges,
        snapshot=snapshot,
        inbox_bytes=view.inbox_bytes,
        seen_set=_seen_set(gauges),
        suspect_hosts=int(gauges[_SUSPECTS]) if _SUSPECTS in gauges else None,
    )


def instance_sample(
    name: InstanceName, work: WorkFigures, *, partitions: int, at: float, sequence: int, left: bool = False
) -> InstanceSample:
    """The sample of an instance; `left` marks its last word."""
    state: Literal["running", "left"] = "left" if left else "running"
    return InstanceSample(
        service=name.service,
        instance=name.instance,
        campaign=name.campaign,
        at=at,
        started_at=name.started_at,
        sequence=sequence,
        state=state,
        partitions=partitions,
        work=work,
    )


def _name(text: str) -> str:
    """A figure's name in the form that samples and Prometheus share."""
    found = re.sub(r"[^a-z0-9_]", "_", text.lower())[:64]
    return found if found[:1].isalpha() else f"n{found}"[:64]


def _counts(values: Mapping[str, float]) -> dict[str, int]:
    """Figures that are counts; others would make the whole sample unreadable."""
    return {_name(name): int(value) for name, value in values.items() if 0 <= value <= _MOST}


def _seen_set(gauges: Mapping[str, float]) -> SeenSetFigures | None:
    if not all(name in gauges for name in _SEEN_SET):
        return None
    keys, bits, target, measured = (gauges[name] for name in _SEEN_SET)
    return SeenSetFigures(keys=int(keys), bits_per_url=bits, target_fpr=target, measured_fpr=measured)
