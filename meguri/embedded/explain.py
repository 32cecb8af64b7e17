"""One URL's story: how its canonical form came about, and where it stands in every service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meguri.embedded.questions import DUE_STATUSES, record_document
from meguri.embedded.totals import shard_of
from meguri_canonicalizer.canonical import Rejected, canonicalize, explain_steps
from meguri_canonicalizer.kernels.codes import LONGEST_URL
from meguri_common.keys import partition_of
from meguri_common.records import CRAWL_DELAY_UNSET, HostFlag, ParkReason, Source, Status

if TYPE_CHECKING:
    from meguri.looking import Viewer

__all__ = ["explain_url"]


def explain_url(view: Viewer, raw: str | bytes, base: str | bytes | None = None) -> dict[str, Any]:
    """What is known of a link, as a JSON object.

    Args:
        view: the campaign.
        raw: the link as authored.
        base: what it resolves against.

    Returns:
        `known` (the frontier has the URL), `ok`, `steps` [{name, value, changed}], `reject_reason`; for a usable link
        `canon`, `host_group`, `host_key`, `path_key`, `partition`, and, null where there is none: `seen`
        {exact, filter}, `record`, `admitted` {source, first_seen}, `parked` {reason, would_release}, `due`
        {hour, why_not}, `visits`, `priority` (each term, cash in units of 2^-32), `host`.
    """
    policy = view.campaign.policy
    out: dict[str, Any] = {
        "known": False,
        "ok": False,
        "steps": [step._asdict() for step in explain_steps(raw, base, policy)],
        "reject_reason": None,
    }
    found = canonicalize(raw, base, policy)
    if isinstance(found, Rejected):
        return out | {"reject_reason": str(found.reason)}
    number = partition_of(found.host_key, view.campaign.identity.partitions)
    out |= {
        "canon": found.url,
        "host_group": found.host_group,
        "host_key": f"{found.host_key:016x}",
        "path_key": f"{found.path_key:016x}",
        "partition": number,
    }
    if len(found.url) > LONGEST_URL:
        return out | {"reject_reason": "too_long"}
    dedup: Any = view.partition("dedup", number).service
    prioritizer: Any = view.partition("prioritizer", number).service
    shard = shard_of(view.partition("store", number))
    seen = dedup.look(found.host_key, found.path_key)
    state: dict[str, Any] = prioritizer.look(found.host_key, found.path_key)
    record = shard.get(found.host_key, found.path_key)
    host = _host(state, shard.host(found.host_key))
    return out | {
        "known": seen["seen"] or record is not None,
        "ok": True,
        "seen": {"exact": seen["seen"], "filter": seen["maybe"]},
        "record": record_document(record) if record else None,
        "admitted": _admitted(record),
        "parked": _parked(state, record),
        "due": _due(record),
        "visits": _visits(state, record),
        "priority": _priority(state, record),
        "host": {"host_group": found.host_group, **host} if host else None,
    }


def _admitted(record: dict[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {"source": Source(record["source"]).name.lower(), "first_seen": record["first_seen"]}


def _parked(state: dict[str, Any], record: dict[str, Any] | None) -> dict[str, Any] | None:
    if state["parked"] is not None:
        return {"reason": state["parked"], "would_release": state["would_release"]}
    if record is None or not record["reason"]:
        return None
    # The prioritizer has let it go; the store is about to hear of it.
    return {"reason": ParkReason(record["reason"]).name.lower(), "would_release": "nothing more: it is being released"}


def _due(record: dict[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    status = Status(record["status"])
    waits = status in DUE_STATUSES and record["next_due"] > 0
    return {
        "hour": record["next_due"] if waits else None,
        "why_not": None if waits else f"its status is {status.name.lower()}",
    }


def _visits(state: dict[str, Any], record: dict[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    names = ("crawl_count", "change_count", "error_count", "retry_count", "http_status", "last_crawled", "last_changed")
    return {"last_visit": state["last_visit"], **{name: record[name] for name in names}}


def _priority(state: dict[str, Any], record: dict[str, Any] | None) -> dict[str, Any] | None:
    if not state["known"]:
        return None
    return {
        **state["priority"],
        "depth": state["depth"],
        "last_seed": state["last_seed"],
        "in_store": record["priority"] if record else None,
    }


def _host(state: dict[str, Any], record: dict[str, Any] | None) -> dict[str, Any]:
    """What the prioritizer says of the host, of the moment, over what the store's record does."""
    out: dict[str, Any] = {}
    if record is not None:
        flags = HostFlag(record["flags"])
        out = {
            "in_degree": None,
            "in_degree_exact": None,
            "url_budget": record["url_budget"] or None,
            "url_count": record["url_count"],
            "depth_cap": record["depth_cap"] or None,
            "vouched_for": HostFlag.VOUCHED in flags,
            "trap_suspect": HostFlag.TRAP_SUSPECT in flags,
            "host_score": record["host_score"],
            "crawl_delay_ds": record["crawl_delay"],
            "crawl_delay_set_by_operator": record["crawl_delay_set"] != CRAWL_DELAY_UNSET,
            "crawl_total": record["crawl_total"],
            "error_total": record["error_total"],
            "avg_latency_ms": record["avg_latency"] or None,
        }
    return out | (state["host"] or {})
