"""Looking at a campaign, whichever way it is run: an embedded run's data folder, or a fleet's state root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from meguri_common.runtime.partition import LoadedPartition

__all__ = ["Viewer", "open_view"]


class Viewer(Protocol):
    """Partitions to look at."""

    @property
    def campaign(self) -> Any:
        """What answers depend on beside the state: `identity` and `policy`."""
        ...

    def partition(self, service: str, number: int) -> LoadedPartition:
        """A partition; the same object each time."""
        ...

    def partitions(self, service: str) -> list[LoadedPartition]:
        """All partitions of a service, by number."""
        ...

    def count(self, service: str) -> int:
        """Number of partitions of a service."""
        ...

    def forget(self) -> None:
        """Load anew what is asked for from now on."""
        ...


def open_view(data: Path) -> AbstractContextManager[Viewer]:
    """Look at a campaign; whoever writes to it isn't disturbed.

    A data folder is seen as committed; of a state root, what its newest snapshots hold.

    Raises:
        DataFolderError: there is no campaign in it, or a file of it is damaged.
        BusError: its bus can't be read.
    """
    from meguri.fleet.campaign import CAMPAIGN_FILE  # noqa: PLC0415 - --help must not pay for it

    if (data / CAMPAIGN_FILE).is_file():
        from meguri.fleet.view import open_fleet_view  # noqa: PLC0415 - see above

        return open_fleet_view(data)
    from meguri.embedded.view import open_view as open_folder  # noqa: PLC0415 - see above

    return open_folder(data)
