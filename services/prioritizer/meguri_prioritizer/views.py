"""Looking into a partition: one URL explained, the most important ones, and telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.records import NO_DEPTH, ParkReason
from meguri_prioritizer import layout
from meguri_prioritizer.importance import (
    UNIT,
    blend,
    compress,
    depth_penalty,
    opic_score,
    relative_level,
    trap_penalty,
)

if TYPE_CHECKING:
    from meguri_prioritizer.state import PartitionState

__all__ = ["look_at", "stats_of", "top_of"]

_WOULD_RELEASE = {
    ParkReason.DEPTH: "a shorter path from a seed, or a higher depth cap of the host",
    ParkReason.BUDGET: "a higher budget: more hosts that link to this one, a vouch, or an operator's budget",
}
_OTHERWISE = "an operator's release"
_WEIGHTS = ("w_pagerank", "w_opic_with_page", "w_host", "w_opic_with_host", "w_host_only")
_GAUGES = ("held", "pool", "known")


def look_at(state: PartitionState, host_key: int, path_key: int) -> dict[str, Any]:
    """Each term of a URL's priority, and its host (None if nothing is known of it). Cash in units of 2^-32."""
    host = state.hosts.find(host_key)
    row = state.urls.find(host, path_key) if host >= 0 else -1
    url = state.urls.records[row] if row >= 0 else layout.url_template(NO_DEPTH)
    flags = int(url["flags"])
    reason = ParkReason(flags >> layout.REASON_SHIFT)
    extra = state.extras.records[found] if row >= 0 and (found := state.extras.find(row)) >= 0 else None
    return {
        "known": row >= 0,
        "admitted": bool(flags & layout.ADMITTED),
        "parked": reason.name.lower() if reason else None,
        "would_release": _WOULD_RELEASE.get(reason, _OTHERWISE) if reason else None,
        "excluded_by_robots": bool(flags & layout.EXCLUDED),
        "depth": state.depth_of(row) if row >= 0 else None,
        "last_visit": int(url["last_visit"]) if flags & layout.VISITED else None,
        "last_seed": int(extra["seeded_at"]) - 1 if extra is not None and extra["seeded_at"] else None,
        "priority": _terms(state, url, extra, host),
        "host": _host(state, host) if host >= 0 else None,
    }


def top_of(state: PartitionState, count: int) -> list[tuple[float, int, int]]:
    """The admitted URLs of highest priority, best first, then by key."""
    urls = state.urls.records
    rows = np.flatnonzero(state.urls["flags"] & layout.ADMITTED)
    if not len(rows) or count < 1:
        return []
    found = state.priorities(rows)
    if len(rows) > count:
        # Ties at the edge are broken by key below, so all of them are taken here.
        edge = np.partition(found, len(found) - count)[len(found) - count]
        best = found >= edge
        rows, found = rows[best], found[best]
    hosts, paths = state.hosts.records["key"][urls["host"][rows]], urls["path_key"][rows]
    order = np.lexsort((paths, hosts, -found))[:count]
    return list(zip(found[order].tolist(), hosts[order].tolist(), paths[order].tolist(), strict=True))


def stats_of(state: PartitionState) -> dict[str, dict[str, float]]:
    """Totals that only grow, and gauges of what is there now."""
    totals = dict(zip(layout.TOTALS, state.totals.tolist(), strict=True))
    hosts = state.hosts
    gauges: dict[str, float] = {name: totals.pop(name) for name in _GAUGES}
    gauges |= {
        "urls": len(state.urls),
        "hosts": len(hosts),
        "parked_depth": int(hosts["held_depth"].sum()),
        "parked_budget": int(hosts["held_budget"].sum()),
        "excluded_robots": int(hosts["held_robots"].sum()),
        "hosts_flagged": int(np.count_nonzero(hosts["flags"] & layout.SUSPECT)),
        "hosts_sketched": state.sources.sketches(),
        "bytes": state.urls.nbytes() + hosts.nbytes() + state.extras.nbytes() + state.sources.nbytes(),
    }
    return {"counters": dict(totals), "gauges": gauges}


def _terms(state: PartitionState, url: Any, extra: Any, host: int) -> dict[str, Any]:
    p, totals = state.parameters, state.totals.tolist()
    known, pool = totals[layout.KNOWN_URLS], totals[layout.POOL]
    floor = pool // known if known else 0
    cash, history, depth = int(url["cash"]), int(url["history"]), int(url["depth"])
    record = state.hosts.records[host] if host >= 0 else layout.host_template(0, 0, 0)
    ranked = extra is not None and bool(extra["rank_epoch"])
    rank = float(extra["rank"]) if ranked else None
    host_score, suspect = float(record["score"]), bool(record["flags"] & layout.SUSPECT)
    raw = min(cash + history + floor, (1 << 64) - 1)
    score = opic_score(raw, p["log_norm"])
    blended = blend(
        float(score),
        None if rank is None else float(compress(rank)),
        float(compress(host_score)),
        **{name: p[name] for name in _WEIGHTS},
    )
    penalised = trap_penalty(float(blended), suspect=suspect, factor=p["trap_suspect_factor"])
    final = depth_penalty(float(penalised), 0 if depth == NO_DEPTH else depth, decay=p["depth_decay"])
    return {
        "cash": cash,
        "history": history,
        "floor": floor,
        "raw": raw,
        "score": float(score),
        "page_rank": rank,
        "page_rank_epoch": int(extra["rank_epoch"]) - 1 if ranked else None,
        "host_score": host_score,
        "host_score_epoch": int(record["score_epoch"]) - 1 if record["score_epoch"] else None,
        "blended": float(blended),
        "trap_penalty": p["trap_suspect_factor"] if suspect else None,
        "after_trap_penalty": float(penalised),
        "priority": float(final),
        "last_sent": float(url["sent"]),
        "level": relative_level(float(final), totals[layout.HELD_CASH] + pool, known),
        "in_cash": {"cash": cash / UNIT, "history": history / UNIT, "floor": floor / UNIT},
    }


def _host(state: PartitionState, host: int) -> dict[str, Any]:
    record = state.hosts.records[host]
    flags = int(record["flags"])
    return {
        "in_degree": int(record["in_degree"]),
        "in_degree_exact": not flags & layout.SKETCHED,
        "url_budget": int(record["budget"]) or None,
        "budget_set_by_operator": bool(flags & layout.BUDGET_SET),
        "url_count": int(record["count"]),
        "parked": {"depth": int(record["held_depth"]), "budget": int(record["held_budget"])},
        "depth_cap": int(record["depth_cap"]) or None,
        "vouched_for": bool(flags & layout.VOUCHED),
        "trap_suspect": bool(flags & layout.SUSPECT),
        "host_score": float(record["score"]),
    }
