"""Row ranges of shards make other shards: every record goes along, once, unchanged."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import store_world as world
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.simulated import SimulatedFiles
from meguri_store.import_records import GivenHosts, HostStream, RecordStream, import_shard
from meguri_store.manifest import make_manifest
from meguri_store.resize import hosts_between, records_between
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA
from meguri_store.verify import verify_generation

if TYPE_CHECKING:
    from meguri_store.generation import Generation

KEYS = st.one_of(st.integers(0, 9), st.integers((1 << 64) - 9, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))


def identity(partitions: int) -> CampaignIdentity:
    return CampaignIdentity(
        campaign="test", partitions=partitions, group_by="registrable", policy="p", suffix_list="s", url_parser="u"
    )


def shards(files: Any, partitions: int, urls: Any, hosts: Any) -> list[Generation]:
    """A store of so many shards of the records that two functions of a range give."""
    names = itertools.count()
    found = []
    for shard in make_manifest(identity(partitions)).shards:
        records = RecordStream(urls(shard.host_lo, shard.host_hi), partitions)
        owners = HostStream(hosts(shard.host_lo, shard.host_hi), partitions)
        made = import_shard(
            files,
            identity(partitions),
            shard.index,
            records.of(shard.index),
            GivenHosts(owners.of(shard.index)),
            token=lambda: f"{next(names):08x}",
            group_rows=3,
        )
        found.append(verify_generation(files, made.folder, identity(partitions)))
    return found


def contents(generations: list[Generation]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    urls = [row for each in generations for group in range(each.groups) for row in each.urls(group).to_pylist()]
    hosts = [row for each in generations for table in each.hosts() for row in table.to_pylist()]
    for row in hosts:
        del row["first_row"]
    return urls, hosts


def record(schema: pa.Schema, **stated: Any) -> dict[str, Any]:
    zeros = {field.name: None if field.nullable else 0 for field in schema}
    return zeros | stated


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(KEYS, st.integers(0, 5), max_size=12),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.randoms(),
)
def test_any_number_of_shards_holds_the_same(tmp_path_factory, sizes, path, random):
    rows = [
        record(URL_SCHEMA, host_key=key, url=f"http://h{key}/{at}", status=1, simhash=random.getrandbits(64))
        for key in sorted(sizes)
        for at in range(sizes[key])
    ]
    owners = [record(HOST_SCHEMA, host_key=key, host_group=f"h{key}", url_budget=key & 99) for key in sorted(sizes)]
    urls, hosts = pa.Table.from_pylist(rows, URL_SCHEMA), pa.Table.from_pylist(owners, HOST_SCHEMA)

    def whole(table: pa.Table) -> Any:
        keys = table.column("host_key").to_pylist()
        return lambda low, high: [table.filter(pa.array([low <= key <= high for key in keys], pa.bool_()))]

    generations = shards(world.QuickFiles(tmp_path_factory.mktemp("r")), path[0], whole(urls), whole(hosts))
    before = contents(generations)
    assert [row["url"] for row in before[0]] == [row["url"] for row in rows]
    for partitions in path[1:]:
        generations = shards(
            world.QuickFiles(tmp_path_factory.mktemp("r")),
            partitions,
            lambda low, high, old=generations: records_between(old, low, high),
            lambda low, high, old=generations: hosts_between(old, low, high),
        )
        assert contents(generations) == before


def test_whatever_write_fails_nothing_temporary_stays(say):
    row = [record(URL_SCHEMA, host_key=at, url=f"http://h{at}/", status=1) for at in range(40)]
    owners = [record(HOST_SCHEMA, host_key=at, host_group=f"h{at}") for at in range(40)]
    urls, hosts = pa.Table.from_pylist(row, URL_SCHEMA), pa.Table.from_pylist(owners, HOST_SCHEMA)
    writes = {"file.create", "file.write", "file.sync", "file.rename", "file.sync_folder", "file.make_folder"}
    failed = 0
    for number in itertools.count(1):
        left = [number]

        def before(operation: str, left: list[int] = left) -> None:
            left[0] -= operation in writes
            if left[0] == 0 and operation in writes:
                raise OSError(28, "No space left on device")

        files = SimulatedFiles(now=lambda: 0.0, before=before)
        try:
            shards(files, 1, lambda _low, _high: [urls], lambda _low, _high: [hosts])
        except OSError:
            failed += 1
        else:
            break
        files.before = lambda _operation: None
        assert not [name for name in files.list("store/shard-00000") if name.startswith(".")], number
        if number % 8 == 0:
            assert contents(shards(files, 1, lambda _low, _high: [urls], lambda _low, _high: [hosts]))[0] == row
    assert failed > 10
    say("import", f"{failed} failing writes, each survived")
