"""A campaign in numbers: totals, records by status and source, where each partition stands, what the logs hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from meguri.embedded.totals import shard_of, totals_of
from meguri_common.bus.port import TopicPartition
from meguri_common.records import Source
from meguri_common.topics import DELTAS, FRONTIER, LINKS, PAGES, REJECTS

if TYPE_CHECKING:
    from meguri.embedded.view import View
    from meguri.inspecting import Inspected
    from meguri_common.bus.port import RowBus

__all__ = ["counts_of", "overview", "rejected_events", "services_of", "topics_of"]

_ATTEMPTS = 3
_SPENT = "campaign/spent"


def overview(view: View) -> dict[str, Any]:
    """What `meguri stats --json` gives. Partitions are read anew, a few times, until nothing happens meanwhile."""
    for _ in range(_ATTEMPTS):
        view.forget()
        before = view.moment()
        found = _counts(view)
        found["at_one_moment"] = view.moment() == before
        if found["at_one_moment"]:
            break
    return found


def _counts(view: View) -> dict[str, Any]:
    bus = view.campaign.bus
    spent = msgspec.json.decode(bus.get(_SPENT) or b"{}")
    return {
        **counts_of(view, rejected_events(bus)),
        "seconds": round(spent.get("seconds", 0.0), 3),
        "cpu_seconds": round(spent.get("cpu_seconds", 0.0), 3),
        "services": services_of(view),
        "topics": topics_of(view),
        "bus_bytes": _bus_bytes(view),
    }


def rejected_events(bus: RowBus) -> int:
    """Public events among the rejects."""
    return bus.watermarks(TopicPartition(REJECTS, 0))[1]


def counts_of(view: Inspected, events_rejected: int) -> dict[str, Any]:
    """Totals, and records by status, by the reason why they are parked, and by source."""
    stores = view.partitions("store")
    totals = totals_of(view.partitions("dedup"), view.partitions("prioritizer"), stores, events_rejected)
    status: dict[str, int] = {}
    reason: dict[str, int] = {}
    sources = np.zeros(len(Source), np.int64)
    for loaded in stores:
        shard, store = shard_of(loaded), loaded.service
        counted = shard.counts()
        for code, count in counted.by_status.items():
            status[code.name.lower()] = status.get(code.name.lower(), 0) + count
        for why, count in counted.by_reason.items():
            reason[why.name.lower()] = reason.get(why.name.lower(), 0) + count
        sources += _sources(store, shard)
    return {
        **msgspec.to_builtins(totals),
        "by_status": status,
        "by_park_reason": reason,
        "by_source": {source.name.lower(): int(sources[source]) for source in Source},
    }


def _sources(store: Any, shard: Any) -> np.typing.NDArray[np.int64]:
    """URLs of a shard by source; one column is read where there is no delta."""
    if store.log.count == 0 and store.base is not None:
        tables = (store.base.urls(group, ["source"]) for group in range(store.base.groups))
    else:
        tables = shard.records()
    found = np.zeros(len(Source), np.int64)
    for table in tables:
        found += np.bincount(table.column("source").to_numpy(), minlength=len(Source))
    return found


def services_of(view: View) -> dict[str, list[dict[str, Any]]]:
    """Of each partition of each service: the offset of its newest snapshot (None without one), the committed one, and
    how many messages it has still to read.
    """  # noqa: D205 - one sentence
    moment = view.moment()
    out: dict[str, list[dict[str, Any]]] = {}
    for spec in view.campaign.specs:
        rows = []
        for number in range(view.count(spec.name)):
            whole = view.campaign.around.snapshots(spec, number).whole() if spec.stateful else []
            end = view.campaign.bus.watermarks(TopicPartition(spec.input_topic, number))[1]
            committed = moment[spec.name, number]
            rows.append(
                {
                    "partition": number,
                    "snapshot": whole[0].offset if whole else None,
                    "committed": committed,
                    "lag": max(0, end - committed),
                }
            )
        out[spec.name] = rows
    return out


def topics_of(view: View) -> dict[str, dict[str, Any]]:
    """Of each topic: messages kept and ever published, and for each partition [first offset kept, next offset]."""
    bus = view.campaign.bus
    out: dict[str, dict[str, Any]] = {}
    for topic in (PAGES, LINKS, FRONTIER, DELTAS, REJECTS):
        ends = [bus.watermarks(TopicPartition(topic, number)) for number in range(bus.partitions(topic))]
        out[topic] = {
            "kept": sum(end - first for first, end in ends),
            "published": sum(end for _, end in ends),
            "partitions": [list(each) for each in ends],
        }
    return out


def _bus_bytes(view: View) -> int:
    """Bytes of the bus file and of its log."""
    size = 0
    for file in view.campaign.data.glob("bus.db*"):
        try:
            size += file.stat().st_size
        except FileNotFoundError:
            continue
    return size
