"""What the store leaves on disk: readable by other tools, whole after any failed write, refused when altered."""

from __future__ import annotations

import errno
import json
import subprocess
import sys

import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import store_world as world
import xxhash

from meguri_common.bus.port import Message
from meguri_common.errors import (
    CampaignMismatch,
    CorruptGeneration,
    CorruptSnapshot,
    EnvelopeError,
    ManifestError,
)
from meguri_common.keys import partition_of
from meguri_common.records import Status, UpdateField
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.outputs import Outputs
from meguri_common.wire.envelope import encode
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_store.delta_file import is_delta
from meguri_store.freshness_rules import DEFAULTS
from meguri_store.generation import Generation
from meguri_store.manifest import make_manifest, read_manifest, write_manifest
from meguri_store.queries import open_shard
from meguri_store.schema import HOST_FILE_SCHEMA, HOST_SCHEMA, URL_SCHEMA, describe
from meguri_store.service import CompactionRules, Store, store_spec
from meguri_store.verify import verify_generation

PAGES = [world.url_of(f"site{number % 7}.org", f"page/{number}") for number in range(60)]


def first_load(live: world.World) -> None:
    live.feed([world.admitted(url, reason=number % 11 == 3) for number, url in enumerate(PAGES)])
    live.feed([world.host("site1.org", url_count=9, host_score=0.5)])
    live.feed([world.visit(url, content_fp=7, simhash=9, etag=b"e", latency=80) for url in PAGES[::2]])


def test_other_tools_open_the_files(tmp_path):
    live = world.World(tmp_path)
    first_load(live)
    live.snapshot(compact=True)
    urls, hosts = (f"{tmp_path}/store/shard-00000/current/{name}.parquet" for name in ("urls", "hosts"))
    expected = [(row["url"], row["status"], row["next_due"]) for row in live.urls()]
    assert duckdb.sql(f"select url, status, next_due from '{urls}'").fetchall() == expected
    assert pl.read_parquet(urls).select("url", "status", "next_due").rows() == expected
    # A host's URLs are one contiguous range of rows; its key stands there, or where it has no URLs in hosts.parquet.
    table = pq.read_table(urls)
    owned = {}
    for row in pq.read_table(hosts).to_pylist():
        key = table.column("host_key")[row["first_row"]].as_py()
        assert key == xxhash.xxh64_intdigest(row["host_group"].encode())
        assert row["host_key"] in {None, key}
        owned[row["host_group"]] = table.column("host_key").to_pylist().count(key)
    assert owned == {f"site{number}.org": 9 if number < 4 else 8 for number in range(7)}


def test_layout_of_the_parquet_file(tmp_path):
    live = world.World(tmp_path)
    first_load(live)
    live.snapshot(compact=True)
    file = pq.ParquetFile(tmp_path / "store/shard-00000/current/urls.parquet")
    columns = {file.metadata.row_group(0).column(at).path_in_schema: at for at in range(len(URL_SCHEMA))}
    first = file.metadata.row_group(0)
    assert "DELTA_BYTE_ARRAY" in first.column(columns["url"]).encodings
    assert first.column(columns["url"]).compression == "ZSTD"
    assert [name for name, at in columns.items() if first.column(at).statistics is not None] == ["host_key", "next_due"]
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [4] * 15
    assert file.schema_arrow.equals(URL_SCHEMA)
    assert all(describe(URL_SCHEMA).values())
    assert all(describe(HOST_FILE_SCHEMA).values())


class FailingFiles(world.QuickFiles):
    """Runs out of space at the N-th call that writes, and stays full."""

    def __init__(self, root, limit=None):
        super().__init__(root)
        self.calls = 0
        self.limit = limit

    def spend(self):
        self.calls += 1
        if self.limit is not None and self.calls > self.limit:
            raise OSError(errno.ENOSPC, "No space left on device")

    def create(self, path):
        self.spend()
        return FailingFile(super().create(path), self)

    def sync(self, file):
        self.spend()
        super().sync(file.file)

    def rename(self, source, target):
        self.spend()
        super().rename(source, target)

    def point(self, link, target):
        self.spend()
        super().point(link, target)

    def sync_folder(self, path):
        self.spend()
        super().sync_folder(path)

    def make_folder(self, path):
        self.spend()
        super().make_folder(path)


class FailingFile:
    def __init__(self, file, files):
        self.file, self.files = file, files

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, chunk):
        self.files.spend()
        return self.file.write(chunk)

    def flush(self):
        self.file.flush()


@pytest.mark.parametrize("compact", [False, True])
def test_a_failed_write_leaves_the_last_state_and_the_memory(tmp_path, compact):
    """For every N: the N-th write fails. What was published stays whole, and a later attempt goes through."""
    later = [world.visit(url, at=world.START + 7200, status=404) for url in PAGES[::3]]
    later += [world.admitted(world.url_of("new.org", f"{number}")) for number in range(9)]
    attempts = 0
    for limit in range(1000):
        root = tmp_path / str(limit)
        root.mkdir()
        live = world.World(root, files=FailingFiles(root), rules=CompactionRules(rows=1 << 40, group_rows=64))
        first_load(live)
        live.snapshot(compact=True)
        before = live.urls()
        folder = live.store.base.folder
        live.feed(later)
        after = live.urls()
        live.files.calls, live.files.limit = 0, limit
        try:
            live.snapshot(compact=compact)
        except OSError as problem:
            full = problem.errno
        else:
            break
        assert full == errno.ENOSPC
        attempts += 1
        live.files.limit = None
        verify_generation(live.files, folder, world.IDENTITY)
        assert live.urls() == after
        found = [
            row for chunk in open_shard(LocalFiles(root), 0, world.IDENTITY).records() for row in chunk.to_pylist()
        ]
        assert found in (before, after)
        unfinished = [name for name in live.files.list("store/shard-00000") if name.startswith(".new-g")]
        assert unfinished == []
        live.snapshot(compact=compact)
        assert live.urls() == after
        live.restore()
        assert live.urls() == after
    assert attempts > (25 if compact else 8)


@pytest.mark.parametrize("name", ["urls.parquet", "hosts.parquet", "seen.filter"])
def test_an_altered_file_is_refused(tmp_path, name):
    live = world.World(tmp_path)
    first_load(live)
    live.snapshot(compact=True)
    folder = live.store.base.folder
    verify_generation(live.files, folder, world.IDENTITY)
    path = tmp_path / folder / name
    whole = path.read_bytes()

    for left in (0, 1, 4, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:left])
        with pytest.raises(CorruptGeneration, match=rf"{name}: {left} bytes instead of {len(whole)}"):
            Generation.open(live.files, folder, world.IDENTITY)
    for at in range(0, len(whole), max(len(whole) // 23, 1)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(CorruptGeneration, match=name):
            verify_generation(live.files, folder, world.IDENTITY)
    path.unlink()
    with pytest.raises(CorruptGeneration, match=f"{name}: is missing"):
        Generation.open(live.files, folder, world.IDENTITY)
    assert live.snapshots.whole() == []


def test_a_torn_description_is_refused(tmp_path):
    live = world.World(tmp_path)
    first_load(live)
    live.snapshot(compact=True)
    folder = live.store.base.folder
    path = tmp_path / folder / "meta.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"urls":', b'"urlt":', 1))
    with pytest.raises(CorruptGeneration, match=r"meta\.json: can't be read"):
        Generation.open(live.files, folder, world.IDENTITY)
    for left in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:left])
        with pytest.raises(CorruptGeneration, match=r"meta\.json: can't be read"):
            Generation.open(live.files, folder, world.IDENTITY)
        assert live.snapshots.whole() == []


def rewritten(live: world.World, name: str, change, host_schema: pa.Schema = HOST_FILE_SCHEMA) -> str:
    """Write a changed table back, with sizes and checksums that fit; gives the folder."""
    folder = live.store.base.folder
    path = live.files.root / folder / name
    schema = URL_SCHEMA if name == "urls.parquet" else host_schema
    pq.write_table(pa.Table.from_pylist(change(pq.read_table(path).to_pylist()), schema), path, row_group_size=4)
    meta_path = path.with_name("meta.json")
    meta = json.loads(meta_path.read_bytes())
    blob = path.read_bytes()
    meta["files"][name] = {"size": len(blob), "checksum": xxhash.xxh64_hexdigest(blob)}
    meta_path.write_text(json.dumps(meta))
    return folder


def test_the_layout_before_is_read(tmp_path):
    """Hosts with all columns of the records as they are."""
    live = world.World(tmp_path)
    first_load(live)
    live.snapshot(compact=True)
    expected = pa.concat_tables(live.store.base.hosts())
    folder = rewritten(live, "hosts.parquet", lambda _rows: expected.to_pylist(), HOST_SCHEMA)
    meta_path = live.files.root / folder / "meta.json"
    meta = json.loads(meta_path.read_bytes())
    meta_path.write_text(json.dumps(meta | {"version": 1}))
    assert pa.concat_tables(Generation.open(live.files, folder, world.IDENTITY).hosts()).equals(expected)
    meta_path.write_text(json.dumps(meta | {"version": 3}))
    with pytest.raises(CorruptGeneration, match="layout 3, this program reads 1 and 2"):
        Generation.open(live.files, folder, world.IDENTITY)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("urls.parquet", lambda rows: [*rows[:5], rows[6], rows[5], *rows[7:]], "row 6: isn't above the row before"),
        ("urls.parquet", lambda rows: [*rows[:5], rows[4], *rows[6:]], "row 5: isn't above the row before"),
        ("urls.parquet", lambda rows: [*rows[:9], {**rows[9], "status": 9}, *rows[10:]], "row 9: has no known status"),
        ("urls.parquet", lambda rows: [*rows[:9], {**rows[9], "url": rows[9]["url"] + "~"}, *rows[10:]], "row 9: its"),
        (
            "urls.parquet",
            lambda rows: [*rows[:2], {**rows[2], "status": int(Status.GONE), "next_due": 9, "reason": 0}, *rows[3:]],
            "row 2: is due in spite",
        ),
        ("urls.parquet", lambda rows: [{**row, "status": 1, "reason": 0} for row in rows], "by_status"),
        ("urls.parquet", lambda rows: rows[:-1], "has 59 rows"),
        ("hosts.parquet", lambda rows: [rows[1], rows[0], *rows[2:]], "row 1: isn't above"),
        ("hosts.parquet", lambda rows: [*rows[:3], {**rows[3], "first_row": 1}, *rows[4:]], "row 3: its URLs"),
        ("hosts.parquet", lambda rows: rows[1:], "has 6 rows"),
    ],
)
def test_a_lie_is_named_with_file_and_row(tmp_path, name, change, message):
    live = world.World(tmp_path)
    first_load(live)
    live.snapshot(compact=True)
    folder = rewritten(live, name, change)
    with pytest.raises(CorruptGeneration, match=rf"{name}: .*{message}|{name}: {message}"):
        verify_generation(live.files, folder, world.IDENTITY)


def test_another_campaigns_generation_is_refused(tmp_path):
    live = world.World(tmp_path)
    first_load(live)
    live.snapshot(compact=True)
    other = msgspec.structs.replace(world.IDENTITY, policy="other")
    with pytest.raises(CampaignMismatch, match="policy"):
        Generation.open(live.files, live.store.base.folder, other)
    with pytest.raises(CampaignMismatch, match="policy"):
        open_shard(live.files, 0, other)


def test_delta_files_neither_pile_up_nor_are_rewritten_often(tmp_path, monkeypatch):
    monkeypatch.setattr("meguri_store.delta_file.FILES_A_LEVEL", 4)
    live, twin = world.World(tmp_path), world.PlainStore()
    most, sizes = 0, 0
    rounds, levels = 60, 3  # 4 files make one of the next level, 16 one of the level after it
    for number in range(rounds):
        ops = [world.admitted(world.url_of("a.org", f"{number}"))]
        live.feed(ops)
        twin.apply(ops)
        known = {reference.path for reference in (live.last.files if live.last else ())}
        live.snapshot(quick=number % 2 == 0)
        sizes += sum(reference.rows for reference in live.last.files if reference.path not in known)
        most = max(most, len(live.last.files))
    assert most <= 3 * levels
    assert 2 * rounds < sizes <= levels * rounds
    assert {reference.role for reference in live.last.files} == {"delta.1", "delta.2"}
    assert sum(reference.rows for reference in live.last.files if is_delta(reference)) == rounds
    live.restore()
    assert live.urls() == twin.urls()


def test_what_is_written_stays_below_three_times_what_changed(tmp_path):
    """Rows written over a run that grows and then changes, with a snapshot after each small part of it."""
    rules = CompactionRules(rows=50, share=0.5, group_rows=64)
    live = world.World(tmp_path, rules=rules)
    changed = written = compactions = 0
    for number in range(300):
        if number < 150:
            ops = [world.admitted(world.url_of("a.org", f"{number}-{part}")) for part in range(10)]
        else:
            ops = [
                world.update(world.url_of("a.org", f"{number - 150}-{part}"), UpdateField.PRIORITY, priority=2.0)
                for part in range(10)
            ]
        live.feed(ops)
        changed += len(ops)
        base = live.store.base
        known = {reference.path for reference in (live.last.files if live.last else ())}
        live.snapshot()
        written += sum(reference.rows for reference in live.last.files if reference.path not in known)
        if live.store.base is not base:
            compactions += 1
            written += live.store.base.meta.urls
    assert compactions > 5
    assert written <= 3 * (1500 + changed)


def test_an_unchanged_shard_is_not_rewritten(tmp_path):
    live = world.World(tmp_path)
    first_load(live)
    live.snapshot(compact=True)
    files = live.last.files
    live.snapshot(compact=True)
    assert live.last.files == files
    live.restore()
    live.snapshot(compact=True)
    assert live.last.files == files


def test_stopping_writes_a_delta_and_never_compacts(tmp_path):
    live = world.World(tmp_path, rules=CompactionRules(rows=1, share=0.0, group_rows=4))
    first_load(live)
    assert live.store.wants_compaction()
    live.snapshot(quick=True, compact=True)
    assert live.store.base is None
    assert [reference.role for reference in live.last.files] == ["delta.0"]
    live.snapshot()
    assert sorted(reference.role for reference in live.last.files) == ["filter", "hosts", "meta", "urls"]
    assert not live.store.wants_compaction()


def test_old_generations_go_when_no_snapshot_names_them(tmp_path):
    live = world.World(tmp_path)
    first_load(live)
    folders = []
    for number in range(4):
        live.feed([world.admitted(world.url_of("more.org", f"{number}"))])
        live.snapshot(compact=True)
        folders.append(live.store.base.folder.rpartition("/")[2])
    live.now = 1e12
    live.snapshots.sweep()
    assert live.files.list("store/shard-00000") == sorted(["current", *folders[-2:]])
    assert (tmp_path / "store/shard-00000/current").resolve().name == folders[-1]


def test_two_generations_of_one_offset_are_ordered(tmp_path):
    live = world.World(tmp_path)
    first_load(live)
    live.store.request_compaction()
    for sequence in range(3):
        writer = live.snapshots.writer(live.offset, None, quick=False)
        live.store.save(writer)
        assert json.loads(live.files.read(writer.kept[-1].path))["sequence"] == sequence


def test_totals_need_no_scan(tmp_path):
    live, twin = world.World(tmp_path), world.PlainStore()
    parts = [
        [world.admitted(url, reason=number % 5 == 0) for number, url in enumerate(PAGES)],
        [world.update(PAGES[0], UpdateField.RELEASE), world.admitted(world.url_of("new.org", "x"), reason=2)],
        [world.host("new.org"), world.host("quiet.org"), world.visit(PAGES[1])],
    ]
    for part in parts:
        for compact in (False, True):
            live.feed(part if not compact else [])
            twin.apply(part if not compact else [])
            totals = live.store.totals()
            trapped = sum(row["status"] == Status.TRAPPED for row in twin.urls())
            assert (totals.rows, totals.hosts, totals.trapped) == (
                len(twin.records),
                len(twin.host_records),
                trapped,
            )
            assert bool(totals.delta_rows) == bool(totals.delta_bytes)
            live.snapshot(compact=compact)


def test_foreign_rows_and_altered_deltas_are_refused(tmp_path):
    live = world.World(tmp_path)
    votes = pa.RecordBatch.from_pylist([{"host_key": 1, "source_host": 2}], SCHEMAS[RowKind.VOTE])
    message = Message(4, encode(RowKind.VOTE, votes, world.IDENTITY.digest()), b"", 0)
    with pytest.raises(EnvelopeError, match=r"message 4 .* VOTE"):
        live.store.apply([message], Outputs(world.IDENTITY.digest()))
    first_load(live)
    live.snapshot()
    path = tmp_path / live.last.files[0].path
    path.write_bytes(path.read_bytes()[:100] + b"x" + path.read_bytes()[101:])
    with pytest.raises(CorruptSnapshot, match=path.name):
        live.restore()


@pytest.mark.parametrize("parameters", [{"flat_gap": 0}, {"max_retries": 256}, {"max_retries": 0}, {"tau": 1}])
def test_unusable_parameters_are_refused(tmp_path, parameters):
    with pytest.raises(ValueError, match=next(iter(parameters))):
        store_spec(world.IDENTITY, LocalFiles(tmp_path), str, parameters)


def test_the_spec_makes_shards_under_the_parameters_it_is_given(tmp_path):
    spec = store_spec(world.IDENTITY, LocalFiles(tmp_path), str, {"flat_gap": 24})
    assert spec.parameters == {**DEFAULTS, "flat_gap": 24}
    assert spec.folders(3) == ("store/shard-00003",)
    store = spec.create(0, {"flat_gap": 12, "max_retries": 5})
    assert isinstance(store, Store)
    assert store.rules.flat_gap == 12


@pytest.mark.parametrize("partitions", [1, 3, 8, 64, 1000])
def test_the_manifest_tiles_the_key_space(tmp_path, partitions):
    identity = msgspec.structs.replace(world.IDENTITY, partitions=partitions)
    files = LocalFiles(tmp_path)
    manifest = write_manifest(files, identity)
    assert write_manifest(files, identity) == manifest == read_manifest(files)
    for shard in manifest.shards:
        for key in (shard.host_lo, shard.host_hi, (shard.host_lo + shard.host_hi) // 2):
            assert partition_of(key, partitions) == shard.index
            assert manifest.shard_of(key) is shard
    other = msgspec.structs.replace(identity, suffix_list="new")
    with pytest.raises(CampaignMismatch, match="suffix_list"):
        write_manifest(files, other)


@pytest.mark.parametrize(
    "damage",
    [
        lambda shards: shards[1:],
        lambda shards: shards[:-1],
        lambda shards: [shards[0], {**shards[1], "host_lo": shards[1]["host_lo"] + 1}, *shards[2:]],
        lambda shards: [shards[0], shards[0], *shards[1:]],
    ],
)
def test_a_manifest_with_gaps_or_overlaps_is_refused(tmp_path, damage):
    identity = msgspec.structs.replace(world.IDENTITY, partitions=4)
    files = LocalFiles(tmp_path)
    write_manifest(files, identity)
    path = tmp_path / "store/store.json"
    body = json.loads(path.read_bytes())
    path.write_text(json.dumps({**body, "shards": damage(body["shards"])}))
    with pytest.raises(ManifestError, match=r"store\.json"):
        read_manifest(files)
    path.write_text("{")
    with pytest.raises(ManifestError, match=r"store\.json"):
        read_manifest(files)
    assert len(make_manifest(identity).shards) == 4


def test_a_single_record_is_found_without_the_compiled_kernels(tmp_path):
    live = world.World(tmp_path)
    first_load(live)
    live.snapshot(compact=True)
    live.feed([world.visit(PAGES[1], status=404)])
    live.snapshot()
    keys = world.keys_of(PAGES[1])
    program = (
        "import sys, msgspec\nfrom pathlib import Path\n"
        "from meguri_common.identity import CampaignIdentity\nfrom meguri_common.runtime.files import LocalFiles\n"
        "from meguri_store.queries import open_shard\n"
        f"identity = CampaignIdentity.decode({world.IDENTITY.encode()!r})\n"
        f"record = open_shard(LocalFiles(Path({str(tmp_path)!r})), 0, identity).get(**{keys!r})\n"
        "assert 'numba' not in sys.modules\nprint(record['url'], record['http_status'])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [PAGES[1].decode(), "404"]


@pytest.mark.parametrize("compact", [False, True])
def test_what_comes_in_while_a_snapshot_is_being_committed_is_kept(tmp_path, compact):
    live, twin = world.World(tmp_path), world.PlainStore()
    parts = [
        [world.admitted(url, reason=number % 5 == 0) for number, url in enumerate(PAGES)],
        [
            world.visit(PAGES[1]),
            world.update(PAGES[0], UpdateField.RELEASE),
            world.admitted(world.url_of("n.org", "x")),
        ],
        [world.visit(PAGES[1], at=world.START + 7200, status=404)],
    ]
    for part in parts:
        twin.apply(part)
    live.feed(parts[0])
    if compact:
        live.store.request_compaction()
    writer = live.snapshots.writer(live.offset, live.last, quick=False)
    live.store.save(writer)
    live.feed(parts[1])
    live.last = live.snapshots.commit(
        writer, topic_id="t", identity=world.IDENTITY, parameters=world.PARAMETERS, logic_version=1
    )
    live.store.saved()
    live.feed(parts[2])
    assert live.urls() == twin.urls()
    live.snapshot()
    live.restore()
    assert live.urls() == twin.urls()
    assert live.hosts() == twin.hosts()
