"""The engine and the whole store opened for reading, against the plain twin."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest
import store_world as world
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.errors import CampaignMismatch, CorruptGeneration
from meguri_common.keys import partition_of
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.snapshots import SnapshotStore
from meguri_store.engine import DUE_COLUMNS, Engine
from meguri_store.manifest import write_manifest
from meguri_store.open_store import OpenStore
from meguri_store.schema import DUE_STATUSES

PAGES = [world.url_of(f"site{number % 5}.org", f"p/{number}") for number in range(40)]
HOUR = world.START // world.HOUR


def keys_of(urls):
    keys = [world.keys_of(url) for url in urls]
    return tuple(np.array([key[part] for key in keys], np.uint64) for part in ("host_key", "path_key"))


def opened(live: world.World, **options) -> Engine:
    return Engine.open(live.files, live.store.base.folder, world.IDENTITY, **options)


def loaded(root: Path, pages=PAGES) -> tuple[world.World, world.PlainStore]:
    live, twin = world.World(root), world.PlainStore()
    ops = [world.admitted(url, at=world.START + 3600 * (number % 9)) for number, url in enumerate(pages)]
    ops += [world.visit(url, content_fp=7, etag=b"e") for url in pages[::3]]
    live.feed(ops)
    twin.apply(ops)
    live.snapshot(compact=True)
    return live, twin


asked = st.lists(st.integers(0, 59), max_size=60)


@settings(max_examples=40, deadline=None)
@given(known=st.sets(st.integers(0, 59), min_size=1), first=asked, second=asked)
def test_answers_are_the_twins(known, first, second):
    every = [world.url_of(f"site{number % 5}.org", f"p/{number}") for number in range(60)]
    with tempfile.TemporaryDirectory() as folder:
        live, twin = loaded(Path(folder), [every[number] for number in sorted(known)])
        with opened(live) as engine:
            assert engine.rows == len(known)
            for numbers in (first, second, first):
                urls = [every[number] for number in numbers]
                host, path = keys_of(urls) if urls else (np.zeros(0, np.uint64),) * 2
                expected = [twin.records.get((int(h), int(p))) for h, p in zip(host, path, strict=True)]
                found = engine.get_many(host, path)
                assert [found.record(at) for at in range(len(urls))] == expected
                few = engine.get_many(host, path, ["status", "url"])
                assert few.records.column_names == ["status", "url"]
                assert [few.record(at) and few.record(at)["url"] for at in range(len(urls))] == [
                    record and record["url"] for record in expected
                ]
                assert engine.seen_batch(host, path).tolist() == [record is not None for record in expected]
                if urls:
                    assert engine.get(int(host[0]), int(path[0])) == expected[0]
                    assert engine.seen(int(host[0]), int(path[0])) == (expected[0] is not None)


def test_a_stranger_seldom_touches_the_file_and_a_trusted_filter_never(tmp_path):
    live, _ = loaded(tmp_path)
    random = np.random.default_rng(1)
    host, path = (random.integers(0, 2**64, 20_000, np.uint64) for _ in range(2))
    with opened(live) as engine:
        assert not engine.seen_batch(host, path).any()
        assert engine.base_probes < 600
        probes = engine.base_probes
        assert engine.seen_batch(*keys_of(PAGES)).all()
        assert engine.base_probes == probes + len(PAGES)
    with opened(live, trust_filter=True) as engine:
        assert engine.seen_batch(*keys_of(PAGES)).all()
        assert engine.seen_batch(host, path).mean() < 0.03
        assert engine.base_probes == 0


def test_what_was_looked_up_is_kept(tmp_path):
    live, twin = loaded(tmp_path)
    with opened(live) as engine:
        host, path = keys_of(PAGES)
        engine.get_many(host, path)
        probes = engine.base_probes
        assert engine.get(int(host[3]), int(path[3])) == twin.records[int(host[3]), int(path[3])]
        assert engine.base_probes == probes


@pytest.mark.parametrize("batch_size", [1, 3, 7, 1000])
def test_due_keys_are_streamed(tmp_path, monkeypatch, batch_size):
    live, twin = loaded(tmp_path)
    decoded = []
    with opened(live) as engine:
        read = engine.generation.urls
        monkeypatch.setattr(
            type(engine.generation),
            "urls",
            lambda _self, group, columns=None: decoded.append((group, columns)) or read(group, columns),
        )
        for now in (HOUR - 1, HOUR, HOUR + 3, HOUR + 400):
            decoded.clear()
            batches = list(engine.due_batches(now, batch_size))
            assert all(batch.column_names == list(DUE_COLUMNS) for batch in batches)
            sizes = [batch.num_rows for batch in batches]
            assert all(size == batch_size for size in sizes[:-1])
            assert all(0 < size <= batch_size for size in sizes)
            expected = [
                (record["host_key"], record["url"], record["next_due"])
                for record in twin.urls()
                if record["status"] in DUE_STATUSES and 0 < record["next_due"] <= now
            ]
            rows = [row for batch in batches for row in batch.to_pylist()]
            assert [(row["host_key"], row["url"], row["next_due"]) for row in rows] == expected
            assert all(row["path_key"] == world.keys_of(row["url"].encode())["path_key"] for row in rows)
            assert not decoded or now >= HOUR
        with pytest.raises(ValueError, match="at least 1"):
            next(engine.due_batches(HOUR, 0))


def test_a_hosts_rows_are_one_range(tmp_path):
    live, twin = loaded(tmp_path)
    with opened(live) as engine:
        for owner in twin.hosts():
            key = owner["host_key"]
            expected = [record for record in twin.urls() if record["host_key"] == key]
            assert engine.host_range(key) == (owner["first_row"], owner["first_row"] + len(expected))
            assert engine.of_host(key).to_pylist() == expected
            assert engine.of_host(key, ["url", "host_key"]).column_names == ["url", "host_key"]
        assert engine.host_range(1) == (0, 0)
        assert engine.of_host(1).num_rows == 0
        size = sum(file.stat().st_size for file in (tmp_path / live.store.base.folder).iterdir())
        meta = (tmp_path / live.store.base.folder / "meta.json").stat().st_size
        assert engine.bits_per_url == pytest.approx(8 * (size - meta) / len(PAGES))


class Shards:
    """Several shards with a generation each."""

    def __init__(self, root: Path, partitions: int) -> None:
        self.files = LocalFiles(root)
        self.identity = msgspec.structs.replace(world.IDENTITY, partitions=partitions)
        write_manifest(self.files, self.identity)
        self.folders = {}
        for number in range(partitions):
            urls = [url for url in PAGES if partition_of(world.keys_of(url)["host_key"], partitions) == number]
            if urls:
                self.publish(number, urls)

    def publish(self, number: int, urls: list[bytes]) -> None:
        store = world.Store(
            number, self.identity, self.files, lambda: "ab", world.PARAMETERS, world.CompactionRules(group_rows=4)
        )
        for kind, batch in world.batches([world.admitted(url) for url in urls]):
            store.log.append(kind, batch)
        store.request_compaction()
        snapshots = SnapshotStore(
            self.files, "store", number, token=lambda: f"{len(self.folders):x}", now=float, grace=0.0
        )
        writer = snapshots.writer(len(urls), None, quick=False)
        store.save(writer)
        snapshots.commit(writer, topic_id="t", identity=self.identity, parameters=world.PARAMETERS, logic_version=1)
        store.saved()
        self.folders[number] = store.base.folder


def test_a_store_routes_to_its_shards(tmp_path):
    shards = Shards(tmp_path, 3)
    with OpenStore.open(shards.files, shards.identity) as store:
        assert store.rows == len(PAGES)
        host, path = keys_of(PAGES)
        assert store.route(host).tolist() == [partition_of(int(key), 3) for key in host]
        assert store.seen_batch(host, path).all()
        assert not store.seen_batch(host, path + np.uint64(1)).any()
        record = store.get(int(host[5]), int(path[5]))
        assert record is not None
        assert record["url"].encode() == PAGES[5]
        due = [row["url"].encode() for batch in store.due_batches(HOUR, 7) for row in batch.to_pylist()]
        assert sorted(due) == sorted(PAGES)
    with pytest.raises(CampaignMismatch):
        OpenStore.open(shards.files, msgspec.structs.replace(shards.identity, policy="other"))


def test_those_opened_are_closed_when_one_shard_fails(tmp_path, monkeypatch):
    shards = Shards(tmp_path, 3)
    assert len(shards.folders) == 3
    path = tmp_path / shards.folders[2] / "seen.filter"
    path.write_bytes(path.read_bytes()[::-1])
    closed = []
    monkeypatch.setattr(Engine, "close", lambda self: closed.append(self.generation.folder))
    with pytest.raises(CorruptGeneration, match=r"shard-00002/.*seen\.filter"):
        OpenStore.open(shards.files, shards.identity)
    assert closed == [shards.folders[0], shards.folders[1]]
