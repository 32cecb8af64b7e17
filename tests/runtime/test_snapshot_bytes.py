"""What snapshots write: files and manifests, generations apart, and the rows changed that this is measured by."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.chain import TableSource, save_tables
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.snapshots import SnapshotStore

IDENTITY = CampaignIdentity(campaign="test", partitions=1, group_by="host", policy="", suffix_list="", url_parser="")
ROW = 8
FRAME = 1000
"""Bytes, more than the frame of a file and its line in a manifest."""


def batch_of(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": np.arange(rows, dtype=np.uint64)})


def store_at(folder) -> SnapshotStore:
    names = itertools.count()
    files = LocalFiles(folder)
    return SnapshotStore(files, "any", 0, token=lambda: f"{next(names):04x}", now=lambda: 0.0, grace=1e9)


def commit(store, writer):
    return store.commit(writer, topic_id="t", identity=IDENTITY, parameters={}, logic_version=1)


def files_of(folder) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000), st.booleans()), min_size=1, max_size=12))
def test_what_is_written_stays_within_the_changes(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("snapshots")
    store, taken, rows, changed = store_at(folder), None, 0, 0
    for offset, (new, touched, quick) in enumerate(steps):
        altered = min(touched, rows)
        rows += new
        changed += new + altered
        writer = store.writer(offset, taken, quick=quick)
        table = TableSource(
            "table", rows, new + altered, lambda only, n=rows, c=new + altered: batch_of(c if only else n)
        )
        save_tables(writer, [table])
        taken = commit(store, writer)
    assert store.changed_bytes == changed * ROW
    assert store.generation_bytes == 0
    assert store.bytes_written == files_of(folder)  # nothing has been swept: no grace time has passed
    # Quick ones put a full rewrite off and never add one, so the bound holds with them.
    manifests = sum(path.stat().st_size for path in folder.rglob("snapshot-*"))
    assert store.bytes_written - manifests <= 3 * changed * ROW + FRAME * len(steps)


def test_generations_count_apart(tmp_path):
    store = store_at(tmp_path)
    writer = store.writer(1, None, quick=False)
    with writer.create("part", "bin") as file:
        file.write(bytes(100))
    writer.generation_bytes += 1_000_000
    commit(store, writer)
    assert store.generation_bytes == 1_000_000
    assert store.bytes_written == files_of(tmp_path)


@pytest.mark.parametrize("rows", [1, 100])
def test_a_full_rewrite_counts_the_changed_rows_alone(tmp_path, rows):
    store = store_at(tmp_path)
    writer = store.writer(1, None, quick=False)
    save_tables(writer, [TableSource("table", rows, rows, lambda _only: batch_of(rows))])
    first = commit(store, writer)
    assert store.changed_bytes == rows * ROW
    writer = store.writer(2, first, quick=False)
    save_tables(writer, [TableSource("table", 2 * rows, rows, lambda only: batch_of(rows if only else 2 * rows))])
    commit(store, writer)
    assert [reference.rows for reference in writer.kept] == [2 * rows]
    assert store.changed_bytes == 2 * rows * ROW
