"""The compiled merge and match against plain Python."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.keys import path_key
from meguri_common.wire.columns import binary_parts
from meguri_store.interleave import interleaved
from meguri_store.kernels.merge import match_rows, merge_rows

hosts = st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])
urls = st.text("ab/", max_size=20).map(str.encode) | st.sampled_from([b"12345678", b"123456789", b"12345678a"])
rows = st.lists(st.tuples(hosts, urls), max_size=30)


def columns(pairs):
    offsets, data = binary_parts(pa.array([url for _, url in pairs], pa.binary()))
    found = np.array([host for host, _ in pairs], np.uint64), offsets.copy(), data.copy()
    for column in found:
        column.flags.writeable = False
    return found


@settings(max_examples=300, deadline=None)
@given(base=rows, new=rows, cuts=st.lists(st.integers(0, 30), max_size=3), limit=st.integers(1, 9))
def test_merge_in_chunks(base, new, cuts, limit):
    base, new = sorted(set(base)), sorted(new)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(base)), len(base)]
    merged, at = [], 0
    new_columns = columns(new)
    chunks = [base[begin:end] for begin, end in itertools.pairwise(bounds) if begin < end]
    for chunk in chunks:
        out = np.empty(len(chunk) + len(new), np.int64)
        count, at = merge_rows(*columns(chunk), *new_columns, at, limit, out)
        both = chunk + new
        merged += [(both[row], row >= len(chunk)) for row in out[:count].tolist()]
        assert merged[-1] == (chunk[-1], False)
    while at < len(new):
        out = np.empty(limit, np.int64)
        count, at = merge_rows(*columns([]), *new_columns, at, limit, out)
        assert count <= limit
        merged += [(new[row], True) for row in out[:count].tolist()]
    known = set(base)
    assert merged == sorted([(row, False) for row in base] + [(row, True) for row in set(new) - known])


@settings(max_examples=300, deadline=None)
@given(stored=rows, known=rows, strange=st.lists(st.tuples(hosts, st.integers(0, 2**64 - 1)), max_size=5))
def test_match(stored, known, strange):
    stored = sorted(set(stored))
    keys = sorted({(host, path_key(url)) for host, url in known} | set(strange))
    out = np.empty(len(stored), np.int64)
    key_host, key_path = (np.array([key[part] for key in keys], np.uint64) for part in (0, 1))
    for column in (key_host, key_path):
        column.flags.writeable = False
    match_rows(*columns(stored), key_host, key_path, out)
    place = {key: at for at, key in enumerate(keys)}
    assert out.tolist() == [place.get((host, path_key(url)), -1) for host, url in stored]


values = st.fixed_dictionaries(
    {
        "url": st.text("ab/", max_size=40),
        "status": st.integers(0, 255),
        "content_fp": st.integers(0, 2**64 - 1),
        "priority": st.floats(0, 1, width=32),
        "etag": st.none() | st.binary(max_size=5),
    }
)


@settings(max_examples=200, deadline=None)
@given(base=st.lists(values, min_size=1, max_size=12), new=st.lists(values, min_size=1, max_size=8), data=st.data())
def test_rows_are_interleaved(base, new, data):
    schema = pa.schema(
        [
            pa.field("url", pa.string(), nullable=False),
            pa.field("status", pa.uint8(), nullable=False),
            pa.field("content_fp", pa.uint64(), nullable=False),
            pa.field("priority", pa.float32(), nullable=False),
            pa.field("etag", pa.binary()),
        ]
    )
    first = data.draw(st.integers(0, len(new) - 1))
    tables = pa.Table.from_pylist(base, schema), pa.Table.from_pylist(new, schema).slice(first)
    size = len(base) + len(new) - first
    order = data.draw(st.lists(st.integers(0, size - 1), unique=True, max_size=size))
    both = [*base, *new[first:]]
    found = interleaved(*tables, np.array(order, np.int64))
    assert found.to_pylist() == [both[row] for row in order]
    assert found.schema == schema
