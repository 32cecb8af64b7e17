"""Kernels that admit and park, vouch and mint: admissions, seeds, credits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.kernels.jit import kernel
from meguri_common.kernels.memory import prefetch
from meguri_prioritizer.layout import (
    ADMITTED,
    ANNOUNCED,
    ASKED,
    BUDGET_SET,
    CHANGED,
    DEPTH_CHANGED,
    HELD_CASH,
    HOST_ASKED,
    HOST_DIRTY,
    HOST_STEPPED,
    KNOWN,
    KNOWN_URLS,
    LISTED,
    MINTED,
    REASON_SHIFT,
    RECEIVED,
    REFUSED,
    RELEASED,
    REPEATED,
    STEPPED,
    TOUCHED,
    VOUCHED,
    integer,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "admit_rows",
    "apply_credits",
    "ask",
    "know",
    "list_url",
    "lower_depth",
    "mint",
    "move_reason",
    "note",
    "seed_rows",
    "vouch",
]

_0 = np.uint64(0)
_1 = np.uint64(1)
_NO_DEPTH = 0xFFFF
_DEPTH, _BUDGET = 1, 2  # records.ParkReason
_AHEAD = 12
"""Rows between asking for a record's cache line and using it."""
_BITS_BELOW = (1 << REASON_SHIFT) - 1


@kernel
def note(host: int, hosts: NDArray[Any], queue: NDArray[np.int32], queued: NDArray[np.int64]) -> None:
    """The store is told of this host at the end of the step."""
    marks = hosts[host].marks
    if not marks & HOST_STEPPED:
        queue[STEPPED, queued[STEPPED]] = host
        queued[STEPPED] += 1
    hosts[host].marks = marks | HOST_DIRTY | HOST_STEPPED


@kernel
def ask(host: int, hosts: NDArray[Any], queue: NDArray[np.int32], queued: NDArray[np.int64]) -> None:
    """What this host holds back is looked at, at the end of the message."""
    marks = hosts[host].marks
    if not marks & HOST_ASKED:
        queue[ASKED, queued[ASKED]] = host
        queued[ASKED] += 1
        hosts[host].marks = marks | HOST_ASKED


@kernel
def _verdict(depth: int, cap: int, count: int, budget: int) -> int:
    """See `admission.admit`; a depth that nobody has stated passes the cap."""
    if cap > 0 and depth != _NO_DEPTH and depth > cap:
        return _DEPTH
    if budget > 0 and count >= budget:
        return _BUDGET
    return 0


@kernel
def move_reason(row: int, reason: int, urls: NDArray[Any], hosts: NDArray[Any]) -> None:
    """Set why a URL is parked (0: it isn't), and keep its host's counts of those."""
    flags = integer(urls[row].flags)
    host = urls[row].host
    before = flags >> REASON_SHIFT
    if before == _DEPTH:
        hosts[host].held_depth -= 1
    elif before == _BUDGET:
        hosts[host].held_budget -= 1
    if reason == _DEPTH:
        hosts[host].held_depth += 1
    elif reason == _BUDGET:
        hosts[host].held_budget += 1
    urls[row].flags = (flags & _BITS_BELOW) | (reason << REASON_SHIFT) | CHANGED


@kernel
def list_url(
    row: int, urls: NDArray[Any], hosts: NDArray[Any], held: NDArray[Any], held_meta: NDArray[np.int64]
) -> None:
    """Put a URL on its host's list of those held back. `held_meta` is entries ever used, and the first free one."""
    if urls[row].flags & LISTED:
        return
    urls[row].flags |= LISTED
    entry = held_meta[1]
    if entry >= 0:
        held_meta[1] = held[entry].next
    else:
        entry = held_meta[0]
        held_meta[0] = entry + 1
    host = urls[row].host
    held[entry].url = row
    held[entry].next = hosts[host].held_first
    hosts[host].held_first = entry


@kernel
def _verdict_at(depth: int, host: int, hosts: NDArray[Any]) -> int:
    record = hosts[host]
    return _verdict(depth, integer(record.depth_cap), integer(record.count), integer(record.budget))


@kernel
def _admit(
    row: int,
    urls: NDArray[Any],
    hosts: NDArray[Any],
    held: NDArray[Any],
    held_meta: NDArray[np.int64],
    queue: NDArray[np.int32],
    queued: NDArray[np.int64],
) -> None:
    """Schedule or park."""
    host = urls[row].host
    urls[row].flags |= ADMITTED | CHANGED
    hosts[host].flags |= ANNOUNCED
    if not hosts[host].marks & HOST_STEPPED:
        note(host, hosts, queue, queued)
    why = _verdict_at(integer(urls[row].depth), host, hosts)
    if why == 0:
        hosts[host].count += 1
    else:
        move_reason(row, why, urls, hosts)
        list_url(row, urls, hosts, held, held_meta)


@kernel
def lower_depth(
    row: int,
    depth: int,
    urls: NDArray[Any],
    hosts: NDArray[Any],
    queue: NDArray[np.int32],
    queued: NDArray[np.int64],
) -> None:
    """Take over a depth if it is less than the known one; a URL parked for its depth is judged again."""
    if depth >= integer(urls[row].depth):
        return
    urls[row].depth = depth
    urls[row].flags |= CHANGED | DEPTH_CHANGED | TOUCHED
    if integer(urls[row].flags) >> REASON_SHIFT != _DEPTH:
        return
    host = urls[row].host
    why = _verdict_at(depth, host, hosts)
    move_reason(row, why, urls, hosts)
    if why == 0:
        urls[row].flags |= RELEASED
        hosts[host].count += 1
        note(host, hosts, queue, queued)


@kernel
def vouch(host: int, at: int, hosts: NDArray[Any], queue: NDArray[np.int32], queued: NDArray[np.int64]) -> None:
    """Vouch for a host at a time (epoch seconds), unless something as late was said."""
    moment = np.uint64(at) + _1
    if moment <= hosts[host].vouched_at:
        return
    hosts[host].vouched_at = moment
    hosts[host].marks |= HOST_DIRTY
    if hosts[host].flags & VOUCHED:
        return
    hosts[host].flags |= VOUCHED
    if not hosts[host].flags & BUDGET_SET:
        hosts[host].budget = 0
    note(host, hosts, queue, queued)
    ask(host, hosts, queue, queued)


@kernel
def know(row: int, urls: NDArray[Any], totals: NDArray[np.uint64]) -> None:
    """Count a URL among those that share the pool."""
    if not urls[row].flags & KNOWN:
        urls[row].flags |= KNOWN | CHANGED
        totals[KNOWN_URLS] += _1


@kernel
def mint(row: int, units: np.uint64, limit: np.uint64, urls: NDArray[Any], totals: NDArray[np.uint64]) -> None:
    """New cash for a URL; refused where the partition would have minted more than `limit`."""
    if units == _0:
        return
    if units > limit or totals[MINTED] > limit - units:
        totals[REFUSED] += _1
        return
    urls[row].cash += units
    urls[row].flags |= CHANGED
    totals[HELD_CASH] += units
    totals[MINTED] += units
    know(row, urls, totals)


@kernel
def admit_rows(
    rows: NDArray[np.int64],
    depth: NDArray[np.uint16],
    urls: NDArray[Any],
    hosts: NDArray[Any],
    held: NDArray[Any],
    held_meta: NDArray[np.int64],
    queue: NDArray[np.int32],
    queued: NDArray[np.int64],
    totals: NDArray[np.uint64],
    kept: NDArray[np.uint8],
) -> int:
    """Admit URLs in order, columns (n,); gives their number.

    kept[i] = 0 for one that was admitted before, which must not happen: counted, and nothing else.
    """
    admitted = 0
    for i in range(rows.size):
        row = rows[i]
        if urls[row].flags & ADMITTED:
            totals[REPEATED] += _1
            kept[i] = 0
            continue
        kept[i] = 1
        admitted += 1
        urls[row].depth = min(urls[row].depth, depth[i])
        # As `_admit`, without a call: arrays that are handed on are counted, at each row.
        host = integer(urls[row].host)
        urls[row].flags |= ADMITTED | CHANGED
        hosts[host].flags |= ANNOUNCED
        if not hosts[host].marks & HOST_STEPPED:
            note(host, hosts, queue, queued)
        cap, count, budget = integer(hosts[host].depth_cap), integer(hosts[host].count), integer(hosts[host].budget)
        why = _verdict(integer(urls[row].depth), cap, count, budget)
        if why == 0:
            hosts[host].count += 1
        else:
            move_reason(row, why, urls, hosts)
            list_url(row, urls, hosts, held, held_meta)
    return admitted


@kernel
def seed_rows(
    rows: NDArray[np.int64],
    extra_rows: NDArray[np.int64],
    observed_at: NDArray[np.uint32],
    units: NDArray[np.uint64],
    new: NDArray[np.uint8],
    mint_limit: np.uint64,
    extras: NDArray[Any],
    urls: NDArray[Any],
    hosts: NDArray[Any],
    held: NDArray[Any],
    held_meta: NDArray[np.int64],
    queue: NDArray[np.int32],
    queued: NDArray[np.int64],
    totals: NDArray[np.uint64],
    kept: NDArray[np.uint8],
    revived: NDArray[np.uint8],
) -> int:
    """Seeds in order, columns (n,): vouch, admit what dedup marked new, mint for one observed later than the last.

    Gives the number of admissions: those where kept[i] = 1. revived[i] = 1 for a later seed of a URL admitted before.
    """
    admitted = 0
    for i in range(rows.size):
        row = rows[i]
        extra = extra_rows[i]
        kept[i] = 0
        revived[i] = 0
        vouch(urls[row].host, integer(observed_at[i]), hosts, queue, queued)
        if new[i] and not urls[row].flags & ADMITTED:
            kept[i] = 1
            admitted += 1
            urls[row].depth = 0
            _admit(row, urls, hosts, held, held_meta, queue, queued)
        elif new[i]:
            totals[REPEATED] += _1
        moment = np.uint64(observed_at[i]) + _1
        if moment <= extras[extra].seeded_at:
            continue
        extras[extra].seeded_at = moment
        extras[extra].marks = 1
        urls[row].flags |= TOUCHED
        mint(row, units[i], mint_limit, urls, totals)
        lower_depth(row, 0, urls, hosts, queue, queued)
        if urls[row].flags & ADMITTED and not kept[i]:
            revived[i] = 1
    return admitted


@kernel
def apply_credits(
    rows: NDArray[np.int64],
    units: NDArray[np.uint64],
    depth: NDArray[np.uint16],
    urls: NDArray[Any],
    hosts: NDArray[Any],
    queue: NDArray[np.int32],
    queued: NDArray[np.int64],
    totals: NDArray[np.uint64],
) -> None:
    """Credits in order, columns (n,): cash, and the least depth."""
    received = _0
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(urls, rows[i + _AHEAD])
        row = rows[i]
        flags = integer(urls[row].flags)
        if units[i] != _0:
            urls[row].cash += units[i]
            received += units[i]
            if not flags & KNOWN:
                totals[KNOWN_URLS] += _1
            urls[row].flags = flags | KNOWN | CHANGED | TOUCHED
        else:
            urls[row].flags = flags | TOUCHED
        if depth[i] < urls[row].depth:
            lower_depth(row, integer(depth[i]), urls, hosts, queue, queued)
    totals[RECEIVED] += received
    totals[HELD_CASH] += received
