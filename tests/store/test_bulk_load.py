"""BulkLoad against a plain dict: any order, any buffer, repeats, hosts across blocks; nothing temporary stays."""

from __future__ import annotations

import errno
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import store_world as world
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.identity import CampaignIdentity
from meguri_common.keys import host_key, partition_of
from meguri_common.records import CRAWL_DELAY_UNSET, NO_DEPTH, Source, Status
from meguri_common.runtime.simulated import SimulatedFiles
from meguri_store import external_sort
from meguri_store.bulk_load import LEAST_MEMORY, BulkLoad, Stamps, build_shard, new_urls
from meguri_store.external_sort import ROWS, ExternalSort, sorted_distinct
from meguri_store.generation import Generation
from meguri_store.verify import verify_generation

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = 490_000
STAMPS = Stamps(NOW, url_budget=64, depth_cap=9)


def identity(partitions: int, group_by: str = "registrable") -> CampaignIdentity:
    return CampaignIdentity(
        campaign="test", partitions=partitions, group_by=group_by, policy="p", suffix_list="s", url_parser="u"
    )


def token() -> Any:
    names = itertools.count()
    return lambda: f"{next(names):08x}"


def group_of(url: bytes) -> bytes:
    return url.split(b"/")[2].removeprefix(b"www.")


def rows_of(urls: list[bytes], **stated: list[Any]) -> pa.RecordBatch:
    offsets = np.zeros(len(urls) + 1, np.int64)
    np.cumsum([len(url) for url in urls], out=offsets[1:])
    groups = [group_of(url) for url in urls]
    return new_urls(
        np.frombuffer(b"".join(urls) + bytes(16), np.uint8),
        offsets,
        np.array([host_key(group) for group in groups], np.uint64),
        np.array([url.index(group) for url, group in zip(urls, groups, strict=True)], np.uint16),
        np.array([len(group) for group in groups], np.uint16),
        STAMPS,
        {name: np.array(values) for name, values in stated.items()},
    )


def load(
    files: Any, urls: list[bytes], *, partitions: int = 1, memory: int = LEAST_MEMORY, step: int = 1000, group: int = 50
) -> dict[int, str]:
    """Load URLs in batches; gives the generation of each shard."""
    files.make_folder("store")
    folders = {}
    tokens = token()
    with BulkLoad(files, identity(partitions), token=tokens, memory=memory) as bulk:
        for start in range(0, len(urls), step):
            bulk.add(rows_of(urls[start : start + step]))
        runs = bulk.finish()
        assert bulk.rows == len(urls)
        for partition in runs.partitions():
            made = build_shard(
                files, identity(partitions), bulk.folder, runs, partition, stamps=STAMPS, token=tokens, group_rows=group
            )
            folders[partition] = made.folder
    return folders


def records(files: Any, folders: dict[int, str], partitions: int = 1) -> Iterator[dict[str, Any]]:
    for folder in folders.values():
        generation = verify_generation(files, folder, identity(partitions))
        for group in range(generation.groups):
            yield from generation.urls(group).to_pylist()


def hosts(files: Any, folders: dict[int, str], partitions: int = 1) -> list[dict[str, Any]]:
    found = []
    for folder in folders.values():
        for table in Generation.open(files, folder, identity(partitions)).hosts():
            found += table.to_pylist()
    return found


def test_a_record_is_stamped_and_a_host_made(tmp_path):
    files = world.QuickFiles(tmp_path)
    folders = load(files, [b"https://www.b.example/x", b"https://www.b.example/", b"http://10.0.0.1/a"])
    found = {row["url"]: row for row in records(files, folders)}
    assert list(found) == sorted(found, key=lambda url: (host_key(group_of(url.encode())), url))
    row = found["https://www.b.example/x"]
    expected: dict[str, Any] = dict.fromkeys(row, 0) | {
        "host_key": host_key(b"b.example"),
        "url": "https://www.b.example/x",
        "status": Status.SCHEDULED,
        "priority": 0.5,
        "depth": NO_DEPTH,
        "source": Source.MANUAL,
        "first_seen": NOW,
        "next_due": NOW,
        "etag": None,
        "redirect": None,
    }
    assert row == expected
    owners = {row["host_group"]: row for row in hosts(files, folders)}
    assert owners.keys() == {"b.example", "10.0.0.1"}
    host = owners["b.example"]
    assert (host["registrable_domain"], host["url_count"], host["url_budget"]) == ("b.example", 2, 64)
    assert (host["crawl_delay"], host["crawl_delay_set"], host["depth_cap"]) == (100, CRAWL_DELAY_UNSET, 9)
    assert owners["10.0.0.1"]["registrable_domain"] is None


def test_what_is_stated_of_a_url_stands_over_the_stamps(tmp_path):
    files = world.QuickFiles(tmp_path)
    files.make_folder("store")
    tokens = token()
    urls = [b"https://a.example/1", b"https://a.example/2"]
    stated = {"depth": [3, 4], "source": [0, 2], "priority": [0.25, 2.0], "first_seen": [7, 8], "next_due": [0, 9]}
    with BulkLoad(files, identity(1), token=tokens, memory=LEAST_MEMORY) as bulk:
        bulk.add(rows_of(urls, **stated))
        made = build_shard(files, identity(1), bulk.folder, bulk.finish(), 0, stamps=STAMPS, token=tokens)
    found = list(records(files, {0: made.folder}))
    assert [{name: row[name] for name in stated} for row in found] == [
        {name: values[at] for name, values in stated.items()} for at in (0, 1)
    ]


def test_of_repeats_the_first_wins(tmp_path):
    files = world.QuickFiles(tmp_path)
    files.make_folder("store")
    tokens = token()
    with BulkLoad(files, identity(1), token=tokens, memory=LEAST_MEMORY) as bulk:
        for depth in range(5, 0, -1):
            bulk.add(rows_of([b"https://a.example/1"] * 40, depth=[depth] * 40))
        made = build_shard(files, identity(1), bulk.folder, bulk.finish(), 0, stamps=STAMPS, token=tokens)
    assert [row["depth"] for row in records(files, {0: made.folder})] == [5]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.text("ab/%", max_size=20)), max_size=200),
    st.integers(1, 9),
    st.integers(1, 64),
)
def test_any_order_gives_the_sorted_set(tmp_path_factory, given_urls, partitions, step):
    files = world.QuickFiles(tmp_path_factory.mktemp("load"))
    urls = [f"https://www.site{host}.org/{path}".encode() for host, path in given_urls]
    folders = load(files, urls, partitions=partitions, step=step, group=7)
    found = [(row["host_key"], row["url"].encode()) for row in records(files, folders, partitions)]
    assert found == sorted({(host_key(group_of(url)), url) for url in urls})
    for partition, folder in folders.items():
        rows = list(records(files, {partition: folder}, partitions))
        assert {partition_of(row["host_key"], partitions) for row in rows} == {partition}
    counted = {row["host_key"]: row["url_count"] for row in hosts(files, folders, partitions)}
    assert counted == {key: sum(host == key for host, _ in found) for key in dict(found)}


def test_many_runs_and_merges_of_runs_with_hosts_across_blocks(tmp_path, monkeypatch):
    """A buffer that takes two thousand URLs of the 12,000, two runs at a time, some of them with repeats."""
    monkeypatch.setattr(external_sort, "_FAN_IN", 2)
    files = world.QuickFiles(tmp_path)
    random = np.random.default_rng(5)
    urls = [f"https://www.site{at % 5}.org/{'x' * 1100}/{at}".encode() for at in range(10_000)]
    urls += urls[::5]
    urls = [urls[at] for at in random.permutation(len(urls)).tolist()]
    made = []
    write = external_sort._Runs.write

    def counted(self, batches):
        made.append(1)
        write(self, batches)

    monkeypatch.setattr(external_sort._Runs, "write", counted)
    folders = load(files, urls, partitions=3, group=1000)
    assert len(made) > 8, "there were runs, and merges of them"
    found = [(row["host_key"], row["url"].encode()) for row in records(files, folders, 3)]
    assert found == sorted({(host_key(group_of(url)), url) for url in urls})
    assert [row["url_count"] for row in hosts(files, folders, 3)] == [2000] * 5


def test_sorted_input_is_passed_on_as_it_is():
    batch = rows_of([b"https://www.site1.org/%d" % at for at in range(1000, 3000)])
    assert [part is batch for part in sorted_distinct(batch)] == [True]


URLS = st.lists(st.binary(min_size=1, max_size=40).map(lambda url: url.replace(b"\0", b"x")), max_size=300)


@settings(max_examples=150, deadline=None)
@given(st.one_of(URLS, st.lists(st.sampled_from([b"a" * n for n in range(1, 30)]), max_size=300)), st.randoms())
def test_the_sorting_kernel_agrees_with_sorted(urls, random):
    hosts = [random.choice([0, 1, 2**63, 2**64 - 1]) for _ in urls]
    fixed = {name: pa.array(np.zeros(len(urls)), ROWS.field(name).type) for name in ROWS.names}
    fixed["host_key"] = pa.array(hosts, pa.uint64())
    fixed["url"] = pa.array(urls, pa.binary())
    fixed["first_seen"] = pa.array(range(len(urls)), pa.uint32())
    batch = pa.RecordBatch.from_arrays([fixed[name] for name in ROWS.names], schema=ROWS)
    found = [
        row
        for part in sorted_distinct(batch)
        for row in zip(*(part.column(name).to_pylist() for name in ("host_key", "url", "first_seen")), strict=True)
    ]
    first: dict[tuple[int, bytes], int] = {}
    for at, key in enumerate(zip(hosts, urls, strict=True)):
        first.setdefault(key, at)
    assert found == [(*key, at) for key, at in sorted(first.items())]


def test_a_large_shuffle_agrees_with_sorted():
    random = np.random.default_rng(11)
    urls = [
        b"https://www.site%d.org/%d/%d" % (a % 9, b, a) for a, b in random.integers(0, 30_000, (50_000, 2)).tolist()
    ]
    batch = rows_of(urls)
    found = [
        key
        for part in sorted_distinct(batch)
        for key in zip(part.column("host_key").to_pylist(), part.column("url").to_pylist(), strict=True)
    ]
    assert found == sorted(set(zip(batch.column("host_key").to_pylist(), urls, strict=True)))


class DiskFullError(OSError):
    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, "No space left on device")


WRITES = {"file.create", "file.write", "file.sync", "file.rename", "file.sync_folder", "file.make_folder"}


def test_whatever_write_fails_nothing_temporary_stays_and_the_next_load_succeeds(say):
    urls = [f"https://www.site{at % 3}.org/{at}".encode() for at in range(300)]
    failed = 0
    for number in itertools.count(1):
        left = [number]

        def before(operation: str, left: list[int] = left) -> None:
            if operation in WRITES:
                left[0] -= 1
                if left[0] == 0:
                    raise DiskFullError

        files = SimulatedFiles(now=lambda: 0.0, before=before)
        try:
            load(files, urls, partitions=2)
        except DiskFullError:
            failed += 1
        else:
            break
        files.before = lambda _operation: None
        names = {
            name for folder in ("store", *(f"store/shard-0000{at}" for at in (0, 1))) for name in files.list(folder)
        }
        assert not {name for name in names if name.startswith(".")}, f"after write {number}"
        if number % 8 == 0:
            assert len(list(records(files, load(files, urls, partitions=2), 2))) == len(urls)
    assert failed > 20
    say("bulk load", f"{failed} failing writes, each survived")


def test_a_shard_that_failed_can_be_built_again_and_the_others_stay():
    urls = [f"https://www.site{at % 20}.org/{at}".encode() for at in range(300)]
    files = SimulatedFiles(now=lambda: 0.0)
    files.make_folder("store")
    tokens = token()

    def full(operation: str) -> None:
        if operation == "file.rename":
            raise DiskFullError

    with BulkLoad(files, identity(4), token=tokens, memory=LEAST_MEMORY) as bulk:
        bulk.add(rows_of(urls))
        runs = bulk.finish()
        assert runs.partitions() == [0, 1, 2, 3]

        def build(partition: int) -> str:
            return build_shard(files, identity(4), bulk.folder, runs, partition, stamps=STAMPS, token=tokens).folder

        folders = {0: build(0)}
        files.before = full
        with pytest.raises(DiskFullError):
            build(1)
        files.before = lambda _operation: None
        folders |= {partition: build(partition) for partition in (1, 2, 3)}
    assert len(list(records(files, folders, 4))) == len(urls)


def test_what_a_killed_load_left_goes_with_the_next():
    files = SimulatedFiles(now=lambda: 0.0)
    files.make_folder("store")
    BulkLoad(files, identity(1), token=lambda: "dead", memory=LEAST_MEMORY).add(rows_of([b"https://a.example/"]))
    assert files.list("store") == [".build-dead"]
    load(files, [b"https://b.example/"])
    assert files.list("store") == ["shard-00000"]


def test_refused_arguments():
    files = SimulatedFiles(now=lambda: 0.0)
    files.make_folder("store")
    with pytest.raises(ValueError, match="sort buffer"):
        BulkLoad(files, identity(1), token=token(), memory=LEAST_MEMORY - 1)
    with pytest.raises(ValueError, match="discovered or scheduled, not gone"):
        Stamps(NOW, status=Status.GONE)
    with pytest.raises(ValueError, match="hour 0"):
        Stamps(0)
    sort = ExternalSort(files, "store", 1, LEAST_MEMORY)
    with pytest.raises(ValueError, match="doesn't fit"):
        sort.add(rows_of([b"https://a.example/" + b"x" * LEAST_MEMORY]))
