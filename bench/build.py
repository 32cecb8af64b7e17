"""BulkLoad, import and resize of a store: rows a second, memory, and bytes a URL, on the URLs of a list.

    meguri canonicalize --json < links.txt > urls.jsonl
    python bench/build.py urls.jsonl --rows 20000000 --partitions 8

Copies of the list stand on hosts of their own, 20 hosts a host group, so that a longer run keeps the shape of real
URLs. The input is made beforehand, in the order of the store or in a mixed one, and isn't counted.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa

from meguri_common.identity import CampaignIdentity
from meguri_common.keys import host_key
from meguri_common.runtime.files import LocalFiles
from meguri_store.bulk_load import BulkLoad, Stamps, build_shard, new_urls
from meguri_store.external_sort import ROWS, sorted_distinct
from meguri_store.generation import Generation
from meguri_store.import_records import GivenHosts, HostStream, RecordStream, import_shard
from meguri_store.manifest import make_manifest
from meguri_store.resize import hosts_between, records_between
from meguri_store.spill import SpillFile, read_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meguri_store.spill import Block

STAMPS = Stamps(490_000)
HOSTS_A_GROUP = 20


def identity(partitions: int) -> CampaignIdentity:
    """Of a campaign that is nobody's."""
    return CampaignIdentity(
        campaign="bench", partitions=partitions, group_by="registrable", policy="", suffix_list="", url_parser=""
    )


def token() -> str:
    """A random part of a name."""
    return secrets.token_hex(4)


def copies(path: Path) -> Iterator[pa.RecordBatch]:
    """The list's URLs, then copies of them, a batch each, without end."""
    rows = [row for row in map(orjson.loads, path.open("rb")) if row["ok"]]
    first = list(dict.fromkeys((row["canon"].encode(), row["host_group"].encode()) for row in rows))
    for copy in itertools.count():
        urls, groups = [], []
        for url, group in first:
            other = b"c%d-%s" % (copy // HOSTS_A_GROUP, group)
            urls.append(url.replace(group, b"h%d.%s" % (copy % HOSTS_A_GROUP, other), 1))
            groups.append(other)
        offsets = np.zeros(len(urls) + 1, np.int64)
        np.cumsum([len(url) for url in urls], out=offsets[1:])
        keys = {group: host_key(group) for group in set(groups)}
        yield new_urls(
            np.frombuffer(b"".join(urls), np.uint8),
            offsets,
            np.array([keys[group] for group in groups], np.uint64),
            np.array([url.index(group) for url, group in zip(urls, groups, strict=True)], np.uint16),
            np.array([len(group) for group in groups], np.uint16),
            STAMPS,
        )


def make_input(files: LocalFiles, urls: Path, rows: int, *, ordered: bool) -> list[Block]:
    """The input as blocks of a file, so that it takes no memory while it is loaded."""
    random = np.random.default_rng(1)
    with SpillFile(files, "unordered") as file:
        made, raw = 0, []
        for batch in copies(urls):
            part = batch.slice(0, rows - made)
            raw.append(file.append(part.take(pa.array(random.permutation(part.num_rows)))))
            made += part.num_rows
            if made == rows:
                break
        file.flush()
    if not ordered:
        return [raw[at] for at in random.permutation(len(raw)).tolist()]
    # In the order of the store: whole hosts by ranges of their keys, each sorted.
    blocks = []
    with SpillFile(files, "ordered") as file:
        parts = max(1, rows // 1_000_000)
        edges = [at * (1 << 64) // parts for at in range(parts + 1)]
        for low, high in itertools.pairwise(edges):
            found = []
            for block in raw:
                batch = read_block(files, block, ROWS)
                host = batch.column("host_key").to_numpy()
                found.append(batch.filter(pa.array((host >= np.uint64(low)) & (host <= np.uint64(high - 1)))))
            blocks += [file.append(part) for part in sorted_distinct(pa.concat_batches(found))]
        file.flush()
    return blocks


def peak() -> float:
    """MiB that were resident at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def report(name: str, rows: int, seconds: float, more: str = "") -> None:
    """A line."""
    print(f"{name}: {rows:,} rows, {seconds:.1f} s of CPU, {rows / seconds / 1e6:.2f} M rows/s{more}", flush=True)


def load(files: LocalFiles, blocks: list[Block], partitions: int, memory: int) -> list[Generation]:
    """BulkLoad."""
    start = time.process_time()
    names = identity(partitions)
    with BulkLoad(files, names, token=token, memory=memory) as bulk:
        for block in blocks:
            bulk.add(read_block(files, block, ROWS))
        runs = bulk.finish()
        sorted_at = time.process_time()
        made = [
            build_shard(files, names, bulk.folder, runs, partition, stamps=STAMPS, token=token)
            for partition in runs.partitions()
        ]
        rows = bulk.rows
    end = time.process_time()
    urls, size = sum(each.meta.urls for each in made), sum(each.bytes for each in made)
    hosts = sum(each.meta.hosts for each in made)
    report(
        "bulk load",
        rows,
        end - start,
        f" (of that {(sorted_at - start) / rows * 1e9:.0f} ns a row for runs, {(end - sorted_at) / rows * 1e9:.0f} for "
        f"shards); {urls:,} URLs, {hosts:,} hosts, {size / urls:.2f} bytes a URL; peak {peak():.0f} MiB",
    )
    return [Generation.open(files, each.folder, names) for each in made]


def moved(files: LocalFiles, generations: list[Generation], partitions: int) -> None:
    """Import of the same records into another number of shards."""
    start = time.process_time()
    names = identity(partitions)
    rows = 0
    for shard in make_manifest(names).shards:
        records = RecordStream(records_between(generations, shard.host_lo, shard.host_hi), partitions)
        hosts = HostStream(hosts_between(generations, shard.host_lo, shard.host_hi), partitions)
        given = GivenHosts(hosts.of(shard.index))
        made = import_shard(files, names, shard.index, records.of(shard.index), given, token=token)
        rows += made.meta.urls
    report(f"resize to {partitions} by import", rows, time.process_time() - start, f"; peak {peak():.0f} MiB")


def main() -> None:
    """Run it."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("urls", type=Path)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--partitions", type=int, default=8)
    arguments.add_argument("--memory", type=int, default=256, help="MiB of the sort buffer")
    arguments.add_argument("--mixed", action="store_true", help="not in the order of the store")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = LocalFiles(Path(folder))
        files.make_folder("warm/store")
        warm = LocalFiles(Path(folder) / "warm")
        blocks = make_input(warm, given.urls, 40_000, ordered=False)
        moved(warm, load(warm, blocks, 1, 4 << 20), 2)
        blocks = make_input(files, given.urls, given.rows, ordered=not given.mixed)
        print(f"input made; peak {peak():.0f} MiB", flush=True)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        files.make_folder("store")
        generations = load(files, blocks, given.partitions, given.memory << 20)
        files.make_folder("other/store")
        moved(LocalFiles(Path(folder) / "other"), generations, given.partitions + 3)


if __name__ == "__main__":
    main()
