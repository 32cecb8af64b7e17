"""Looking into a partition: one URL explained, and the most important ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.records import NO_DEPTH, ParkReason
from meguri_prioritizer.importance import (
    UNIT,
    blend,
    compress,
    depth_penalty,
    opic_score,
    relative_level,
    trap_penalty,
)
from meguri_prioritizer.kernels import flags as bits
from meguri_prioritizer.release import priorities

if TYPE_CHECKING:
    from meguri_prioritizer.state import PartitionState

__all__ = ["look_at", "top_of"]

_WOULD_RELEASE = {
    ParkReason.DEPTH: "a path from a seed that is short enough, or a higher depth cap of the host",
    ParkReason.BUDGET: "a higher budget: more hosts that link to this one, a vouch, or an operator's budget",
}


def look_at(state: PartitionState, host_key: int, path_key: int) -> dict[str, Any] | None:
    """Each term of a URL's priority, and its host; None if nothing is known of it."""
    row = state.urls.find(host_key, path_key)
    if row < 0:
        return None
    urls = state.urls
    flags, host = int(urls["flags"][row]), int(urls["host"][row])
    last = int(urls["last_visit"][row])
    reason = ParkReason(int(urls["reason"][row]))
    depth = int(urls["depth"][row])
    out: dict[str, Any] = {
        "admitted": bool(flags & bits.ADMITTED),
        "parked": reason.name.lower() if reason else None,
        "would_release": _WOULD_RELEASE.get(reason),
        "excluded_by_robots": bool(flags & bits.EXCLUDED),
        "depth": None if depth == NO_DEPTH else depth,
        "last_visit": last - 1 if last else None,
        "last_seed": state.seeded.get(row),
        "priority": _terms(state, row, host, depth),
    }
    if host >= 0:
        out["host"] = _host(state, host)
    return out


def top_of(state: PartitionState, count: int) -> list[tuple[float, int, int]]:
    """The admitted URLs of highest priority, best first, then by key."""
    urls = state.urls
    rows = np.flatnonzero((urls["flags"][: len(urls)] & bits.ADMITTED) != 0)
    if not len(rows) or count < 1:
        return []
    found = priorities(state, rows)
    if len(rows) > count:
        # Ties at the edge are broken by key below, so all of them are taken here.
        edge = np.partition(found, len(found) - count)[len(found) - count]
        best = found >= edge
        rows, found = rows[best], found[best]
    order = np.lexsort((urls["path_key"][rows], urls["host_key"][rows], -found))[:count]
    keys = (urls["host_key"][rows[order]].tolist(), urls["path_key"][rows[order]].tolist())
    return list(zip(found[order].tolist(), *keys, strict=True))


def _terms(state: PartitionState, row: int, host: int, depth: int) -> dict[str, Any]:
    urls, p, totals = state.urls, state.parameters, state.totals
    known, pool = int(totals[bits.KNOWN_URLS]), int(totals[bits.POOL])
    cash, history, floor = int(urls["cash"][row]), int(urls["history"][row]), pool // known if known else 0
    ranked = int(state.ranked[row]) if len(state.ranked) else 0
    host_score = float(state.hosts["score"][host]) if host >= 0 else 0.0
    suspect = host >= 0 and bool(state.hosts["flags"][host] & bits.SUSPECT)
    score = opic_score(cash + history + floor, p["log_norm"])
    rank = float(state.rank[row]) if ranked else None
    names = ("w_pagerank", "w_opic_with_page", "w_host", "w_opic_with_host", "w_host_only")
    blended = blend(
        float(score),
        None if rank is None else float(compress(rank)),
        float(compress(host_score)),
        **{name: p[name] for name in names},
    )
    penalised = trap_penalty(float(blended), suspect=suspect, factor=p["trap_suspect_factor"])
    final = depth_penalty(float(penalised), 0 if depth == NO_DEPTH else depth, decay=p["depth_decay"])
    return {
        "cash": cash / UNIT,
        "history": history / UNIT,
        "floor": floor / UNIT,
        "score": float(score),
        "page_rank": rank,
        "page_rank_epoch": ranked - 1 if ranked else None,
        "host_score": host_score,
        "blended": float(blended),
        "after_trap_penalty": float(penalised),
        "after_depth_penalty": float(final),
        "last_sent": float(urls["sent"][row]),
        "level": relative_level(float(final), int(totals[bits.HELD]) + pool, known),
    }


def _host(state: PartitionState, host: int) -> dict[str, Any]:
    hosts = state.hosts
    flags = int(hosts["flags"][host])
    return {
        "in_degree": int(hosts["in_degree"][host]),
        "url_budget": int(hosts["budget"][host]) or None,
        "budget_set_by_operator": bool(flags & bits.BUDGET_SET),
        "url_count": int(hosts["count"][host]),
        "depth_cap": int(hosts["depth_cap"][host]) or None,
        "vouched_for": bool(flags & bits.VOUCHED),
        "trap_suspect": bool(flags & bits.SUSPECT),
        "host_score": float(hosts["score"][host]),
    }
