"""Writing a generation: into a temporary folder, fsynced, then renamed into place."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from meguri_common.filters.ribbon_stream import FileSpill
from meguri_common.kernels.xxh64 import hash_path_keys
from meguri_common.records import ParkReason, Status
from meguri_common.runtime.hashing import HashingFile
from meguri_common.runtime.snapshots import FileRef
from meguri_common.wire.columns import binary_parts
from meguri_store.column_chunks import ChunkWriter
from meguri_store.encoding import encode_columns
from meguri_store.generation import FILES, FileMark, GroupMeta, Meta
from meguri_store.host_file import stored
from meguri_store.merge import CHUNK_ROWS
from meguri_store.schema import HOST_FILE_SCHEMA
from meguri_store.water_level import scheduled_rates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from meguri_common.runtime.files import FileSystem
    from meguri_store.merge import Piece

__all__ = ["GenerationFiles", "RowGroups", "UrlSummary", "next_sequence", "url_paths", "write_hosts", "write_meta"]

_COUNTED = ["status", "reason", "last_crawled", "next_due"]
_HOURS = 24
_MANY_DAYS = 1 << 20
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

    def spill(self, name: str) -> FileSpill:
        """A temporary file beside them, gone when the generation is published."""
        return FileSpill(self._files, f"{self._temporary}/.{name}")

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

    def __init__(self, base: Meta | None = None, scheduled: int = 0) -> None:
        """Of no URLs; or of those of a base, all of which are to be kept or dropped.

        Args:
            base: what the base's meta.json says.
            scheduled: the base's scheduled rate, in parts (see `water_level`).
        """
        self.rows = 0
        self.groups: list[GroupMeta] = []
        self._status = np.array(base.by_status if base else [0] * len(Status), np.int64)
        self._reason = np.array(base.by_reason if base else [0] * len(ParkReason), np.int64)
        self._days = dict(base.due_by_day) if base else {}
        self._scheduled = scheduled

    def add(self, group: pa.Table) -> None:
        """A row group of new rows, one chunk a column."""
        self.count(group)
        self.describe(group)

    def describe(self, group: pa.Table) -> None:
        """A row group, one chunk a column, of rows that are counted apart."""
        host = group.column("host_key").chunk(0)
        due = group.column("next_due").to_numpy()
        ever = due[due > 0]
        first_due = int(ever.min()) if len(ever) else 0
        self.keep(GroupMeta(group.num_rows, host[0].as_py(), host[-1].as_py(), first_due))

    def keep(self, group: GroupMeta) -> None:
        """A row group that is as the base has it."""
        self.groups.append(group)
        self.rows += group.rows

    def replace(self, before: pa.Table, after: pa.Table, piece: Piece) -> None:
        """Count rows in place of those of the base that are among them; only those that the piece says differ."""
        before, after = (rows.select(_COUNTED) for rows in (before, after))
        if piece.touched is not None:
            fresh = piece.fresh if piece.fresh is not None else np.zeros(after.num_rows, np.bool_)
            before, after = before.filter(pa.array(piece.touched[~fresh])), after.filter(pa.array(piece.touched))
        self.count(before, -1)
        self.count(after)

    def count(self, rows: pa.Table, sign: int = 1) -> None:
        """Add rows to what is counted, or take them away."""
        self._status += sign * np.bincount(rows.column("status").to_numpy(), minlength=len(Status))
        self._reason += sign * np.bincount(rows.column("reason").to_numpy(), minlength=len(ParkReason))
        names = ("status", "last_crawled", "next_due")
        self._scheduled += sign * int(scheduled_rates(*(rows.column(name).to_numpy() for name in names)).sum())
        for day, count in _by_day(rows.column("next_due").to_numpy()):
            self._days[day] = self._days.get(day, 0) + sign * count
            if not self._days[day]:
                del self._days[day]

    def meta(self, **others: Any) -> Meta:
        """meta.json, with the fields that aren't about URLs."""
        by_reason = self._reason.copy()
        by_reason[0] = 0
        return Meta(
            urls=self.rows,
            by_status=tuple(self._status.tolist()),
            by_reason=tuple(by_reason.tolist()),
            due_by_day=dict(sorted(self._days.items())),
            scheduled=self._scheduled,
            groups=tuple(self.groups),
            **others,
        )


def _by_day(due: NDArray[np.uint32]) -> list[tuple[int, int]]:
    """Days at which rows are due, and how many each; those that never are don't count."""
    days = due[due > 0] // _HOURS
    if not len(days):
        return []
    first, last = int(days.min()), int(days.max())
    if last - first > _MANY_DAYS:
        found, counts = np.unique(days, return_counts=True)
        return list(zip(found.tolist(), counts.tolist(), strict=True))
    by_day = np.bincount(days - np.uint32(first)).tolist()
    return [(first + at, count) for at, count in enumerate(by_day) if count]


def url_paths(urls: pa.StringArray) -> NDArray[np.uint64]:
    """PathKeys of canonical URLs, (n,)."""
    offsets, data = binary_parts(urls)
    out = np.empty(len(urls), np.uint64)
    hash_path_keys(data, offsets, out)
    return out


def write_hosts(sink: HashingFile, chunks: Iterator[pa.Table], group_rows: int = CHUNK_ROWS) -> int:
    """Write hosts.parquet; gives the number of hosts."""
    writer = ChunkWriter(sink, HOST_FILE_SCHEMA)
    cut = RowGroups(group_rows)
    rows = 0

    def write(groups: Iterator[pa.Table]) -> None:
        for group in groups:
            writer.group(group.num_rows, encode_columns(stored(group), HOST_FILE_SCHEMA))

    for chunk in chunks:
        rows += chunk.num_rows
        write(cut.add(chunk))
    write(cut.rest())
    writer.close()
    return rows


def write_meta(sink: HashingFile, meta: Meta) -> None:
    """Write meta.json."""
    sink.write(msgspec.json.format(msgspec.json.encode(meta), indent=1))
