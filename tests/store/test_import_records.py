"""ImportRecords: what was exported comes back to the last bit; what is no shard's is refused, naming rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import store_world as world
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri.embedded.record_files import tables_of_files
from meguri.embedded.record_lines import record_lines, record_tables
from meguri_common.errors import OrderViolation, RecordError
from meguri_common.identity import CampaignIdentity
from meguri_common.keys import host_key, partition_of
from meguri_common.records import ParkReason, Source, Status
from meguri_store.generation import Generation
from meguri_store.import_records import GivenHosts, HostStream, MadeHosts, Place, RecordStream, import_shard
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA
from meguri_store.spill import SpillFile
from meguri_store.verify import verify_generation

if TYPE_CHECKING:
    from pathlib import Path

TERMINAL = (Status.GONE, Status.EXCLUDED_ROBOTS, Status.TRAPPED)


def identity(partitions: int) -> CampaignIdentity:
    return CampaignIdentity(
        campaign="test", partitions=partitions, group_by="registrable", policy="p", suffix_list="s", url_parser="u"
    )


def whole(bits: int, least: int = 0) -> st.SearchStrategy[int]:
    """Whole numbers with their ends, and small ones."""
    most = (1 << bits) - 1
    return st.one_of(st.sampled_from([least, most]), st.integers(least, min(most, 300)), st.integers(least, most))


SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)
OCTETS = st.one_of(st.none(), st.binary(max_size=12), st.text(max_size=6).map(str.encode))
SPECIAL: dict[str, st.SearchStrategy[Any]] = {
    "etag": OCTETS,
    "robots": OCTETS,
    "ip": st.one_of(st.none(), st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16), OCTETS),
    "redirect": st.one_of(st.none(), st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=9)),
    "registrable_domain": st.one_of(st.none(), st.text("ab.", max_size=9)),
    "grouping": st.integers(0, 1),
    "source": st.sampled_from(Source).map(int),
}


def values(schema: pa.Schema, draw: Any, stated: dict[str, Any]) -> dict[str, Any]:
    row = {}
    for field in schema:
        if field.name in stated:
            row[field.name] = stated[field.name]
        elif field.name in SPECIAL:
            row[field.name] = draw(SPECIAL[field.name])
        elif pa.types.is_floating(field.type):
            row[field.name] = draw(SINGLE)
        else:
            row[field.name] = draw(whole(field.type.bit_width))
    return row


@st.composite
def frontiers(draw: Any) -> tuple[pa.Table, pa.Table]:
    """URL and host records in store order, every field of any value that it can have."""
    keys = draw(st.lists(st.tuples(st.integers(0, 4), st.text("abc", max_size=6)), unique=True, max_size=12))
    named = [(host_key(b"site%d.org" % host), f"https://site{host}.org/{path}", host) for host, path in keys]
    rows = []
    for key, url, _ in sorted(named):
        status = draw(st.sampled_from(Status))
        reason = draw(st.sampled_from(list(ParkReason)[1:])) if status == Status.TRAPPED else ParkReason.NONE
        stated = {"host_key": key, "url": url, "status": int(status), "reason": int(reason)}
        if status in TERMINAL:
            stated["next_due"] = 0
        rows.append(values(URL_SCHEMA, draw, stated))
    lonely = draw(st.sets(st.integers(5, 8)))
    owners = sorted(
        {(key, f"site{host}.org") for key, _, host in named} | {(host_key(b"%d" % at), "") for at in lonely}
    )
    starts = np.array([row["host_key"] for row in rows], np.uint64)
    host_rows = [
        values(
            HOST_SCHEMA,
            draw,
            {"host_key": key, "host_group": group, "first_row": int(np.searchsorted(starts, np.uint64(key)))},
        )
        for key, group in owners
    ]
    return pa.Table.from_pylist(rows, URL_SCHEMA), pa.Table.from_pylist(host_rows, HOST_SCHEMA)


def imported(
    root: Path, urls: list[pa.Table], hosts: list[pa.Table], partitions: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Import into a store, and read it back."""
    files = world.QuickFiles(root)
    names = itertools.count()
    records, owners = RecordStream(urls, partitions), HostStream(hosts, partitions)
    out: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for partition in range(partitions):
        given_hosts = GivenHosts(owners.of(partition))
        made = import_shard(
            files,
            identity(partitions),
            partition,
            records.of(partition),
            given_hosts,
            token=lambda: f"{next(names):08x}",
            group_rows=5,
        )
        generation = verify_generation(files, made.folder, identity(partitions))
        for group in range(generation.groups):
            out[0].extend(generation.urls(group).to_pylist())
        for table in generation.hosts():
            out[1].extend(table.to_pylist())
    return out


def cut(table: pa.Table, rows: int) -> list[pa.Table]:
    return [table.slice(start, rows) for start in range(0, table.num_rows, rows)]


@settings(max_examples=40, deadline=None)
@given(frontiers(), st.integers(1, 5), st.integers(1, 4))
def test_import_is_lossless(tmp_path_factory, frontier, partitions, rows):
    urls, hosts = frontier
    found_urls, found_hosts = imported(tmp_path_factory.mktemp("i"), cut(urls, rows), cut(hosts, rows), partitions)
    assert found_urls == urls.to_pylist()
    # The row at which a host's URLs begin counts from the beginning of its shard.
    expected = hosts.to_pylist()
    for row in expected:
        shard = partition_of(row["host_key"], partitions)
        row["first_row"] -= sum(partition_of(url["host_key"], partitions) < shard for url in found_urls)
    assert found_hosts == expected


@settings(max_examples=40, deadline=None)
@given(frontiers())
def test_json_lines_are_lossless(frontier):
    for table, schema in zip(frontier, (URL_SCHEMA, HOST_SCHEMA), strict=True):
        lines = b"".join(record_lines(table)).split(b"\n")
        again = pa.concat_tables([schema.empty_table(), *record_tables("x", lines, schema)])
        assert again.equals(table)


@settings(max_examples=20, deadline=None)
@given(frontier=frontiers())
def test_parquet_of_any_tool_is_lossless(tmp_path_factory, frontier):
    folder = tmp_path_factory.mktemp("p")
    for table, schema in zip(frontier, (URL_SCHEMA, HOST_SCHEMA), strict=True):
        pq.write_table(table, folder / "mine.parquet", row_group_size=5)
        duckdb.sql(f"copy (from '{folder}/mine.parquet') to '{folder}/theirs.parquet'")
        for name in ("mine", "theirs"):
            place = Place()
            found = list(tables_of_files([str(folder / f"{name}.parquet")], schema, place))
            assert pa.concat_tables([schema.empty_table(), *found]).equals(table), name
            assert place.row == table.num_rows


def records(*urls: str, **columns: list[Any]) -> pa.Table:
    rows = []
    for at, url in enumerate(urls):
        row: dict[str, Any] = {
            field.name: None if field.nullable else 0.0 if pa.types.is_floating(field.type) else 0
            for field in URL_SCHEMA
        }
        row |= {"url": url, "host_key": int(url.split("/")[2][1:]), "status": 1}
        rows.append(row | {name: given_values[at] for name, given_values in columns.items()})
    return pa.Table.from_pylist(rows, URL_SCHEMA)


FIRST = "(0000000000000001 http://h1/a)"


@pytest.mark.parametrize(
    ("tables", "rows"),
    [
        ([records("http://h1/b", "http://h1/a")], (f"f: row 8 {FIRST}", "f: row 7 (0000000000000001 http://h1/b)")),
        ([records("http://h2/", "http://h1/")], ("f: row 8 ", "f: row 7 ")),
        ([records("http://h1/a", "http://h1/a")], ("f: row 8 ", "f: row 7 ")),
        ([records("http://h1/a"), records("http://h1/a")], ("f: row 7 ", f"the last row before it {FIRST}")),
    ],
)
def test_a_step_backwards_names_both_rows(tables, rows):
    stream = RecordStream(tables, 1, Place("f", 7))
    with pytest.raises(OrderViolation) as problem:
        list(stream.of(0))
    for text in rows:
        assert text in str(problem.value)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"status": [1, 9]}, "row 1 (http://h1/b): status 9 is none that is known"),
        ({"source": [5, 0]}, "row 0 (http://h1/a): source 5 is none that is known"),
        ({"reason": [0, 10], "status": [1, 8]}, "row 1 (http://h1/b): reason 10 is none that is known"),
        ({"reason": [0, 2]}, "row 1 (http://h1/b): status 1 contradicts its reason"),
        ({"status": [8, 1]}, "row 0 (http://h1/a): status 8 contradicts its reason"),
        ({"status": [6, 1], "next_due": [4, 4]}, "row 0 (http://h1/a): next_due 4 is an hour, though"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(columns, text):
    with pytest.raises(RecordError) as problem:
        list(RecordStream([records("http://h1/a", "http://h1/b", **columns)], 1).of(0))
    assert text in str(problem.value)


def host_records(*keys: int, **columns: list[Any]) -> pa.Table:
    rows = []
    for at, key in enumerate(keys):
        row: dict[str, Any] = {field.name: None if field.nullable else 0 for field in HOST_SCHEMA}
        row |= {"host_group": f"h{key}", "host_key": key}
        rows.append(row | {name: given_values[at] for name, given_values in columns.items()})
    return pa.Table.from_pylist(rows, HOST_SCHEMA)


def test_host_records_are_checked(tmp_path):
    for tables in ([host_records(3, 3)], [host_records(3, 2)], [host_records(3), host_records(3)]):
        with pytest.raises(OrderViolation, match="isn't above"):
            list(HostStream(tables, 1).of(0))
    with pytest.raises(RecordError, match="row 1: has a grouping"):
        list(HostStream([host_records(1, 2, grouping=[0, 2])], 1).of(0))
    for given_keys in ((1,), (2,), (1, 3), ()):
        with pytest.raises(RecordError, match="there is no host record of"):
            imported(tmp_path, [records("http://h1/", "http://h2/")], [host_records(*given_keys)], 1)
        assert not [name for name in world.QuickFiles(tmp_path).list("store/shard-00000") if name != "current"]


def test_hosts_are_made_of_urls_where_none_are_given(tmp_path):
    files = world.QuickFiles(tmp_path)
    files.make_folder("store")
    urls = [f"https://www.site{at % 2}.org/{at:04}" for at in range(3000)]
    keyed = sorted((host_key(b"site%d.org" % (at % 2)), url) for at, url in enumerate(urls))
    table = records(*[f"http://h{key}/" for key, _ in keyed])
    table = table.set_column(1, URL_SCHEMA.field("url"), pa.array([url for _, url in keyed]))
    counts = pa.array([1] * 3000, pa.uint32())
    table = table.set_column(URL_SCHEMA.get_field_index("crawl_count"), URL_SCHEMA.field("crawl_count"), counts)
    table = table.append_column("group_at", pa.array([12] * 3000, pa.uint16()))
    table = table.append_column("group_len", pa.array([9] * 3000, pa.uint16()))
    with SpillFile(files, "store/hosts") as spill:
        made = import_shard(
            files,
            identity(1),
            0,
            RecordStream(cut(table, 700), 1).of(0),
            MadeHosts(files, spill, "registrable", {"url_budget": 64}),
            token=lambda: "0",
        )
    verify_generation(files, made.folder, identity(1))
    found = [row for part in Generation.open(files, made.folder, identity(1)).hosts() for row in part.to_pylist()]
    assert sorted((row["host_group"], row["url_count"], row["crawl_total"], row["url_budget"]) for row in found) == [
        ("site0.org", 1500, 1500, 64),
        ("site1.org", 1500, 1500, 64),
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda row: row.pop("depth"), "x:1: lacks depth"),
        (lambda row: row.update(more=1), "x:1: has more, which no such record has"),
        (lambda row: row.update(depth=65536), "x:1: depth is 65536"),
        (lambda row: row.update(depth=-1), "x:1: depth is -1"),
        (lambda row: row.update(depth=True), "x:1: depth is True: it is no whole number"),
        (lambda row: row.update(depth=None), "x:1: depth is None: it can't be null"),
        (lambda row: row.update(priority=1e39), "x:1: priority is 1e+39: it doesn't fit"),
        (lambda row: row.update(priority="1"), "x:1: priority is '1': it is no number"),
        (lambda row: row.update(host_key=7), "x:1: host_key is 7: it is not 16 hex digits"),
        (lambda row: row.update(etag={"hex": "zz"}), "x:1: etag is"),
        (lambda row: row.update(etag=5), "x:1: etag is 5"),
        (lambda row: row.update(url=5), "x:1: url is 5: it is no text"),
    ],
)
def test_lines_that_are_no_records_are_refused(change, text):
    row = orjson.loads(b"".join(record_lines(records("http://h1/"))))
    change(row)
    with pytest.raises(RecordError) as problem:
        list(record_tables("x", [orjson.dumps(row)], URL_SCHEMA))
    assert text in str(problem.value)
