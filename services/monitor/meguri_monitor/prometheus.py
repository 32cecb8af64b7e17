"""The fleet as text for Prometheus: totals and gauges as they were last heard, labelled by service and partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from meguri_monitor.fleet import Fleet

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Labels = dict[str, str]


class _Families:
    """Metrics in the order they were first named, each with its samples."""

    def __init__(self) -> None:
        self._heads: dict[str, tuple[str, str]] = {}
        self._samples: dict[str, list[tuple[_Labels, float]]] = {}

    def add(self, name: str, kind: str, about: str, value: float | None, **labels: object) -> None:
        """One sample; nothing if its value isn't known."""
        if value is None:
            return
        self._heads.setdefault(name, (kind, about))
        self._samples.setdefault(name, []).append(({key: str(label) for key, label in labels.items()}, value))

    def lines(self) -> Iterator[str]:
        """The text."""
        for name, (kind, about) in self._heads.items():
            yield f"# HELP {name} {about}"
            yield f"# TYPE {name} {kind}"
            for labels, value in self._samples[name]:
                yield f"{name}{_braces(labels)} {_number(value)}"


def exposition(fleet: Fleet, now: float) -> str:
    """The text.

    Args:
        fleet: what is known.
        now: epoch seconds.
    """
    families = _Families()
    for service in fleet.services():
        _instances(families, fleet, service, now)
        _partitions(families, fleet, service, now)
    hearing = fleet.hearing
    for name, value in (
        ("samples", hearing.samples),
        ("lost_reports", hearing.lost_reports),
        ("repeated_samples", hearing.repeated),
        ("late_samples", hearing.late),
        ("unreadable_samples", hearing.unreadable),
        ("foreign_samples", hearing.foreign),
    ):
        families.add(f"meguri_monitor_{name}_total", "counter", "Telemetry as the monitor heard it.", value)
    return "".join(f"{line}\n" for line in families.lines())


def _instances(families: _Families, fleet: Fleet, service: str, now: float) -> None:
    for instance in fleet.instances(service):
        latest, work = instance.latest, instance.latest.work
        labels = {"service": service, "instance": latest.instance}
        up = latest.state != "left" and not instance.silent(now)
        families.add("meguri_instance_up", "gauge", "Whether the instance speaks.", int(up), **labels)
        families.add(
            "meguri_instance_partitions", "gauge", "Partitions that the instance owns.", latest.partitions, **labels
        )
        families.add("meguri_instance_memory_bytes", "gauge", "Resident memory.", work.memory_bytes, **labels)
        for name, about, value in (
            ("steps", "Transactions that took effect.", work.steps),
            ("failed_steps", "Transactions that did not take effect.", work.failed_steps),
            ("messages", "Messages in them.", work.messages),
            ("bytes", "Payload of the messages.", work.bytes),
            ("busy_seconds", "Time in steps.", work.busy_seconds),
            ("cpu_seconds", "Processor time.", work.cpu_seconds),
            ("dropped_reports", "Reports that could not be sent.", work.dropped_reports),
        ):
            families.add(f"meguri_instance_{name}_total", "counter", about, value, **labels)


def _partitions(families: _Families, fleet: Fleet, service: str, now: float) -> None:
    for partition in fleet.partitions(service):
        latest = partition.latest
        labels = {"service": service, "partition": latest.partition}
        gauges: Iterable[tuple[str, str, float | None]] = (
            ("running", "Whether the partition is worked on.", int(latest.state == "running")),
            ("stopped", "Whether the partition stands still.", int(latest.state == "stopped")),
            ("position", "Next offset of the inbox.", latest.position),
            ("lag_messages", "Offsets of the inbox still to be read.", partition.lag),
            ("snapshot_offset", "Offset of the last snapshot.", latest.snapshot.offset if latest.snapshot else None),
            (
                "snapshot_age_seconds",
                "Age of the last snapshot.",
                latest.snapshot.age + max(0.0, now - partition.heard) if latest.snapshot else None,
            ),
            ("reread_bytes", "Inbox that a restore would read again.", latest.inbox_bytes),
        )
        for name, about, value in gauges:
            families.add(f"meguri_partition_{name}", "gauge", about, value, **labels)
        for name, count in sorted(latest.counters.items()):
            families.add(
                f"meguri_{service}_{name}_total", "counter", "Total of the partition's state.", count, **labels
            )
        for name, count in sorted(latest.passed.items()):
            families.add(
                f"meguri_{service}_passed_{name}_total",
                "counter",
                "Count since the partition was loaded.",
                count,
                **labels,
            )
        for name, gauge in sorted(latest.gauges.items()):
            families.add(f"meguri_{service}_{name}", "gauge", "Figure of the partition's state.", gauge, **labels)


def _braces(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
