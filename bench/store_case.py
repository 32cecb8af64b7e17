"""One case of the store's benchmark, in a process of its own: `store_case.py CASE FOLDER ...`; figures as JSON.

Prints a list of [name, value, unit] of what was measured in CPU time of this process, but for stalls, which are wall
time as intake feels them.
"""

from __future__ import annotations

import itertools
import json
import resource
import sqlite3
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import store_data as data

from meguri_common.bus.port import Message
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.snapshots import FileRef, SnapshotStore
from meguri_common.wire.envelope import encode
from meguri_store.background import Compactor
from meguri_store.compact import Changes, Compacted, compact, publish_generation
from meguri_store.engine import Engine
from meguri_store.fold import FoldRules
from meguri_store.generation import FILES, Generation
from meguri_store.oplog import KINDS
from meguri_store.schema import URL_SCHEMA
from meguri_store.service import CompactionRules, Store
from meguri_store.verify import verify_generation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meguri_store.oplog import OpLog

Figure = tuple[str, float, str]
_TOKENS = (f"{number:08x}" for number in itertools.count())
_ASKED = 10_000
_PAUSE = 0.25
"""Seconds between two snapshots of an intake beside a compaction: with 8,192 rows each, 30,000 rows a second."""


def token() -> str:
    """The next name part."""
    return next(_TOKENS)


def cpu(action: Callable[[], Any], times: int = 1) -> float:
    """CPU seconds of an action, the least of several: others share the machine."""
    found = []
    for _ in range(times):
        start = time.process_time()
        action()
        found.append(time.process_time() - start)
    return min(found)


def publish(files: LocalFiles, urls: pa.Table, tables: Iterator[pa.Table]) -> Compacted:
    """A first generation of records."""
    return publish_generation(
        files,
        0,
        tables,
        lambda: iter([data.hosts(urls)]),
        lambda: Changes(urls.num_rows, 0, 0),
        expected=urls.num_rows,
        offset=0,
        identity=data.IDENTITY,
        token=token,
    )


def sizes(_root: Path, name: str) -> list[Figure]:
    """Bytes a URL of a published store, by file, at three shares of crawled URLs."""
    urls = data.url_set(name)
    urls = data.copied(urls, urls.num_rows)
    found: list[Figure] = []
    for crawled in (0.0, 0.3, 1.0):
        files = LocalFiles(_root / f"{name}-{crawled}")
        files.make_folder("store")
        made = publish(files, urls, data.records(urls, crawled))
        label = f"{name}, {crawled:.0%} crawled"
        found += [
            (f"{label}: {FILES[reference.role]}", reference.size / urls.num_rows, "bytes/URL")
            for reference in made.references
        ]
        found.append((f"{label}: all files", made.bytes / urls.num_rows, "bytes/URL"))
    return found


def build(root: Path, rows: str) -> list[Figure]:
    """Publish records in store order, and keep them, and samples of them, for the other cases."""
    count = int(rows)
    urls = data.copied(data.url_set("docs-crawl"), count)
    files = LocalFiles(root)
    tables = list(data.records(urls, 0.3)) if count <= 1_000_000 else None
    publish(LocalFiles(root / "warm"), urls.slice(0, 1000), data.records(urls.slice(0, 1000), 0.3))
    made: list[Compacted] = []
    spent = cpu(lambda: made.append(publish(files, urls, iter(tables) if tables else data.records(urls, 0.3))))
    if tables is None:
        spent -= cpu(lambda: [None for _ in data.records(urls, 0.3)])
    random = np.random.default_rng(5)
    for name, share in (("delta", count // 100), ("asked", min(_ASKED, count))):
        picked = np.sort(random.permutation(count)[:share])
        pq.write_table(urls.select(["host_key", "url"]).take(pa.array(picked)), root / f"{name}.parquet")
    (root / "folder").write_text(made[0].folder)
    return [
        (f"build, {count:,} URLs in store order", count / spent / 1e6, "M rows/s"),
        (f"all files, {count:,} URLs", made[0].bytes / count, "bytes/URL"),
    ]


def opened(root: Path) -> Generation:
    """The generation that `build` made."""
    return Generation.open(LocalFiles(root), (root / "folder").read_text(), data.IDENTITY)


def compaction(root: Path, kind: str) -> list[Figure]:
    """Compact with a delta of one hundredth, and the memory that took."""
    base = opened(root)
    log = data.delta(pq.read_table(root / "delta.parquet"), kind)
    rules = FoldRules()

    def run(operations: OpLog, generation: Generation | None) -> Compacted:
        return compact(
            LocalFiles(root), 0, generation, operations, rules, offset=1, identity=data.IDENTITY, token=token
        )

    run(data.delta(pq.read_table(root / "delta.parquet").slice(0, 64), "mixed"), base if base.groups < 2 else None)
    made: list[Compacted] = []
    spent = cpu(lambda: made.append(run(log, base)), 2 if base.meta.urls > 1 << 22 else 5)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    label = f"compaction, {base.meta.urls:,} URLs, {kind}"
    return [
        (label, made[-1].meta.carried / spent / 1e6, "M carried rows/s"),
        (f"{label}: peak memory of the process", peak, "MiB"),
    ]


def reading(root: Path) -> list[Figure]:
    """Questions to a generation."""
    base = opened(root)
    rows = base.meta.urls
    asked = pq.read_table(root / "asked.parquet")
    keys = data.keys_of(asked)
    host, path = keys["host_key"], keys["path_key"]
    random = np.random.default_rng(7)
    order = random.permutation(len(host))
    host, path = host[order], path[order]
    engine = Engine(base)
    engine.seen_batch(host[:64], path[:64])
    label = f"{rows:,} URLs"
    found: list[Figure] = []

    def add(name: str, value: float, unit: str) -> None:
        found.append((f"{label}: {name}", value, unit))

    add("get_many, 10,000 at random, first time", cpu(lambda: engine.get_many(host, path)) / len(host) * 1e6, "us/URL")
    add("get_many, the same again", cpu(lambda: engine.get_many(host, path), 3) / len(host) * 1e6, "us/URL")
    one = Engine(opened(root))
    singles = [cpu(lambda at=at: one.get(int(host[at]), int(path[at]))) for at in range(1, 21)]
    add("get of one, median", statistics.median(singles) * 1e3, "ms")
    strange = path ^ np.uint64(0x5555)
    fresh = random.integers(0, 2**64, 1_000_000, np.uint64)
    trusting = Engine(opened(root), trust_filter=True)
    add("seen of strangers, by the filter", cpu(lambda: trusting.seen_batch(fresh, fresh), 3) / 1e6 * 1e9, "ns/key")
    add("seen of strangers", cpu(lambda: engine.seen_batch(host, strange)) / len(host) * 1e6, "us/key")
    due = {
        "none is due": 1,
        "all are due": data.HOUR + 1000,
    }
    for name, now in due.items():
        spent = cpu(lambda now=now: sum(part.num_rows for part in engine.due_batches(now, 10_000)))
        add(f"due scan, {name}", rows / max(spent, 1e-6) / 1e6, "M rows/s")
    add("all records", rows / cpu(lambda: [base.urls(group) for group in range(base.groups)]) / 1e6, "M rows/s")
    if rows <= 1_000_000:
        spent = cpu(lambda: verify_generation(LocalFiles(root), base.folder, data.IDENTITY))
        add("verify", rows / spent / 1e6, "M rows/s")
    return found


def due(root: Path, where: str) -> list[Figure]:
    """Scan for one URL in a hundred that is due: on hosts that were crawled at one time, or anywhere."""
    count = opened(root).meta.urls
    urls = data.copied(data.url_set("docs-crawl"), count)
    random = np.random.default_rng(3)
    hosts = urls.column("host_key").to_numpy()
    if where == "together":
        chosen = np.zeros(count, np.bool_)
        start = count // 3
        chosen[start : start + count // 100] = True
        chosen &= np.isin(hosts, np.unique(hosts[chosen]))
    else:
        chosen = random.random(count) < 0.01
    at = 0

    def changed() -> Iterator[pa.Table]:
        nonlocal at
        for table in data.records(urls, 0.3):
            soon = np.where(chosen[at : at + table.num_rows], data.HOUR - 9, data.HOUR + 50).astype(np.uint32)
            at += table.num_rows
            place = table.schema.get_field_index("next_due")
            yield table.set_column(place, URL_SCHEMA.field("next_due"), pa.array(soon))

    made = publish(LocalFiles(root / where), urls, changed())
    engine = Engine(Generation.open(LocalFiles(root / where), made.folder, data.IDENTITY))
    next(engine.due_batches(data.HOUR, 10), None)
    got: list[int] = []
    spent = cpu(lambda: got.append(sum(part.num_rows for part in engine.due_batches(data.HOUR, 10_000))), 3)
    assert got[0] == np.count_nonzero(chosen)
    return [(f"due scan, {count:,} URLs, 1 % due, {where}", count / spent / 1e6, "M rows/s")]


def stall(root: Path, _rows: str) -> list[Figure]:
    """Intake while a compaction runs beside it: the longest step, and the longest snapshot; then a stop."""
    base = opened(root)
    files = LocalFiles(root)
    compactor = Compactor()
    rules = CompactionRules(rows=base.meta.urls // 100, share=0.0)
    store = Store(0, data.IDENTITY, files, token, {}, rules, jobs=compactor)
    store.base = base
    held = [FileRef("meta", f"{base.folder}/meta.json", files.size(f"{base.folder}/meta.json") or 0, "")]
    snapshots = SnapshotStore(
        files, "store", 0, token=token, now=time.time, grace=3600.0, folders=("store/shard-00000",)
    )
    last = None
    offset = 0

    def feed(log: OpLog) -> list[float]:
        nonlocal offset
        found = []
        for kind in KINDS:
            _, batch = log.table(kind)
            for start in range(0, batch.num_rows, data.ENVELOPE_ROWS):
                payload = encode(kind, batch.slice(start, data.ENVELOPE_ROWS), data.IDENTITY.digest())
                began = time.perf_counter()
                store.apply([Message(offset, payload, b"", 0)], Outputs(data.IDENTITY.digest()))
                found.append(time.perf_counter() - began)
                offset += 1
        return found

    def snapshot(*, quick: bool = False) -> float:
        nonlocal last, held
        began = time.perf_counter()
        writer = snapshots.writer(offset, last, quick=quick)
        if last is None:
            writer.previous = tuple(held)
        store.save(writer)
        last = snapshots.commit(
            writer, topic_id="t", identity=data.IDENTITY, parameters={}, logic_version=1, clean=False
        )
        store.saved()
        return time.perf_counter() - began

    sample = pq.read_table(root / "delta.parquet")
    feed(data.delta(sample, "mixed"))
    snapshot()
    began = time.perf_counter()
    steps, saves = [], []
    small = data.delta(sample.slice(0, 2 * data.ENVELOPE_ROWS), "mixed", 9)
    while store.base is base and time.perf_counter() - began < 600:
        steps += feed(small)
        saves.append(snapshot())
        time.sleep(_PAUSE)
    spent = time.perf_counter() - began
    feed(data.delta(sample, "visits", 11))
    stop = snapshot(quick=True)
    compactor.close()
    label = f"compaction of {base.meta.urls:,} URLs beside the intake"
    return [
        (f"{label}: until its generation is named", spent, "s"),
        (f"{label}: longest step of 4,096 rows", max(steps) * 1e3, "ms"),
        (f"{label}: longest snapshot of 8,192 rows", max(saves) * 1e3, "ms"),
        (f"a stop with {base.meta.urls // 100:,} unsaved operations on {base.meta.urls:,} URLs", stop, "s"),
    ]


def peers(root: Path) -> list[Figure]:
    """The same work by what one would use otherwise."""
    base = opened(root)
    rows = base.meta.urls
    path = root / base.folder / "urls.parquet"
    sample = pq.read_table(root / "delta.parquet")
    keys = data.keys_of(sample)
    found: list[Figure] = []

    def rewrite() -> None:
        with pq.ParquetWriter(root / "copy.parquet", URL_SCHEMA, compression="zstd", compression_level=3) as writer:
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                writer.write_table(file.read_row_group(group, use_threads=False))

    found.append((f"pyarrow: read and write {rows:,} URLs, nothing merged", rows / cpu(rewrite) / 1e6, "M rows/s"))
    found.append(("pyarrow: its file", (root / "copy.parquet").stat().st_size / rows, "bytes/URL"))
    changes = pa.table({"url": sample.column("url"), "next_due": np.full(sample.num_rows, data.HOUR, np.uint32)})
    database = duckdb.connect(config={"threads": 1})
    database.register("changes", changes)
    query = (
        f"copy (select u.* replace (coalesce(c.next_due, u.next_due) as next_due) from '{path}' u left join changes c"
        f" using (url) order by host_key, url) to '{root}/duck.parquet' (format parquet, compression zstd)"
    )
    found.append(
        (f"DuckDB: {rows:,} URLs joined with changes", rows / cpu(lambda: database.execute(query)) / 1e6, "M rows/s")
    )
    found.append(("DuckDB: its file", (root / "duck.parquet").stat().st_size / rows, "bytes/URL"))
    table = sqlite3.connect(root / "peer.db")
    names = ["host_key", "path_key", *URL_SCHEMA.names[1:]]
    table.execute(f"create table u ({','.join(names)}, primary key (host_key, path_key)) without rowid")

    def fill() -> None:
        for group in range(base.groups):
            records = base.urls(group)
            stored = data.keys_of(records)
            columns = [stored["host_key"].view(np.int64).tolist(), stored["path_key"].view(np.int64).tolist()]
            for name in URL_SCHEMA.names[1:]:
                column = records.column(name)
                wide = column.type == pa.uint64()
                columns.append(column.to_numpy().view(np.int64).tolist() if wide else column.to_pylist())
            table.executemany(f"insert into u values ({','.join('?' * len(names))})", zip(*columns, strict=True))
        table.commit()

    found.append((f"SQLite: {rows:,} URLs stored", rows / cpu(fill) / 1e6, "M rows/s"))
    table.execute("create index due on u (next_due)")
    found.append(("SQLite: its file, with an index by hour", (root / "peer.db").stat().st_size / rows, "bytes/URL"))
    pairs = list(zip(keys["host_key"].view(np.int64).tolist(), keys["path_key"].view(np.int64).tolist(), strict=True))
    pairs = pairs[:_ASKED]
    get = "select * from u where host_key = ? and path_key = ?"
    spent = cpu(lambda: [table.execute(get, pair).fetchone() for pair in pairs])
    found.append((f"SQLite, {rows:,} URLs: get at random", spent / len(pairs) * 1e6, "us/URL"))
    return found


_CASES = {
    "sizes": sizes,
    "build": build,
    "compaction": compaction,
    "reading": reading,
    "due": due,
    "stall": stall,
    "peers": peers,
}


if __name__ == "__main__":
    print(json.dumps(_CASES[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])))
