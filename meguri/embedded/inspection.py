"""What a data folder is made of, and whether all of it is as its writers left it."""

from __future__ import annotations

import base64
import re
import sqlite3
from typing import TYPE_CHECKING, Any

import msgspec

from meguri.embedded.overview import services_of, topics_of
from meguri_common.bus.port import TopicPartition
from meguri_common.bus.sqlite_schema import connect, mapped_errors
from meguri_common.errors import CorruptGeneration, CorruptSnapshot, DataFolderError
from meguri_common.events.rejects import RejectRecord
from meguri_common.topics import REJECTS
from meguri_dedup.run_file import ROLE as RUN
from meguri_dedup.service import verify_keys
from meguri_store.generation import FILES, Generation, shard_folder
from meguri_store.manifest import read_manifest
from meguri_store.verify import verify_generation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meguri.embedded.view import View
    from meguri_common.runtime.service import ServiceSpec
    from meguri_common.runtime.snapshots import Snapshot

__all__ = ["inspect_folder", "rejects_of", "verify_folder"]

_READ_BYTES = 8 << 20
_PAYLOAD_START = 160
_OF_A_PROCESS = {"runs_written", "merges", "merge_bytes_read", "merge_bytes_written", "merge_seconds"}
_SUMMED = ("keys", "keys_on_disk", "decisions", "hits", "misses", "base_probes", "run_probes", "trusted")
_MANIFEST = re.compile(r"snapshot-o(\d{12})-s(\d{8})-[0-9a-f]+\.json")


def inspect_folder(view: View) -> dict[str, Any]:
    """Identity, snapshots, generations, seen-sets, topics: what `meguri inspect --json` gives."""
    identity = view.campaign.identity
    services = services_of(view)
    for spec in view.campaign.specs:
        for row in services[spec.name]:
            row["snapshots"] = [_snapshot(snapshot) for snapshot in _whole(view, spec, row["partition"])]
    return {
        "identity": {**msgspec.to_builtins(identity), "digest": f"{identity.digest():016x}"},
        "services": services,
        "generations": list(_generations(view)),
        "seen_set": _seen_set(view),
        "topics": topics_of(view),
    }


def rejects_of(view: View, count: int) -> tuple[int, list[dict[str, Any]]]:
    """How many events were rejected in all, and the last `count` of them, oldest first.

    Returns:
        Their number; reason, detail, service, file and line (null where not known), and the start of each payload.
    """
    source = TopicPartition(REJECTS, 0)
    first, end = view.campaign.bus.watermarks(source)
    at, out = max(first, end - count), []
    while at < end:
        messages = view.campaign.bus.read(source, at, end=end, max_bytes=_READ_BYTES)
        if not messages:
            break
        out += [_reject(bytes(message.payload)) for message in messages]
        at = messages[-1].offset + 1
    return end, out


def verify_folder(view: View, said: Callable[[str], None]) -> dict[str, int]:
    """Read everything that has a checksum, and the bus page by page.

    A file that a living writer has let go meanwhile is passed over, where no manifest names it any more.

    Args:
        view: the campaign.
        said: told the path of what is read next.

    Returns:
        How many manifests, files, generations and records were read.

    Raises:
        CorruptSnapshot, CorruptGeneration, ManifestError, CampaignMismatch, DataFolderError: at the first lie; names
            the file.
    """
    read = {"manifests": 0, "files": 0, "generations": 0, "urls": 0}
    files, identity = view.campaign.around.files, view.campaign.identity
    said("bus.db")
    _verify_bus(view)
    said("store/store.json")
    shards = read_manifest(files, identity).shards
    folders: set[str] = set()
    for spec in view.campaign.specs:
        for number in range(view.count(spec.name)) if spec.stateful else ():
            said(view.campaign.around.snapshots(spec, number).folder)
            manifests = _verified_manifests(view, spec, number)
            if not manifests:
                _check_none_is_lacking(view, spec, number)
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


def _whole(view: View, spec: ServiceSpec, number: int) -> list[Snapshot]:
    return view.campaign.around.snapshots(spec, number).whole() if spec.stateful else []


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "offset": snapshot.offset,
        "sequence": snapshot.sequence,
        "clean": snapshot.clean,
        "files": len(snapshot.files),
        "bytes": sum(reference.size for reference in snapshot.files),
    }


def _generations(view: View) -> Iterator[dict[str, Any]]:
    """The generations that snapshots of the store name, newest first in each shard."""
    spec = view.campaign.spec("store")
    for number in range(view.count("store")):
        link = view.campaign.data / shard_folder(number) / "current"
        current = link.readlink().name if link.is_symlink() else None
        folders = dict.fromkeys(
            reference.path.rpartition("/")[0]
            for snapshot in _whole(view, spec, number)
            for reference in snapshot.files
            if reference.role in FILES
        )
        for folder in folders:
            meta = Generation.open(view.campaign.around.files, folder, view.campaign.identity).meta
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


def _seen_set(view: View) -> dict[str, Any]:
    """Figures of the seen-sets, counted since the campaign began; those of merges, which a process counts, apart."""
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


def _reject(payload: bytes) -> dict[str, Any]:
    record = msgspec.json.decode(payload, type=RejectRecord)
    start = base64.b64decode(record.payload)[:_PAYLOAD_START]
    return {
        "reason": record.reason,
        "detail": record.detail,
        "at_service": record.at_service,
        "file": record.origin.file if record.origin else None,
        "line": record.origin.line if record.origin else None,
        "topic": record.topic,
        "offset": record.offset,
        "payload_start": start.decode("utf-8", "backslashreplace"),
    }


def _verify_bus(view: View) -> None:
    path = view.campaign.bus.path
    connection = None
    try:
        with mapped_errors(path):
            connection = connect(path, read_only=True)
            found = connection.execute("pragma integrity_check(1)").fetchone()[0]
    finally:
        if isinstance(connection, sqlite3.Connection):
            connection.close()
    if found != "ok":
        msg = f"{path}: damaged: {' '.join(found.split())}. Put back a copy, or start a new data folder."
        raise DataFolderError(msg)


def _verified_manifests(view: View, spec: ServiceSpec, number: int) -> list[Snapshot]:
    """All snapshots of a partition, where each manifest that lies there is whole."""
    snapshots = view.campaign.around.snapshots(spec, number)
    files = view.campaign.around.files
    # In this order: one that is swept meanwhile is in neither list, one that is added in the second alone.
    whole = snapshots.whole()
    there = [found for name in files.list(snapshots.folder) if (found := _MANIFEST.fullmatch(name))]
    if len(there) > len(whole):
        whole = snapshots.whole()
        marks = {(snapshot.offset, snapshot.sequence) for snapshot in whole}
        for found in there:
            name = found[0]
            if (int(found[1]), int(found[2])) not in marks and files.size(f"{snapshots.folder}/{name}") is not None:
                msg = f"{snapshots.folder}/{name}: altered, cut short, or a file that it names is missing or cut short"
                raise CorruptSnapshot(msg)
    return whole


def _check_none_is_lacking(view: View, spec: ServiceSpec, number: int) -> None:
    """Refuse a partition without any snapshot, where there must have been one.

    A first run begins by giving each partition of each service one: before that none of them has read anything.
    """
    bus = view.campaign.bus
    partitions = range(view.count(spec.name))
    begun = any(bus.committed(spec.name, TopicPartition(spec.input_topic, each)) for each in partitions)
    if begun or bus.watermarks(TopicPartition(spec.input_topic, number))[0] > 0:
        msg = (
            f"{view.campaign.around.snapshots(spec, number).folder}: holds no snapshot, though {spec.name} has read on"
        )
        raise CorruptSnapshot(msg)


def _verified_files(view: View, spec: ServiceSpec, snapshot: Snapshot) -> int:
    snapshots = view.campaign.around.snapshots(spec, snapshot.partition)
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
            if view.campaign.around.files.size(reference.path) is not None:
                raise
            if any(reference in kept.files for kept in snapshots.whole()):
                raise
    return len(snapshot.files)
