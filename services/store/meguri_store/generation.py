"""Generations: immutable folders of a shard's records.

    urls.parquet    one row per URL, ordered by (host_key, url)
    hosts.parquet   one row per host group, ordered by host_key
    seen.filter     filter over the keys of all URLs, but those in
    recent.filter   filter over the keys that came since seen.filter was built; only where there are any
    meta.json       what the others hold

A generation that is open stays readable after its names are gone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from meguri_common.errors import CorruptGeneration
from meguri_common.identity import CampaignIdentity  # noqa: TC001 - msgspec resolves the field's type at run time
from meguri_store.column_chunks import Chunk, ChunkReader
from meguri_store.host_file import columns_for, restored
from meguri_store.schema import HOST_FILE_SCHEMA, HOST_SCHEMA, URL_SCHEMA
from meguri_store.water_level import START_TAU

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.snapshots import FileRef

__all__ = ["FILES", "FileMark", "Generation", "GroupMeta", "Meta", "shard_folder"]

FILES = {
    "urls": "urls.parquet",
    "hosts": "hosts.parquet",
    "filter": "seen.filter",
    "recent": "recent.filter",
    "meta": "meta.json",
}
"""Names of a generation's files, by their role in a snapshot."""

VERSION = 2
"""Layout of a generation. Those of `_READ` are read, others are refused."""

_FULL_HOSTS = 1
"""The layout in which hosts.parquet has all columns of the records as they are."""
_READ = (_FULL_HOSTS, VERSION)


def shard_folder(partition: int) -> str:
    """The folder of a shard, below the data root."""
    return f"store/shard-{partition:05d}"


class FileMark(msgspec.Struct, frozen=True):
    """How a file can be recognised."""

    size: int
    checksum: str
    """xxh64 of the content, hex."""


class GroupMeta(msgspec.Struct, frozen=True):
    """A row group of urls.parquet."""

    rows: int
    first_host: int
    last_host: int
    first_due: int
    """Least hour at which a row of it is due; 0 = none ever is."""


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """meta.json."""

    version: int = VERSION
    partition: int
    offset: int
    """Next offset of the inbox after what went into the records."""
    sequence: int
    """Orders generations of one offset."""
    identity: CampaignIdentity
    urls: int
    hosts: int
    by_status: tuple[int, ...]
    """URLs by status code."""
    by_reason: tuple[int, ...]
    """Parked URLs by reason code."""
    due_by_day: dict[int, int]
    """URLs by the day (hour // 24) at which they are due; those that never are don't count."""
    tau: float = START_TAU
    """Price of a refresh (see `water_level`); a JSON number that reads back as the same bits."""
    scheduled: int | None = None
    """Scheduled fetches an hour, in parts (`water_level.RATE_UNIT`); None where an older release wrote it."""
    reschedules: int = 0
    """How often a URL was scheduled anew, by worth."""
    inserted: int
    """URLs that the base didn't have."""
    updated: int
    """URLs of the base about which something was said."""
    carried: int
    """URLs of the base that are as they were."""
    recent: int = 0
    """URLs whose keys are in recent.filter, not in seen.filter."""
    groups: tuple[GroupMeta, ...]
    files: dict[str, FileMark]
    """The other files, by name."""


@dataclass(frozen=True)
class Generation:
    """One generation, open for reading by one thread at a time. What it is made of is immutable."""

    folder: str
    meta: Meta
    _files: FileSystem
    _urls: pq.ParquetFile
    _hosts: pq.ParquetFile
    _pages: pa.NativeFile
    """The file of `_urls`."""

    @classmethod
    def open(cls, files: FileSystem, folder: str, identity: CampaignIdentity) -> Generation:
        """Open a generation; sizes, headers and counts are checked, the pages aren't.

        Raises:
            CorruptGeneration: a file is missing, cut short, or contradicts meta.json.
            CampaignMismatch: it belongs to another campaign.
        """
        path = f"{folder}/{FILES['meta']}"
        try:
            body = files.read(path)
            version = msgspec.json.decode(body, type=dict).get("version")
            if version not in _READ:
                known = " and ".join(map(str, _READ))
                msg = f"{path}: layout {version}, this program reads {known}: use the release that wrote it"
                raise CorruptGeneration(msg)
            meta = msgspec.json.decode(body, type=Meta)
        except (OSError, msgspec.DecodeError) as problem:
            msg = f"{path}: can't be read: {problem}"
            raise CorruptGeneration(msg) from problem
        identity.check(meta.identity, path)
        for name, mark in meta.files.items():
            size = files.size(f"{folder}/{name}")
            if size != mark.size:
                msg = f"{folder}/{name}: {size} bytes instead of {mark.size}" if size is not None else "is missing"
                raise CorruptGeneration(msg if size is not None else f"{folder}/{name}: is missing")
        urls, pages = _open(files, f"{folder}/{FILES['urls']}", URL_SCHEMA, meta.urls)
        host_columns = HOST_SCHEMA if meta.version == _FULL_HOSTS else HOST_FILE_SCHEMA
        hosts, _ = _open(files, f"{folder}/{FILES['hosts']}", host_columns, meta.hosts)
        if [urls.metadata.row_group(at).num_rows for at in range(urls.num_row_groups)] != [
            group.rows for group in meta.groups
        ]:
            msg = f"{folder}/{FILES['urls']}: its row groups aren't those of {FILES['meta']}"
            raise CorruptGeneration(msg)
        return cls(folder, meta, files, urls, hosts, pages)

    def close(self) -> None:
        """Let the files go; nothing can be read afterwards."""
        for file in (self._urls, self._hosts):
            file.close(force=True)

    @property
    def bits_per_url(self) -> float:
        """Bits of all files for each URL."""
        return 8 * sum(mark.size for mark in self.meta.files.values()) / max(self.meta.urls, 1)

    @property
    def groups(self) -> int:
        """Number of row groups of URLs."""
        return len(self.meta.groups)

    def host_range(self, group: int) -> tuple[int, int]:
        """First and last host key of a row group."""
        return self.meta.groups[group].first_host, self.meta.groups[group].last_host

    def group_rows(self, group: int) -> int:
        """Rows of a row group."""
        return self.meta.groups[group].rows

    def chunks(self) -> ChunkReader:
        """The column chunks of urls.parquet as they are.

        Raises:
            CorruptGeneration: they can't be found.
        """
        path = f"{self.folder}/{FILES['urls']}"
        try:
            return ChunkReader(self._files.open(path))
        except (OSError, ValueError) as problem:
            msg = f"{path}: can't be opened: {problem}"
            raise CorruptGeneration(msg) from problem

    def column_chunk(self, group: int, name: str) -> Chunk:
        """A column's chunk of a row group of URLs, described as far as reading its pages needs.

        Of the footer as Arrow has read it: reading it anew, as `chunks` does, takes a millisecond a row group.

        Raises:
            OSError: it can't be read.
            ValueError: it is cut short.
        """
        stated = self._urls.metadata.row_group(group).column(URL_SCHEMA.get_field_index(name))
        start, size = stated.data_page_offset, stated.total_compressed_size
        if stated.has_dictionary_page:
            start = min(start, stated.dictionary_page_offset)
        if start < 0 or size < 0 or start + size > self._pages.size():
            msg = f"{size} bytes of {name} at byte {start} aren't there"
            raise ValueError(msg)
        data = self._pages.get_stream(start, size).read_buffer(size)
        return Chunk.of_pages(name, stated.compression, data)

    def urls(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """A row group of URLs, all columns or some, in the schema's order.

        The URLs themselves are decoded by a kernel where kernels are loaded anyway.

        Raises:
            CorruptGeneration: it can't be decoded; names the rows.
        """
        path = f"{self.folder}/{FILES['urls']}"
        wanted = [name for name in URL_SCHEMA.names if columns is None or name in columns]
        texts = self._texts(group) if "url" in wanted and "numba" in sys.modules else None
        if texts is None:
            return _decode(self._urls, group, wanted, path)
        others = _decode(self._urls, group, [name for name in wanted if name != "url"], path)
        return others.add_column(wanted.index("url"), URL_SCHEMA.field("url").remove_metadata(), texts)

    def _texts(self, group: int) -> pa.StringArray | None:
        from meguri_store.decoding import decode_texts  # noqa: PLC0415 - imports numba, which `urls` asks about

        try:
            return decode_texts(self.column_chunk(group, "url"), self.group_rows(group))
        except (OSError, ValueError) as problem:
            first = sum(entry.rows for entry in self.meta.groups[:group])
            path = f"{self.folder}/{FILES['urls']}"
            msg = f"{path}: rows {first} to {first + self.group_rows(group) - 1} can't be read: {problem}"
            raise CorruptGeneration(msg) from problem

    def hosts(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Host records in order, a row group at a time, all columns or some.

        Raises:
            CorruptGeneration: one can't be decoded; names the rows.
        """
        path = f"{self.folder}/{FILES['hosts']}"
        full = self.meta.version == _FULL_HOSTS
        for group in range(self._hosts.num_row_groups):
            if full:
                yield _decode(self._hosts, group, columns, path)
            else:
                wanted = HOST_SCHEMA.names if columns is None else columns
                yield restored(_decode(self._hosts, group, columns_for(wanted), path), wanted)

    def filter_blob(self, role: str = "filter") -> bytes | None:
        """The filter over the URLs' keys, or, of role `recent`, over those that aren't in it, where there are any.

        See `meguri_common.filters` for what it is.
        """
        name = FILES[role]
        return self._files.read(f"{self.folder}/{name}") if name in self.meta.files else None

    def references(self, found: Sequence[FileRef]) -> list[FileRef]:
        """Those of a snapshot's files that belong to this generation."""
        return [reference for reference in found if reference.path.startswith(f"{self.folder}/")]


def _open(files: FileSystem, path: str, schema: pa.Schema, rows: int) -> tuple[pq.ParquetFile, pa.NativeFile]:
    try:
        source = files.open(path)
        file = pq.ParquetFile(source, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as problem:
        msg = f"{path}: can't be opened: {problem}"
        raise CorruptGeneration(msg) from problem
    if not file.schema_arrow.equals(schema):
        msg = f"{path}: has other columns: {file.schema_arrow.remove_metadata()}"
        raise CorruptGeneration(msg)
    if file.metadata.num_rows != rows:
        msg = f"{path}: has {file.metadata.num_rows} rows, {FILES['meta']} says {rows}"
        raise CorruptGeneration(msg)
    return file, source


def _decode(file: pq.ParquetFile, group: int, columns: Sequence[str] | None, path: str) -> pa.Table:
    try:
        return file.read_row_group(group, columns=list(columns) if columns is not None else None, use_threads=False)
    except (OSError, pa.ArrowException) as problem:
        first = sum(file.metadata.row_group(at).num_rows for at in range(group))
        last = first + file.metadata.row_group(group).num_rows - 1
        msg = f"{path}: rows {first} to {last} can't be read: {problem}"
        raise CorruptGeneration(msg) from problem
