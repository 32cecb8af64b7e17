"""What a data folder is made of, and whether all of it is as its writers left it."""

from __future__ import annotations

import base64
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from meguri.embedded.overview import services_of, topics_of
from meguri.inspecting import describe_snapshots, generations_of, identity_of, seen_sets_of
from meguri.verifying import verify_files
from meguri_common.bus.port import TopicPartition
from meguri_common.bus.sqlite_schema import connect, mapped_errors
from meguri_common.errors import CorruptSnapshot, DataFolderError
from meguri_common.events.rejects import RejectRecord
from meguri_common.topics import REJECTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri.embedded.view import View
    from meguri_common.runtime.service import ServiceSpec

__all__ = ["inspect_folder", "rejects_of", "verify_folder"]

_READ_BYTES = 8 << 20
_PAYLOAD_START = 160


def inspect_folder(view: View) -> dict[str, Any]:
    """Identity, snapshots, generations, seen-sets, topics: what `meguri inspect --json` gives."""
    services = services_of(view)
    for spec in view.specs:
        for row in services[spec.name]:
            row["snapshots"] = describe_snapshots(view, spec, row["partition"])
    return {
        "identity": identity_of(view),
        "services": services,
        "generations": list(generations_of(view)),
        "seen_set": seen_sets_of(view),
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

    Args:
        view: the campaign.
        said: told the path of what is read next.

    Returns:
        How many manifests, files, generations and records were read.

    Raises:
        CorruptSnapshot, CorruptGeneration, ManifestError, CampaignMismatch, DataFolderError: at the first lie; names
            the file.
    """
    said("bus.db")
    _verify_bus(view)
    return verify_files(view, said, partial(_check_none_is_lacking, view))


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


def _check_none_is_lacking(view: View, spec: ServiceSpec, number: int) -> None:
    """Refuse a partition without any snapshot, where there must have been one.

    A first run begins by giving each partition of each service one: before that none of them has read anything.
    """
    bus = view.campaign.bus
    partitions = range(view.count(spec.name))
    begun = any(bus.committed(spec.name, TopicPartition(spec.input_topic, each)) for each in partitions)
    if begun or bus.watermarks(TopicPartition(spec.input_topic, number))[0] > 0:
        msg = f"{view.snapshots(spec, number).folder}: holds no snapshot, though {spec.name} has read on"
        raise CorruptSnapshot(msg)
