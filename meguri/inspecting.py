"""What a campaign's files are, whichever way it is run: snapshots, generations, seen-sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from meguri_store.generation import FILES, Generation, shard_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.partition import LoadedPartition
    from meguri_common.runtime.service import ServiceSpec
    from meguri_common.runtime.snapshots import Snapshot, SnapshotStore

__all__ = ["Inspected", "describe_snapshots", "generations_of", "identity_of", "seen_sets_of", "whole_snapshots"]

_OF_A_PROCESS = {"runs_written", "merges", "merge_bytes_read", "merge_bytes_written", "merge_seconds"}
_SUMMED = ("keys", "keys_on_disk", "decisions", "hits", "misses", "base_probes", "run_probes", "trusted")


class Inspected(Protocol):
    """A view of a campaign that also tells of its files."""

    @property
    def campaign(self) -> Any:
        """With `identity` and `data`."""
        ...

    @property
    def files(self) -> FileSystem:
        """The folder's files."""
        ...

    @property
    def specs(self) -> Sequence[ServiceSpec]:
        """The services."""
        ...

    def snapshots(self, spec: ServiceSpec, number: int) -> SnapshotStore:
        """The snapshots of a partition."""
        ...

    def partitions(self, service: str) -> list[LoadedPartition]:
        """All partitions of a service, by number."""
        ...

    def count(self, service: str) -> int:
        """Number of partitions of a service."""
        ...


def identity_of(view: Inspected) -> dict[str, Any]:
    """The campaign's identity and its digest."""
    identity = view.campaign.identity
    return {**msgspec.to_builtins(identity), "digest": f"{identity.digest():016x}"}


def whole_snapshots(view: Inspected, spec: ServiceSpec, number: int) -> list[Snapshot]:
    """Whole snapshots of a partition, newest first."""
    return view.snapshots(spec, number).whole() if spec.stateful else []


def describe_snapshots(view: Inspected, spec: ServiceSpec, number: int) -> list[dict[str, Any]]:
    """Offset, sequence, whether of a clean stop, files and bytes of each whole snapshot, newest first."""
    return [
        {
            "offset": snapshot.offset,
            "sequence": snapshot.sequence,
            "clean": snapshot.clean,
            "files": len(snapshot.files),
            "bytes": sum(reference.size for reference in snapshot.files),
        }
        for snapshot in whole_snapshots(view, spec, number)
    ]


def generations_of(view: Inspected) -> Iterator[dict[str, Any]]:
    """The generations that snapshots of the store name, newest first in each shard."""
    (spec,) = (spec for spec in view.specs if spec.name == "store")
    for number in range(view.count("store")):
        link = view.campaign.data / shard_folder(number) / "current"
        current = link.readlink().name if link.is_symlink() else None
        folders = dict.fromkeys(
            reference.path.rpartition("/")[0]
            for snapshot in whole_snapshots(view, spec, number)
            for reference in snapshot.files
            if reference.role in FILES
        )
        for folder in folders:
            meta = Generation.open(view.files, folder, view.campaign.identity).meta
            yield {
                "partition": number,
                "folder": folder,
                "current": folder.rpartition("/")[2] == current,
                "offset": meta.offset,
                "sequence": meta.sequence,
                "urls": meta.urls,
                "hosts": meta.hosts,
                "row_groups": len(meta.groups),
                "bytes": sum(mark.size for mark in meta.files.values()),
            }


def seen_sets_of(view: Inspected) -> dict[str, Any]:
    """Figures of the seen-sets, counted since the campaign began, without those of merges, which a process counts."""
    partitions = []
    for loaded in view.partitions("dedup"):
        service: Any = loaded.service
        gauges = {name: value for name, value in service.stats()["gauges"].items() if name not in _OF_A_PROCESS}
        partitions.append({"partition": loaded.number, **gauges})
    summed = {name: sum(row[name] for row in partitions) for name in _SUMMED}
    keys, decisions, misses = summed["keys"], summed["decisions"], summed["misses"]
    false_hits = sum(row["measured_fpr"] * row["misses"] for row in partitions)
    return {
        **summed,
        "bits_per_url": sum(row["filter_bits"] for row in partitions) / keys if keys else 0.0,
        "measured_fpr": false_hits / misses if misses else 0.0,
        "base_share": summed["base_probes"] / decisions if decisions else 0.0,
        "run_share": summed["run_probes"] / decisions if decisions else 0.0,
        "partitions": partitions,
    }
