"""Judging again what hosts hold back: parked URLs when a budget or cap rises, excluded ones when robots rules change.

In bounded batches, by rows in the inbox and never by a timer: while some remain and the rules allow, a continuation
row goes to the partition's own inbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.records import NO_DEPTH, ParkReason
from meguri_prioritizer.kernels import flags as bits
from meguri_prioritizer.kernels.state import held_rows, priorities_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_prioritizer.state import PartitionState
    from meguri_prioritizer.step import Step

__all__ = ["ask_again", "priorities", "release_host"]


def priorities(state: PartitionState, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Priorities of admitted URLs as of now; shape (n,) f32."""
    out = np.empty(len(rows), np.float32)
    urls, hosts = state.urls, state.hosts
    priorities_of(
        rows, urls["host"], urls["cash"], urls["history"], urls["depth"], state.rank, state.ranked,
        hosts["flags"], hosts["score"], state.totals, state.weights, out,
    )  # fmt: skip
    return out


def ask_again(state: PartitionState, step: Step) -> None:
    """Send a continuation row for each host that this message gave a reason to, if it holds something back."""
    count, hosts = len(state.hosts), state.hosts
    asked = np.flatnonzero(hosts["marks"][:count] & bits.HOST_JUDGE)
    hosts["marks"][asked] &= ~bits.HOST_JUDGE
    send = [host for host in asked.tolist() if not hosts["flags"][host] & bits.RELEASING and _waits(state, host)]
    if send:
        rows = np.array(send, np.int64)
        hosts["flags"][rows] |= bits.RELEASING
        hosts["marks"][rows] |= bits.HOST_DIRTY
        step.again(hosts["host_key"][rows])


def release_host(state: PartitionState, step: Step, host: int) -> None:
    """One batch of a host: first those that robots rules excluded, then parked ones by priority, then key."""
    hosts, urls = state.hosts, state.urls
    batch = state.parameters["release_batch"]
    hosts["marks"][host] |= bits.HOST_DIRTY
    if hosts["robots_at"][host]:
        excluded = _held(state, host, parked=False)
        rows = excluded[np.argsort(urls["path_key"][excluded], kind="stable")][:batch]
        urls["flags"][rows] &= ~bits.EXCLUDED
        urls["marks"][rows] |= bits.CHANGED
        step.revive(state, rows, int(hosts["robots_at"][host]) - 1)
        if len(excluded) <= batch:
            hosts["robots_at"][host] = 0
    elif _has_room(state, host):
        parked = _releasable(state, host)
        order = np.lexsort((urls["path_key"][parked], urls["host_key"][parked], -priorities(state, parked)))
        budget, count = int(hosts["budget"][host]), int(hosts["count"][host])
        room = min(batch, budget - count) if budget else batch
        rows = parked[order[:room]]
        urls["reason"][rows] = ParkReason.NONE
        urls["marks"][rows] |= bits.CHANGED | bits.TOUCHED | bits.RELEASED
        hosts["count"][host] += len(rows)
        hosts["marks"][host] |= bits.HOST_STEPPED
    if _waits(state, host):
        step.again(hosts["host_key"][host : host + 1].copy())
    else:
        hosts["flags"][host] &= ~bits.RELEASING


def _has_room(state: PartitionState, host: int) -> bool:
    budget = state.hosts["budget"][host]
    return bool(budget == 0 or state.hosts["count"][host] < budget)


def _waits(state: PartitionState, host: int) -> bool:
    """Whether something is held back that the rules would let go."""
    if state.hosts["held"][host] < 0:
        state.hosts["robots_at"][host] = 0
        return False
    if state.hosts["robots_at"][host]:
        if len(_held(state, host, parked=False)):
            return True
        state.hosts["robots_at"][host] = 0
    return _has_room(state, host) and len(_releasable(state, host)) > 0


def _releasable(state: PartitionState, host: int) -> NDArray[np.int64]:
    """Parked URLs that depth and an operator don't hold back."""
    parked = _held(state, host, parked=True)
    cap, depth = int(state.hosts["depth_cap"][host]), state.urls["depth"][parked]
    within = (depth <= cap) | (depth == NO_DEPTH) if cap else np.ones(len(parked), np.bool_)
    out: NDArray[np.int64] = parked[within]
    return out


def _held(state: PartitionState, host: int, *, parked: bool) -> NDArray[np.int64]:
    urls = state.urls
    out = np.empty(256, np.int64)
    columns = (urls["flags"], urls["reason"], urls["next_held"], state.hosts["held"], parked)
    found = held_rows(host, *columns, out)
    if found > len(out):
        out = np.empty(found, np.int64)
        found = held_rows(host, *columns, out)
    return out[:found]
