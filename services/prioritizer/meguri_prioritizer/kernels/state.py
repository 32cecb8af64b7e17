"""Kernels that move the state: admissions, seeds, visits, credits, and the judgement at the end of a message.

Money is unsigned 64-bit fixed point; products with rates below 2^32 are taken in two halves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import prefetch
from meguri_prioritizer.kernels.flags import (
    ADMITTED,
    ANNOUNCED,
    BUDGET_SET,
    CHANGED,
    DEPTH_CHANGED,
    EXCLUDED,
    HELD,
    HOST_DIRTY,
    HOST_JUDGE,
    HOST_STEPPED,
    KNOWN,
    KNOWN_URLS,
    LISTED,
    MINTED,
    POOL,
    RECEIVED,
    REFUSED,
    RELEASED,
    REPEATED,
    SENT,
    STALE,
    STARTED,
    SUSPECT,
    TOUCHED,
    VISITS,
    VOUCHED,
)
from meguri_prioritizer.kernels.index import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["admit_rows", "apply_credits", "apply_visits", "held_rows", "judge_rows", "priorities_of", "seed_rows"]

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_ZERO = np.uint64(0)
_ONE_CASH = np.uint64(1 << 32)
_MINT_LIMIT = np.uint64(1 << 63)
_NO_DEPTH = np.uint16(0xFFFF)
_DEPTH = np.uint8(1)
_BUDGET = np.uint8(2)
_ROBOTS = 5
_LEVELS = 64
_AHEAD = 8


@inline_kernel
def _times(amount: np.uint64, rate: np.uint64) -> np.uint64:
    """floor(amount * rate / 2^32) for a rate of at most 2^32."""
    return (amount >> _32) * rate + (((amount & _LOW) * rate) >> _32)


@kernel
def _quantize(priority: float) -> int:
    if not priority > 0.0:
        return 0
    if priority >= 1.0:
        return _LEVELS - 1
    level = _LEVELS - 1 - int(-math.log2(priority) * (_LEVELS - 1) / 16)
    return max(level, 0)


@kernel
def _level(priority: np.float32, scale: float) -> int:
    if scale == 0.0:
        return 0
    return _quantize(np.float64(np.float32(np.float64(priority) / scale)))


@kernel
def _scale(totals: NDArray[np.uint64]) -> float:
    cash = totals[HELD] + totals[POOL]
    if totals[KNOWN_URLS] == _ZERO or cash == _ZERO:
        return 0.0
    return 256.0 * math.log(1.0 + np.float64(cash) / 4294967296.0 / np.float64(totals[KNOWN_URLS]))


@kernel
def _priority(
    row: int,
    host: int,
    cash: NDArray[np.uint64],
    history: NDArray[np.uint64],
    depth: NDArray[np.uint16],
    rank: NDArray[np.float32],
    ranked: NDArray[np.uint64],
    host_flags: NDArray[np.uint16],
    host_score: NDArray[np.float32],
    totals: NDArray[np.uint64],
    weights: NDArray[np.float64],
) -> np.float32:
    """Priority of a URL: score, blended, penalised; see `importance` for the method and the order of f32 steps."""
    floor = _ZERO
    if totals[KNOWN_URLS] != _ZERO:
        floor = totals[POOL] // totals[KNOWN_URLS]
    raw = np.float64(history[row]) + np.float64(cash[row]) + np.float64(floor)
    opic = np.float32(math.log(1.0 + raw / 4294967296.0) / weights[0])
    imported = host_score[host]
    score = np.float32(0.0)
    if imported > 0:
        score = np.float32(math.log1p(np.float64(imported)))
    if ranked.size > 0 and ranked[row] != _ZERO:
        page = np.float32(0.0)
        if rank[row] > 0:
            page = np.float32(math.log1p(np.float64(rank[row])))
        value = np.float32(weights[1]) * page + np.float32(weights[2]) * opic + np.float32(weights[3]) * score
    elif score != 0:
        value = np.float32(weights[4]) * opic + np.float32(weights[5]) * score
    else:
        value = opic
    if host_flags[host] & SUSPECT:
        value = value * np.float32(weights[6])
    if depth[row] != 0 and depth[row] != _NO_DEPTH:
        value = value * np.float32(math.pow(weights[7], np.float64(depth[row])))
    return value


@kernel
def priorities_of(
    rows: NDArray[np.int64],
    url_host: NDArray[np.int32],
    cash: NDArray[np.uint64],
    history: NDArray[np.uint64],
    depth: NDArray[np.uint16],
    rank: NDArray[np.float32],
    ranked: NDArray[np.uint64],
    host_flags: NDArray[np.uint16],
    host_score: NDArray[np.float32],
    totals: NDArray[np.uint64],
    weights: NDArray[np.float64],
    out: NDArray[np.float32],
) -> None:
    """out[i] = priority of rows[i]."""
    for i in range(rows.size):
        row = rows[i]
        out[i] = _priority(
            row, url_host[row], cash, history, depth, rank, ranked, host_flags, host_score, totals, weights
        )


@kernel
def _admit_one(
    row: int,
    host: int,
    flags: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    reason: NDArray[np.uint8],
    depth: NDArray[np.uint16],
    next_held: NDArray[np.int32],
    url_host: NDArray[np.int32],
    host_flags: NDArray[np.uint16],
    host_marks: NDArray[np.uint8],
    host_count: NDArray[np.uint32],
    host_budget: NDArray[np.uint32],
    host_cap: NDArray[np.uint16],
    host_held: NDArray[np.int32],
) -> None:
    """Schedule or park: depth cap, then budget."""
    url_host[row] = host
    flags[row] |= ADMITTED
    marks[row] |= CHANGED
    host_flags[host] |= ANNOUNCED
    host_marks[host] |= HOST_DIRTY | HOST_STEPPED
    why = np.uint8(0)
    if host_cap[host] > 0 and depth[row] != _NO_DEPTH and depth[row] > host_cap[host]:
        why = _DEPTH
    elif host_budget[host] > 0 and host_count[host] >= host_budget[host]:
        why = _BUDGET
    reason[row] = why
    if why == 0:
        host_count[host] += np.uint32(1)
    elif not flags[row] & LISTED:
        flags[row] |= LISTED
        next_held[row] = host_held[host]
        host_held[host] = row


@kernel
def admit_rows(
    rows: NDArray[np.int64],
    hosts: NDArray[np.int64],
    in_depth: NDArray[np.uint16],
    flags: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    reason: NDArray[np.uint8],
    depth: NDArray[np.uint16],
    next_held: NDArray[np.int32],
    url_host: NDArray[np.int32],
    host_flags: NDArray[np.uint16],
    host_marks: NDArray[np.uint8],
    host_count: NDArray[np.uint32],
    host_budget: NDArray[np.uint32],
    host_cap: NDArray[np.uint16],
    host_held: NDArray[np.int32],
    totals: NDArray[np.uint64],
    keep: NDArray[np.uint8],
) -> None:
    """Admit URLs in order; keep[i] = 0 for one that was admitted before, which must not happen."""
    for i in range(rows.size):
        row = rows[i]
        if flags[row] & ADMITTED:
            totals[REPEATED] += np.uint64(1)
            keep[i] = 0
            continue
        keep[i] = 1
        depth[row] = min(depth[row], in_depth[i])
        _admit_one(
            row, hosts[i], flags, marks, reason, depth, next_held, url_host,
            host_flags, host_marks, host_count, host_budget, host_cap, host_held,
        )  # fmt: skip


@inline_kernel
def _vouch(
    host: int,
    at: np.uint32,
    host_flags: NDArray[np.uint16],
    host_marks: NDArray[np.uint8],
    host_vouched_at: NDArray[np.uint64],
    host_budget: NDArray[np.uint32],
) -> None:
    """Vouch for a host at a time, unless something later was said."""
    moment = np.uint64(at) + np.uint64(1)
    if moment > host_vouched_at[host]:
        host_vouched_at[host] = moment
        host_marks[host] |= HOST_DIRTY
        if not host_flags[host] & VOUCHED:
            host_flags[host] |= VOUCHED
            host_marks[host] |= HOST_STEPPED | HOST_JUDGE
            if not host_flags[host] & BUDGET_SET:
                host_budget[host] = np.uint32(0)


@inline_kernel
def _mint(
    row: int,
    units: np.uint64,
    cash: NDArray[np.uint64],
    flags: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    totals: NDArray[np.uint64],
) -> None:
    """New cash for a URL; refused where the total would pass 2^63."""
    if totals[MINTED] + units > _MINT_LIMIT:
        totals[REFUSED] += np.uint64(1)
    elif units > _ZERO:
        cash[row] += units
        totals[HELD] += units
        totals[MINTED] += units
        marks[row] |= CHANGED
        if not flags[row] & KNOWN:
            flags[row] |= KNOWN
            totals[KNOWN_URLS] += np.uint64(1)


@kernel
def seed_rows(
    rows: NDArray[np.int64],
    hosts: NDArray[np.int64],
    observed_at: NDArray[np.uint32],
    units: NDArray[np.uint64],
    new: NDArray[np.uint8],
    later: NDArray[np.uint8],
    cash: NDArray[np.uint64],
    flags: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    reason: NDArray[np.uint8],
    depth: NDArray[np.uint16],
    next_held: NDArray[np.int32],
    url_host: NDArray[np.int32],
    host_flags: NDArray[np.uint16],
    host_marks: NDArray[np.uint8],
    host_count: NDArray[np.uint32],
    host_budget: NDArray[np.uint32],
    host_cap: NDArray[np.uint16],
    host_held: NDArray[np.int32],
    host_vouched_at: NDArray[np.uint64],
    totals: NDArray[np.uint64],
    admitted: NDArray[np.uint8],
) -> None:
    """Seeds in order: vouch, admit what dedup marked new, mint for one observed later than the last.

    `later[i]` says whether the seed is observed later than the URL's last; admitted[i] = 1 where it was admitted.
    """
    for i in range(rows.size):
        row = rows[i]
        host = hosts[i]
        url_host[row] = host
        _vouch(host, observed_at[i], host_flags, host_marks, host_vouched_at, host_budget)
        admitted[i] = 0
        if new[i] and not flags[row] & ADMITTED:
            admitted[i] = 1
            depth[row] = np.uint16(0)
            _admit_one(
                row, host, flags, marks, reason, depth, next_held, url_host,
                host_flags, host_marks, host_count, host_budget, host_cap, host_held,
            )  # fmt: skip
        elif new[i]:
            totals[REPEATED] += np.uint64(1)
        if later[i]:
            _mint(row, units[i], cash, flags, marks, totals)
            if depth[row] != 0:
                depth[row] = np.uint16(0)
                marks[row] |= DEPTH_CHANGED
            marks[row] |= CHANGED | TOUCHED


@kernel
def apply_visits(
    rows: NDArray[np.int64],
    hosts: NDArray[np.int64],
    host_keys: NDArray[np.uint64],
    fetched_at: NDArray[np.uint32],
    status: NDArray[np.uint16],
    error: NDArray[np.uint8],
    stated_depth: NDArray[np.uint16],
    redirects: NDArray[np.uint8],
    target_offsets: NDArray[np.int32],
    target_host: NDArray[np.uint64],
    target_path: NDArray[np.uint64],
    cash: NDArray[np.uint64],
    history: NDArray[np.uint64],
    last_visit: NDArray[np.uint64],
    flags: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    reason: NDArray[np.uint8],
    depth: NDArray[np.uint16],
    next_held: NDArray[np.int32],
    url_host: NDArray[np.int32],
    host_flags: NDArray[np.uint16],
    host_marks: NDArray[np.uint8],
    host_count: NDArray[np.uint32],
    host_budget: NDArray[np.uint32],
    host_held: NDArray[np.int32],
    host_vouched_at: NDArray[np.uint64],
    totals: NDArray[np.uint64],
    teleport: np.uint64,
    discount: np.uint64,
    fresh: NDArray[np.uint8],
    credit_slots: NDArray[np.int32],
    credit_host: NDArray[np.uint64],
    credit_path: NDArray[np.uint64],
    credit_units: NDArray[np.uint64],
    credit_depth: NDArray[np.uint16],
    credit_count: NDArray[np.int64],
    vote_slots: NDArray[np.int32],
    vote_host: NDArray[np.uint64],
    vote_source: NDArray[np.uint64],
    vote_count: NDArray[np.int64],
) -> None:
    """Visits in order: mint for a stated depth 0, drop what is stale, pay the targets, sum the step's credits.

    Credits are summed per target and votes made distinct over the step, in the tables that the caller keeps for it
    (slots hold row + 1 or 0). fresh[i] = 1 where the visit counts.
    """
    credit_mask = np.uint64(credit_slots.size - 1)
    vote_mask = np.uint64(vote_slots.size - 1)
    for i in range(rows.size):
        row = rows[i]
        host = hosts[i]
        fresh[i] = 0
        url_host[row] = host
        marks[row] |= TOUCHED
        if stated_depth[i] == 0:
            _vouch(host, fetched_at[i], host_flags, host_marks, host_vouched_at, host_budget)
            if not flags[row] & STARTED:
                flags[row] |= STARTED
                marks[row] |= CHANGED
                _mint(row, _ONE_CASH, cash, flags, marks, totals)
        moment = np.uint64(fetched_at[i]) + np.uint64(1)
        if moment <= last_visit[row]:
            totals[STALE] += np.uint64(1)
            continue
        fresh[i] = 1
        last_visit[row] = moment
        marks[row] |= CHANGED
        totals[VISITS] += np.uint64(1)
        if not flags[row] & KNOWN:
            flags[row] |= KNOWN
            totals[KNOWN_URLS] += np.uint64(1)
        if stated_depth[i] < depth[row]:
            depth[row] = stated_depth[i]
            marks[row] |= DEPTH_CHANGED
        if reason[row] != 0:
            # Fetched all the same: it is no longer held back, and counts.
            reason[row] = np.uint8(0)
            host_count[host] += np.uint32(1)
            host_marks[host] |= HOST_DIRTY | HOST_STEPPED
        if status[i] == 0 and error[i] == _ROBOTS:
            flags[row] |= EXCLUDED
            if not flags[row] & LISTED:
                flags[row] |= LISTED
                next_held[row] = host_held[host]
                host_held[host] = row
        elif flags[row] & EXCLUDED:
            flags[row] &= ~EXCLUDED
        good = status[i] >= 200 and status[i] < 300
        if not good and not redirects[i]:
            continue
        start = target_offsets[i]
        end = target_offsets[i + 1]
        held = cash[row]
        kept = _times(history[row], discount)
        history[row] = kept + held
        if history[row] < kept:
            history[row] = ~_ZERO
        share = _ZERO
        if end > start:
            share = (held - _times(held, teleport)) // np.uint64(end - start)
        paid = share * np.uint64(end - start)
        cash[row] = _ZERO
        totals[HELD] -= held
        totals[POOL] += held - paid
        totals[SENT] += paid
        far = depth[row]
        if far != _NO_DEPTH and not redirects[i]:
            far = min(far, np.uint16(0xFFFD)) + np.uint16(1)
        for t in range(start, end):
            a = target_host[t]
            b = target_path[t]
            if share != _ZERO or far != _NO_DEPTH:
                if t + _AHEAD < end:
                    ahead = spread(target_path[t + _AHEAD]) ^ target_host[t + _AHEAD]
                    prefetch(credit_slots, np.int64(ahead & credit_mask))
                at = (spread(b) ^ a) & credit_mask
                while True:
                    credit = credit_slots[np.int64(at)] - 1
                    if credit < 0:
                        credit = credit_count[0]
                        credit_count[0] = credit + 1
                        credit_slots[np.int64(at)] = credit + 1
                        credit_host[credit] = a
                        credit_path[credit] = b
                        credit_units[credit] = share
                        credit_depth[credit] = far
                        break
                    if credit_path[credit] == b and credit_host[credit] == a:
                        credit_units[credit] += share
                        credit_depth[credit] = min(credit_depth[credit], far)
                        break
                    at = (at + np.uint64(1)) & credit_mask
            if good and a != host_keys[i]:
                at = (spread(host_keys[i]) ^ a) & vote_mask
                while True:
                    vote = vote_slots[np.int64(at)] - 1
                    if vote < 0:
                        vote = vote_count[0]
                        vote_count[0] = vote + 1
                        vote_slots[np.int64(at)] = vote + 1
                        vote_host[vote] = a
                        vote_source[vote] = host_keys[i]
                        break
                    if vote_host[vote] == a and vote_source[vote] == host_keys[i]:
                        break
                    at = (at + np.uint64(1)) & vote_mask


@kernel
def apply_credits(
    rows: NDArray[np.int64],
    units: NDArray[np.uint64],
    in_depth: NDArray[np.uint16],
    cash: NDArray[np.uint64],
    flags: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    reason: NDArray[np.uint8],
    depth: NDArray[np.uint16],
    url_host: NDArray[np.int32],
    host_marks: NDArray[np.uint8],
    host_count: NDArray[np.uint32],
    host_budget: NDArray[np.uint32],
    host_cap: NDArray[np.uint16],
    totals: NDArray[np.uint64],
) -> None:
    """Credits in order: cash, least depth; a URL parked for its depth is judged again when that falls."""
    for i in range(rows.size):
        row = rows[i]
        marks[row] |= CHANGED | TOUCHED
        if units[i] != _ZERO:
            cash[row] += units[i]
            totals[HELD] += units[i]
            totals[RECEIVED] += units[i]
            if not flags[row] & KNOWN:
                flags[row] |= KNOWN
                totals[KNOWN_URLS] += np.uint64(1)
        if in_depth[i] < depth[row]:
            depth[row] = in_depth[i]
            marks[row] |= DEPTH_CHANGED
            host = url_host[row]
            if reason[row] == _DEPTH and depth[row] <= host_cap[host]:
                if host_budget[host] > 0 and host_count[host] >= host_budget[host]:
                    reason[row] = _BUDGET
                else:
                    reason[row] = np.uint8(0)
                    host_count[host] += np.uint32(1)
                    host_marks[host] |= HOST_DIRTY | HOST_STEPPED
                    marks[row] |= RELEASED


@kernel
def judge_rows(
    rows: NDArray[np.int64],
    url_host: NDArray[np.int32],
    cash: NDArray[np.uint64],
    history: NDArray[np.uint64],
    depth: NDArray[np.uint16],
    flags: NDArray[np.uint8],
    marks: NDArray[np.uint8],
    sent: NDArray[np.float32],
    rank: NDArray[np.float32],
    ranked: NDArray[np.uint64],
    host_flags: NDArray[np.uint16],
    host_score: NDArray[np.float32],
    totals: NDArray[np.uint64],
    weights: NDArray[np.float64],
    out_rows: NDArray[np.int64],
    out_fields: NDArray[np.uint8],
) -> int:
    """What the store must be told of the rows that a message touched, each row once; gives their number.

    Fields are those of `records.UpdateField`: priority where the level moved, depth and release where they did.
    """
    scale = _scale(totals)
    found = 0
    for i in range(rows.size):
        row = rows[i]
        mark = marks[row]
        if not mark & TOUCHED:
            continue
        marks[row] = mark & CHANGED
        if not flags[row] & ADMITTED:
            continue
        fields = np.uint8(0)
        now = _priority(row, url_host[row], cash, history, depth, rank, ranked, host_flags, host_score, totals, weights)
        if mark & RELEASED or _level(now, scale) != _level(sent[row], scale):
            fields |= np.uint8(1)
            sent[row] = now
            marks[row] |= CHANGED
        if mark & DEPTH_CHANGED:
            fields |= np.uint8(2)
        if mark & RELEASED:
            fields |= np.uint8(4)
        if fields:
            out_rows[found] = row
            out_fields[found] = fields
            found += 1
    return found


@kernel
def held_rows(
    host: int,
    flags: NDArray[np.uint8],
    reason: NDArray[np.uint8],
    next_held: NDArray[np.int32],
    host_held: NDArray[np.int32],
    parked: bool,
    out: NDArray[np.int64],
) -> int:
    """URLs of a host that are parked (or, if not `parked`, excluded by robots rules); gives their number.

    Those that are neither any more leave the host's list. `out` may be too short: then only the number counts.
    """
    found = 0
    before = -1
    row = host_held[host]
    while row >= 0:
        following = next_held[row]
        if reason[row] == 0 and not flags[row] & EXCLUDED:
            flags[row] &= ~LISTED
            if before < 0:
                host_held[host] = following
            else:
                next_held[before] = following
        else:
            if (reason[row] != 0) if parked else (flags[row] & EXCLUDED) != 0:
                if found < out.size:
                    out[found] = row
                found += 1
            before = row
        row = following
    return found
