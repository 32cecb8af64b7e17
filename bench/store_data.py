"""Inputs of the store's benchmark: records of real URLs in store order, and deltas to them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from canonicalizer import packed, read_batches

from meguri_canonicalizer.batch import BaseColumns, BatchCanonicalizer, LinkColumns
from meguri_common.identity import CampaignIdentity
from meguri_common.kernels.xxh64 import hash_slices
from meguri_common.records import CRAWL_DELAY_UNSET, NO_DEPTH, UpdateField
from meguri_common.wire.columns import binary_parts
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_store.oplog import OpLog
from meguri_store.publish import url_paths
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_HERE = Path(__file__).resolve().parent
_DATA = Path(os.environ.get("MEGURI_TEST_DATA", _HERE.parents[1] / "shared")) / "data"
_EXAMPLE = _HERE.parent / "examples" / "sqlite-docs.jsonl.zst"
SETS = {"docs-crawl": _DATA / "docs-crawl.jsonl.zst", "urls-web": _DATA / "urls-web.txt.zst"}
IDENTITY = CampaignIdentity(
    campaign="bench", partitions=1, group_by="registrable", policy="", suffix_list="", url_parser=""
)
HOUR = 490_000
ENVELOPE_ROWS = 4096


def url_set(name: str) -> pa.Table:
    """Distinct canonical URLs of a list of links, with host key, and where the host group stands in each."""
    path = SETS[name] if SETS[name].exists() else _EXAMPLE
    batches = read_batches(path, 1 << 30)
    canonicalizer = BatchCanonicalizer()
    parts = []
    for links, bases in batches:
        pages = bases.data.tobytes()
        own = [pages[bases.offsets[at] : bases.offsets[at + 1]] for at in range(len(bases.offsets) - 1)]
        data, offsets = packed([page for page in own if page])
        first = LinkColumns(data, offsets, np.zeros(len(offsets) - 1, np.int32))
        for given, base in ((first, BaseColumns(*packed([b""]))), (links, bases)):
            found = canonicalizer.run(given, base)
            good = np.flatnonzero(found.reject == 0)
            text = pa.Array.from_buffers(
                pa.large_binary(),
                len(found.reject),
                [None, pa.py_buffer(found.offsets.astype(np.int64)), pa.py_buffer(found.data)],
            )
            columns = {
                "url": text.take(pa.array(good)).cast(pa.large_string()).cast(pa.string()),
                "host_key": found.host_key[good],
                "at": found.group_at[good],
                "length": found.group_len[good],
            }
            parts.append(pa.table(columns))
    every = pa.concat_tables(parts).combine_chunks()
    firsts = every.append_column("row", pa.array(np.arange(every.num_rows))).group_by("url").aggregate([("row", "min")])
    return every.take(firsts.column("row_min").combine_chunks().sort()).combine_chunks()


def copied(urls: pa.Table, rows: int) -> pa.Table:
    """`rows` URLs: the set, then copies of it under host groups of their own; in store order, with host groups."""
    at, length = (urls.column(name).to_numpy().astype(np.int64) for name in ("at", "length"))
    offsets, data = binary_parts(urls.column("url").chunk(0))
    text = data.tobytes()
    cuts = [
        (int(start), int(start + place), int(start + place + size), int(end))
        for start, place, size, end in zip(offsets[:-1], at, length, offsets[1:], strict=True)
    ]
    heads = pa.array([text[a:b] for a, b, _, _ in cuts], pa.binary())
    groups = pa.array([text[b:c] for _, b, c, _ in cuts], pa.binary())
    tails = pa.array([text[c:d] for _, _, c, d in cuts], pa.binary())
    found = []
    left = rows
    for copy in range(-(-rows // len(cuts))):
        group = groups
        if copy:
            group = pc.binary_join_element_wise(pa.scalar(b"c%d-" % copy), groups, pa.scalar(b""))
        url = pc.binary_join_element_wise(heads, group, tails, pa.scalar(b""))
        key = np.empty(len(url), np.uint64)
        group_offsets, group_data = binary_parts(group)
        hash_slices(group_data, group_offsets, key)
        part = pa.table({"host_key": key, "url": url.cast(pa.string()), "group": group.cast(pa.string())})
        found.append(part.slice(0, left).sort_by([("host_key", "ascending"), ("url", "ascending")]))
        left -= found[-1].num_rows
    whole = pa.concat_tables(found).combine_chunks()
    # Copies are in order each; of one host all rows are in one copy.
    return whole.take(pa.array(np.argsort(whole.column("host_key").to_numpy(), kind="stable"))).combine_chunks()


def records(urls: pa.Table, crawled: float, seed: int = 1) -> Iterator[pa.Table]:
    """Records in store order, a share of them crawled once, with random fingerprints."""
    random = np.random.default_rng(seed)
    for start in range(0, urls.num_rows, 131_072):
        part = urls.slice(start, 131_072).combine_chunks()
        size = part.num_rows
        done = random.random(size) < crawled
        hour = (HOUR + random.integers(0, 200, size)).astype(np.uint32)
        stated: dict[str, Any] = {
            "host_key": part.column("host_key").chunk(0),
            "url": part.column("url").chunk(0),
            "status": np.where(done, 4, 1),
            "priority": np.full(size, 0.5),
            "depth": np.full(size, NO_DEPTH),
            "source": np.ones(size),
            "first_seen": np.full(size, HOUR),
            "last_crawled": np.where(done, hour, 0),
            "next_due": np.where(done, hour + 168, HOUR),
            "crawl_count": done,
            "http_status": np.where(done, 200, 0),
            "content_fp": np.where(done, random.integers(1, 2**63, size), 0),
            "simhash": np.where(done, random.integers(1, 2**63, size), 0),
        }
        yield pa.table(
            [_column(stated.get(field.name), field, size) for field in URL_SCHEMA],
            schema=URL_SCHEMA,
        )


def hosts(urls: pa.Table) -> pa.Table:
    """The host records of URLs in store order."""
    key, first, count = np.unique(urls.column("host_key").to_numpy(), return_index=True, return_counts=True)
    group = urls.column("group").chunk(0).take(pa.array(first))
    stated: dict[str, Any] = {
        "host_key": key,
        "host_group": group,
        "registrable_domain": group,
        "crawl_delay": np.full(len(key), 100),
        "crawl_delay_set": np.full(len(key), CRAWL_DELAY_UNSET),
        "crawl_delay_stated": np.full(len(key), CRAWL_DELAY_UNSET),
        "url_count": count,
        "first_row": first,
    }
    return pa.table([_column(stated.get(field.name), field, len(key)) for field in HOST_SCHEMA], schema=HOST_SCHEMA)


def _column(values: Any, field: pa.Field, size: int) -> pa.Array:
    if values is None:
        return pa.nulls(size, field.type) if field.nullable else pa.array(np.zeros(size, field.type.to_pandas_dtype()))
    return values if isinstance(values, pa.Array) else pa.array(np.asarray(values).astype(field.type.to_pandas_dtype()))


def delta(sample: pa.Table, kind: str, seed: int = 2) -> OpLog:
    """Operations on sampled URLs: `visits`, `mixed` (half new URLs, half visits), `priorities`, or one `host`'s."""
    random = np.random.default_rng(seed)
    rows = sample.num_rows
    if kind == "visits":
        return _logged((RowKind.OUTCOME, _visits(sample, random)))
    if kind == "mixed":
        turns = [sample.take(pa.array(np.arange(first, rows, 2))) for first in (0, 1)]
        return _logged((RowKind.ADMITTED, _admissions(turns[0], random)), (RowKind.OUTCOME, _visits(turns[1], random)))
    if kind == "priorities":
        return _logged((RowKind.UPDATE, _priorities(sample, random)))
    of_one = sample.filter(pc.equal(sample.column("host_key"), sample.column("host_key")[0]))
    return _logged((RowKind.UPDATE, _priorities(of_one, random)))


def keys_of(sample: pa.Table) -> dict[str, NDArray[np.uint64]]:
    """Host and path keys of records."""
    urls = sample.column("url").combine_chunks()
    return {
        "host_key": sample.column("host_key").to_numpy(),
        "path_key": url_paths(urls.chunk(0) if isinstance(urls, pa.ChunkedArray) else urls),
    }


def _batch(kind: RowKind, columns: dict[str, Any], rows: int) -> pa.RecordBatch:
    schema = SCHEMAS[kind]
    arrays = [
        pa.array(columns[field.name] if field.name in columns else np.zeros(rows)).cast(field.type, safe=False)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _admissions(sample: pa.Table, random: np.random.Generator) -> pa.RecordBatch:
    urls = pc.binary_join_element_wise(sample.column("url").combine_chunks(), pa.scalar("~new"), pa.scalar(""))
    urls = urls.combine_chunks() if isinstance(urls, pa.ChunkedArray) else urls
    fresh = pa.table({"host_key": sample.column("host_key"), "url": urls})
    stated = {
        **keys_of(fresh),
        "url": urls.cast(pa.binary()),
        "group_at": np.full(len(urls), 8),
        "group_len": np.full(len(urls), 4),
        "source": np.ones(len(urls)),
        "at": np.full(len(urls), HOUR * 3600),
        "priority": random.random(len(urls)),
    }
    return _batch(RowKind.ADMITTED, stated, len(urls))


def _visits(sample: pa.Table, random: np.random.Generator) -> pa.RecordBatch:
    rows = sample.num_rows
    stated = {
        **keys_of(sample),
        "fetched_at": (HOUR + 300) * 3600 + np.arange(rows),
        "status": random.choice([200, 200, 200, 404], rows),
        "depth": np.full(rows, NO_DEPTH),
        "content_fp": random.integers(1, 2**63, rows),
        "simhash": random.integers(1, 2**63, rows),
        "etag": pa.array([b""] * rows),
        "redirect": pa.array([b""] * rows),
        "crawl_delay": np.full(rows, CRAWL_DELAY_UNSET),
        "latency": random.integers(20, 900, rows),
    }
    return _batch(RowKind.OUTCOME, stated, rows)


def _priorities(sample: pa.Table, random: np.random.Generator) -> pa.RecordBatch:
    rows = sample.num_rows
    stated = {**keys_of(sample), "fields": np.full(rows, UpdateField.PRIORITY), "priority": random.random(rows)}
    return _batch(RowKind.UPDATE, stated, rows)


def _logged(*batches: tuple[RowKind, pa.RecordBatch]) -> OpLog:
    log = OpLog()
    for kind, batch in batches:
        for start in range(0, batch.num_rows, ENVELOPE_ROWS):
            log.append(kind, batch.slice(start, ENVELOPE_ROWS))
    return log
