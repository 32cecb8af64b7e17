"""The kernel of visits: what is stale, what mints, and what a page pays to its targets.

Money is unsigned 64-bit fixed point; products with rates of at most 2^32 are taken in two halves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.kernels.jit import kernel
from meguri_common.kernels.memory import prefetch
from meguri_prioritizer.kernels.admission import know, list_url, lower_depth, mint, move_reason, note, vouch
from meguri_prioritizer.kernels.index import mix
from meguri_prioritizer.layout import (
    ADMITTED,
    CHANGED,
    EXCLUDED,
    HELD_CASH,
    POOL,
    REASON_SHIFT,
    SENT,
    STALE,
    STARTED,
    TOUCHED,
    VISITED,
    VISITS,
    integer,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["apply_visits"]

_0 = np.uint64(0)
_1 = np.uint64(1)
_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_MOST = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE_CASH = np.uint64(1 << 32)
_NO_DEPTH = 0xFFFF
_DEEPEST = 0xFFFE
_ROBOTS = 5  # records.FetchError
_AHEAD = 8
"""Links between asking for an index slot's cache line and using it."""


@kernel
def _times(amount: np.uint64, rate: np.uint64) -> np.uint64:
    """floor(amount * rate / 2^32) for a rate of at most 2^32."""
    return (amount >> _32) * rate + (((amount & _LOW) * rate) >> _32)


@kernel
def _exclude(
    row: int, forbidden: bool, urls: NDArray[Any], hosts: NDArray[Any], held: NDArray[Any], held_meta: NDArray[np.int64]
) -> None:
    """Keep whether robots rules exclude a URL."""
    host = urls[row].host
    excluded = (urls[row].flags & EXCLUDED) != 0
    if forbidden and not excluded:
        urls[row].flags |= EXCLUDED
        hosts[host].held_robots += 1
        list_url(row, urls, hosts, held, held_meta)
    elif excluded and not forbidden:
        urls[row].flags ^= EXCLUDED
        hosts[host].held_robots -= 1


@kernel
def apply_visits(
    rows: NDArray[np.int64],
    host_keys: NDArray[np.uint64],
    fetched_at: NDArray[np.uint32],
    status: NDArray[np.uint16],
    error: NDArray[np.uint8],
    depth: NDArray[np.uint16],
    redirected: NDArray[np.bool_],
    target_offsets: NDArray[np.int32],
    target_host: NDArray[np.uint64],
    target_path: NDArray[np.uint64],
    teleport: np.uint64,
    discount: np.uint64,
    mint_limit: np.uint64,
    urls: NDArray[Any],
    hosts: NDArray[Any],
    held: NDArray[Any],
    held_meta: NDArray[np.int64],
    queue: NDArray[np.int32],
    queued: NDArray[np.int64],
    totals: NDArray[np.uint64],
    told: NDArray[np.bool_],
    credit_slots: NDArray[np.uint32],
    credits: NDArray[Any],  # noqa: A002 - the field's word; the interpreter's greeting isn't used in kernels
    credit_count: NDArray[np.int64],
    vote_slots: NDArray[np.uint32],
    votes: NDArray[Any],
    vote_count: NDArray[np.int64],
) -> None:
    """Visits in order, columns (n,); targets of visit i are target_offsets[i] to target_offsets[i + 1].

    Credits are summed per target and votes made distinct over the step, in tables that have room for all targets.
    told[i]: the visit counts and its URL has been admitted, so that the store is to hear of it.

    Args:
        rows: the pages.
        host_keys: of the pages.
        fetched_at: epoch seconds; one that isn't later than the page's last is stale.
        status: HTTP status; 0 = no response.
        error: `records.FetchError`.
        depth: as stated by the fetcher.
        redirected: a redirect status with a target of the frontier, which is the one target of the row.
        target_offsets: shape (n + 1,).
        target_host: keys of the targets.
        target_path: keys of the targets.
        teleport: rate, units.
        discount: rate, units.
        mint_limit: what the partition may mint, units.
        urls: the table.
        hosts: the table.
        held: entries of the lists of URLs held back.
        held_meta: entries used, first free one.
        queue: hosts that changed.
        queued: their numbers.
        totals: of the partition.
        told: out.
        credit_slots: index of the step's credits.
        credits: the step's credits.
        credit_count: their number.
        vote_slots: index of the step's votes.
        votes: the step's votes.
        vote_count: their number.
    """
    credit_mask = np.uint64(credit_slots.size - 1)
    vote_mask = np.uint64(vote_slots.size - 1)
    for i in range(rows.size):
        row = rows[i]
        host = urls[row].host
        told[i] = False
        urls[row].flags |= TOUCHED
        if depth[i] == 0:
            vouch(host, integer(fetched_at[i]), hosts, queue, queued)
            if not urls[row].flags & STARTED:
                urls[row].flags |= STARTED | CHANGED
                mint(row, _ONE_CASH, mint_limit, urls, totals)
        if urls[row].flags & VISITED and fetched_at[i] <= urls[row].last_visit:
            totals[STALE] += _1
            continue
        told[i] = (urls[row].flags & ADMITTED) != 0
        urls[row].last_visit = fetched_at[i]
        urls[row].flags |= VISITED | CHANGED
        totals[VISITS] += _1
        know(row, urls, totals)
        if integer(urls[row].flags) >> REASON_SHIFT:
            # Fetched all the same: it is no longer held back, and counts. The store sees that by the visit.
            move_reason(row, 0, urls, hosts)
            hosts[host].count += 1
            note(host, hosts, queue, queued)
        lower_depth(row, integer(depth[i]), urls, hosts, queue, queued)
        _exclude(row, error[i] == _ROBOTS, urls, hosts, held, held_meta)
        good = 200 <= status[i] < 300
        if not good and not redirected[i]:
            continue
        start = integer(target_offsets[i])
        end = integer(target_offsets[i + 1])
        cash = urls[row].cash
        kept = _times(urls[row].history, discount)
        urls[row].history = kept + cash if kept + cash >= kept else _MOST
        share = _0
        if end > start:
            share = (cash - _times(cash, teleport)) // np.uint64(end - start)
        paid = share * np.uint64(end - start)
        urls[row].cash = _0
        totals[HELD_CASH] -= cash
        totals[POOL] += cash - paid
        totals[SENT] += paid
        far = integer(urls[row].depth)
        if far != _NO_DEPTH and good:
            far = min(far + 1, _DEEPEST)
        counted = share != _0 or far != _NO_DEPTH
        voted = host_keys[i]
        for t in range(start, end):
            first = target_host[t]
            second = target_path[t]
            if counted:
                if t + _AHEAD < end:
                    ahead = mix(target_host[t + _AHEAD], target_path[t + _AHEAD]) & credit_mask
                    prefetch(credit_slots, integer(ahead))
                hashed = mix(first, second)
                check = (hashed >> _32) & ~credit_mask
                at = hashed & credit_mask
                while True:
                    slot = np.uint64(credit_slots[integer(at)])
                    if slot == _0:
                        pair = credit_count[0]
                        credit_count[0] = pair + 1
                        credit_slots[integer(at)] = np.uint32(check | np.uint64(pair + 1))
                        credits[pair].first = first
                        credits[pair].second = second
                        credits[pair].units = share
                        credits[pair].depth = far
                        break
                    pair = integer(slot & credit_mask) - 1
                    checked = (slot & ~credit_mask) == check
                    if checked and credits[pair].second == second and credits[pair].first == first:
                        credits[pair].units += share
                        if far < integer(credits[pair].depth):
                            credits[pair].depth = far
                        break
                    at = (at + _1) & credit_mask
            # Links of a page come in runs of one host.
            if good and first != voted and first != host_keys[i]:
                voted = first
                hashed = mix(first, host_keys[i])
                check = (hashed >> _32) & ~vote_mask
                at = hashed & vote_mask
                while True:
                    slot = np.uint64(vote_slots[integer(at)])
                    if slot == _0:
                        pair = vote_count[0]
                        vote_count[0] = pair + 1
                        vote_slots[integer(at)] = np.uint32(check | np.uint64(pair + 1))
                        votes[pair].first = first
                        votes[pair].second = host_keys[i]
                        break
                    pair = integer(slot & vote_mask) - 1
                    if votes[pair].first == first and votes[pair].second == host_keys[i]:
                        break
                    at = (at + _1) & vote_mask
