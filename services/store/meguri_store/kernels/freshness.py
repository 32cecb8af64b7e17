"""Estimates and schedules over columns: `meguri_store.freshness` compiled, in loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba.extending import register_jitable

from meguri_common.kernels.jit import kernel
from meguri_store import freshness, water_level
from meguri_store.freshness import Freshness, estimate, next_due, target_interval
from meguri_store.water_level import RATE_UNIT, moved_tau, scheduled_parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["estimate_rates", "schedule"]

for _function in (*freshness.COMPILED, *water_level.COMPILED):
    register_jitable(_function)


@kernel
def estimate_rates(
    crawl_count: NDArray[np.uint32],
    change_count: NDArray[np.uint32],
    no_change_streak: NDArray[np.uint16],
    first_seen: NDArray[np.uint32],
    last_crawled: NDArray[np.uint32],
    rules: Freshness,
    out: NDArray[np.float32],
) -> None:
    """out[i] = the change rate that row i's counters tell; all (n,)."""
    for row in range(out.size):
        # Signed first: int() alone leaves them unsigned, and differences would wrap.
        out[row] = estimate(
            int(np.int64(crawl_count[row])),
            int(np.int64(change_count[row])),
            int(np.int64(no_change_streak[row])),
            int(np.int64(first_seen[row])),
            int(np.int64(last_crawled[row])),
            rules,
        )


@kernel
def schedule(
    row: NDArray[np.int64],
    rescheduled: NDArray[np.bool_],
    parts: NDArray[np.int64],
    hour: NDArray[np.uint32],
    rate: NDArray[np.float32],
    priority: NDArray[np.float32],
    share: NDArray[np.float64],
    path: NDArray[np.uint64],
    held: NDArray[np.int64],
    level: tuple[float, int, int],
    budget: float,
    tick_every: int,
    rules: Freshness,
    due: NDArray[np.uint32],
) -> tuple[float, int, int]:
    """Give rescheduled URLs their next hour, in inbox order, while the water level moves.

    Args:
        row: which of `held` each event is about, (e,).
        rescheduled: whether it is a fetch after which the URL is scheduled anew, (e,).
        parts: else, the URL's scheduled rate afterwards, in parts (`RATE_UNIT`) of one fetch an hour, (e,).
        hour: of the fetch, (e,).
        rate: estimated changes an hour, (e,).
        priority: of the URL at that time, (e,).
        share: fetches an hour that its host leaves it, (e,).
        path: its path key, (e,).
        held: scheduled rate of each URL before the first event, in the same parts; kept up to date, (r,).
        level: price of a refresh, scheduled rate of the whole partition in parts, reschedules so far.
        budget: fetches an hour; 0 or less: the price stays.
        tick_every: reschedules from one tick of the level to the next.
        rules: parameters.
        due: hours given, where rescheduled; others are left as they are, (e,).

    Returns:
        The level after the last event.
    """
    tau, total, count = level
    for event in range(row.size):
        url = row[event]
        after = parts[event]
        if rescheduled[event]:
            now = int(np.int64(hour[event]))
            interval = target_interval(float(priority[event]), float(rate[event]), tau, share[event], rules)
            at = next_due(now, interval, path[event], now, rules)
            due[event] = at
            after = scheduled_parts(now, at)
        total += after - held[url]
        held[url] = after
        if rescheduled[event]:
            count += 1
            if count % tick_every == 0:
                tau = moved_tau(tau, total / RATE_UNIT, budget)
    return tau, total, count
