"""Host records: what the delta says about hosts, merged with the base's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meguri_common.records import CRAWL_DELAY_UNSET
from meguri_common.wire.columns import binary_array, binary_parts, numbers
from meguri_common.wire.schemas import RowKind
from meguri_store.patching import CRAWLED, FAILED
from meguri_store.schema import DEFAULT_CRAWL_DELAY, HOST_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from meguri_store.oplog import OpLog

__all__ = ["GROUPINGS", "HostChanges", "merge_hosts"]

GROUPINGS = ("registrable", "host")
"""Host groupings; the position is the code in the records."""

_STATED = ("flags", "url_budget", "url_count", "depth_cap", "host_score")


@dataclass(frozen=True)
class HostChanges:
    """What a delta says about hosts; all by position in `host`, the distinct keys (h,) in ascending order."""

    host: NDArray[np.uint64]
    group: pa.StringArray
    """Host group, where a URL of the host was admitted; else empty."""
    row: NDArray[np.int64]
    """The last HOST row, or -1."""
    rows: pa.RecordBatch
    crawls: NDArray[np.int64]
    errors: NDArray[np.int64]
    delay: NDArray[np.uint16]
    """Crawl delay as last stated by a visit, or CRAWL_DELAY_UNSET."""
    latencies: dict[int, list[int]]
    """Milliseconds of the visits that state them, in inbox order."""

    @classmethod
    def of(cls, log: OpLog, verdicts: NDArray[np.uint8]) -> HostChanges:
        """Gather them from a log; `verdicts` says which of its outcomes counted, and as what."""
        _, admitted = log.table(RowKind.ADMITTED)
        _, rows = log.table(RowKind.HOST)
        _, outcomes = log.table(RowKind.OUTCOME)
        counted = np.flatnonzero(verdicts)
        visited = numbers(outcomes, "host_key")[counted]
        admitted_host = numbers(admitted, "host_key")
        begins = np.flatnonzero(np.append(True, admitted_host[1:] != admitted_host[:-1])[: len(admitted_host)])
        host = np.unique(np.concatenate([admitted_host[begins], numbers(rows, "host_key"), visited]))
        size = len(host)

        # Of what is assigned to one place several times the last stays.
        first = np.full(size, -1, np.int64)
        first[np.searchsorted(host, admitted_host[begins])[::-1]] = begins[::-1]
        row = np.full(size, -1, np.int64)
        row[np.searchsorted(host, numbers(rows, "host_key"))] = np.arange(rows.num_rows)

        owners = np.searchsorted(host, visited)
        verdict = verdicts[counted]
        stated = numbers(outcomes, "crawl_delay")[counted]
        delay = np.full(size, CRAWL_DELAY_UNSET, np.uint16)
        speaks = stated != CRAWL_DELAY_UNSET
        delay[owners[speaks]] = stated[speaks]
        latency = numbers(outcomes, "latency")[counted]
        latencies: dict[int, list[int]] = {}
        for owner, value in zip(owners[latency > 0].tolist(), latency[latency > 0].tolist(), strict=True):
            latencies.setdefault(owner, []).append(value)
        return cls(
            host,
            _groups(admitted, first),
            row,
            rows,
            np.bincount(owners[verdict == CRAWLED], minlength=size),
            np.bincount(owners[verdict == FAILED], minlength=size),
            delay,
            latencies,
        )


def _groups(admitted: pa.RecordBatch, first: NDArray[np.int64]) -> pa.StringArray:
    """Host group in the URL of each of these rows; empty for -1."""
    offsets, data = binary_parts(admitted.column("url"))
    told = first >= 0
    rows = first[told]
    begin = np.zeros(len(first), np.int64)
    begin[told] = offsets[rows].astype(np.int64) + numbers(admitted, "group_at")[rows]
    lengths = np.zeros(len(first), np.int64)
    lengths[told] = numbers(admitted, "group_len")[rows]
    ends = np.cumsum(lengths)
    places = np.repeat(begin - (ends - lengths), lengths) + np.arange(lengths.sum())
    return binary_array(np.append(0, ends).astype(np.int32), data[places]).cast(pa.string())


def _registrable(groups: pa.Array, group_by: str) -> pa.Array:
    """The registrable domain, where the group is one: not an address, and not by host."""
    if group_by != "registrable":
        return pa.nulls(len(groups), pa.string())
    address = pc.or_(pc.starts_with(groups, "["), pc.match_substring_regex(groups, "[0-9]$"))
    return pc.if_else(pc.or_(address, pc.equal(groups, "")), pa.scalar(None, pa.string()), groups)


def _unheard_of(host: NDArray[np.uint64], group_by: str) -> pa.Table:
    """Records of hosts about which nothing is known yet."""
    stated: dict[str, Any] = {
        "host_key": host,
        "host_group": [""] * len(host),
        "grouping": np.full(len(host), GROUPINGS.index(group_by), np.uint8),
        "crawl_delay": np.full(len(host), DEFAULT_CRAWL_DELAY, np.uint16),
        "crawl_delay_set": np.full(len(host), CRAWL_DELAY_UNSET, np.uint16),
        "crawl_delay_stated": np.full(len(host), CRAWL_DELAY_UNSET, np.uint16),
    }
    columns = []
    for field in HOST_SCHEMA:
        if field.name in stated:
            columns.append(pa.array(stated[field.name], field.type))
        elif field.nullable:
            columns.append(pa.nulls(len(host), field.type))
        else:
            columns.append(pa.array(np.zeros(len(host), field.type.to_pandas_dtype())))
    return pa.Table.from_arrays(columns, schema=HOST_SCHEMA)


def merge_hosts(
    base: Iterator[pa.Table],
    changes: HostChanges,
    layout: tuple[NDArray[np.uint64], NDArray[np.int64], int],
    group_by: str,
) -> Iterator[pa.Table]:
    """Host records after the changes, in order, a chunk of the base at a time.

    Args:
        base: the records before, in order.
        changes: what was said.
        layout: hosts with URLs in ascending order, the row at which each one's URLs begin, and the number of URLs.
        group_by: the campaign's host grouping.
    """
    done = 0
    for chunk in base:
        host = chunk.column("host_key").to_numpy()
        end = int(np.searchsorted(changes.host, host[-1], side="right")) if len(host) else done
        unheard = changes.host[done:end]
        unheard = unheard[~np.isin(unheard, host)]
        merged = pa.concat_tables([chunk, _unheard_of(unheard, group_by)]).combine_chunks() if len(unheard) else chunk
        order = np.argsort(merged.column("host_key").to_numpy(), kind="stable")
        yield _changed(merged.take(pa.array(order)) if len(unheard) else chunk, changes, layout, group_by)
        done = end
    if done < len(changes.host):
        yield _changed(_unheard_of(changes.host[done:], group_by), changes, layout, group_by)


def _changed(
    records: pa.Table,
    changes: HostChanges,
    layout: tuple[NDArray[np.uint64], NDArray[np.int64], int],
    group_by: str,
) -> pa.Table:
    host = records.column("host_key").to_numpy()
    _, target, change = np.intersect1d(host, changes.host, assume_unique=True, return_indices=True)
    new: dict[str, Any] = {}

    def column(name: str) -> NDArray[Any]:
        if name not in new:
            new[name] = records.column(name).to_numpy().copy()
        values: NDArray[Any] = new[name]
        return values

    first_host, first_row, total = layout
    new["first_row"] = np.append(first_row, total)[np.searchsorted(first_host, host)].astype(np.uint64)
    said = changes.row[change] >= 0
    row = changes.row[change[said]]
    for name in _STATED:
        column(name)[target[said]] = numbers(changes.rows, name)[row]
    column("crawl_delay_set")[target[said]] = numbers(changes.rows, "crawl_delay")[row]
    stated = changes.delay[change] != CRAWL_DELAY_UNSET
    column("crawl_delay_stated")[target[stated]] = changes.delay[change[stated]]
    fallback = column("crawl_delay_stated")
    fallback = np.where(fallback != CRAWL_DELAY_UNSET, fallback, DEFAULT_CRAWL_DELAY)
    by_operator = column("crawl_delay_set")
    new["crawl_delay"] = np.where(by_operator != CRAWL_DELAY_UNSET, by_operator, fallback).astype(np.uint16)
    for name, counts in (("crawl_total", changes.crawls), ("error_total", changes.errors)):
        most = np.iinfo(np.uint32).max
        column(name)[target] = np.minimum(column(name)[target].astype(np.int64) + counts[change], most)
    averages = column("avg_latency")
    spoke = [key in changes.latencies for key in change.tolist()] if changes.latencies else []
    for at, key in zip(target[spoke].tolist(), change[spoke].tolist(), strict=True):
        average = int(averages[at])
        for latency in changes.latencies[key]:
            average = (7 * average + latency + 4) // 8 if average else latency
        averages[at] = average

    spoken_of = np.full(len(host), -1, np.int64)
    spoken_of[target] = change
    groups = changes.group.take(pa.array(spoken_of, mask=spoken_of < 0))
    told = pc.and_(pc.equal(records.column("host_group"), ""), pa.array(spoken_of >= 0))
    named = {"host_group": groups, "registrable_domain": _registrable(groups, group_by)}
    columns = [
        pa.array(new[field.name], field.type)
        if field.name in new
        else pc.if_else(told, named[field.name], records.column(field.name))
        if field.name in named
        else records.column(field.name)
        for field in HOST_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=HOST_SCHEMA)
