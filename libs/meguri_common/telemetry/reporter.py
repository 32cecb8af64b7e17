"""The shell around sampling: when to report, what to say, and that it never holds up the work.

The worker's loop calls `tick` between steps. A report is made about once a second, and less often where making it
would take more than a hundredth of the time. Nothing that fails here reaches the worker.
"""

from __future__ import annotations

import logging
import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from meguri_common.telemetry.model import WorkFigures, encode_sample
from meguri_common.telemetry.sampling import PartitionView, Reporting, instance_sample, partition_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from meguri_common.runtime.partition import LoadedPartition
    from meguri_common.runtime.service import Service
    from meguri_common.runtime.worker import StoppedPartition
    from meguri_common.telemetry.model import Sample
    from meguri_common.telemetry.sampling import InstanceName

__all__ = ["Emitter", "Process", "Reporter", "SystemProcess", "view_of"]

_log = logging.getLogger(__name__)
_MESSAGE_BYTES = 256 << 10
_SAID_AGAIN_AFTER = 60.0


class Emitter(Protocol):
    """Where reports go. It may drop them, and must not wait."""

    def send(self, key: str, message: bytes) -> bool:
        """Hand a message over; False if it was dropped."""
        ...

    def close(self) -> None:
        """Send what is under way, within a second, and release resources."""
        ...


class Process(Protocol):
    """The process and its clocks."""

    def now(self) -> float:
        """Epoch seconds."""
        ...

    def elapsed(self) -> float:
        """Seconds of a clock that never steps."""
        ...

    def cpu_seconds(self) -> float:
        """Processor time that the process took."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory."""
        ...


class SystemProcess:
    """This process."""

    def now(self) -> float:
        """See `Process`."""
        return time.time()

    def elapsed(self) -> float:
        """See `Process`."""
        return time.monotonic()

    def cpu_seconds(self) -> float:
        """See `Process`."""
        return time.process_time()

    def memory_bytes(self) -> int:
        """Resident memory: now, where the kernel tells (Linux); else the most so far."""
        try:
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        except (OSError, ValueError, IndexError):
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return most if sys.platform == "darwin" else most << 10
        return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass
class _Seen:
    """What the reporter remembers of a loaded partition."""

    service: Service
    loaded_at: float
    snapshot: tuple[int, int] | None = None
    snapshot_at: float | None = None


class Reporter:
    """Telemetry of one instance of a service; used by one thread."""

    def __init__(
        self,
        name: InstanceName,
        emitter: Emitter,
        process: Process,
        *,
        interval: float = 1.0,
        share: float = 0.01,
    ) -> None:
        """Report on.

        Args:
            name: who reports.
            emitter: where reports go.
            process: the process and its clocks.
            interval: seconds between two reports, at least.
            share: part of the time that reports may take; a costly one is followed by a longer pause.
        """
        self._name = name
        self._emitter = emitter
        self._process = process
        self._interval = interval
        self._share = share
        self._sequence = 0
        self._due = process.elapsed()
        self._steps = self._messages = self._bytes = self._failed = self._dropped = 0
        self._busy = 0.0
        self._seen: dict[int, _Seen] = {}
        self._complained: dict[str, float] = {}

    def worked(self, *, messages: int, nbytes: int, seconds: float) -> None:
        """Count a transaction that took effect: its messages, their payload in bytes, and how long it took."""
        self._steps += 1
        self._messages += messages
        self._bytes += nbytes
        self._busy += seconds

    def failed(self, *, seconds: float = 0.0) -> None:
        """Count a transaction that didn't take effect."""
        self._failed += 1
        self._busy += seconds

    def due(self) -> bool:
        """Whether `tick` would report."""
        return self._process.elapsed() >= self._due

    def tick(
        self,
        loaded: Iterable[LoadedPartition],
        *,
        restoring: Iterable[int] = (),
        stopped: Mapping[int, StoppedPartition] | None = None,
        end_of: Callable[[int], int | None] = lambda _partition: None,
    ) -> bool:
        """Report if it is time to; whether it did. Never raises and never waits.

        Args:
            loaded: partitions in memory, between two steps.
            restoring: numbers of those that are assigned and not loaded yet.
            stopped: those that stand still, by number.
            end_of: the inbox's next free offset of a partition, as last heard.
        """
        began = self._process.elapsed()
        if began < self._due:
            return False
        try:
            self._report(loaded, restoring, stopped or {}, end_of, left=False)
        except Exception as problem:  # noqa: BLE001 - a mistake in telemetry must not stop the data path
            self._complain("report", problem)
        ended = self._process.elapsed()
        self._due = ended + max(self._interval, (ended - began) / self._share)
        return True

    def leave(self) -> None:
        """Say the last word of an instance that stops in order; never raises."""
        try:
            self._report((), (), {}, lambda _partition: None, left=True)
            self._emitter.close()
        except Exception as problem:  # noqa: BLE001 - see `tick`
            self._complain("leave", problem)

    def _report(
        self,
        loaded: Iterable[LoadedPartition],
        restoring: Iterable[int],
        stopped: Mapping[int, StoppedPartition],
        end_of: Callable[[int], int | None],
        *,
        left: bool,
    ) -> None:
        now = self._process.now()
        views: dict[int, tuple[PartitionView, Service | None]] = {
            number: (PartitionView(number, "restoring"), None) for number in restoring
        }
        in_memory = {partition.number: partition for partition in loaded}
        for number, partition in in_memory.items():
            views[number] = (self._view(partition, end_of(number), now), partition.service)
        for number, still in stopped.items():
            views[number] = (_stopped_view(number, still, end_of(number)), None)
        self._seen = {number: seen for number, seen in self._seen.items() if number in in_memory}
        work = WorkFigures(
            steps=self._steps,
            messages=self._messages,
            bytes=self._bytes,
            failed_steps=self._failed,
            busy_seconds=round(self._busy, 6),
            cpu_seconds=round(self._process.cpu_seconds(), 6),
            memory_bytes=self._process.memory_bytes(),
            dropped_reports=self._dropped,
        )
        samples: list[Sample] = [
            instance_sample(self._name, work, partitions=len(views), at=now, sequence=self._sequence, left=left),
            *(
                partition_sample(self._name, view, self._stats(service), at=now, sequence=self._sequence)
                for _, (view, service) in sorted(views.items())
            ),
        ]
        self._sequence += 1
        self._send([encode_sample(sample) for sample in samples])

    def _view(self, partition: LoadedPartition, end: int | None, now: float) -> PartitionView:
        seen = self._seen.get(partition.number)
        if seen is None or seen.service is not partition.service:
            seen = self._seen[partition.number] = _Seen(partition.service, now)
        snapshot = partition.snapshot
        if snapshot is not None and seen.snapshot != (snapshot.offset, snapshot.sequence):
            seen.snapshot = (snapshot.offset, snapshot.sequence)
            seen.snapshot_at = partition.snapshots.written_at(snapshot)
        return view_of(partition, end=end, loaded_at=seen.loaded_at, snapshot_at=seen.snapshot_at)

    def _stats(self, service: Service | None) -> Mapping[str, Mapping[str, float]]:
        if not isinstance(service, Reporting):
            return {}
        try:
            return service.stats()
        except Exception as problem:  # noqa: BLE001 - the position is worth saying without the figures
            self._complain("stats", problem)
            return {}

    def _send(self, lines: list[bytes]) -> None:
        start = size = 0
        for at, line in enumerate(lines):
            if size and size + len(line) > _MESSAGE_BYTES:
                self._hand_over(lines[start:at])
                start, size = at, 0
            size += len(line) + 1
        self._hand_over(lines[start:])

    def _hand_over(self, lines: list[bytes]) -> None:
        if not self._emitter.send(self._name.service, b"\n".join(lines)):
            self._dropped += 1

    def _complain(self, what: str, problem: Exception) -> None:
        now = self._process.elapsed()
        if now - self._complained.get(what, -_SAID_AGAIN_AFTER) >= _SAID_AGAIN_AFTER:
            self._complained[what] = now
            _log.warning("%s: telemetry (%s) failed, the work goes on: %s", self._name.instance, what, problem)


def view_of(
    partition: LoadedPartition, *, end: int | None, loaded_at: float | None, snapshot_at: float | None
) -> PartitionView:
    """What is to be said of a loaded partition, its service's own figures apart."""
    return PartitionView(
        number=partition.number,
        state="running",
        position=partition.position,
        end=end,
        loaded_at=loaded_at,
        snapshot_offset=partition.snapshot.offset if partition.snapshot else None,
        snapshot_at=snapshot_at,
        inbox_bytes=partition.inbox_bytes,
    )


def _stopped_view(number: int, still: StoppedPartition, end: int | None) -> PartitionView:
    """A partition that stands still: at a message that can't be handled, or (offset -1) since it can't be restored."""
    if still.offset < 0:
        return PartitionView(number, "stopped", str(still.problem), end=end)
    return PartitionView(number, "stopped", f"offset {still.offset}: {still.problem}", position=still.offset, end=end)
