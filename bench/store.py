"""Compaction, snapshots and reads of one store shard: rows a second and bytes a URL, on the URLs of a list.

    meguri canonicalize --json < links.txt > urls.jsonl
    python bench/store.py urls.jsonl --copies 8 --crawled 0.3

Copies of the list stand under hosts of their own, so that a longer run keeps the shape of real URLs.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa

from meguri_common.identity import CampaignIdentity
from meguri_common.keys import host_key, path_key
from meguri_common.records import CRAWL_DELAY_UNSET, NO_DEPTH, UpdateField
from meguri_common.runtime.files import LocalFiles
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_store.compact import Compacted, compact
from meguri_store.fold import FoldRules
from meguri_store.generation import Generation
from meguri_store.oplog import OpLog
from meguri_store.queries import Shard
from meguri_store.verify import verify_generation

IDENTITY = CampaignIdentity(
    campaign="bench", partitions=1, group_by="registrable", policy="", suffix_list="", url_parser=""
)
NOW = 490_000 * 3600
ENVELOPE_ROWS = 4096


def distinct_urls(path: Path, copies: int) -> list[tuple[bytes, bytes]]:
    """Distinct (URL, host group) of the list, in its order, then of its copies."""
    rows = map(orjson.loads, path.open("rb"))
    first = dict.fromkeys((row["canon"].encode(), row["host_group"].encode()) for row in rows if row["ok"])
    found = list(first)
    for copy in range(1, copies):
        for url, group in first:
            other = b"c%d-" % copy + group
            found.append((url.replace(group, other, 1), other))
    return found


def admissions(urls: list[tuple[bytes, bytes]]) -> pa.RecordBatch:
    """ADMITTED rows."""
    size = len(urls)
    columns = {
        "url": [url for url, _ in urls],
        "host_key": np.array([host_key(group) for _, group in urls], np.uint64),
        "path_key": np.array([path_key(url) for url, _ in urls], np.uint64),
        "group_at": [url.index(group) for url, group in urls],
        "group_len": [len(group) for _, group in urls],
        "depth": np.arange(size) % 7,
        "source": np.ones(size),
        "at": NOW + np.arange(size) // 50,
        "priority": np.log1p(np.arange(size) % 97),
        "reason": np.zeros(size),
    }
    return filled(RowKind.ADMITTED, columns)


def filled(kind: RowKind, columns: dict[str, object]) -> pa.RecordBatch:
    """A batch of a wire schema."""
    schema = SCHEMAS[kind]
    arrays = [pa.array(columns[field.name]).cast(field.type, safe=False) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def visits(admitted: pa.RecordBatch, share: float, random: np.random.Generator) -> pa.RecordBatch:
    """OUTCOME rows of a share of the URLs, most of them a first body."""
    rows = np.sort(random.permutation(admitted.num_rows)[: int(admitted.num_rows * share)])
    size = len(rows)
    etags = [b'"%x"' % number if number % 2 else b"" for number in random.integers(0, 2**62, size).tolist()]
    return filled(
        RowKind.OUTCOME,
        {
            "host_key": admitted.column("host_key").to_numpy()[rows],
            "path_key": admitted.column("path_key").to_numpy()[rows],
            "fetched_at": NOW + 3600 + np.arange(size),
            "status": random.choice([200, 200, 200, 200, 301, 404], size),
            "error": np.zeros(size),
            "flags": np.zeros(size),
            "depth": np.full(size, NO_DEPTH),
            "content_fp": random.integers(1, 2**63, size),
            "simhash": random.integers(1, 2**63, size),
            "etag": etags,
            "last_modified": NOW - random.integers(0, 10**7, size),
            "redirect": [b""] * size,
            "retry_after": np.zeros(size),
            "crawl_delay": np.full(size, CRAWL_DELAY_UNSET),
            "latency": random.integers(20, 900, size),
        },
    )


def priorities(admitted: pa.RecordBatch, share: float, random: np.random.Generator) -> pa.RecordBatch:
    """UPDATE rows of a share of the URLs."""
    rows = np.sort(random.permutation(admitted.num_rows)[: int(admitted.num_rows * share)])
    return filled(
        RowKind.UPDATE,
        {
            "host_key": admitted.column("host_key").to_numpy()[rows],
            "path_key": admitted.column("path_key").to_numpy()[rows],
            "fields": np.full(len(rows), UpdateField.PRIORITY),
            "priority": random.random(len(rows)),
            "depth": np.zeros(len(rows)),
            "at": np.zeros(len(rows)),
        },
    )


def logged(*batches: tuple[RowKind, pa.RecordBatch]) -> OpLog:
    """A delta of these rows, in envelopes."""
    log = OpLog()
    for kind, batch in batches:
        for start in range(0, batch.num_rows, ENVELOPE_ROWS):
            log.append(kind, batch.slice(start, ENVELOPE_ROWS))
    return log


def main() -> None:
    """Run it."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("urls", type=Path)
    arguments.add_argument("--copies", type=int, default=1)
    arguments.add_argument("--crawled", type=float, default=0.3)
    given = arguments.parse_args()
    random = np.random.default_rng(1)
    admitted = admissions(distinct_urls(given.urls, given.copies))
    half = admitted.num_rows // 2
    mixed = admitted.take(pa.array(random.permutation(admitted.num_rows)))
    names = (f"{number:08x}" for number in itertools.count())
    with tempfile.TemporaryDirectory() as folder:
        files = LocalFiles(Path(folder))

        def step(name: str, base: Generation | None, log: OpLog) -> tuple[Generation, Compacted]:
            start = time.perf_counter()
            made = compact(files, 0, base, log, FoldRules(), offset=0, identity=IDENTITY, token=lambda: next(names))
            seconds = time.perf_counter() - start
            meta = made.meta
            sizes = {reference.role: reference.size for reference in made.references}
            print(
                f"{name}: {meta.urls} URLs ({meta.inserted} new, {meta.updated} changed), {meta.hosts} hosts, "
                f"{seconds:.2f} s, {meta.urls / seconds / 1e6:.2f} M rows/s, {seconds / log.count * 1e9:.0f} ns an "
                f"operation, {sizes['urls'] / meta.urls:.2f} bytes a URL (all files {made.bytes / meta.urls:.2f})"
            )
            return Generation.open(files, made.folder, IDENTITY), made

        warm = admitted.slice(0, 100)
        base, _ = step("warm-up", None, logged((RowKind.ADMITTED, warm), (RowKind.OUTCOME, visits(warm, 0.5, random))))
        step("warm-up", base, logged((RowKind.ADMITTED, warm), (RowKind.UPDATE, priorities(warm, 0.5, random))))
        base, _ = step("first load", None, logged((RowKind.ADMITTED, mixed.slice(0, half))))
        growth = logged(
            (RowKind.ADMITTED, mixed.slice(half)),
            (RowKind.UPDATE, priorities(mixed, 0.1, random)),
            (RowKind.OUTCOME, visits(mixed, given.crawled, random)),
        )
        base, made = step("growth and visits", base, growth)
        last, _ = step("a few changes", base, logged((RowKind.UPDATE, priorities(mixed, 0.01, random))))
        shard = Shard(last, OpLog(), FoldRules(), IDENTITY.group_by)
        for name, action in {
            "read all records": lambda: sum(chunk.num_rows for chunk in shard.records()),
            "due, all": lambda: shard.due(2**32 - 1, 1000).num_rows,
            "due, none": lambda: shard.due(1, 1000).num_rows,
            "verify": lambda: verify_generation(files, last.folder, IDENTITY).meta.urls,
        }.items():
            start = time.perf_counter()
            rows = action()
            seconds = time.perf_counter() - start
            print(f"{name}: {rows} rows, {seconds * 1e3:.1f} ms ({made.meta.urls / seconds / 1e6:.1f} M URLs/s)")
        merged = Shard(base, growth, FoldRules(), IDENTITY.group_by)
        key = int(admitted.column("host_key")[0].as_py()), int(admitted.column("path_key")[0].as_py())
        start = time.perf_counter()
        assert merged.get(*key) is not None
        print(f"get, with {growth.count} operations in the delta: {(time.perf_counter() - start) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
