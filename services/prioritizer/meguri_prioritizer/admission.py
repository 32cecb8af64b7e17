"""Whether a URL is scheduled or parked: depth cap first, then budget. Parked URLs are kept, never dropped."""

from __future__ import annotations

from meguri_common.records import ParkReason

__all__ = ["admit"]


def admit(depth: int, *, depth_cap: int, url_count: int, url_budget: int) -> ParkReason:
    """The first rule that speaks; `NONE` schedules.

    Args:
        depth: of the URL.
        depth_cap: of its host; 0 is unlimited. A depth equal to the cap is admitted.
        url_count: URLs of the host admitted so far, parked ones not counted.
        url_budget: of the host; 0 is unlimited. A count equal to the budget admits no more.
    """
    if depth_cap > 0 and depth > depth_cap:
        return ParkReason.DEPTH
    if url_budget > 0 and url_count >= url_budget:
        return ParkReason.BUDGET
    return ParkReason.NONE
