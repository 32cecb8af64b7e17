"""Parquet files as column chunks: what a file consists of, one for each column of each row group.

A chunk is self-contained, so that one of which no value has changed goes from a file to the next as the bytes that it
is, neither decoded nor encoded. Only the footer says where it lies, and is written anew.

Method: the Apache Parquet format, version 2.11 (parquet.thrift); ids of fields are that document's.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from meguri_store.thrift import Struct, Wire, decode_struct, encode_struct

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meguri_common.runtime.hashing import HashingFile

__all__ = ["Chunk", "ChunkReader", "ChunkWriter", "read_chunks"]

_MAGIC = b"PAR1"
_TAIL = struct.Struct("<I4s")

# Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
_VERSION, _SCHEMA, _ROWS, _GROUPS, _KEY_VALUES, _CREATED_BY, _ORDERS = 1, 2, 3, 4, 5, 6, 7
_GROUP_COLUMNS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_AT, _GROUP_STORED, _GROUP_NUMBER = 1, 2, 3, 5, 6, 7
_CHUNK_AT, _CHUNK_META = 2, 3
_PATH, _CODEC, _UNPACKED, _PACKED, _DATA_AT, _DICTIONARY_AT, _STATISTICS = 3, 4, 6, 7, 9, 11, 12
_CODECS = {"UNCOMPRESSED": 0, "ZSTD": 6}
_KEPT = frozenset({1, 2, 3, 4, 5, _UNPACKED, _PACKED, _DATA_AT, _DICTIONARY_AT, _STATISTICS})
"""What is kept of a chunk's description; the rest repeats what pages say."""


@dataclass(frozen=True)
class Chunk:
    """A column chunk: its pages, and its ColumnMetaData with places counted from its own first byte."""

    meta: Struct
    data: Any
    """Its bytes, anything with a buffer."""

    @classmethod
    def of_pages(cls, name: str, codec: str, data: Any) -> Chunk:
        """A chunk described as far as reading its pages needs; not to be written.

        Args:
            name: the column.
            codec: Arrow's name of the compression.
            data: its pages.
        """
        return cls(
            {_PATH: (Wire.LIST, (Wire.BINARY, [name.encode()])), _CODEC: (Wire.I32, _CODECS.get(codec, -1))}, data
        )

    @property
    def name(self) -> str:
        """The column."""
        name: str = self.meta[_PATH][1][1][0].decode()
        return name

    def with_statistics(self, least: bytes, most: bytes) -> Chunk:
        """The chunk with the least and greatest of its values, as PLAIN encodes them."""
        known = {3: (Wire.I64, 0), 5: (Wire.BINARY, most), 6: (Wire.BINARY, least)}
        return Chunk({**self.meta, _STATISTICS: (Wire.STRUCT, known)}, self.data)


class ChunkReader:
    """The column chunks of a Parquet file."""

    def __init__(self, file: pa.NativeFile) -> None:
        """Read the footer.

        Raises:
            ValueError: there is none.
        """
        self._file = file
        size = file.size()
        tail = file.read_at(min(size, _TAIL.size), max(size - _TAIL.size, 0))
        if len(tail) < _TAIL.size or tail[4:] != _MAGIC:
            msg = f"{size} bytes don't end as a Parquet file does"
            raise ValueError(msg)
        length = _TAIL.unpack(tail)[0]
        if length + _TAIL.size + len(_MAGIC) > size:
            msg = f"a footer of {length} bytes doesn't fit into {size}"
            raise ValueError(msg)
        footer, _ = decode_struct(bytes(file.read_at(length, size - _TAIL.size - length)))
        try:
            self._groups = [
                [column[_CHUNK_META][1] for column in group[_GROUP_COLUMNS][1][1]] for group in footer[_GROUPS][1][1]
            ]
        except KeyError as problem:
            msg = f"its footer lacks field {problem}"
            raise ValueError(msg) from problem

    def group(self, number: int) -> dict[str, Chunk]:
        """The chunks of a row group by column; of a mapped file their bytes aren't copied."""
        found = [self._chunk(number, meta) for meta in self._groups[number]]
        return {chunk.name: chunk for chunk in found}

    def _chunk(self, number: int, meta: Struct) -> Chunk:
        data_at = meta[_DATA_AT][1]
        start = min(meta.get(_DICTIONARY_AT, (Wire.I64, data_at))[1] or data_at, data_at)
        kept = {field: value for field, value in meta.items() if field in _KEPT}
        kept[_DATA_AT] = (Wire.I64, data_at - start)
        if start < data_at:
            kept[_DICTIONARY_AT] = (Wire.I64, 0)
        else:
            kept.pop(_DICTIONARY_AT, None)
        self._file.seek(start)
        data = self._file.read_buffer(meta[_PACKED][1])
        if data.size != meta[_PACKED][1]:
            msg = f"row group {number}: a column chunk is cut short"
            raise ValueError(msg)
        return Chunk(kept, data)


def read_chunks(blob: pa.Buffer) -> dict[str, Chunk]:
    """The chunks of a Parquet file of one row group in memory."""
    return ChunkReader(pa.BufferReader(blob)).group(0)


class ChunkWriter:
    """Writes a Parquet file, a row group of chunks at a time."""

    def __init__(self, sink: HashingFile, schema: pa.Schema) -> None:
        """Begin the file.

        Args:
            sink: where to; takes writes and counts them.
            schema: columns; every row group has a chunk of each, in their order.
        """
        self._sink = sink
        self._names = schema.names
        self._frame = _frame(schema.remove_metadata())
        self._groups: list[Struct] = []
        self._rows = 0
        sink.write(_MAGIC)

    def group(self, rows: int, chunks: Mapping[str, Chunk]) -> None:
        """Write a row group."""
        columns = []
        start = at = self._sink.size
        unpacked = 0
        for name in self._names:
            chunk = chunks[name]
            meta = dict(chunk.meta)
            meta[_DATA_AT] = (Wire.I64, meta[_DATA_AT][1] + at)
            if _DICTIONARY_AT in meta:
                meta[_DICTIONARY_AT] = (Wire.I64, at)
            unpacked += meta[_UNPACKED][1]
            at += meta[_PACKED][1]
            columns.append({_CHUNK_AT: (Wire.I64, 0), _CHUNK_META: (Wire.STRUCT, meta)})
        self._sink.write(b"".join(chunks[name].data for name in self._names))
        self._groups.append(
            {
                _GROUP_COLUMNS: (Wire.LIST, (Wire.STRUCT, columns)),
                _GROUP_BYTES: (Wire.I64, unpacked),
                _GROUP_ROWS: (Wire.I64, rows),
                _GROUP_AT: (Wire.I64, start),
                _GROUP_STORED: (Wire.I64, at - start),
                _GROUP_NUMBER: (Wire.I16, len(self._groups)),
            }
        )
        self._rows += rows

    def close(self) -> None:
        """Write the footer; closing the sink is the owner's."""
        head, tail = self._frame
        counted: Struct = {_ROWS: (Wire.I64, self._rows), _GROUPS: (Wire.LIST, (Wire.STRUCT, self._groups))}
        body = head + encode_struct(counted, after=_SCHEMA)[:-1] + tail
        self._sink.write(body)
        self._sink.write(_TAIL.pack(len(body), _MAGIC))


@lru_cache(maxsize=8)
def _frame(schema: pa.Schema) -> tuple[bytes, bytes]:
    """What a footer of the schema says whatever its rows are: what comes before them, and what comes after."""
    empty = io.BytesIO()
    pq.ParquetWriter(empty, schema, store_schema=False).close()
    blob = empty.getvalue()
    length = _TAIL.unpack(blob[-_TAIL.size :])[0]
    footer, _ = decode_struct(blob[-_TAIL.size - length : -_TAIL.size])
    head = {field: footer[field] for field in (_VERSION, _SCHEMA)}
    tail = {field: footer[field] for field in (_CREATED_BY, _ORDERS) if field in footer}
    return encode_struct(head)[:-1], encode_struct(tail, after=_GROUPS)
