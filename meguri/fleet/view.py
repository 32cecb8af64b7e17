"""Looking at a fleet's state root: partitions as their newest snapshots have them; no broker is asked."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meguri.embedded.campaign import service_specs
from meguri.fleet.campaign import open_campaign
from meguri_common.errors import CorruptFilter, CorruptGeneration, CorruptSnapshot, DataFolderError, ManifestError
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.partition import LoadedPartition
from meguri_common.runtime.snapshots import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from meguri.fleet.campaign import FleetCampaign
    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.service import ServiceSpec

__all__ = ["FleetView", "open_fleet_view"]

_ATTEMPTS = 10
_STALE = (OSError, CorruptSnapshot, CorruptGeneration)
"""What a look meets if files went while it read; and what it meets if something is wrong."""


class _FilesToLookAt(LocalFiles):
    """The state root for one who doesn't own it: which generation is `current` stays as its owner set it."""

    def point(self, link: str, target: str) -> None:
        """Leave it as it is."""


class FleetView:
    """A campaign of a fleet that is only looked at. What came after a partition's last snapshot isn't seen."""

    def __init__(self, campaign: FleetCampaign) -> None:
        self.campaign = campaign
        self._files = _FilesToLookAt(campaign.data)
        specs = service_specs(campaign.identity, campaign.policy, self._files, secrets.token_hex, {})
        self._specs = {spec.name: spec for spec in specs}
        self._loaded: dict[tuple[str, int], LoadedPartition] = {}

    @property
    def files(self) -> FileSystem:
        """The state root's files."""
        return self._files

    @property
    def specs(self) -> Sequence[ServiceSpec]:
        """The services."""
        return list(self._specs.values())

    def snapshots(self, spec: ServiceSpec, number: int) -> SnapshotStore:
        """The snapshots of a partition."""
        # Only looks: names, times and grace are for those who write.
        folders = spec.folders(number)
        return SnapshotStore(self._files, spec.name, number, token=str, now=time.time, grace=0.0, folders=folders)

    def partition(self, service: str, number: int) -> LoadedPartition:
        """A partition as its newest whole snapshot has it, empty if it has none; the same object each time.

        Raises:
            CampaignMismatch: the snapshot is of another campaign.
            DataFolderError: its files are damaged or can't be read.
        """
        key = (service, number)
        if key not in self._loaded:
            self._loaded[key] = self._look(service, number)
        return self._loaded[key]

    def partitions(self, service: str) -> list[LoadedPartition]:
        """All partitions of a service, by number."""
        return [self.partition(service, number) for number in range(self.count(service))]

    def count(self, service: str) -> int:  # noqa: ARG002 - a campaign's services are cut alike
        """Number of partitions of a service."""
        return self.campaign.identity.partitions

    def forget(self) -> None:
        """Load anew what is asked for from now on."""
        self._loaded.clear()

    def _look(self, service: str, number: int) -> LoadedPartition:
        spec = self._specs[service]
        store = self.snapshots(spec, number)
        for _ in range(_ATTEMPTS):
            whole = store.whole()
            best = whole[0] if whole else None
            if best is None and (damaged := store.damaged()):
                msg = f"{self.campaign.data}: {service} {number} has no whole snapshot: {', '.join(damaged)}"
                raise DataFolderError(msg)
            try:
                parameters = dict(best.parameters if best else spec.parameters)
                loaded = LoadedPartition(
                    spec=spec,
                    number=number,
                    service=spec.create(number, parameters),
                    position=best.offset if best else 0,
                    parameters=parameters,
                    snapshots=store,
                    snapshot=best,
                )
                if best is not None:
                    where = f"the snapshot of {service}, partition {number},"
                    self.campaign.identity.check(best.identity, where)
                    loaded.service.load(store.reader(best))
            except _STALE as problem:
                # The owner lets files go behind its newest snapshot: if that is another by now, nothing is wrong.
                if store.whole()[:1] == whole[:1]:
                    msg = f"{self.campaign.data}: {service} {number} can't be read: {problem}"
                    raise DataFolderError(msg) from problem
            else:
                return loaded
        msg = f"{self.campaign.data}: its owner moves on faster than {service} {number} can be read; try again"
        raise DataFolderError(msg)


@contextmanager
def open_fleet_view(data: Path) -> Iterator[FleetView]:
    """Look at a state root; the fleet isn't disturbed.

    Raises:
        DataFolderError: there is no campaign in it, or a file of it is damaged.
    """
    try:
        yield FleetView(open_campaign(data))
    except (CorruptGeneration, CorruptFilter, ManifestError) as problem:
        raise DataFolderError(str(problem)) from problem
