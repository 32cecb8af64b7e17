"""One partition of a service in memory, and the order of what makes it durable.

The order of a commit, written down once: transaction, barrier, snapshot, then retention. A snapshot is written only
after the transaction that consumed up to its offset has committed and a barrier has made that durable: a snapshot
above the committed offset would be a state that the log knows nothing of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meguri_common.bus.port import TopicPartition
from meguri_common.runtime.snapshots import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_common.bus.port import Bus
    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.service import Parameters, Service, ServiceSpec
    from meguri_common.runtime.skips import SkipBook
    from meguri_common.runtime.snapshots import Snapshot

__all__ = ["COMMIT_MARK", "LoadedPartition", "Surroundings", "retain", "take_snapshot"]

COMMIT_MARK = "meguri/1"
"""Metadata of every offset that meguri commits. One without it was moved by another tool."""


@dataclass(frozen=True)
class Surroundings:
    """What is injected into everything that runs services."""

    bus: Bus
    files: FileSystem
    identity: CampaignIdentity
    now: Callable[[], float]
    """Epoch seconds."""
    token: Callable[[], str]
    """A random name part."""
    skips: SkipBook | None = None
    """Messages that operators have skipped; None where none can be."""
    grace: float = 300.0
    """Seconds that a file which no kept snapshot names stays, for those who still read or write it."""

    def snapshots(self, spec: ServiceSpec, partition: int) -> SnapshotStore:
        """The snapshots of a partition of a service."""
        return SnapshotStore(
            self.files,
            spec.name,
            partition,
            token=self.token,
            now=self.now,
            grace=self.grace,
            folders=spec.folders(partition),
        )


@dataclass
class LoadedPartition:
    """State at `position`, and the snapshot that its next one continues."""

    spec: ServiceSpec
    number: int
    service: Service
    position: int
    parameters: Parameters
    snapshots: SnapshotStore
    snapshot: Snapshot | None = None
    inbox_bytes: int = 0
    """Bytes of inbox since the last snapshot: what a restore would have to read again."""

    @property
    def source(self) -> TopicPartition:
        """The inbox."""
        return TopicPartition(self.spec.input_topic, self.number)

    @property
    def moved(self) -> bool:
        """Whether the state has consumed more than the last snapshot holds."""
        return self.snapshot is None or self.snapshot.offset != self.position


def take_snapshot(
    loaded: LoadedPartition,
    around: Surroundings,
    *,
    quick: bool = False,
    clean: bool = False,
    barrier: Callable[[], Any] | None = None,
) -> None:
    """Make a committed state durable, then let go of what is no longer needed to restore it.

    Args:
        loaded: state whose `position` has been committed.
        around: bus, files, clock and randomness.
        quick: write changes only, never a full rewrite.
        clean: no step was open or will follow: the snapshot stands for the commit too.
        barrier: what makes commits durable (default: the bus's barrier).

    Raises:
        OSError: the files could not be written; the state is unharmed, the last snapshot still counts.
    """
    (barrier or around.bus.barrier)()
    # Of the topic that the state comes from: should it have been made anew meanwhile, the next restore refuses that.
    known = loaded.snapshot.topic_id if loaded.snapshot else around.bus.topic_id(loaded.spec.input_topic)
    store = loaded.snapshots
    writer = store.writer(loaded.position, loaded.snapshot, quick=quick)
    loaded.service.save(writer)
    loaded.snapshot = store.commit(
        writer,
        topic_id=known,
        identity=around.identity,
        parameters=loaded.parameters,
        logic_version=loaded.spec.logic_version,
        clean=clean,
    )
    loaded.service.saved()
    loaded.inbox_bytes = 0
    retain(loaded.source, store, around.bus)


def retain(source: TopicPartition, store: SnapshotStore, bus: Bus) -> None:
    """Drop old snapshots and files, and the inbox below the older of the two that are kept."""
    kept = store.sweep()
    if len(kept) > 1:
        bus.trim(source, min(snapshot.offset for snapshot in kept))
