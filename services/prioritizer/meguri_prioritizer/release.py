"""Judging again what hosts hold back: parked URLs when a budget or cap rises, excluded ones when robots rules change.

In bounded batches, by rows in the inbox and never by a timer: while some remain and the rules allow, a continuation
row goes to the partition's own inbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_prioritizer import layout
from meguri_prioritizer.kernels.admission import note
from meguri_prioritizer.kernels.held import walk_held

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_prioritizer.state import PartitionState
    from meguri_prioritizer.step import Step

__all__ = ["ask_again", "release_host"]

_SHARE = 64
"""A batch is at least this part of what waits: each costs a walk over all of it, so the walks stay few."""
_NOTHING = np.zeros(0, np.int64)
_COUNTS = ("robots_at", "held_robots", "flags", "held_depth", "budget", "count", "held_budget")


def ask_again(state: PartitionState, step: Step) -> None:
    """Send a continuation row for each host that this message gave a reason to, if it has something to let go."""
    asked = state.queue[layout.ASKED, : state.queued[layout.ASKED]]
    if not len(asked):
        return
    state.queued[layout.ASKED] = 0
    hosts = state.hosts.records
    hosts["marks"][asked] &= 0xFF ^ layout.HOST_ASKED
    # Many votes ask and few hosts hold anything back: one by one, this would cost more than all else about a vote.
    for host in asked[_wait(state, asked)].tolist():
        if not hosts["flags"][host] & layout.RELEASING:
            hosts["flags"][host] |= layout.RELEASING
            hosts["marks"][host] |= layout.HOST_DIRTY
            step.again(int(hosts["key"][host]))


def release_host(state: PartitionState, step: Step, host: int) -> NDArray[np.int64]:
    """One batch of a host: excluded URLs first, then parked ones by priority, then key. Gives rows released."""
    hosts = state.hosts.records
    hosts["marks"][host] |= layout.HOST_DIRTY
    released = _NOTHING
    if hosts["robots_at"][host]:
        _revive(state, step, host)
    elif _waits(state, host):
        released = _release(state, host)
    if _waits(state, host):
        hosts["flags"][host] |= layout.RELEASING
        step.again(int(hosts["key"][host]))
    else:
        hosts["flags"][host] &= 0xFFFF ^ layout.RELEASING
    return released


def _waits(state: PartitionState, host: int) -> bool:
    return bool(_wait(state, host))


def _wait(state: PartitionState, rows: int | NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether hosts hold something back that is to be looked at; one, or (n,). Counts tell: nothing is walked."""
    records = state.hosts.records
    if isinstance(rows, int):
        field = {name: records[rows][name] for name in _COUNTS}
    else:
        field = {name: records[name][rows] for name in _COUNTS}
    excluded = (field["robots_at"] != 0) & (field["held_robots"] != 0)
    deep = ((field["flags"] & layout.CAP_ROSE) != 0) & (field["held_depth"] != 0)
    room = (field["budget"] == 0) | (field["count"] < field["budget"])
    found: NDArray[np.bool_] = excluded | deep | (room & (field["held_budget"] != 0))
    return found


def _walk(state: PartitionState, host: int, robots_at: int) -> NDArray[np.int64]:
    record = state.hosts.records[host]
    # A URL that is parked and excluded counts twice, and is one entry; more room than needed does no harm.
    most = int(record["held_depth"]) + int(record["held_budget"]) + int(record["held_robots"])
    rows = np.empty(most, np.int64)
    found = walk_held(host, robots_at, state.urls.records, state.hosts.records, state.held, state.held_meta, rows)
    return rows[:found]


def _revive(state: PartitionState, step: Step, host: int) -> None:
    """Bring back a batch of what robots rules excluded before they changed, by key."""
    hosts, urls = state.hosts.records, state.urls.records
    robots_at = int(hosts["robots_at"][host]) - 1
    excluded = _walk(state, host, robots_at)
    size = max(state.parameters["release_batch"], len(excluded) // _SHARE)
    rows = excluded[np.argsort(urls["path_key"][excluded], kind="stable")][:size]
    urls["flags"][rows] = (urls["flags"][rows] & (0xFFFF ^ layout.EXCLUDED)) | layout.CHANGED
    hosts["held_robots"][host] -= len(rows)
    step.revive(state, rows, np.full(len(rows), robots_at, np.uint32))
    if len(rows) == len(excluded):
        hosts["robots_at"][host] = 0


def _release(state: PartitionState, host: int) -> NDArray[np.int64]:
    """Schedule a batch of parked URLs while the budget lasts."""
    hosts, urls = state.hosts.records, state.urls.records
    parked = _walk(state, host, -1)
    hosts["flags"][host] &= 0xFFFF ^ layout.CAP_ROSE
    size = max(state.parameters["release_batch"], len(parked) // _SHARE)
    if hosts["budget"][host]:
        size = min(size, max(int(hosts["budget"][host]) - int(hosts["count"][host]), 0))
    rows = parked[np.lexsort((urls["path_key"][parked], -state.priorities(parked)))][:size]
    # After the walk each of them is parked for want of budget.
    hosts["held_budget"][host] -= len(rows)
    kept = (1 << layout.REASON_SHIFT) - 1
    urls["flags"][rows] = (urls["flags"][rows] & kept) | layout.CHANGED | layout.TOUCHED | layout.RELEASED
    if len(rows):
        hosts["count"][host] += len(rows)
        note(host, hosts, state.queue, state.queued)
    return rows
