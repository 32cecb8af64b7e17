"""Writing urls.parquet: row groups of records, or of the base's own column chunks where nothing has changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from meguri_common.errors import CorruptGeneration
from meguri_store.column_chunks import ChunkWriter
from meguri_store.encoding import encode_columns
from meguri_store.freshness_plan import level_of
from meguri_store.generation import FILES
from meguri_store.publish import RowGroups, UrlSummary, url_paths
from meguri_store.schema import URL_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from meguri_common.runtime.hashing import HashingFile
    from meguri_store.column_chunks import Chunk
    from meguri_store.generation import Generation
    from meguri_store.merge import Piece
    from meguri_store.seen_filter import CarriedFilter, NewFilter

__all__ = ["UrlWriter"]


class UrlWriter:
    """Takes records in store order; hands on the keys, and gathers what meta.json says on the way."""

    def __init__(
        self, sink: HashingFile, base: Generation | None, keys: NewFilter | CarriedFilter, group_rows: int
    ) -> None:
        """Begin a file.

        Args:
            sink: where to.
            base: the generation that pieces speak of.
            keys: takes the keys.
            group_rows: rows of a row group; one that has grown is cut in parts when it is half as large again.
        """
        self.summary = UrlSummary(base.meta if base else None, level_of(base).scheduled)
        self._keys = keys
        self._base = base
        self._base_chunks = base.chunks() if base else None
        self._writer = ChunkWriter(sink, URL_SCHEMA)
        self._rows = group_rows
        self._cut = RowGroups(group_rows)
        self._small: list[pa.Table] = []

    def add(self, item: pa.Table | Piece) -> None:
        """The next records.

        Raises:
            CorruptGeneration: the base can't be read.
        """
        if isinstance(item, pa.Table):
            self._add_keys(item)
            self.summary.count(item)
            self._write_all(self._cut.add(item), thorough=True)
        elif item.group is not None:
            self._flush()
            self._carry(item, item.group)
        else:
            assert item.rows is not None, "rows that aren't the base's are given"
            if item.before is not None:
                self.summary.replace(item.before, item.rows, item)
            else:
                self.summary.count(item.rows)
            self._add_keys(item.rows, item.fresh)
            self._gather(item.rows)

    def close(self) -> None:
        """Write what is left, and the footer."""
        self._flush()
        self._write_all(self._cut.rest(), thorough=True)
        self._writer.close()

    def _add_keys(self, rows: pa.Table, fresh: NDArray[np.bool_] | None = None) -> None:
        if fresh is not None and self._keys.carried:
            rows = rows.select(["host_key", "url"]).filter(pa.array(fresh))
        if rows.num_rows:
            urls = rows.column("url").combine_chunks()
            self._keys.add(rows.column("host_key").to_numpy(), url_paths(_one(urls)))

    def _gather(self, rows: pa.Table) -> None:
        self._small.append(rows)
        if sum(table.num_rows for table in self._small) * 2 >= self._rows:
            self._flush()

    def _flush(self) -> None:
        """Write the rows that were gathered, as row groups of about one size."""
        if not self._small:
            return
        rows = self._small[0] if len(self._small) == 1 else pa.concat_tables(self._small)
        self._small = []
        rows = rows.combine_chunks()
        parts = max(round(rows.num_rows / self._rows), 1)
        size = -(-rows.num_rows // parts)
        self._write_all(rows.slice(start, size) for start in range(0, rows.num_rows, size))

    def _write_all(self, groups: Iterator[pa.Table], *, thorough: bool = False) -> None:
        """Write row groups; `thorough` are those of records that come as a whole and stay for long."""
        for group in groups:
            self.summary.describe(group)
            self._writer.group(group.num_rows, encode_columns(group, URL_SCHEMA, thorough=thorough))

    def _carry(self, piece: Piece, group: int) -> None:
        """A row group of the base, of which at most values have changed."""
        rows = piece.rows
        assert self._base is not None, "a piece of a base comes with it"
        if not self._keys.carried:
            self._add_keys(rows if rows is not None else self._base.urls(group, ["host_key", "url"]))
        chunks = self._stored(group)
        if rows is None:
            self.summary.keep(self._base.meta.groups[group])
        else:
            assert piece.before is not None, "changed rows come with what they were"
            rows = rows.combine_chunks()
            self.summary.replace(piece.before, rows, piece)
            self.summary.describe(rows)
            chunks.update(encode_columns(rows, URL_SCHEMA, _changed(piece.before, rows)))
        self._writer.group(self._base.group_rows(group), chunks)

    def _stored(self, group: int) -> dict[str, Chunk]:
        assert self._base is not None
        assert self._base_chunks is not None
        try:
            return self._base_chunks.group(group)
        except (OSError, ValueError, KeyError) as problem:
            path = f"{self._base.folder}/{FILES['urls']}"
            msg = f"{path}: row group {group}: its column chunks can't be read: {problem}"
            raise CorruptGeneration(msg) from problem


def _one(urls: pa.ChunkedArray | pa.StringArray) -> pa.StringArray:
    return urls.chunk(0) if isinstance(urls, pa.ChunkedArray) else urls


def _changed(before: pa.Table, after: pa.Table) -> list[str]:
    """Columns whose values differ, of those that are given."""
    return [name for name in after.column_names if not after.column(name).equals(before.column(name))]
