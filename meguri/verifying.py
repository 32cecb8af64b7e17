"""Whether all of a campaign's files are as their writers left them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from meguri_common.errors import CorruptGeneration, CorruptSnapshot
from meguri_dedup.run_file import ROLE as RUN
from meguri_dedup.service import verify_keys
from meguri_store.generation import FILES
from meguri_store.manifest import read_manifest
from meguri_store.verify import verify_generation

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri.inspecting import Inspected
    from meguri_common.runtime.service import ServiceSpec
    from meguri_common.runtime.snapshots import Snapshot

__all__ = ["verify_files"]

_MANIFEST = re.compile(r"snapshot-o(\d{12})-s(\d{8})-[0-9a-f]+\.json")


def verify_files(
    view: Inspected, said: Callable[[str], None], lacking: Callable[[ServiceSpec, int], None]
) -> dict[str, int]:
    """Read everything that has a checksum.

    A file that a living writer has let go meanwhile is passed over, where no manifest names it any more.

    Args:
        view: the campaign.
        said: told the path of what is read next.
        lacking: called for a partition without any snapshot; raises if there must have been one.

    Returns:
        How many manifests, files, generations and records were read.

    Raises:
        CorruptSnapshot, CorruptGeneration, ManifestError, CampaignMismatch: at the first lie; names the file.
    """
    read = {"manifests": 0, "files": 0, "generations": 0, "urls": 0}
    files, identity = view.files, view.campaign.identity
    said("store/store.json")
    shards = read_manifest(files, identity).shards
    folders: set[str] = set()
    for spec in view.specs:
        for number in range(view.count(spec.name)) if spec.stateful else ():
            said(view.snapshots(spec, number).folder)
            manifests = _verified_manifests(view, spec, number)
            if not manifests:
                lacking(spec, number)
            for snapshot in manifests:
                read["manifests"] += 1
                identity.check(snapshot.identity, f"a snapshot of {spec.name}, partition {number},")
                read["files"] += _verified_files(view, spec, snapshot)
                folders |= {ref.path.rpartition("/")[0] for ref in snapshot.files if ref.role in FILES}
    for folder in sorted(folders):
        said(folder)
        if not files.list(folder):
            continue
        meta = verify_generation(files, folder, identity).meta
        shard = shards[meta.partition]
        if any(group.first_host < shard.host_lo or group.last_host > shard.host_hi for group in meta.groups):
            msg = f"{folder}/{FILES['urls']}: has hosts outside of shard {meta.partition}"
            raise CorruptGeneration(msg)
        read["generations"] += 1
        read["urls"] += meta.urls
    for shard in shards:
        link = view.campaign.data / shard.path / "current"
        if link.is_symlink() and not link.exists():
            msg = f"{shard.path}/current: points at {link.readlink()}, which isn't there"
            raise CorruptGeneration(msg)
    return read


def _verified_manifests(view: Inspected, spec: ServiceSpec, number: int) -> list[Snapshot]:
    """All snapshots of a partition, where each manifest that lies there is whole."""
    snapshots = view.snapshots(spec, number)
    files = view.files
    # In this order: one that is swept meanwhile is in neither list, one that is added in the second alone.
    whole = snapshots.whole()
    there = [found for name in files.list(snapshots.folder) if (found := _MANIFEST.fullmatch(name))]
    if len(there) > len(whole):
        whole = snapshots.whole()
        marks = {(snapshot.offset, snapshot.sequence) for snapshot in whole}
        for found in there:
            name = found[0]
            if (int(found[1]), int(found[2])) not in marks and files.size(f"{snapshots.folder}/{name}") is not None:
                manifest = f"{snapshots.folder}/{name}"
                misfit = next((path for path in snapshots.damaged() if path != manifest), None)
                if misfit is not None:
                    msg = f"{misfit}: missing, cut short, or another file than {manifest} names"
                else:
                    msg = f"{manifest}: altered or cut short"
                raise CorruptSnapshot(msg)
    return whole


def _verified_files(view: Inspected, spec: ServiceSpec, snapshot: Snapshot) -> int:
    snapshots = view.snapshots(spec, snapshot.partition)
    reader = snapshots.reader(snapshot)
    for reference in snapshot.files:
        if reference.role in FILES and reference.role != "meta":
            continue  # meta.json holds its checksum, and is checked here; the file is read with its generation
        try:
            if reference.role == RUN:  # may be far larger than memory
                verify_keys(
                    reader.fs, snapshots.folder, view.campaign.identity.digest(), snapshot.partition, [reference]
                )
            else:
                reader.read(reference)
        except CorruptSnapshot:
            if view.files.size(reference.path) is not None:
                raise
            if any(reference in kept.files for kept in snapshots.whole()):
                raise
    return len(snapshot.files)
