"""What hosts.parquet leaves out comes back; and what a published store takes of the disk."""

from __future__ import annotations

import importlib
import io
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.keys import host_key
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.hashing import HashingFile
from meguri_store.column_chunks import ChunkWriter
from meguri_store.compact import Changes, publish_generation
from meguri_store.encoding import encode_columns
from meguri_store.host_file import columns_for, registrable_domains, restored, stored
from meguri_store.schema import HOST_FILE_SCHEMA, HOST_SCHEMA, URL_SCHEMA, filled

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
GROUPS = [
    "",
    "-",
    "a.example",
    "b.example",
    "10.0.0.7",
    "[2001:db8::1]",
    "x9.example",
    "k\u00e4se.example",
    "h9",
    "[9]",
]


def hosts(rows) -> pa.Table:
    """Records of (group, key or None for its hash, domain, grouping, URLs), in order of their keys."""
    rows = sorted(
        {key if key is not None else host_key(group.encode()): (group, *rest) for group, key, *rest in rows}.items()
    )
    counts = np.array([urls for _, (*_, urls) in rows], np.uint64)
    stated = {
        "host_key": np.array([key for key, _ in rows], np.uint64),
        "host_group": pa.array([group for _, (group, *_) in rows], pa.string()),
        "registrable_domain": pa.array([domain for _, (_, domain, *_) in rows], pa.string()),
        "grouping": np.array([grouping for _, (_, _, grouping, _) in rows], np.uint8),
        "first_row": np.cumsum(counts, dtype=np.uint64) - counts,
    }
    return filled(HOST_SCHEMA, len(rows), stated)


def through_a_file(records: pa.Table) -> pa.Table:
    """The file's rows, written as the store writes them, read by Arrow."""
    sink = io.BytesIO()
    writer = ChunkWriter(HashingFile(sink), HOST_FILE_SCHEMA)
    writer.group(records.num_rows, encode_columns(stored(records), HOST_FILE_SCHEMA))
    writer.close()
    return pq.read_table(io.BytesIO(sink.getvalue()))


a_host = st.tuples(
    st.sampled_from(GROUPS),
    st.none() | st.integers(0, 2**64 - 1),
    st.sampled_from([None, "", "-", "--", "-a.example", "other.example", *GROUPS]),
    st.integers(0, 1),
    st.integers(0, 2),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(a_host, min_size=1, max_size=12), st.sets(st.sampled_from(HOST_SCHEMA.names), min_size=1))
def test_records_come_back(rows, some):
    records = hosts(rows)
    file = through_a_file(records)
    assert file.schema.equals(HOST_FILE_SCHEMA)
    assert restored(file, HOST_SCHEMA.names).equals(records)
    wanted = [name for name in HOST_SCHEMA.names if name in some]
    assert restored(file.select(columns_for(wanted)), wanted).equals(records.select(wanted))


def test_without_kernels_keys_are_the_same(monkeypatch):
    rows = [(group, None, None, 0, 1) for group in GROUPS]
    records = hosts(rows)
    file = through_a_file(records)
    monkeypatch.delitem(sys.modules, "numba")
    assert stored(records).equals(file)
    assert restored(file, HOST_SCHEMA.names).equals(records)


def test_what_is_left_out():
    rows = [
        ("a.example", None, "a.example", 0, 3),
        ("b.example", None, "b.example", 0, 0),
        ("c.example", None, "c.example", 0, 1),
    ]
    rows += [
        ("d.example", None, "d.example", 0, 2),
        ("10.0.0.7", None, None, 0, 1),
        ("e.example", 5, "e.example", 0, 1),
    ]
    records = hosts(rows)
    file = stored(records).to_pylist()
    # No URL stands at the first row of a host without any, and the last host doesn't know whether one does.
    stating = {row["host_group"] for row in file if row["host_key"] is not None}
    assert stating == {"b.example", "e.example", file[-1]["host_group"]}
    assert [row["registrable_domain"] for row in file] == [None] * 6
    domains = registrable_domains(pa.array(["a.example", "10.0.0.7", "[::1]", "", "b.example"]), np.arange(5) < 4)
    assert domains.to_pylist() == ["a.example", None, None, None, None]


@pytest.fixture
def bench(monkeypatch) -> ModuleType:
    """The store's benchmark: records of the lists of links, as it measures them."""
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("store_data")


@pytest.mark.parametrize(
    ("name", "known", "most"),
    [("docs-crawl", 23_637, (6.4, 13.4, 24.5)), ("urls-web", 32_019, (19.0, 26.3, 37.4))],
)
def test_bytes_a_url(tmp_path, monkeypatch, test_data, bench, say, name, known, most):
    """Of the whole published store, at 0, 30 and 100 % crawled with random fingerprints."""
    path = test_data / "data" / bench.SETS[name].name
    if not path.is_file():
        pytest.skip(f"no {path}")
    monkeypatch.setitem(bench.SETS, name, path)
    urls = bench.url_set(name)
    urls = bench.copied(urls, urls.num_rows)
    found = []
    for at, crawled in enumerate((0.0, 0.3, 1.0)):
        files = LocalFiles(tmp_path / str(at))
        files.make_folder("store")
        records = pa.concat_tables(bench.records(urls, crawled))
        made = publish_generation(
            files,
            0,
            [records],
            lambda: iter([bench.hosts(urls)]),
            lambda: Changes(urls.num_rows, 0, 0),
            expected=urls.num_rows,
            offset=0,
            identity=bench.IDENTITY,
            token=itertools.repeat("0").__next__,
        )
        plain = io.BytesIO()
        pq.write_table(records.cast(URL_SCHEMA), plain, compression="zstd")
        owners = io.BytesIO()
        pq.write_table(bench.hosts(urls), owners, compression="zstd")
        assert made.bytes < 0.95 * (len(plain.getvalue()) + len(owners.getvalue())), (
            "Arrow writes the records, without a filter"
        )
        found.append(made.bytes / urls.num_rows)
    say(f"bytes a URL, {name}", f"{urls.num_rows:,} URLs: " + " / ".join(f"{size:.2f}" for size in found))
    if urls.num_rows == known:
        assert all(size <= limit for size, limit in zip(found, most, strict=True)), found
