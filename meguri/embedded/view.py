"""Looking at a campaign beside a living writer: partitions as committed, restored again where the writer moved on."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from meguri.embedded.campaign import view_campaign
from meguri_common.bus.port import TopicPartition
from meguri_common.errors import (
    BusError,
    CorruptFilter,
    CorruptGeneration,
    CorruptSnapshot,
    DataFolderError,
    ManifestError,
    RestoreRefused,
)
from meguri_common.runtime.files import LocalFiles
from meguri_store.service import store_spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from meguri.embedded.campaign import Campaign
    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.partition import LoadedPartition
    from meguri_common.runtime.service import ServiceSpec
    from meguri_common.runtime.snapshots import SnapshotStore

__all__ = ["View", "open_view"]

_ATTEMPTS = 10
_STALE = (OSError, BusError, CorruptSnapshot, CorruptGeneration, RestoreRefused)
"""What a look meets if files or messages went while it read; and what it meets if something is wrong."""


class _FilesToLookAt(LocalFiles):
    """The data folder for one who doesn't own it: which generation is `current` stays as its owner set it."""

    def point(self, link: str, target: str) -> None:
        """Leave it as it is."""


class View:
    """A campaign that is only looked at. A partition is restored when it is first asked for."""

    def __init__(self, campaign: Campaign) -> None:
        files = _FilesToLookAt(campaign.data)
        specs = tuple(
            store_spec(campaign.identity, files, campaign.around.token) if spec.name == "store" else spec
            for spec in campaign.specs
        )
        self.campaign = replace(campaign, around=replace(campaign.around, files=files), specs=specs)
        self._loaded: dict[tuple[str, int], LoadedPartition] = {}

    @property
    def files(self) -> FileSystem:
        """The data folder's files."""
        return self.campaign.around.files

    @property
    def specs(self) -> Sequence[ServiceSpec]:
        """The services."""
        return self.campaign.specs

    def snapshots(self, spec: ServiceSpec, number: int) -> SnapshotStore:
        """The snapshots of a partition."""
        return self.campaign.around.snapshots(spec, number)

    def partition(self, service: str, number: int) -> LoadedPartition:
        """A partition as committed; the same object each time.

        Raises:
            RestoreRefused, CorruptSnapshot, CampaignMismatch: see `runtime.restore.restore`.
            DataFolderError: its files are damaged or can't be read.
        """
        key = (service, number)
        if key not in self._loaded:
            self._loaded[key] = self._look(service, number)
        return self._loaded[key]

    def partitions(self, service: str) -> list[LoadedPartition]:
        """All partitions of a service, by number."""
        return [self.partition(service, number) for number in range(self.count(service))]

    def count(self, service: str) -> int:
        """Number of partitions of a service."""
        return self.campaign.bus.partitions(self.campaign.spec(service).input_topic)

    def forget(self) -> None:
        """Restore anew what is asked for from now on."""
        self._loaded.clear()

    def moment(self) -> dict[tuple[str, int], int]:
        """Committed offset of each partition of each service: equal ones mean that nothing has happened meanwhile."""
        found = {}
        for spec in self.campaign.specs:
            for number in range(self.count(spec.name)):
                commit = self.campaign.bus.committed(spec.name, TopicPartition(spec.input_topic, number))
                found[spec.name, number] = commit.offset if commit else 0
        return found

    def _look(self, service: str, number: int) -> LoadedPartition:
        for _ in range(_ATTEMPTS):
            before = self._newest(service, number)
            try:
                return self.campaign.look(service, number)
            except _STALE as problem:
                # The writer lets files and messages go behind its newest snapshot: if that is another one by now,
                # nothing is wrong with what was read.
                if self._newest(service, number) == before:
                    raise _in_our_words(problem, self.campaign.data) from problem
        msg = f"{self.campaign.data}: its writer moves on faster than {service} {number} can be read; try again"
        raise DataFolderError(msg)

    def _newest(self, service: str, number: int) -> tuple[object, ...]:
        spec = self.campaign.spec(service)
        whole = self.campaign.around.snapshots(spec, number).whole()
        log = self.campaign.bus.watermarks(TopicPartition(spec.input_topic, number))
        return (whole[0].offset, whole[0].sequence, log[0]) if whole else (log[0],)


def _in_our_words(problem: Exception, data: Path) -> Exception:
    if isinstance(problem, CorruptGeneration):
        return DataFolderError(str(problem))
    if isinstance(problem, OSError):
        return DataFolderError(f"{problem.filename or data}: can't be read: {problem.strerror or problem}")
    return problem


@contextmanager
def open_view(data: Path) -> Iterator[View]:
    """Look at a data folder; whoever writes to it isn't disturbed.

    Raises:
        DataFolderError: there is no campaign in it, or a file of it is damaged.
        BusError: its bus can't be read.
    """
    campaign = view_campaign(data)
    try:
        yield View(campaign)
    except (CorruptGeneration, CorruptFilter, ManifestError) as problem:
        raise DataFolderError(str(problem)) from problem
    finally:
        campaign.close()
