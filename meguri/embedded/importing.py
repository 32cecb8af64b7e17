"""A campaign from the records of another: lossless in the store, and known to every service."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from meguri.embedded.building import host_facts
from meguri.embedded.campaign import open_campaign
from meguri.embedded.founding import foundation_of, token
from meguri.embedded.record_files import files_of, tables_of_files
from meguri.embedded.url_lists import canonical_columns
from meguri_canonicalizer.batch import BatchCanonicalizer
from meguri_common.errors import IncompatiblePolicy
from meguri_common.records import LINK_REJECT_REASONS
from meguri_common.wire.columns import binary_parts
from meguri_store.import_records import (
    GROUP_COLUMNS,
    GivenHosts,
    HostStream,
    MadeHosts,
    Place,
    RecordStream,
    import_shard,
)
from meguri_store.pool import ShardResult
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA
from meguri_store.spill import SpillFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from meguri.embedded.campaign import Campaign
    from meguri.embedded.founding import Foundation
    from meguri_canonicalizer.batch import CanonicalColumns
    from meguri_canonicalizer.policy import Policy
    from meguri_store.compact import Compacted

__all__ = ["ImportOptions", "Imported", "import_folder"]

_FOLDER = "store/.import-"
_PADDING = bytes(16)


@dataclass(frozen=True)
class ImportOptions:
    """What an import is told beside its inputs."""

    partitions: int | None = None
    policy: Path | None = None
    on_rows: Callable[[str, int], None] = lambda _name, _rows: None
    """Told how many records have been read so far, of which kind."""
    on_shard: Callable[[ShardResult[Compacted], int], None] = lambda _result, _of: None
    """Told of each shard that is written, and how many there may be."""


@dataclass
class Imported:
    """What an import came to."""

    data: str
    partitions: int
    urls: int = 0
    hosts: int = 0
    bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


def import_folder(
    data: Path,
    inputs: Sequence[str],
    hosts: Sequence[str],
    options: ImportOptions,
    now: Callable[[], float] = time.time,
) -> Imported:
    """Make a data folder of exported records.

    The store's records are those of the inputs, to the last bit. What other services keep beside them (cash,
    in-degrees, sources) isn't in records, and starts anew; what was crawled, parked or excluded is known as such.

    Args:
        data: the folder; new, empty, or left unfinished by an import.
        inputs: files or folders of URL records in store order.
        hosts: files or folders of host records in order; without any they are made of the URLs.
        options: see there.
        now: clock, epoch seconds.

    Raises:
        InputUnreadable: an input can't be read.
        RecordError: a record can't be one; names file and row.
        OrderViolation: records step backwards; names both rows.
        IncompatiblePolicy: a URL isn't canonical under the policy, or has another host key.
        DataFolderError: the folder holds something else already.
        OSError: the disk refuses.
    """
    began, cpu_began = time.monotonic(), time.process_time()
    files, host_files = files_of(inputs), files_of(hosts)
    campaign = open_campaign(data, partitions=options.partitions, policy=options.policy, making="import", now=now)
    try:
        imported = Imported(str(data), campaign.identity.partitions)
        for made in _shards(campaign, files, host_files, options):
            imported.urls += made.meta.urls
            imported.hosts += made.meta.hosts
            imported.bytes += made.bytes
        campaign.finish()
    finally:
        campaign.close()
    imported.seconds, imported.cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
    return imported


def _shards(
    campaign: Campaign, inputs: list[str], host_inputs: list[str], options: ImportOptions
) -> Iterator[Compacted]:
    partitions = campaign.identity.partitions
    place, host_place = Place(), Place()
    tables = _counted("URL records read", tables_of_files(inputs, URL_SCHEMA, place), options)
    records = RecordStream(_canonical(tables, campaign.policy, place), partitions, place)
    given = _counted("host records read", tables_of_files(host_inputs, HOST_SCHEMA, host_place), options)
    hosts = HostStream(given, partitions, host_place) if host_inputs else None
    store = campaign.around.files
    folder = f"{_FOLDER}{token()}"
    store.make_folder(folder)
    foundation = foundation_of(campaign)
    try:
        for partition in range(partitions):
            with SpillFile(store, f"{folder}/hosts-{partition:05d}") as spill:
                made = _shard(foundation, campaign, partition, records, hosts, spill)
            if made is not None:
                options.on_shard(ShardResult(partition, made), partitions)
                yield made
    finally:
        store.remove(folder)


def _shard(
    foundation: Foundation,
    campaign: Campaign,
    partition: int,
    records: RecordStream,
    hosts: HostStream | None,
    spill: SpillFile,
) -> Compacted | None:
    """A shard, if there are records of it."""
    files, identity = campaign.around.files, campaign.identity
    urls, first_url = _begun(records.of(partition))
    if hosts is not None:
        host_tables, first_host = _begun(hosts.of(partition))
        source: GivenHosts | MadeHosts = GivenHosts(host_tables)
    else:
        first_host, source = False, MadeHosts(files, spill, identity.group_by, host_facts(campaign))
    if not first_url and not first_host:
        foundation.found(partition, None)
        return None
    made = import_shard(files, identity, partition, urls, source, token=token)
    foundation.found(partition, made)
    return made


def _begun(tables: Iterator[pa.Table]) -> tuple[Iterator[pa.Table], bool]:
    """The same tables, and whether there are any."""
    first = next(tables, None)

    def rest() -> Iterator[pa.Table]:
        if first is not None:
            yield first
            yield from tables

    return rest(), first is not None


def _counted(what: str, tables: Iterable[pa.Table], options: ImportOptions) -> Iterator[pa.Table]:
    rows = 0
    for table in tables:
        rows += table.num_rows
        options.on_rows(what, rows)
        yield table


def _canonical(tables: Iterable[pa.Table], policy: Policy, place: Place) -> Iterator[pa.Table]:
    """The records, each of which the policy keys as it is keyed; with the place of the host group."""
    canonicalizer = BatchCanonicalizer(policy)
    for table in tables:
        if not table.num_rows:
            continue
        begins, given = binary_parts(table.column("url").combine_chunks())
        offsets = begins.astype(np.int64) - int(begins[0])
        text = given[int(begins[0]) : int(begins[-1])]
        found = canonical_columns(canonicalizer, np.frombuffer(text.tobytes() + _PADDING, np.uint8), offsets)
        _refuse_others(table.column("host_key").to_numpy(), text, offsets, found, place)
        grouped = (pa.array(found.group_at), pa.array(found.group_len))
        yield pa.Table.from_arrays([*table.columns, *grouped], [*table.column_names, *GROUP_COLUMNS])


def _refuse_others(
    host: NDArray[np.uint64],
    text: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    found: CanonicalColumns,
    place: Place,
) -> None:
    """Refuse URLs that aren't canonical, or have another key here."""
    same = (found.reject == 0) & (found.host_key == host) & (np.diff(found.offsets) == np.diff(offsets))
    if same.all() and np.array_equal(found.data[: len(text)], text):
        return
    for row in range(len(host)):
        url = text[offsets[row] : offsets[row + 1]].tobytes()
        other = found.data[found.offsets[row] : found.offsets[row + 1]].tobytes()
        if same[row] and url == other:
            continue
        code = int(found.reject[row])
        became = f"refused ({LINK_REJECT_REASONS[code - 1]})" if code else other.decode("ascii")
        msg = (
            f"{place.of(row)}: {url.decode('utf-8', 'replace')} with host key {host[row]:016x} is {became} with host "
            f"key {found.host_key[row]:016x} here: import records under the URL policy that they were made with "
            "(--policy)"
        )
        raise IncompatiblePolicy(msg)
