"""Column chunks of the store's columns: each in the encoding that is smallest and quickest for what it holds."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from meguri_common.wire.columns import binary_parts
from meguri_store.column_chunks import Chunk, read_chunks
from meguri_store.kernels.encoding import dictionary_codes, pack_bits, pack_deltas, packed_bound, split_prefixes
from meguri_store.thrift import Struct, Wire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = [
    "CODES",
    "DELTA_NUMBERS",
    "DELTA_TEXTS",
    "ORDERED",
    "PLAIN",
    "SPLIT_BYTES",
    "UNCOMPRESSED",
    "ZSTD",
    "encode_columns",
]

ORDERED = frozenset({"host_key", "first_row"})
"""Columns of numbers in order: written as differences."""
_COUNTED = frozenset({"host_key", "next_due"})
"""Columns of which the footer states least and greatest value, for tools that skip row groups by them."""

_LEVEL = 3
_LEVEL_OF_UNLIKE_URLS = 8
"""Of zstd, where URLs are written for long and share little: a twentieth less, in three to four times the time."""
_LEVEL_OF_HOSTS = 6
_LEVEL_OF_NUMBERS = 1
_LEVEL_OF_WIDE_NUMBERS = -1
"""Fingerprints are random or 0: a higher level takes twice the time, and the result is larger."""
_UNLIKE_REST = 16
"""Bytes that URLs don't share with the one before them, on the mean, from which on they count as unlike."""
_FEW_BITS, _BYTE = 2, 8
"""Codes of more bits are written as whole bytes, which zstd codes by how often they come."""
_MOST_ENTRIES = 1 << 16
"""Span of values up to which a dictionary is looked up by value."""
UNCOMPRESSED, ZSTD = 0, 6  # codecs, and below encodings, as Parquet numbers them
PLAIN, _RLE, DELTA_NUMBERS, _TEXTS_BY_LENGTH, DELTA_TEXTS = 0, 3, 5, 6, 7
CODES, SPLIT_BYTES = 8, 9
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_INT32, _INT64, _FLOAT, _BYTES = 1, 2, 4, 6
_WORD = struct.Struct("<I")


def encode_columns(
    table: pa.Table, schema: pa.Schema, names: Iterable[str] | None = None, *, thorough: bool = False
) -> dict[str, Chunk]:
    """Chunks of columns of a row group, by name; each column of the table is one array.

    Args:
        table: has the columns.
        schema: the file's; says which columns may be null.
        names: which columns; all of the schema by default.
        thorough: take more time over URLs that are unlike each other.
    """
    chunks: dict[str, Chunk] = {}
    others = []
    for name in schema.names if names is None else names:
        column = table.column(name).chunk(0)
        if schema.field(name).nullable and column.null_count < len(column):
            others.append(name)
            continue
        single = _constant(column)
        if single is not None:
            chunk = _constant_chunk(name, column, single)
        elif name == "url":
            chunk = _urls(name, column, thorough)
        elif not pa.types.is_primitive(column.type):
            chunk = _names(name, column)
        elif name in ORDERED:
            chunk = _differences(name, column)
        elif pa.types.is_floating(column.type):
            chunk = _floats(name, column)
        else:
            chunk = _numbers(name, column)
        if name in _COUNTED:
            values = column.to_numpy(zero_copy_only=False)
            chunk = chunk.with_statistics(values.min().tobytes(), values.max().tobytes())
        chunks[name] = chunk
    if others:
        fields = pa.schema([schema.field(name) for name in others])
        chunks.update(_by_arrow(pa.Table.from_arrays([table.column(name) for name in others], schema=fields)))
    return chunks


def _by_arrow(table: pa.Table) -> dict[str, Chunk]:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema.remove_metadata(),
        use_dictionary=False,
        compression="zstd",
        compression_level=_LEVEL,
        write_statistics=False,
        store_schema=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table, row_group_size=table.num_rows)
    return read_chunks(sink.getvalue())


def _constant(column: pa.Array) -> bytes | None:
    """The one value of a column as PLAIN encodes it, empty where all are null; None where it has several."""
    kind = column.type
    if column.null_count == len(column):
        return b""
    if pa.types.is_binary(kind) or pa.types.is_string(kind) or column.null_count:
        return None
    values = column.to_numpy()
    first = values[0]
    if values[-1] != first or not (values == first).all():
        return None
    wide = np.float32 if values.dtype.kind == "f" else np.uint64 if values.dtype.itemsize > _WORD.size else np.uint32
    single: bytes = first.astype(wide).tobytes()
    return single


def _constant_chunk(name: str, column: pa.Array, single: bytes) -> Chunk:
    """A chunk of one value, or of nulls alone: a few bytes, whatever the number of rows."""
    run = _varint(len(column) << 1)
    if not single:
        levels = run + b"\0"
        page = _page(_WORD.pack(len(levels)) + levels, len(column), PLAIN)
        kind = _INT64 if pa.types.is_primitive(column.type) else _BYTES
        return _chunk(name, kind, [PLAIN, _RLE], len(column), [page], UNCOMPRESSED)
    dictionary = _dictionary_page(single, 1, len(single))
    page = _page(b"\1" + run + b"\0", len(column), CODES)
    kind = _FLOAT if column.type == pa.float32() else _INT64 if len(single) > _WORD.size else _INT32
    encodings = [PLAIN, _RLE, CODES]
    return _chunk(name, kind, encodings, len(column), [dictionary, page], UNCOMPRESSED)


def _differences(name: str, column: pa.Array) -> Chunk:
    values = column.to_numpy().view(np.int64)
    out = np.empty(packed_bound(len(values)), np.uint8)
    body = out[: pack_deltas(_fixed(values), out, False)]
    return _packed(name, _INT64, [DELTA_NUMBERS, _RLE], len(values), body)


def _numbers(name: str, column: pa.Array) -> Chunk:
    """Few distinct values: numbers of a dictionary's entries; many: the values as they are."""
    values = column.to_numpy()
    if values.dtype.itemsize > _WORD.size:
        body = values.view(np.uint8)
        return _packed(name, _INT64, [PLAIN, _RLE], len(values), body, _LEVEL_OF_WIDE_NUMBERS)
    values = values.astype(np.uint32, copy=False)
    # 0 means "none" or "never" in most columns, and stands far from the other values.
    least = int((values - np.uint32(1)).min()) + 1
    span = int(values.max()) - least + 2
    if span > _MOST_ENTRIES:
        return _packed(name, _INT32, [PLAIN, _RLE], len(values), values.view(np.uint8))
    places, entries = np.full(span, -1, np.int32), np.empty(span, np.uint32)
    codes = np.empty(len(values), np.uint32)
    count = dictionary_codes(_fixed(values), np.uint32(least), places, entries, codes)
    width = (count - 1).bit_length()
    if _FEW_BITS < width < _BYTE:
        width = _BYTE
    groups = -(-len(values) // 8)
    head = bytes([width]) + _varint(groups << 1 | 1)
    out = np.zeros(len(head) + groups * width + 8, np.uint8)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    pack_bits(codes, width, out[len(head) :])
    first = _dictionary_page(_compressed(entries[:count].view(np.uint8), _LEVEL_OF_NUMBERS), count, 4 * count)
    body = out[: len(head) + groups * width]
    page = _page(_compressed(body, _LEVEL_OF_NUMBERS), len(values), CODES, body.size)
    return _chunk(name, _INT32, [PLAIN, _RLE, CODES], len(values), [first, page], ZSTD)


def _floats(name: str, column: pa.Array) -> Chunk:
    """The first bytes of all values, then the second ones, ...: exponents repeat, the rest hardly does."""
    values = column.to_numpy()
    split = np.ascontiguousarray(values.view(np.uint8).reshape(len(values), values.dtype.itemsize).T).ravel()
    return _packed(name, _FLOAT, [SPLIT_BYTES, _RLE], len(values), split)


def _urls(name: str, column: pa.Array, thorough: bool) -> Chunk:
    """Texts as what they don't share with the one before."""
    offsets, data = binary_parts(column)
    count = len(column)
    prefixes, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
    bound = packed_bound(count)
    out = np.empty(2 * bound + int(offsets[-1] - offsets[0]) + 8, np.uint8)
    rests = out[2 * bound :]
    size = split_prefixes(_fixed(offsets), _fixed(data), prefixes, lengths, rests)
    first = pack_deltas(_fixed(prefixes), out, True)
    first += pack_deltas(_fixed(lengths), out[first:], True)
    out[first : first + size] = rests[:size]
    level = _LEVEL_OF_UNLIKE_URLS if thorough and size >= _UNLIKE_REST * count else _LEVEL
    return _packed(name, _BYTES, [DELTA_TEXTS, _RLE], count, out[: first + size], level)


def _names(name: str, column: pa.Array) -> Chunk:
    """Texts as their lengths, then all of them: names of hosts in order of their hashes share nothing."""
    offsets, data = binary_parts(column)
    count = len(column)
    begin, end = int(offsets[0]), int(offsets[-1])
    out = np.empty(packed_bound(count) + end - begin, np.uint8)
    first = pack_deltas(_fixed(np.diff(offsets).astype(np.int64)), out, True)
    out[first : first + end - begin] = data[begin:end]
    return _packed(name, _BYTES, [_TEXTS_BY_LENGTH, _RLE], count, out[: first + end - begin], _LEVEL_OF_HOSTS)


def _compressed(body: NDArray[np.uint8], level: int) -> bytes:
    return zstandard.ZstdCompressor(level).compress(body.data)


def _packed(
    name: str, kind: int, encodings: list[int], values: int, body: NDArray[np.uint8], level: int = _LEVEL
) -> Chunk:
    """A chunk of one compressed page, in the first of the encodings."""
    page = _page(_compressed(body, level), values, encodings[0], body.size)
    return _chunk(name, kind, encodings, values, [page], ZSTD)


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: one type for the kernels, wherever the array comes from."""
    view = values.view()
    view.flags.writeable = False
    return view


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _page(body: bytes, values: int, encoding: int, unpacked: int | None = None) -> tuple[bytes, bytes, int]:
    """A data page: header, stored body, and the size of both unpacked."""
    size = len(body) if unpacked is None else unpacked
    return _headed(body, _DATA_PAGE, size, b"\x1c" + _numbers_of(values, encoding, _RLE, _RLE))


def _dictionary_page(body: bytes, entries: int, unpacked: int) -> tuple[bytes, bytes, int]:
    return _headed(body, _DICTIONARY_PAGE, unpacked, b"\x3c" + _numbers_of(entries, PLAIN))


def _headed(body: bytes, kind: int, size: int, about: bytes) -> tuple[bytes, bytes, int]:
    """A page with its PageHeader: fields 1 to 4, then a struct, which is field 5 (lead 1c) or 7 (lead 3c)."""
    checksum = zlib.crc32(body)
    signed = checksum - (1 << 32) if checksum >> 31 else checksum
    head = _numbers_of(kind, size, len(body), signed)[:-1] + about + b"\0"
    return head, body, len(head) + size


def _numbers_of(*values: int) -> bytes:
    """A struct of Thrift's compact protocol whose fields from 1 on are numbers of 32 bits."""
    out = bytearray()
    for value in values:
        out.append(0x15)
        rest = value << 1 if value >= 0 else ~value << 1 | 1
        while rest > 0x7F:  # noqa: PLR2004 - seven bits a byte
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    out.append(0)
    return bytes(out)


def _chunk(
    name: str, kind: int, encodings: list[int], values: int, pages: list[tuple[bytes, bytes, int]], codec: int
) -> Chunk:
    """A chunk of pages, of which the last holds the data and one before it the dictionary."""
    data = b"".join(part for head, body, _ in pages for part in (head, body))
    meta: Struct = {
        1: (Wire.I32, kind),
        2: (Wire.LIST, (Wire.I32, encodings)),
        3: (Wire.LIST, (Wire.BINARY, [name.encode()])),
        4: (Wire.I32, codec),
        5: (Wire.I64, values),
        6: (Wire.I64, sum(unpacked for *_, unpacked in pages)),
        7: (Wire.I64, len(data)),
        9: (Wire.I64, len(data) - len(pages[-1][0]) - len(pages[-1][1])),
    }
    if len(pages) > 1:
        meta[11] = (Wire.I64, 0)
    return Chunk(meta, data)
