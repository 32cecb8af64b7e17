"""State made from what the store knows: for a campaign whose URLs did not come through the inbox.

Records hold no cash and no in-degrees: cash is 0 everywhere, and hosts earn their budgets anew. What was decided stays
decided: URLs that are parked stay so, others count against their host's budget, however many they are. The rows are
as `saving` writes them; lists of URLs held back are made when the snapshot is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.records import ParkReason
from meguri_prioritizer import layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_prioritizer.state import PartitionState

__all__ = ["recover_hosts", "recover_urls"]


def recover_urls(
    state: PartitionState,
    host_key: NDArray[np.uint64],
    path_key: NDArray[np.uint64],
    *,
    depth: NDArray[np.uint16],
    priority: NDArray[np.float32],
    reason: NDArray[np.uint8],
    last_visit: NDArray[np.uint32],
    excluded: NDArray[np.bool_],
) -> None:
    """Take over admitted URLs, each once; columns (n,).

    Args:
        state: of the partition.
        host_key: of the URLs.
        path_key: of the URLs.
        depth: least known one.
        priority: the one that the store knows.
        reason: why parked (`records.ParkReason`).
        last_visit: epoch seconds; 0 = never. A visit that isn't later is stale.
        excluded: whether robots rules forbade the last visit.
    """
    rows = state.locate(host_key, path_key)
    visited = last_visit > 0
    flags = np.uint16(layout.ADMITTED | layout.CHANGED) | (reason.astype(np.uint16) << layout.REASON_SHIFT)
    flags |= np.where(visited, np.uint16(layout.VISITED | layout.KNOWN), np.uint16(0))
    flags |= np.where(excluded, np.uint16(layout.EXCLUDED), np.uint16(0))
    urls, hosts = state.urls.records, state.hosts.records
    urls["flags"][rows] = flags
    urls["depth"][rows] = depth
    urls["sent"][rows] = priority
    urls["last_visit"][rows] = last_visit
    state.totals[layout.KNOWN_URLS] += np.uint64(np.count_nonzero(visited))
    owners = urls["host"][rows]
    hosts["flags"][owners] |= layout.ANNOUNCED
    hosts["marks"][owners] |= layout.HOST_DIRTY
    counted = owners[reason == ParkReason.NONE]
    hosts["count"][: len(state.hosts)] += np.bincount(counted, minlength=len(state.hosts)).astype(np.uint32)


def recover_hosts(
    state: PartitionState,
    host_key: NDArray[np.uint64],
    *,
    flags: NDArray[np.uint16],
    depth_cap: NDArray[np.uint16],
    score: NDArray[np.float32],
    crawl_delay: NDArray[np.uint16],
) -> None:
    """Take over what is known of hosts; columns (n,).

    A vouch or a score that the campaign is told later counts, whenever it was said.

    Args:
        state: of the partition.
        host_key: of the hosts.
        flags: `records.HostFlag` bits.
        depth_cap: greatest depth that is admitted; 0 = unlimited.
        score: reputation.
        crawl_delay: deciseconds that an operator has set, or `records.CRAWL_DELAY_UNSET`.
    """
    rows = state.locate_hosts(host_key)
    hosts = state.hosts.records
    hosts["flags"][rows] |= flags & np.uint16(layout.RECORD_FLAGS)
    hosts["depth_cap"][rows] = depth_cap
    hosts["score"][rows] = score
    hosts["crawl_delay"][rows] = crawl_delay
    hosts["marks"][rows] |= layout.HOST_DIRTY
