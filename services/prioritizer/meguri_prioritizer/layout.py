"""How records lie in memory, and the bits and positions that kernels and the code around them share.

One record a URL, so that a credit touches one cache line: 40 bytes, and 5 to 11 for the index. Fields of the tables are
strided numpy views (`urls["cash"]`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXTRA", "HELD", "HOST", "PAIR", "SKETCH_BITS", "TOTALS", "URL", "host_template", "integer", "url_template"]

integer = cast("Callable[[Any], int]", np.int64)
"""In kernels: a signed 64-bit number, whatever the width of the field."""

URL = np.dtype(
    [
        ("path_key", np.uint64),
        ("cash", np.uint64),
        ("history", np.uint64),
        ("host", np.int32),  # row of the host table
        ("last_visit", np.uint32),  # epoch seconds, if VISITED
        ("sent", np.float32),  # the priority that the store knows
        ("depth", np.uint16),
        ("flags", np.uint16),  # bits below; the park reason from REASON_SHIFT on
    ],
    align=True,
)
"""A URL known to the partition."""

HOST = np.dtype(
    [
        ("key", np.uint64),
        ("vouched_at", np.uint64),  # epoch seconds + 1 of the last word on it; 0 = none
        ("robots_at", np.uint64),  # epoch seconds + 1 of a change whose URLs are still to be revived; 0 = none
        ("score_epoch", np.uint64),  # epoch + 1 of the import; 0 = none
        ("budget", np.uint32),  # in force; 0 = unlimited
        ("count", np.uint32),  # admitted URLs that aren't parked
        ("in_degree", np.uint32),
        ("held_depth", np.uint32),  # URLs parked for their depth
        ("held_budget", np.uint32),  # URLs parked for want of budget
        ("held_robots", np.uint32),  # URLs that robots rules exclude
        ("held_first", np.int32),  # head of the list of URLs held back
        ("sources", np.int32),  # SKETCHED: row of the sketch; else where the block of sources begins
        ("score", np.float32),
        ("depth_cap", np.uint16),
        ("crawl_delay", np.uint16),
        ("flags", np.uint16),
        ("marks", np.uint8),
        ("room", np.uint8),  # sources that the block takes
    ],
    align=True,
)
"""A host group."""

EXTRA = np.dtype(
    [
        ("key", np.uint64),  # row of the URL
        ("seeded_at", np.uint64),  # epoch seconds + 1 of the last seed; 0 = none
        ("rank_epoch", np.uint64),  # epoch + 1 of the import; 0 = none
        ("rank", np.float32),
        ("marks", np.uint8),
    ],
    align=True,
)
"""What few URLs have: seeds and imported ranks."""

PAIR = np.dtype(
    [("first", np.uint64), ("second", np.uint64), ("units", np.uint64), ("depth", np.uint16)],
    align=True,
)
"""What a step sends: a credit (target's keys, units, depth), or a vote (target host, source host)."""

HELD = np.dtype([("url", np.int32), ("next", np.int32)])
"""An entry of a host's list of URLs held back."""

# url.flags
ADMITTED = 1
KNOWN = 2
"""Shares the pool: seeded, credited with a unit, or visited."""
STARTED = 4
"""A page event has stated depth 0: minted once for ever."""
EXCLUDED = 8
"""The last visit was forbidden by robots rules."""
LISTED = 16
"""On its host's list of URLs held back (some there may no longer be)."""
VISITED = 32
RANKED = 64
"""Has an imported rank."""
CHANGED = 128
"""Differs from the last snapshot."""
TOUCHED = 256
"""To be judged at the end of the message."""
DEPTH_CHANGED = 512
RELEASED = 1024
REASON_SHIFT = 12
SAVED_URL_FLAGS = ADMITTED | KNOWN | STARTED | EXCLUDED | VISITED | RANKED | (15 << REASON_SHIFT)

# host.flags: the record's bits (records.HostFlag), and others above them
SUSPECT = 1
VOUCHED = 16
RECORD_FLAGS = 255
ANNOUNCED = 256
"""Has an admitted URL: the store may know of it."""
BUDGET_SET = 512
"""An operator has set the budget."""
RELEASING = 1024
"""A continuation row is on its way."""
CAP_ROSE = 2048
"""Those parked for their depth are to be judged under a higher cap."""
SKETCHED = 4096
"""Its sources are counted by a sketch."""

# host.marks
HOST_DIRTY = 1
"""Differs from the last snapshot."""
HOST_STEPPED = 2
"""Changed in this step; the store is told at its end."""
HOST_ASKED = 4
"""What it holds back is to be looked at, at the end of the message."""

# rows of the queue of hosts
STEPPED, ASKED = 0, 1

# positions in the totals
HELD_CASH, POOL, MINTED, SENT, RECEIVED, WRITTEN_OFF, KNOWN_URLS, VISITS, STALE, REFUSED, REPEATED = range(11)
TOTALS = (
    "held",
    "pool",
    "minted",
    "sent",
    "received",
    "written_off",
    "known",
    "visits",
    "stale",
    "mints_refused",
    "admissions_repeated",
)

# positions in the weights
NORM, W_PAGERANK, W_OPIC_WITH_PAGE, W_HOST, W_OPIC_WITH_HOST, W_HOST_ONLY, SUSPECT_FACTOR, DECAY = range(8)

SKETCH_BITS = 10
"""A sketch has 2^10 registers."""


def url_template(no_depth: int) -> np.void:
    """A URL of which nothing is known yet."""
    record = np.zeros(1, URL)
    record["host"] = -1
    record["depth"] = no_depth
    template: np.void = record[0]
    return template


def host_template(budget: int, depth_cap: int, crawl_delay: int) -> np.void:
    """A host of which nothing is known yet."""
    record = np.zeros(1, HOST)
    record["budget"] = budget
    record["depth_cap"] = depth_cap
    record["crawl_delay"] = crawl_delay
    record["held_first"] = record["sources"] = -1
    template: np.void = record[0]
    return template
