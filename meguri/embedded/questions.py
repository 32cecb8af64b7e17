"""Questions to a campaign that span its partitions: the most important URLs, what is due, how far time has come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meguri.embedded.totals import shard_of
from meguri_canonicalizer.canonical import host_group
from meguri_canonicalizer.parser import RejectReason, normal_host
from meguri_common.keys import host_key, partition_of
from meguri_common.records import ParkReason, Source, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meguri_canonicalizer.policy import Policy
    from meguri_common.runtime.partition import LoadedPartition

__all__ = [
    "DUE_STATUSES",
    "due_urls",
    "group_of",
    "latest_hour",
    "record_document",
    "records_of",
    "top_urls",
]

DUE_STATUSES = (Status.SCHEDULED, Status.READY, Status.CRAWLED, Status.DUE_RECRAWL)
"""Statuses in which a URL can be due."""
_KEYS = ("host_key", "path_key", "content_fp", "simhash")


def top_urls(
    partitions: Callable[[str], list[LoadedPartition]], count: int, *, why: bool = False
) -> list[dict[str, Any]]:
    """The URLs of highest priority, best first, with their records.

    Args:
        partitions: gives the restored partitions of a service, by number.
        count: how many.
        why: add what the prioritizer knows of each (`Prioritizer.look`) as `why`.

    Returns:
        Records with the priority of the moment, and their `path_key`. Of a URL whose admission is still on its way
        to the store only the keys and the priority are there.
    """
    found = []
    prioritizers = {loaded.number: loaded for loaded in partitions("prioritizer")}
    for number, loaded in prioritizers.items():
        service: Any = loaded.service
        found += [(-priority, host, path, number) for priority, host, path in service.top(count)]
    shards = {loaded.number: shard_of(loaded) for loaded in partitions("store")}
    out = []
    for negative, host, path, number in sorted(found)[:count]:
        record = shards[number].get(host, path) or {"host_key": host}
        row = {**record, "priority": -negative, "path_key": path}
        if why:
            owner: Any = prioritizers[number].service
            row["why"] = owner.look(host, path)
        out.append(row)
    return out


def due_urls(
    partitions: Callable[[str], list[LoadedPartition]],
    now: int,
    count: int,
    *,
    host: int | None = None,
    by_priority: bool = False,
) -> list[dict[str, Any]]:
    """Records of URLs that are due at hour `now`, by (next_due, key), with their `path_key`.

    Args:
        partitions: gives the restored partitions of a service, by number.
        now: the hour.
        count: how many at most.
        host: key of the host group to which all must belong.
        by_priority: the highest stored priority first, whatever hour they have been due since.
    """
    rows: list[dict[str, Any]] = []
    stores = partitions("store")
    if host is not None:
        loaded = stores[partition_of(host, len(stores))]
        found: list[dict[str, Any]] = _first(
            _due_of_host(loaded, host, now), count, by_priority=by_priority
        ).to_pylist()
        return found
    for loaded in stores:
        rows += shard_of(loaded).due(now, count, by_priority=by_priority).to_pylist()
    name, sign = ("priority", -1) if by_priority else ("next_due", 1)
    rows.sort(key=lambda row: (sign * row[name], row["host_key"], row["path_key"]))
    return rows[:count]


def latest_hour(partitions: Callable[[str], list[LoadedPartition]]) -> int:
    """Hour of the latest event that the store has seen; 0 if there is none."""
    latest = 0
    names = ["first_seen", "last_crawled"]
    for loaded in partitions("store"):
        store: Any = loaded.service
        if store.base is not None and not store.log.count:
            tables: Iterator[pa.Table] = (store.base.urls(group, names) for group in range(store.base.groups))
        else:
            tables = shard_of(loaded).records()
        for table in tables:
            latest = max([latest, *(pc.max(table.column(name)).as_py() or 0 for name in names)])
    return latest


def records_of(loaded: LoadedPartition, host: int | None = None) -> Iterator[pa.Table]:
    """Records of a partition of the store in store order, a chunk at a time.

    Args:
        loaded: the partition.
        host: key of a host group: its records alone, and no row group is read that holds none of them.
    """
    if host is None:
        yield from shard_of(loaded).records()
        return
    # These import numba, which those who ask for no host do without.
    from meguri_store.freshness_plan import plan_schedule  # noqa: PLC0415
    from meguri_store.merge import Merge  # noqa: PLC0415

    store: Any = loaded.service

    def elsewhere(group: int) -> bool:
        first, last = store.base.host_range(group)
        return not first <= host <= last

    plan = plan_schedule(store.base, store.log, store.rules)
    for chunk in Merge(store.base, store.log.of_host(host), store.rules, plan=plan).rows(skip=elsewhere):
        mine = chunk.column("host_key").to_numpy() == np.uint64(host)
        if mine.any():
            yield chunk.filter(pa.array(mine))


def group_of(text: str, policy: Policy) -> tuple[str, int]:
    """Host group and HostKey of a host that someone names.

    Raises:
        ValueError: it is no host.
    """
    host = normal_host(text)
    if not isinstance(host, RejectReason):
        group = host_group(policy.alias(host), policy)
        return group, host_key(group.encode("ascii"))
    msg = f"{text!r} is no host ({host}): give a name or an address, without scheme and port"
    raise ValueError(msg)


def record_document(row: dict[str, Any]) -> dict[str, Any]:
    """A URL record as answers show it.

    Keys and fingerprints are 16 hex digits, entity tags the text that they are in UTF-8 (octets that aren't are
    escaped), codes their names; `reason` is null where the URL isn't parked.
    """
    out = {name: _plain(name, value) for name, value in row.items()}
    for name, kind in (("status", Status), ("source", Source), ("reason", ParkReason)):
        if name in out:
            out[name] = kind(out[name]).name.lower() if out[name] or name != "reason" else None
    return out


def _plain(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _KEYS:
        return f"{value:016x}"
    return value.decode("utf-8", "backslashreplace") if name == "etag" else value


def _due_of_host(loaded: LoadedPartition, host: int, now: int) -> pa.Table:
    from meguri_store.publish import url_paths  # noqa: PLC0415 - imports numba, as above
    from meguri_store.schema import URL_SCHEMA  # noqa: PLC0415 - goes with it

    found = []
    for chunk in records_of(loaded, host):
        at = chunk.column("next_due").to_numpy()
        found.append(chunk.filter(pa.array((at > 0) & (at <= now) & np.isin(chunk.column("status"), DUE_STATUSES))))
    table = pa.concat_tables([URL_SCHEMA.empty_table(), *found]).combine_chunks()
    urls = table.column("url")
    paths = url_paths(urls.chunk(0)) if table.num_rows else np.zeros(0, np.uint64)
    return table.append_column("path_key", pa.array(paths, pa.uint64()))


def _first(table: pa.Table, count: int, *, by_priority: bool) -> pa.Table:
    keys = [table.column(name).to_numpy() for name in ("path_key", "host_key", "next_due")]
    if by_priority:
        keys[-1] = -table.column("priority").to_numpy()
    order = np.lexsort(keys)
    return table.take(pa.array(order[:count]))
