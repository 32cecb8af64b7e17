"""What a campaign came to, counted by the services themselves, so that restarts don't count twice."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from meguri_common.records import LINK_REJECT_REASONS, Status
from meguri_store.queries import Shard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meguri_common.runtime.partition import LoadedPartition

__all__ = ["Totals", "shard_of", "since", "totals_of"]


class Totals(msgspec.Struct, kw_only=True):
    """Counts of a campaign. links = rejected + links_new + links_known; cash_total = cash_minted."""

    pages: int
    links: int
    links_rejected: dict[str, int]
    links_new: int
    links_known: int
    urls_new: int
    """URLs admitted: by links, pages, redirects, seeds and sitemap entries."""
    urls_total: int
    hosts: int
    """Host groups with a known URL."""
    urls_trapped: int
    events_rejected: int
    cash_total: int
    """Held + pool + in flight + written off, in units of 2^-32."""
    cash_minted: int
    store_bytes: int
    bytes_per_url: float
    shards: int


def totals_of(
    dedup: Iterable[LoadedPartition],
    prioritizer: Iterable[LoadedPartition],
    store: Iterable[LoadedPartition],
    events_rejected: int,
    *,
    merged: bool = True,
) -> Totals:
    """Sum the partitions' own counts.

    Args:
        dedup: its partitions.
        prioritizer: its partitions.
        store: its partitions.
        events_rejected: public events among the rejects.
        merged: merge what shards have not compacted yet, which takes time with their size. Otherwise they tell what
            they know without (see `meguri_store.service.Totals`); it is the same once they are compacted.
    """
    counted = [asdict(_service(loaded).counters) for loaded in dedup]
    cash = [_service(loaded).totals() for loaded in prioritizer]
    stored = [_stored(loaded, merged=merged) for loaded in store]

    def total(name: str, rows: list[dict[str, Any]]) -> int:
        return sum(row[name] for row in rows)

    urls, size = sum(rows for rows, _, _ in stored), sum(_bytes(loaded) for loaded in store)
    rejected = [sum(row["rejected"][reason] for row in counted) for reason in range(len(LINK_REJECT_REASONS))]
    in_flight = total("sent", cash) - total("received", cash)
    return Totals(
        pages=total("pages", counted),
        links=total("links", counted),
        links_rejected={name: count for name, count in zip(LINK_REJECT_REASONS, rejected, strict=True) if count},
        links_new=total("links_new", counted),
        links_known=total("links_known", counted),
        urls_new=total("urls_new", counted),
        urls_total=urls,
        hosts=sum(hosts for _, hosts, _ in stored),
        urls_trapped=sum(trapped for _, _, trapped in stored),
        events_rejected=events_rejected,
        cash_total=total("held", cash) + total("pool", cash) + in_flight + total("written_off", cash),
        cash_minted=total("minted", cash),
        store_bytes=size,
        bytes_per_url=round(size / urls, 2) if urls else 0.0,
        shards=len(stored),
    )


def since(now: Totals, before: Totals) -> dict[str, Any]:
    """What was added between two counts: the counters that only grow."""
    grown = ("pages", "links", "links_new", "links_known", "urls_new", "events_rejected", "cash_minted")
    out: dict[str, Any] = {name: getattr(now, name) - getattr(before, name) for name in grown}
    out["links_rejected"] = {
        reason: count - before.links_rejected.get(reason, 0)
        for reason, count in now.links_rejected.items()
        if count != before.links_rejected.get(reason, 0)
    }
    return out


def shard_of(loaded: LoadedPartition) -> Shard:
    """Questions to a restored partition of the store."""
    store = _service(loaded)
    return Shard(store.base, store.log, store.rules, store.identity.group_by)


def _stored(loaded: LoadedPartition, *, merged: bool) -> tuple[int, int, int]:
    """URLs, hosts and parked URLs of a shard."""
    if merged:
        counts = shard_of(loaded).counts()
        return counts.rows, counts.hosts, counts.by_status.get(Status.TRAPPED, 0)
    totals = _service(loaded).totals()
    return totals.rows, totals.hosts, totals.trapped


def _bytes(loaded: LoadedPartition) -> int:
    """Bytes of a shard's files, as its last snapshot names them."""
    return sum(reference.size for reference in loaded.snapshot.files) if loaded.snapshot else 0


def _service(loaded: LoadedPartition) -> Any:
    return loaded.service
