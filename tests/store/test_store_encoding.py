"""Column chunks that the store encodes, read by Arrow, DuckDB and Polars; the kernels against plain twins."""

from __future__ import annotations

import io
import itertools

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.runtime.hashing import HashingFile
from meguri_common.wire.columns import binary_parts
from meguri_store.column_chunks import Chunk, ChunkReader, ChunkWriter
from meguri_store.decoding import decode_texts
from meguri_store.encoding import encode_columns
from meguri_store.kernels.encoding import (
    PACKED_SLACK,
    dictionary_codes,
    join_prefixes,
    pack_bits,
    pack_deltas,
    packed_bound,
    split_prefixes,
    unpack_deltas,
)
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA
from meguri_store.thrift import Wire, decode_struct, encode_struct


def values_of(field: pa.Field) -> st.SearchStrategy:
    """Columns that repeat, that are constant, and that are wild."""
    kind = field.type
    if pa.types.is_integer(kind):
        most = 2**kind.bit_width - 1
        found = st.integers(0, most) | st.sampled_from([0, 1, 2, most, most // 2, min(490_000, most)])
    elif pa.types.is_floating(kind):
        found = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, 0.5])
    else:
        found = st.text("ab/%~", max_size=12) | st.sampled_from(["", "https://a.example/", "https://a.example/b" * 9])
        found = found if pa.types.is_string(kind) else found.map(str.encode)
    return st.one_of(found, st.none()) if field.nullable else found


@st.composite
def tables(draw, schema):
    """Rows of a schema: each column has values of its own, or one alone."""
    rows = draw(st.sampled_from([1, 2, 7, 8, 9, 31, 33, 129, 300]))
    columns = []
    for field in schema:
        few = draw(st.lists(values_of(field), min_size=1, max_size=draw(st.sampled_from([1, 3, 20]))))
        spread = np.random.default_rng(draw(st.integers(0, 9))).integers(0, len(few), rows)
        columns.append(pa.array([few[at] for at in spread], field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def written(groups: list[pa.Table]) -> bytes:
    schema = groups[0].schema
    sink = io.BytesIO()
    writer = ChunkWriter(HashingFile(sink), schema)
    for group in groups:
        writer.group(group.num_rows, encode_columns(group, schema))
    writer.close()
    return sink.getvalue()


@settings(max_examples=60, deadline=None)
@given(groups=st.sampled_from([URL_SCHEMA, HOST_SCHEMA]).flatmap(lambda s: st.lists(tables(s), min_size=1, max_size=3)))
def test_arrow_reads_what_was_written(groups):
    blob = written(groups)
    file = pq.ParquetFile(io.BytesIO(blob), page_checksum_verification=True)
    assert file.schema_arrow.equals(groups[0].schema)
    for number, group in enumerate(groups):
        assert file.read_row_group(number).equals(group)
        assert file.metadata.row_group(number).num_rows == group.num_rows
        names = [file.metadata.row_group(number).column(at).path_in_schema for at in range(group.num_columns)]
        for name in {"host_key", "next_due"} & set(names):
            stated = file.metadata.row_group(number).column(names.index(name)).statistics
            assert (stated.min, stated.max) == (min(group[name].to_pylist()), max(group[name].to_pylist()))


@settings(max_examples=25, deadline=None)
@given(first=tables(URL_SCHEMA), second=tables(URL_SCHEMA))
def test_chunks_go_from_file_to_file(first, second):
    """What isn't touched is byte for byte the same; what is comes from another encoder."""
    reader = ChunkReader(pa.BufferReader(written([first, second])))
    chunks = reader.group(1)
    fresh = pa.array(np.arange(second.num_rows) % 5, pa.uint32())
    changed = second.set_column(second.schema.get_field_index("next_due"), URL_SCHEMA.field("next_due"), fresh)
    sink = io.BytesIO()
    writer = ChunkWriter(HashingFile(sink), URL_SCHEMA)
    writer.group(second.num_rows, {**chunks, **encode_columns(changed, URL_SCHEMA, ["next_due"])})
    writer.close()
    assert pq.read_table(io.BytesIO(sink.getvalue())).equals(changed)
    again = ChunkReader(pa.BufferReader(sink.getvalue())).group(0)
    assert all(bytes(again[name].data) == bytes(chunks[name].data) for name in URL_SCHEMA.names if name != "next_due")


def test_other_writers_chunks_are_taken_over_too():
    """Generations of an older release were written by Arrow, with pages and dictionaries of its own."""
    rows = 5000
    columns = [
        pa.array([f"https://a.example/{row}" for row in range(rows)])
        if pa.types.is_string(field.type)
        else pa.array([b"x%d" % (row % 7) for row in range(rows)])
        if pa.types.is_binary(field.type)
        else pa.array(np.arange(rows) % 100, field.type)
        for field in URL_SCHEMA
    ]
    table = pa.Table.from_arrays(columns, schema=URL_SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", data_page_size=4096, row_group_size=2000, write_page_index=True)
    reader = ChunkReader(pa.BufferReader(sink.getvalue()))
    copy = io.BytesIO()
    writer = ChunkWriter(HashingFile(copy), URL_SCHEMA)
    for number, size in enumerate((2000, 2000, 1000)):
        writer.group(size, reader.group(number))
    writer.close()
    assert pq.read_table(io.BytesIO(copy.getvalue())).equals(table)


def test_other_tools_read_every_encoding(tmp_path):
    rows = 3000
    random = np.random.default_rng(3)
    stated = {
        "host_key": np.sort(random.integers(0, 2**64 - 1, rows, np.uint64)),
        "url": [f"https://www.example.org/{row // 10}/{row}" for row in range(rows)],
        "priority": random.random(rows),
        "next_due": random.choice([0, 490_000, 490_123], rows),
        "last_modified": random.integers(0, 2**32, rows),
        "content_fp": random.integers(0, 2**63, rows),
        "etag": [None if row % 3 else b"e%d" % row for row in range(rows)],
    }
    columns = [
        pa.array(stated[field.name] if field.name in stated else [None if field.nullable else 7] * rows, field.type)
        for field in URL_SCHEMA
    ]
    table = pa.Table.from_arrays(columns, schema=URL_SCHEMA)
    path = tmp_path / "urls.parquet"
    path.write_bytes(written([table.slice(0, 2000).combine_chunks(), table.slice(2000).combine_chunks()]))
    assert pl.read_parquet(path).to_arrow().cast(URL_SCHEMA).equals(table)
    assert duckdb.sql(f"select * from '{path}'").to_arrow_table().cast(URL_SCHEMA).equals(table)
    few = duckdb.sql(f"select count(*) from '{path}' where next_due = 490123").fetchall()
    assert few == [(int(np.count_nonzero(stated["next_due"] == 490_123)),)]


@settings(max_examples=40, deadline=None)
@given(table=tables(HOST_SCHEMA), at=st.floats(0, 0.999), bit=st.integers(0, 7))
def test_a_flipped_bit_in_a_page_is_noticed(table, at, bit):
    blob = bytearray(written([table]))
    file = pq.ParquetFile(io.BytesIO(bytes(blob)))
    column = file.metadata.row_group(0).column(0)
    place = column.data_page_offset + int((column.total_compressed_size - 1) * at)
    blob[place] ^= 1 << bit
    try:
        found = pq.ParquetFile(io.BytesIO(bytes(blob)), page_checksum_verification=True).read_row_group(0)
    except (OSError, pa.ArrowException):
        return
    # A header may state the same in other words; values that came out are right all the same.
    assert found.equals(table)


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


def unpacked(data: bytes) -> tuple[list[int], int]:
    """DELTA_BINARY_PACKED, decoded as its description says; values modulo 2^64."""
    block, at = varint(data, 0)
    parts, at = varint(data, at)
    count, at = varint(data, at)
    first, at = varint(data, at)
    out = [(first >> 1) ^ -(first & 1)] if count else []
    while len(out) < count:
        least, at = varint(data, at)
        least = (least >> 1) ^ -(least & 1)
        widths = data[at : at + parts]
        at += parts
        for width in widths:
            if len(out) == count:
                break
            size = block // parts * width // 8
            bits = int.from_bytes(data[at : at + size], "little")
            at += size
            for place in range(min(block // parts, count - len(out))):
                out.append(out[-1] + least + (bits >> place * width & (1 << width) - 1))
    return [value % 2**64 for value in out], at


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=300), st.booleans())
def test_differences_are_packed(values, whole):
    out = np.full(packed_bound(len(values)), 0xAA, np.uint8)
    column = np.array(values, np.int64)
    column.flags.writeable = False
    size = pack_deltas(column, out, whole)
    found, end = unpacked(out.tobytes())
    assert found == [value % 2**64 for value in values]
    assert end == size
    data = np.append(out[:size], np.zeros(PACKED_SLACK, np.uint8))
    again = np.empty(len(values), np.int64)
    assert unpack_deltas(data, 0, size, again) == size
    assert again.tolist() == values
    assert unpack_deltas(data, 0, size, np.empty(len(values) + 1, np.int64)) == -1
    for cut in {0, size // 2, size - 1} - {size}:
        data[cut:] = 0
        assert unpack_deltas(data, 0, cut, again) == -1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"abcdefgh", b"abcdefghi", b"abcdefgh" * 3]), max_size=30))
def test_shared_beginnings_are_split_off(texts):
    offsets, data = binary_parts(pa.array(texts, pa.binary()))
    offsets, data = offsets.copy(), data.copy()
    for column in (offsets, data):
        column.flags.writeable = False
    prefixes, lengths = np.empty(len(texts), np.int64), np.empty(len(texts), np.int64)
    out = np.empty(len(data) + 8, np.uint8)
    size = split_prefixes(offsets, data, prefixes, lengths, out)
    expected = b""
    for row, text in enumerate(texts):
        before = texts[row - 1] if row else b""
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, text, strict=False))))
        assert (prefixes[row], lengths[row]) == (shared, len(text) - shared)
        expected += text[shared:]
    assert out[:size].tobytes() == expected
    joined = np.empty(len(data) + PACKED_SLACK, np.uint8)
    join_prefixes(prefixes, offsets, out[:size].copy(), 0, joined)
    assert joined[: len(data)].tobytes() == b"".join(texts)


@settings(max_examples=60, deadline=None)
@given(table=tables(URL_SCHEMA), flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 7)), max_size=2))
def test_urls_are_decoded_as_arrow_does(table, flips):
    chunk = ChunkReader(pa.BufferReader(written([table]))).group(0)["url"]
    data = bytearray(chunk.data)
    for at, bit in flips:
        data[int(len(data) * at)] ^= 1 << bit
    try:
        found = decode_texts(Chunk(chunk.meta, bytes(data)), table.num_rows)
    except ValueError:
        assert bytes(data) != bytes(chunk.data)
        return
    # Of what isn't known to be the encoder's own page, Arrow is asked.
    assert found is None or found.equals(table.column("url").combine_chunks())
    assert found is not None or flips


@settings(max_examples=100, deadline=None)
@given(st.lists(st.just(0) | st.integers(1000, 1100), min_size=1, max_size=200))
def test_dictionaries_and_their_codes(values):
    least = min((value for value in values if value), default=1)
    span = max(values) - least + 2 if any(values) else 1
    places, entries = np.full(span, -1, np.int32), np.empty(span, np.uint32)
    codes = np.empty(len(values), np.uint32)
    column = np.array(values, np.uint32)
    column.flags.writeable = False
    count = dictionary_codes(column, np.uint32(least), places, entries, codes)
    expected = list(dict.fromkeys(values))
    assert entries[:count].tolist() == expected
    assert [expected[code] for code in codes.tolist()] == values
    width = max((count - 1).bit_length(), 1)
    out = np.zeros(-(-len(values) * width // 8) + 8, np.uint8)
    pack_bits(codes, width, out)
    bits = int.from_bytes(out.tobytes(), "little")
    assert [bits >> row * width & (1 << width) - 1 for row in range(len(values))] == codes.tolist()


fields = st.recursive(
    st.tuples(st.just(Wire.I32), st.integers(-(2**31), 2**31 - 1))
    | st.tuples(st.just(Wire.I64), st.integers(-(2**63), 2**63 - 1))
    | st.tuples(st.just(Wire.BINARY), st.binary(max_size=40))
    | st.tuples(st.just(Wire.DOUBLE), st.floats(allow_nan=False))
    | st.booleans().map(lambda value: (Wire.TRUE if value else Wire.FALSE, value))
    | st.tuples(st.just(Wire.LIST), st.tuples(st.just(Wire.I32), st.lists(st.integers(0, 9), max_size=20))),
    lambda inner: st.tuples(st.just(Wire.STRUCT), st.dictionaries(st.integers(1, 60), inner, max_size=4)),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(1, 100), fields, max_size=6))
def test_structs_survive_thrift(struct):
    blob = encode_struct(struct)
    assert decode_struct(blob) == (struct, len(blob))
    for end in range(len(blob)):
        with pytest.raises(ValueError, match="cut short"):
            decode_struct(blob[:end])


@pytest.mark.parametrize("blob", [b"", b"PAR1", b"PAR1" + b"\0" * 20, b"PAR1\xff\xff\xff\x7fPAR1"])
def test_no_parquet_file_is_refused(blob):
    with pytest.raises(ValueError, match=r"Parquet|footer"):
        ChunkReader(pa.BufferReader(blob))
