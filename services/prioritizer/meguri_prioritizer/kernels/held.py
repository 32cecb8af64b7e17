"""What hosts hold back: URLs parked, and URLs that robots rules exclude."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meguri_common.kernels.jit import kernel
from meguri_prioritizer.kernels.admission import list_url, move_reason
from meguri_prioritizer.layout import ADMITTED, EXCLUDED, LISTED, REASON_SHIFT, integer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["list_held", "walk_held"]

_NO_DEPTH = 0xFFFF
_DEPTH, _BUDGET = 1, 2  # records.ParkReason


@kernel
def walk_held(
    host: int,
    robots_at: int,
    urls: NDArray[Any],
    hosts: NDArray[Any],
    held: NDArray[Any],
    held_meta: NDArray[np.int64],
    out: NDArray[np.int64],
) -> int:
    """Rows that a host may let go, in no order that counts; gives their number. `out` has room for all held back.

    With `robots_at` < 0 those parked for want of budget, after each parked URL has been given the reason that holds
    under today's depth cap; else those that robots rules excluded in a visit not later than `robots_at`. Entries of
    URLs that are no longer held back leave the list.
    """
    cap = integer(hosts[host].depth_cap)
    found = 0
    before = -1
    entry = integer(hosts[host].held_first)
    while entry >= 0:
        row = integer(held[entry].url)
        following = integer(held[entry].next)
        reason = integer(urls[row].flags) >> REASON_SHIFT
        excluded = (urls[row].flags & EXCLUDED) != 0
        if reason == 0 and not excluded:
            urls[row].flags ^= LISTED
            if before < 0:
                hosts[host].held_first = following
            else:
                held[before].next = following
            held[entry].next = held_meta[1]
            held_meta[1] = entry
            entry = following
            continue
        if robots_at >= 0:
            known = (urls[row].flags & ADMITTED) != 0
            if excluded and known and integer(urls[row].last_visit) <= robots_at:
                out[found] = row
                found += 1
        elif reason in (_DEPTH, _BUDGET):
            depth = integer(urls[row].depth)
            now = _DEPTH if cap > 0 and depth != _NO_DEPTH and depth > cap else _BUDGET
            if now != reason:
                move_reason(row, now, urls, hosts)
            if now == _BUDGET:
                out[found] = row
                found += 1
        before = entry
        entry = following
    return found


@kernel
def list_held(count: int, urls: NDArray[Any], hosts: NDArray[Any], held: NDArray[Any], meta: NDArray[np.int64]) -> int:
    """Make all hosts' lists, and their counts, anew; gives the entries that are needed.

    Without room for them (`held` is too short) only the number counts.
    """
    needed = 0
    for row in range(count):
        if urls[row].flags & EXCLUDED or integer(urls[row].flags) >> REASON_SHIFT:
            needed += 1
    if needed > held.size:
        return needed
    for row in range(count):
        host = urls[row].host
        reason = integer(urls[row].flags) >> REASON_SHIFT
        if reason == _DEPTH:
            hosts[host].held_depth += 1
        elif reason == _BUDGET:
            hosts[host].held_budget += 1
        if urls[row].flags & EXCLUDED:
            hosts[host].held_robots += 1
        if reason or urls[row].flags & EXCLUDED:
            list_url(row, urls, hosts, held, meta)
    return needed
