"""The store against a plain twin: records don't depend on when it compacted, saved, or was killed."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import store_world as world
from hypothesis import event, given, settings
from hypothesis import strategies as st

from meguri_common.records import Status, UpdateField

HOSTS = [f"site{number}.org" for number in range(4)]
URLS = [world.url_of(name, page) for name in HOSTS for page in ("", "a", "a/b", "a?x=1", "zz")]
FPS = [0, 5, 6, 7]
SIMHASHES = [0, 0xFF, 0xFE, 0xF000]

urls = st.sampled_from(URLS)
times = st.integers(world.START, world.START + 400 * world.HOUR) | st.sampled_from([0, 2**32 - 1])
admissions = st.builds(
    world.admitted,
    urls,
    at=times,
    priority=st.sampled_from([0.25, 0.5, 1.5]),
    depth=st.integers(0, 9),
    reason=st.sampled_from([0, 0, 0, 1, 3]),
)
updates = st.builds(
    world.update,
    urls,
    st.integers(1, 15).map(UpdateField),
    priority=st.sampled_from([0.125, 2.0]),
    depth=st.integers(0, 9),
    at=times,
)
visits = st.builds(
    world.visit,
    urls,
    at=times,
    status=st.sampled_from([200, 200, 200, 204, 304, 301, 302, 300, 404, 410, 429, 503, 0, 0, 100]),
    error=st.sampled_from([0, 1, 5]),
    flags=st.sampled_from([0, 0, 0, 1, 2, 4, 8, 16]),
    content_fp=st.sampled_from(FPS),
    simhash=st.sampled_from(SIMHASHES),
    etag=st.sampled_from([b"", b'"one"', b"\xff\x00"]),
    last_modified=st.sampled_from([0, 1_700_000_000]),
    redirect=st.sampled_from([b"", b"https://example.org/target"]),
    retry_after=st.sampled_from([0, 59, 3600, 10_000, 2**32 - 1]),
    crawl_delay=st.sampled_from([0xFFFF, 20]),
    latency=st.sampled_from([0, 120, 65_535]),
)
hosts = st.builds(
    world.host,
    st.sampled_from([*HOSTS, "never-seen.org"]),
    flags=st.sampled_from([0, 1, 16]),
    url_budget=st.integers(0, 9),
    url_count=st.integers(0, 9),
    host_score=st.sampled_from([0.0, 0.5]),
    crawl_delay=st.sampled_from([0xFFFF, 50]),
)
ops = st.lists(admissions | admissions | updates | visits | visits | hosts, max_size=25)
points = st.sampled_from(["nothing", "save", "quick", "compact", "kill", "look"])


def compare(live: world.World, twin: world.PlainStore) -> None:
    assert live.urls() == twin.urls()
    assert live.hosts() == twin.hosts()


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.tuples(ops, points), max_size=8))
def test_records_equal_the_twins_whatever_happens_between(steps):
    with tempfile.TemporaryDirectory() as folder:
        live, twin = world.World(Path(folder)), world.PlainStore()
        since_snapshot: list[world.Op] = []
        for batch, point in steps:
            live.feed(batch)
            twin.apply(batch)
            since_snapshot += batch
            if point == "kill":
                live.restore()
                live.feed(since_snapshot)
            elif point == "look":
                compare(live, twin)
            elif point != "nothing":
                live.snapshot(compact=point == "compact", quick=point == "quick")
                since_snapshot = []
            event(point)
        compare(live, twin)
        live.snapshot(compact=True)
        compare(live, twin)
        live.restore()
        compare(live, twin)
        check_queries(live, twin)


def check_queries(live: world.World, twin: world.PlainStore) -> None:
    shard = live.shard()
    for url in URLS:
        keys = world.keys_of(url)
        assert shard.get(**keys) == twin.records.get((keys["host_key"], keys["path_key"]))
    counts = shard.counts()
    assert counts.rows == len(twin.records)
    assert counts.hosts == len(twin.host_records)
    rows = twin.records.values()
    assert {code: number for code, number in counts.by_status.items() if number} == {
        Status(code): sum(row["status"] == code for row in rows) for code in {row["status"] for row in rows}
    }
    now = world.START // world.HOUR + 200
    due = [
        (record["next_due"], *key)
        for key, record in twin.records.items()
        if record["status"] in (1, 2, 4, 5) and 0 < record["next_due"] <= now
    ]
    for limit in (1, 3, 100):
        found = shard.due(now, limit).select(["next_due", "host_key", "path_key"]).to_pylist()
        assert [tuple(row.values()) for row in found] == sorted(due)[:limit]
    for record in rows:
        assert record["status"] not in (Status.GONE, Status.TRAPPED, Status.EXCLUDED_ROBOTS) or not record["next_due"]


@settings(max_examples=60, deadline=None)
@given(first=ops, second=ops)
def test_queries_merge_the_delta_on_read(first, second):
    with tempfile.TemporaryDirectory() as folder:
        live, twin = world.World(Path(folder)), world.PlainStore()
        live.feed(first)
        twin.apply(first)
        live.snapshot(compact=True)
        live.feed(second)
        twin.apply(second)
        check_queries(live, twin)
        expected = {record["host_key"]: record for record in twin.hosts()}
        for key, record in expected.items():
            found = live.shard().host(key)
            assert found is not None
            assert found.pop("first_row") is None or live.store.base is not None
            assert found == {name: value for name, value in record.items() if name != "first_row"}


@settings(max_examples=60, deadline=None)
@given(batch=ops, cuts=st.lists(st.integers(0, 25), max_size=6))
def test_grouping_of_messages_changes_nothing(batch, cuts):
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        whole, pieces = world.World(Path(one)), world.World(Path(other))
        whole.feed(batch)
        bounds = [0, *sorted(cut for cut in cuts if cut < len(batch)), len(batch)]
        for begin, end in itertools.pairwise(bounds):
            pieces.feed(batch[begin:end])
            pieces.snapshot()
        assert whole.urls() == pieces.urls()
        assert whole.hosts() == pieces.hosts()
