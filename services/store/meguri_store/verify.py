"""Reading a whole generation against everything that it says about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc
import xxhash

from meguri_common.errors import CorruptGeneration
from meguri_common.records import ParkReason, Status
from meguri_store.generation import FILES, Generation
from meguri_store.publish import UrlSummary, url_paths
from meguri_store.seen_filter import open_filters

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem

__all__ = ["verify_generation"]


def verify_generation(files: FileSystem, folder: str, identity: CampaignIdentity) -> Generation:
    """Check sizes, checksums, every page, order, values, counts, the hosts' rows, and the filter's answers.

    Raises:
        CorruptGeneration: at the first lie; names file and row.
        CampaignMismatch: it belongs to another campaign.
    """
    generation = Generation.open(files, folder, identity)
    for name, mark in generation.meta.files.items():
        checksum = xxhash.xxh64_hexdigest(files.read(f"{folder}/{name}"))
        if checksum != mark.checksum:
            msg = f"{folder}/{name}: its checksum is {checksum}, {FILES['meta']} says {mark.checksum}"
            raise CorruptGeneration(msg)
    _Walk(generation).run()
    return generation


class _Walk:
    """One pass over the URLs, then one over the hosts."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._urls = f"{generation.folder}/{FILES['urls']}"
        self._hosts = f"{generation.folder}/{FILES['hosts']}"
        self._filters = open_filters(generation)
        self._row = 0
        self._last: tuple[int, str] | None = None
        self._first_host: list[NDArray[np.uint64]] = []
        self._first_row: list[NDArray[np.int64]] = []

    def run(self) -> None:
        meta = self._generation.meta
        found = UrlSummary()
        for group in range(self._generation.groups):
            table = self._generation.urls(group)
            self._group(table)
            found.add(table)
            if found.groups[group] != meta.groups[group]:
                msg = f"{self._urls}: row group {group} is {found.groups[group]}, {FILES['meta']} says otherwise"
                raise CorruptGeneration(msg)
        counted = found.meta(
            partition=meta.partition,
            offset=meta.offset,
            sequence=meta.sequence,
            identity=meta.identity,
            hosts=meta.hosts,
            inserted=meta.inserted,
            updated=meta.updated,
            carried=meta.carried,
            recent=meta.recent,
            tau=meta.tau,
            reschedules=meta.reschedules,
            files=meta.files,
        )
        summed = () if meta.scheduled is None else ("scheduled",)
        for name in ("by_status", "by_reason", "due_by_day", *summed):
            if getattr(counted, name) != getattr(meta, name):
                msg = f"{self._urls}: {name} is {getattr(counted, name)}, {FILES['meta']} says {getattr(meta, name)}"
                raise CorruptGeneration(msg)
        expected = {"filter": meta.urls - meta.recent, "recent": meta.recent}
        for (role, keys), held in zip(expected.items(), self._filters, strict=False):
            if len(held) != keys:
                path = f"{self._generation.folder}/{FILES[role]}"
                msg = f"{path}: holds {len(held)} keys, {FILES['meta']} says {keys}"
                raise CorruptGeneration(msg)
        self._walk_hosts()

    def _refuse(self, path: str, bad: NDArray[Any], what: str, first: int) -> None:
        """Raise for the first row of a column of verdicts that is bad."""
        if bad.any():
            msg = f"{path}: row {first + int(np.argmax(bad))}: {what}"
            raise CorruptGeneration(msg)

    def _group(self, table: pa.Table) -> None:
        host = table.column("host_key").to_numpy()
        url = table.column("url").combine_chunks()
        url = url.chunk(0) if hasattr(url, "chunk") else url
        ordered = np.ones(len(host), np.bool_)
        forward = pc.less(url.slice(0, len(url) - 1), url.slice(1)).to_numpy(zero_copy_only=False)
        ordered[1:] = (host[1:] > host[:-1]) | ((host[1:] == host[:-1]) & forward)
        if self._last is not None:
            ordered[0] = self._last < (int(host[0]), url[0].as_py())
        self._refuse(self._urls, ~ordered, "isn't above the row before it", self._row)
        status, reason = table.column("status").to_numpy(), table.column("reason").to_numpy()
        self._refuse(self._urls, status >= len(Status), "has no known status", self._row)
        self._refuse(self._urls, reason >= len(ParkReason), "has no known reason", self._row)
        parked = status == Status.TRAPPED
        self._refuse(self._urls, parked != (reason != 0), "has a status that contradicts its reason", self._row)
        terminal = parked | (status == Status.GONE) | (status == Status.EXCLUDED_ROBOTS)
        due = table.column("next_due").to_numpy()
        self._refuse(self._urls, terminal & (due != 0), "is due in spite of its status", self._row)
        path = url_paths(url)
        absent = np.ones(len(host), np.bool_)
        for held in self._filters:
            absent &= ~held.maybe_contains_batch(host, path)
        self._refuse(self._urls, absent, f"its key isn't in {FILES['filter']}", self._row)
        begins = np.flatnonzero(np.append(self._last is None or self._last[0] != host[0], host[1:] != host[:-1]))
        self._first_host.append(host[begins])
        self._first_row.append(begins + self._row)
        self._last = int(host[-1]), url[-1].as_py()
        self._row += table.num_rows

    def _walk_hosts(self) -> None:
        layout_host = np.concatenate([*self._first_host, np.zeros(0, np.uint64)])
        layout_row = np.concatenate([*self._first_row, np.zeros(0, np.int64), [self._row]])
        row, last = 0, -1
        with_urls = 0
        for table in self._generation.hosts():
            host = table.column("host_key").to_numpy()
            ordered = np.append(int(host[0]) > last, host[1:] > host[:-1])
            self._refuse(self._hosts, ~ordered, "isn't above the row before it", row)
            expected = layout_row[np.searchsorted(layout_host, host)]
            stated = table.column("first_row").to_numpy().astype(np.int64)
            self._refuse(self._hosts, stated != expected, f"its URLs don't begin at that row of {FILES['urls']}", row)
            with_urls += int(np.count_nonzero(np.isin(host, layout_host)))
            row, last = row + table.num_rows, int(host[-1])
        if with_urls != len(layout_host):
            msg = f"{self._hosts}: {len(layout_host) - with_urls} hosts of {FILES['urls']} have no row"
            raise CorruptGeneration(msg)
