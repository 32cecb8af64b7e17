"""Writing a generation: into a temporary folder, fsynced, then renamed into place."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from meguri_common.filters.bloom import Filter
from meguri_common.kernels.xxh64 import hash_path_keys
from meguri_common.records import ParkReason, Status
from meguri_common.runtime.hashing import HashingFile
from meguri_common.runtime.snapshots import FileRef
from meguri_common.wire.columns import binary_parts
from meguri_store.generation import FILES, FileMark, GroupMeta, Meta
from meguri_store.merge import CHUNK_ROWS
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from meguri_common.runtime.files import FileSystem

__all__ = ["GenerationFiles", "RowGroups", "UrlSummary", "next_sequence", "write_hosts", "write_meta", "write_urls"]

_FILTER_RATE = 0.01
_COMPRESSION: dict[str, Any] = {"compression": "zstd", "compression_level": 3}
_SPREAD = frozenset({"url", "host_key", "priority", "content_fp", "simhash", "etag", "redirect"})
"""Columns of mostly distinct values, for which a dictionary is no gain."""
_NAME = re.compile(r"g(\d{12})-(\d+)-[0-9a-z]+")


def next_sequence(files: FileSystem, shard: str, offset: int) -> int:
    """The sequence of a new generation at an offset: above those that are there."""
    found = [match for match in map(_NAME.fullmatch, files.list(shard)) if match and int(match[1]) == offset]
    return max((int(match[2]) for match in found), default=-1) + 1


class GenerationFiles:
    """The files of a generation while it is made."""

    def __init__(self, files: FileSystem, shard: str, name: str) -> None:
        self._files = files
        self._shard = shard
        self._temporary = f"{shard}/.new-{name}"
        self.folder = f"{shard}/{name}"
        self.references: list[FileRef] = []

    @contextmanager
    def create(self, role: str) -> Iterator[HashingFile]:
        """A new file of the generation, synced when the context ends well."""
        name = FILES[role]
        with self._files.create(f"{self._temporary}/{name}") as file:
            hashing = HashingFile(file)
            yield hashing
            self._files.sync(file)
        self.references.append(FileRef(role, f"{self.folder}/{name}", hashing.size, hashing.checksum))

    @contextmanager
    def published(self) -> Iterator[None]:
        """What is created inside becomes the generation, if all goes well; else nothing of it stays."""
        self._files.make_folder(self._temporary)
        try:
            yield
            self._files.sync_folder(self._temporary)
            self._files.rename(self._temporary, self.folder)
            self._files.sync_folder(self._shard)
        except BaseException:
            self._files.remove(self._temporary)
            raise

    def marks(self) -> dict[str, FileMark]:
        """Sizes and checksums so far, by name."""
        return {
            reference.path.rpartition("/")[2]: FileMark(reference.size, reference.checksum)
            for reference in self.references
        }


class RowGroups:
    """Cuts a stream of tables into row groups of one size."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._waiting: list[pa.Table] = []
        self._count = 0

    def add(self, table: pa.Table) -> Iterator[pa.Table]:
        """Take rows; gives the groups that are full."""
        self._waiting.append(table)
        self._count += table.num_rows
        if self._count >= self._rows:
            whole = pa.concat_tables(self._waiting).combine_chunks()
            end = self._count - self._count % self._rows
            for start in range(0, end, self._rows):
                yield whole.slice(start, self._rows)
            self._waiting = [whole.slice(end)]
            self._count -= end

    def rest(self) -> Iterator[pa.Table]:
        """The last group, if there is a rest."""
        if self._count:
            yield pa.concat_tables(self._waiting).combine_chunks()


class UrlSummary:
    """What meta.json says about the URLs, gathered while they pass."""

    def __init__(self, rows: int) -> None:
        """For about `rows` URLs."""
        self.rows = 0
        self.groups: list[GroupMeta] = []
        self.filter = Filter(max(rows, 1), _FILTER_RATE)
        self._status = np.zeros(len(Status), np.int64)
        self._reason = np.zeros(len(ParkReason), np.int64)
        self._days: dict[int, int] = {}

    def add(self, group: pa.Table) -> None:
        """A row group, one chunk a column."""
        host = group.column("host_key").chunk(0).to_numpy()
        due = group.column("next_due").to_numpy()
        ever = due[due > 0]
        first_due = int(ever.min()) if len(ever) else 0
        self.groups.append(GroupMeta(group.num_rows, int(host[0]), int(host[-1]), first_due))
        self.rows += group.num_rows
        self._status += np.bincount(group.column("status").to_numpy(), minlength=len(Status))
        reasons = group.column("reason").to_numpy()
        self._reason += np.bincount(reasons, minlength=len(ParkReason))
        days, counts = np.unique(ever // 24, return_counts=True)
        for day, count in zip(days.tolist(), counts.tolist(), strict=True):
            self._days[day] = self._days.get(day, 0) + count
        self.filter.add_batch(host, url_paths(group.column("url").chunk(0)))

    def meta(self, **others: Any) -> Meta:
        """meta.json, with the fields that aren't about URLs."""
        by_reason = self._reason.copy()
        by_reason[0] = 0
        return Meta(
            urls=self.rows,
            by_status=tuple(self._status.tolist()),
            by_reason=tuple(by_reason.tolist()),
            due_by_day=dict(sorted(self._days.items())),
            groups=tuple(self.groups),
            **others,
        )


def url_paths(urls: pa.StringArray) -> NDArray[np.uint64]:
    """PathKeys of canonical URLs, (n,)."""
    offsets, data = binary_parts(urls)
    out = np.empty(len(urls), np.uint64)
    hash_path_keys(data, offsets, out)
    return out


def write_urls(sink: HashingFile, groups: Iterator[pa.Table]) -> None:
    """Write urls.parquet, one row group a table."""
    writer = pq.ParquetWriter(
        sink,
        URL_SCHEMA,
        use_dictionary=[name for name in URL_SCHEMA.names if name not in _SPREAD],
        column_encoding={"url": "DELTA_BYTE_ARRAY"},
        write_statistics=["host_key", "next_due"],
        **_COMPRESSION,
    )
    with writer:
        for group in groups:
            writer.write_table(group, row_group_size=group.num_rows)


def write_hosts(sink: HashingFile, chunks: Iterator[pa.Table], group_rows: int = CHUNK_ROWS) -> int:
    """Write hosts.parquet; gives the number of hosts."""
    rows = 0
    with pq.ParquetWriter(sink, HOST_SCHEMA, write_statistics=["host_key"], **_COMPRESSION) as writer:
        for chunk in chunks:
            rows += chunk.num_rows
            writer.write_table(chunk, row_group_size=group_rows)
    return rows


def write_meta(sink: HashingFile, meta: Meta) -> None:
    """Write meta.json."""
    sink.write(msgspec.json.format(msgspec.json.encode(meta), indent=1))
