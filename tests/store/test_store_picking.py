"""Some rows of row groups against all rows as Arrow decodes them; the kernels against plain twins."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.errors import CorruptGeneration
from meguri_common.runtime.hashing import HashingFile
from meguri_store.column_chunks import Chunk, ChunkReader, ChunkWriter
from meguri_store.encoding import encode_columns
from meguri_store.kernels.encoding import PACKED_SLACK
from meguri_store.kernels.picking import pick_texts, texts_fit, unmark_codes
from meguri_store.picking import Picker
from meguri_store.schema import URL_SCHEMA


class Held:
    """What a picker asks of a generation, of a file in memory."""

    folder = "store/shard-00000/g"

    def __init__(self, blob: bytes) -> None:
        self.blob = blob
        self.file = pq.ParquetFile(io.BytesIO(blob), page_checksum_verification=True)
        sizes = [self.file.metadata.row_group(at).num_rows for at in range(self.file.num_row_groups)]
        self.meta = SimpleNamespace(groups=[SimpleNamespace(rows=size) for size in sizes])
        self.decoded: list[str] = []

    def group_rows(self, group: int) -> int:
        return self.meta.groups[group].rows

    def column_chunk(self, group: int, name: str) -> Chunk:
        return ChunkReader(pa.BufferReader(self.blob)).group(group)[name]

    def urls(self, group: int, columns: list[str]) -> pa.Table:
        self.decoded += columns
        try:
            return self.file.read_row_group(group, columns)
        except (OSError, pa.ArrowException) as problem:
            raise CorruptGeneration(str(problem)) from problem


def written(groups: list[pa.Table]) -> bytes:
    sink = io.BytesIO()
    writer = ChunkWriter(HashingFile(sink), URL_SCHEMA)
    for group in groups:
        writer.group(group.num_rows, encode_columns(group, URL_SCHEMA))
    writer.close()
    return sink.getvalue()


def records(rows: int, seed: int, distinct: int) -> pa.Table:
    """Rows whose columns have up to so many distinct values each, which may be anything that fits."""
    random = np.random.default_rng(seed)
    columns = []
    for field in URL_SCHEMA:
        few = int(random.integers(1, distinct + 1))
        picked = random.integers(0, few, rows)
        if field.nullable:
            values = [None if row % 3 else b"x%d" % row for row in picked.tolist()]
            column = pa.array(values, pa.binary()).cast(field.type)
        elif pa.types.is_string(field.type):
            column = pa.array(sorted(f"https://h{row % 7}.example/{'p/' * (row % 40)}{row}" for row in picked.tolist()))
        elif pa.types.is_floating(field.type):
            column = pa.array(random.random(few).astype(np.float32)[picked])
        else:
            dtype = np.dtype(field.type.to_pandas_dtype())
            span = min(int(np.iinfo(dtype).max), int(random.choice([2, 300, 70_000, 2**63])))
            values = random.integers(0, span, few, np.uint64, endpoint=True).astype(dtype)[picked]
            column = pa.array(np.sort(values) if field.name == "host_key" else values)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=URL_SCHEMA)


worlds = st.builds(
    records,
    st.sampled_from([1, 7, 8, 9, 33, 129, 700]),
    st.integers(0, 10_000),
    st.sampled_from([1, 2, 3, 5, 20, 400, 700]),
)


@settings(max_examples=80, deadline=None)
@given(
    groups=st.lists(worlds, min_size=1, max_size=2), share=st.sampled_from([0.0, 0.01, 0.3, 1.0]), seed=st.integers()
)
def test_rows_are_those_that_arrow_decodes(groups, share, seed):
    held = Held(written(groups))
    picker = Picker(held)
    random = np.random.default_rng(abs(seed))
    for _ in range(2):  # what the first look left behind doesn't change the second
        for number, group in enumerate(groups):
            rows = np.sort(random.integers(0, group.num_rows, int(share * group.num_rows)))
            found = picker.rows(number, rows, URL_SCHEMA.names)
            assert found.equals(group.take(pa.array(rows)))
            for name in ("host_key", "next_due", "priority", "content_fp", "url"):
                assert picker.column(number, name).equals(group.column(name).chunk(0))
    plain = {field.name for field in URL_SCHEMA if not field.nullable and field.name != "url"}
    assert not plain & set(held.decoded), "these need no help of Arrow's"


@settings(max_examples=80, deadline=None)
@given(group=worlds, least=st.integers(0, 400), most=st.integers(0, 2**32 - 1), few=st.sets(st.integers(0, 255)))
def test_matching_rows(group, least, most, few):
    found = Picker(Held(written([group]))).matching(
        0,
        {"next_due": lambda at: (at >= least) & (at <= most), "status": lambda status: np.isin(status, list(few))},
    )
    hours, status = (group.column(name).to_pylist() for name in ("next_due", "status"))
    assert found.tolist() == [row for row in range(len(hours)) if least <= hours[row] <= most and status[row] in few]


def test_files_of_other_writers_are_read_too():
    group = records(3000, 5, 700)
    sink = io.BytesIO()
    pq.write_table(group, sink, compression="zstd", data_page_size=512, write_page_checksum=True)
    held = Held(sink.getvalue())
    picker = Picker(held)
    rows = np.arange(5, 2900, 13)
    assert picker.rows(0, rows, URL_SCHEMA.names).equals(group.take(pa.array(rows)))
    hours = group.column("next_due").to_numpy()
    middle = int(np.median(hours))
    assert (
        picker.matching(0, {"next_due": lambda at: at <= middle}).tolist() == np.flatnonzero(hours <= middle).tolist()
    )
    assert held.decoded


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 500), column=st.integers(0, len(URL_SCHEMA) - 1), at=st.floats(0, 0.999), bit=st.integers(0, 7)
)
def test_a_flipped_bit_is_named_or_changes_nothing(seed, column, at, bit):
    group = records(200, seed, 50)
    blob = bytearray(written([group]))
    stated = pq.ParquetFile(io.BytesIO(bytes(blob))).metadata.row_group(0).column(column)
    start = stated.data_page_offset
    if stated.has_dictionary_page:
        start = min(start, stated.dictionary_page_offset)
    blob[start + int(stated.total_compressed_size * at)] ^= 1 << bit
    picker = Picker(Held(bytes(blob)))
    rows = np.arange(3, 200, 7)
    name = URL_SCHEMA.names[column]
    try:
        found = picker.rows(0, rows, [name])
    except CorruptGeneration:
        return
    assert found.equals(group.select([name]).take(pa.array(rows)))


def test_a_page_that_is_damaged_is_named_with_its_rows():
    groups = [records(300, 3, 300), records(300, 4, 300)]
    held = Held(written(groups))
    stated = held.file.metadata.row_group(1).column(URL_SCHEMA.get_field_index("url"))
    blob = bytearray(held.blob)
    blob[stated.data_page_offset + stated.total_compressed_size - 5] ^= 4
    picker = Picker(Held(bytes(blob)))
    assert picker.rows(0, np.array([2]), ["url"]).column(0).to_pylist() == [groups[0].column("url")[2].as_py()]
    with pytest.raises(CorruptGeneration, match=r"g/urls\.parquet: rows 300 to 599 .* checksum"):
        picker.rows(1, np.array([2]), ["url"])


texts = st.lists(st.binary(max_size=40) | st.sampled_from([b"abcdefgh", b"abcdefghi", b"abcdefgh" * 4]), max_size=40)


@settings(max_examples=200, deadline=None)
@given(texts=texts, ordered=st.booleans(), picks=st.lists(st.floats(0, 0.999), max_size=20))
def test_texts_are_put_together(texts, ordered, picks):
    texts = sorted(texts) if ordered else texts
    shared = [0] * len(texts)
    for row in range(1, len(texts)):
        while texts[row][: shared[row] + 1] == texts[row - 1][: shared[row] + 1] and shared[row] < min(
            len(texts[row]), len(texts[row - 1])
        ):
            shared[row] += 1
    rests = b"".join(text[size:] for text, size in zip(texts, shared, strict=True))
    prefixes = np.array(shared, np.int64)
    lengths = np.array([len(text) for text in texts], np.int64) - prefixes
    assert texts_fit(prefixes, lengths, len(rests))
    assert not texts_fit(prefixes, lengths, len(rests) + 1)
    rows = np.array(sorted(int(pick * len(texts)) for pick in picks) if texts else [], np.int64)
    offsets = np.zeros(len(rows) + 1, np.int32)
    offsets[1:] = np.cumsum([len(texts[row]) for row in rows])
    data = np.frombuffer(b"###" + rests + bytes(PACKED_SLACK), np.uint8).copy()
    out = np.full(int(offsets[-1]), 0xAA, np.uint8)
    pick_texts(prefixes, lengths, data, 3, rows, offsets, out)
    assert out.tobytes() == b"".join(texts[row] for row in rows)


@pytest.mark.parametrize(
    ("prefixes", "lengths"), [([1], [2]), ([0, 4], [3, 1]), ([0, -1], [3, 1]), ([0, 2], [3, -1]), ([0, 0], [5, -2])]
)
def test_texts_that_do_not_fit_are_refused(prefixes, lengths):
    assert not texts_fit(np.array(prefixes, np.int64), np.array(lengths, np.int64), sum(lengths))


@settings(max_examples=100, deadline=None)
@given(width=st.integers(1, 16), count=st.integers(0, 200), seed=st.integers(0, 99))
def test_codes_that_are_not_wanted_lose_their_marks(width, count, seed):
    random = np.random.default_rng(seed)
    codes = random.integers(0, 1 << width, count).tolist()
    bits = sum(code << (row * width) for row, code in enumerate(codes))
    data = np.frombuffer(b"##" + bits.to_bytes(-(-count * width // 8) + 8, "little"), np.uint8).copy()
    wanted = random.integers(0, 2, 1 << width).astype(np.uint8)
    before = random.integers(0, 2, count).astype(np.uint8)
    marks = before.copy()
    unmark_codes(data, 2, width, wanted, marks)
    expected = [int(mark and wanted[code]) for mark, code in zip(before.tolist(), codes, strict=True)]
    assert marks.tolist() == expected
