"""BulkLoad: new URLs in any order become the first generation of each shard, in memory bounded by the sort buffer.

Rows are sorted on disk by (host key, URL) and freed of repeats; shards are then built one by one, or by several
processes at once. What is written until then lies in one folder below the store, which goes at the end, however it
ends; one that a killed process left goes when the next load begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from meguri_common.records import NO_DEPTH, Source, Status
from meguri_common.wire.columns import binary_array
from meguri_store.compact import Changes, publish_generation
from meguri_store.external_sort import LEAST_MEMORY, ROWS, ExternalSort
from meguri_store.host_rows import HostRows
from meguri_store.merge import CHUNK_ROWS
from meguri_store.schema import DEFAULT_CRAWL_DELAY, URL_SCHEMA, filled
from meguri_store.spill import SpillFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem
    from meguri_store.compact import Compacted
    from meguri_store.external_sort import SortedRuns

__all__ = ["DEFAULT_MEMORY", "LEAST_MEMORY", "BulkLoad", "Stamps", "build_shard", "new_urls"]

DEFAULT_MEMORY = 256 << 20
"""Bytes of the sort buffer."""

_FOLDER = ".build-"


@dataclass(frozen=True, slots=True)
class Stamps:
    """What new URLs are stamped with, where nothing else is said of them."""

    now: int
    """Hour of `first_seen` and `next_due`."""
    priority: float = 0.5
    depth: int = NO_DEPTH
    source: Source = Source.MANUAL
    status: Status = Status.SCHEDULED
    url_budget: int = 0
    """Of the hosts; 0 = unlimited."""
    depth_cap: int = 0
    """Of the hosts; 0 = unlimited."""
    crawl_delay: int = DEFAULT_CRAWL_DELAY
    """Of the hosts, deciseconds."""

    def __post_init__(self) -> None:
        """Refuse what no new URL can have.

        Raises:
            ValueError: a status that only a fetch or a verdict gives; an hour that would mean "never".
        """
        if self.status not in {Status.DISCOVERED, Status.SCHEDULED}:
            msg = f"new URLs are discovered or scheduled, not {self.status.name.lower()}"
            raise ValueError(msg)
        if not 1 <= self.now < 1 << 32:
            msg = f"hour {self.now}: hours since 1970 from 1 on"
            raise ValueError(msg)


def new_urls(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    host_key: NDArray[np.uint64],
    group_at: NDArray[np.uint16],
    group_len: NDArray[np.uint16],
    stamps: Stamps,
    stated: dict[str, NDArray[Any]] | None = None,
) -> pa.RecordBatch:
    """Canonical URLs as rows for `BulkLoad.add`.

    Args:
        data: their bytes.
        offsets: where each begins, (n + 1,).
        host_key: (n,).
        group_at: place of the host group in the URL, (n,).
        group_len: its length, (n,).
        stamps: what they are stamped with.
        stated: columns (n,) of `depth`, `source`, `priority`, `first_seen`, `next_due` that say otherwise.
    """
    rows = len(host_key)
    columns: dict[str, Any] = {
        "host_key": host_key,
        "group_at": group_at,
        "group_len": group_len,
        "depth": stamps.depth,
        "source": int(stamps.source),
        "priority": stamps.priority,
        "first_seen": stamps.now,
        "next_due": stamps.now,
        **(stated or {}),
    }
    arrays = [
        binary_array(offsets.astype(np.int32), data[: int(offsets[-1])])
        if field.name == "url"
        else pa.array(np.broadcast_to(columns[field.name], rows).astype(field.type.to_pandas_dtype()), field.type)
        for field in ROWS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


class BulkLoad:
    """A load under way: a context manager that leaves no temporary file behind.

    After `add` comes `finish`, then `build_shard` for each partition of the runs, in any order or process; one that
    failed can be built again.
    """

    def __init__(
        self,
        files: FileSystem,
        identity: CampaignIdentity,
        *,
        token: Callable[[], str],
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        """Begin a load into a store that no one else writes to.

        Args:
            files: where the store is.
            identity: the campaign.
            token: a random part of a name.
            memory: bytes of the sort buffer.

        Raises:
            ValueError: less than `LEAST_MEMORY`.
        """
        self._files = files
        self.folder = f"store/{_FOLDER}{token()}"
        """Of the temporary files."""
        for name in files.list("store"):
            if name.startswith(_FOLDER):
                files.remove(f"store/{name}")
        self._sort = ExternalSort(files, self.folder, identity.partitions, memory)
        files.make_folder(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.remove(self.folder)

    @property
    def rows(self) -> int:
        """URLs taken in, repeats included."""
        return self._sort.rows

    def add(self, rows: pa.RecordBatch) -> None:
        """Take in rows that `new_urls` made.

        Raises:
            OSError: the disk is full, or fails.
        """
        self._sort.add(rows)

    def finish(self) -> SortedRuns:
        """All rows, sorted.

        Raises:
            OSError: the disk is full, or fails.
        """
        return self._sort.finish()


def build_shard(
    files: FileSystem,
    identity: CampaignIdentity,
    load_folder: str,
    runs: SortedRuns,
    partition: int,
    *,
    stamps: Stamps,
    token: Callable[[], str],
    group_rows: int = CHUNK_ROWS,
) -> Compacted:
    """Build the first generation of a shard, at offset 0 of its inbox.

    Args:
        files: where the store is.
        identity: the campaign.
        load_folder: `BulkLoad.folder`.
        runs: what its `finish` gave.
        partition: the shard.
        stamps: what `new_urls` was told.
        token: a random part of a name.
        group_rows: rows of a row group.

    Raises:
        OSError: the generation can't be written. Nothing of it stays, and the runs are as they were.
    """
    path = f"{load_folder}/hosts-{partition:05d}"
    files.remove(path)
    with SpillFile(files, path) as spill:
        hosts = HostRows(spill)

        def records() -> Iterator[pa.Table]:
            for batch in runs.merged(files, partition):
                hosts.add(batch)
                yield _records(batch, stamps)

        facts = {"crawl_delay": stamps.crawl_delay, "url_budget": stamps.url_budget, "depth_cap": stamps.depth_cap}

        made = publish_generation(
            files,
            partition,
            records(),
            lambda: hosts.records(files, identity.group_by, facts),
            lambda: Changes(hosts.urls, 0, 0),
            expected=runs.rows(partition),
            offset=0,
            identity=identity,
            token=token,
            group_rows=group_rows,
        )
    files.remove(path)
    return made


def _records(batch: pa.RecordBatch, stamps: Stamps) -> pa.Table:
    stated: dict[str, Any] = {name: batch.column(name) for name in ROWS.names if name in URL_SCHEMA.names}
    url = batch.column("url")
    # Canonical URLs are ASCII: nothing is to be checked.
    stated["url"] = pa.Array.from_buffers(pa.string(), len(url), url.buffers(), offset=url.offset)
    return filled(URL_SCHEMA, batch.num_rows, {**stated, "status": int(stamps.status)})
