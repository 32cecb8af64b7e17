"""A made-up fleet that speaks: samples of four services over time, as their instances would send them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meguri_common.telemetry.model import WorkFigures, encode_sample
from meguri_common.telemetry.sampling import InstanceName, PartitionView, instance_sample, partition_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meguri_common.telemetry.model import Sample

LINKS_A_PAGE = 40
PAGES_A_MESSAGE = 20


@dataclass
class Scene:
    """Pages come at `rate` messages a second; each service reads at most what its instances can."""

    rate: float = 100.0
    partitions: int = 4
    instances: dict[str, int] = field(
        default_factory=lambda: {"canonicalizer": 1, "dedup": 2, "prioritizer": 1, "store": 1}
    )
    capacity: dict[str, float] = field(
        default_factory=lambda: {"canonicalizer": 400.0, "dedup": 400.0, "prioritizer": 80.0, "store": 400.0}
    )
    """Messages a second of one instance."""
    campaign: str = "demo"
    started_at: float = 0.0
    hush: set[str] = field(default_factory=set)
    """Instances that say nothing."""
    stuck: dict[tuple[str, int], str] = field(default_factory=dict)
    """Partitions that stand still, and why."""
    suspects: int = 3
    _read: dict[str, float] = field(default_factory=dict)
    _came: dict[str, float] = field(default_factory=dict)
    _busy: dict[str, float] = field(default_factory=dict)
    _sequence: int = 0

    def step(self, at: float, seconds: float = 1.0) -> dict[str, list[Sample]]:
        """What each instance says at a moment, after so many seconds more."""
        arriving = self.rate * seconds
        for service, instances in self.instances.items():
            came = self._came[service] = self._came.get(service, 0.0) + arriving
            most = self.capacity[service] * instances * seconds
            taken = min(most, came - self._read.get(service, 0.0))
            self._read[service] = self._read.get(service, 0.0) + taken
            self._busy[service] = self._busy.get(service, 0.0) + (taken / most * seconds if most else 0.0)
            arriving = taken
        reports = dict(self._reports(at))
        self._sequence += 1
        return {name: report for name, report in reports.items() if name not in self.hush}

    def _reports(self, at: float) -> Iterator[tuple[str, list[Sample]]]:
        for service, count in self.instances.items():
            for number in range(count):
                name = InstanceName(service, f"{service}-{number + 1}", self.campaign, self.started_at)
                mine = range(number, self.partitions, count)
                work = WorkFigures(
                    steps=self._sequence + 1,
                    messages=int(self._read[service] / count),
                    bytes=int(self._read[service] / count) * 50_000,
                    busy_seconds=self._busy[service],
                    cpu_seconds=self._busy[service] * 0.8,
                    memory_bytes=(180 + 40 * number) << 20,
                )
                yield (
                    name.instance,
                    [
                        instance_sample(name, work, partitions=len(mine), at=at, sequence=self._sequence),
                        *(self._partition(name, partition, at) for partition in mine),
                    ],
                )

    def _partition(self, name: InstanceName, partition: int, at: float) -> Sample:
        service = name.service
        read = int(self._read[service] / self.partitions)
        problem = self.stuck.get((service, partition), "")
        view = PartitionView(
            partition,
            "stopped" if problem else "running",
            problem,
            position=read,
            end=int(self._came[service] / self.partitions),
            loaded_at=self.started_at,
            snapshot_offset=max(0, read - 500) if service != "canonicalizer" else None,
            snapshot_at=at - 60 - 10 * partition,
            inbox_bytes=5 << 20,
        )
        pages = read * PAGES_A_MESSAGE
        links = pages * LINKS_A_PAGE
        new = links * 8 // 100
        rejected = links * 3 // 100
        stats: dict[str, dict[str, dict[str, float]]] = {
            "canonicalizer": {"passed": {"pages": pages, "links": links}},
            "dedup": {
                "counters": {
                    "pages": pages,
                    "links": links,
                    "links_new": new,
                    "links_known": links - new - rejected,
                    "rejected_scheme": rejected,
                },
                "gauges": {"keys": new, "bits_per_url": 12.4, "target_fpr": 0.01, "measured_fpr": 0.0031},
            },
            "prioritizer": {
                "counters": {"visits": pages, "stale": 0},
                "gauges": {"hosts_flagged": self.suspects if partition == 0 else 0},
            },
            "store": {"counters": {"urls": new}, "passed": {"visits": pages, "operations": 2 * pages}},
        }
        return partition_sample(name, view, stats[service], at=at, sequence=self._sequence)


def message(report: list[Sample]) -> bytes:
    """A report as it stands in the topic."""
    return b"\n".join(encode_sample(sample) for sample in report)
