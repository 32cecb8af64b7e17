"""Parts of partitions' states put together as those of other partitions, to the unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_prioritizer import layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_prioritizer.state import PartitionState

__all__ = ["take_over"]

_URL = ("cash", "history", "last_visit", "sent", "depth")
_HOST = ("vouched_at", "robots_at", "score_epoch", "budget", "count", "in_degree", "score", "depth_cap", "crawl_delay")
_EXTRA = ("seeded_at", "rank_epoch", "rank")
_OF_ROWS = (layout.HELD_CASH, layout.KNOWN_URLS)
"""Totals that are sums over URLs; the others are dealt out."""


def take_over(state: PartitionState, other: PartitionState, low: int, high: int, last: int) -> None:
    """Add to a state what another one has of the hosts from `low` to `high`, both included.

    The pool, and what has been counted, goes along in proportion to the URLs that share the pool, so that all parts of
    a state add up to it exactly. As after `recovery`, the result is to be saved and loaded.

    Args:
        state: of a partition under the same parameters; has none of these hosts yet.
        other: complete: nothing of it is on its way, neither credits nor continuations.
        low: least host key.
        high: greatest host key.
        last: greatest host key that the other partition owns.
    """
    key = other.hosts["key"]
    mine = np.flatnonzero((key >= np.uint64(low)) & (key <= np.uint64(high)))
    _deal_totals(state, other, low, high, last)
    hosts = state.locate_hosts(key[mine])
    new_host = np.full(len(other.hosts), -1, np.int64)
    new_host[mine] = hosts

    owner = other.urls["host"]
    rows = np.flatnonzero(new_host[owner] >= 0)
    urls = state.urls.locate(new_host[owner[rows]], np.ascontiguousarray(other.urls["path_key"][rows]))
    new_url = np.full(len(other.urls), -1, np.int64)
    new_url[rows] = urls
    for name in _URL:
        state.urls.records[name][urls] = other.urls[name][rows]
    state.urls.records["flags"][urls] = other.urls["flags"][rows] & np.uint16(layout.SAVED_URL_FLAGS)
    state.totals[layout.HELD_CASH] += other.urls["cash"][rows].sum(dtype=np.uint64)
    state.totals[layout.KNOWN_URLS] += np.uint64(np.count_nonzero(other.urls["flags"][rows] & layout.KNOWN))

    special = np.flatnonzero(new_url[other.extras["key"].astype(np.int64)] >= 0)
    extras = state.extras.locate(new_url[other.extras["key"][special].astype(np.int64)].astype(np.uint64))
    for name in _EXTRA:
        state.extras.records[name][extras] = other.extras[name][special]

    state.sources.take_over(other.sources, other.hosts, state.hosts, new_host, state.budget_rule)
    for name in _HOST:
        state.hosts.records[name][hosts] = other.hosts[name][mine]
    state.hosts.records["flags"][hosts] = other.hosts["flags"][mine]
    for word, at in other.controls.items():
        if low <= word[0] <= high:
            state.controls[word] = at


def _deal_totals(state: PartitionState, other: PartitionState, low: int, high: int, last: int) -> None:
    """Add the part of the totals that goes with a range of hosts."""
    key = other.hosts["key"][other.urls["host"]]
    known = (other.urls["flags"] & layout.KNOWN) != 0
    whole = int(np.count_nonzero(known))
    before, upto = (int(np.count_nonzero(known & side)) for side in _sides(key, low, high))
    if not whole:
        # Nobody shares the pool: whoever has the end of the range gets it all.
        whole, before, upto = 1, 0, int(low <= last <= high)
    for place in range(len(layout.TOTALS)):
        if place not in _OF_ROWS:
            total = int(other.totals[place])
            state.totals[place] += np.uint64(total * upto // whole - total * before // whole)


def _sides(key: NDArray[np.uint64], low: int, high: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    return key < np.uint64(low), key <= np.uint64(high)
