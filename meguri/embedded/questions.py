"""Questions to a campaign that span its partitions: the most important URLs, what is due, one URL's story."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from meguri.embedded.totals import shard_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_common.runtime.partition import LoadedPartition

__all__ = ["due_urls", "latest_hour", "top_urls"]


def top_urls(partitions: Callable[[str], list[LoadedPartition]], count: int) -> list[dict[str, Any]]:
    """The URLs of highest priority, best first, with their records.

    Args:
        partitions: gives the restored partitions of a service, by number.
        count: how many.
    """
    found = []
    for loaded in partitions("prioritizer"):
        service: Any = loaded.service
        found += [(-priority, host, path, loaded.number) for priority, host, path in service.top(count)]
    shards = {loaded.number: shard_of(loaded) for loaded in partitions("store")}
    out = []
    for negative, host, path, number in sorted(found)[:count]:
        record = shards[number].get(host, path) or {}
        out.append({**record, "priority": -negative, "path_key": path})
    return out


def due_urls(partitions: Callable[[str], list[LoadedPartition]], now: int, count: int) -> list[dict[str, Any]]:
    """Records of URLs that are due at hour `now`, by (next_due, key)."""
    rows: list[dict[str, Any]] = []
    for loaded in partitions("store"):
        rows += shard_of(loaded).due(now, count).to_pylist()
    rows.sort(key=lambda row: (row["next_due"], row["host_key"], row["path_key"]))
    return rows[:count]


def latest_hour(partitions: Callable[[str], list[LoadedPartition]]) -> int:
    """Hour of the latest event that the store has seen; 0 if there is none."""
    latest = 0
    for loaded in partitions("store"):
        for table in shard_of(loaded).records():
            for name in ("last_crawled", "first_seen"):
                found = pc.max(table.column(name)).as_py()
                latest = max(latest, found or 0)
    return latest
