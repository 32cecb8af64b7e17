"""Bits and positions that kernels and the code around them share."""

from __future__ import annotations

import numpy as np

__all__ = [
    "ADMITTED",
    "ANNOUNCED",
    "BUDGET_SET",
    "CHANGED",
    "DEPTH_CHANGED",
    "EXCLUDED",
    "HELD",
    "KNOWN",
    "POOL",
    "RECEIVED",
    "RELEASED",
    "RELEASING",
    "SENT",
    "STALE",
    "STARTED",
    "SUSPECT",
    "TOTALS",
    "TOUCHED",
    "VISITS",
    "VOUCHED",
    "WRITTEN_OFF",
]

# url.flags
ADMITTED = np.uint8(1)
KNOWN = np.uint8(2)
"""Shares the pool: seeded, credited with a unit, or visited."""
STARTED = np.uint8(4)
"""A page event has stated depth 0: minted once for ever."""
EXCLUDED = np.uint8(8)
"""The last visit was forbidden by robots rules."""
LISTED = np.uint8(16)
"""On its host's list of URLs held back (some there may no longer be)."""

# url.marks: what this snapshot and this message have seen
CHANGED = np.uint8(1)
"""Differs from the last snapshot."""
TOUCHED = np.uint8(2)
"""To be judged at the end of the message."""
DEPTH_CHANGED = np.uint8(4)
RELEASED = np.uint8(8)

# host.flags: the record's bits, and others above them
SUSPECT = np.uint16(1)
VOUCHED = np.uint16(16)
ANNOUNCED = np.uint16(256)
"""Has an admitted URL: the store may know of it."""
BUDGET_SET = np.uint16(512)
"""An operator has set the budget."""
RELEASING = np.uint16(1024)
"""A continuation row is on its way."""
HOST_DIRTY = np.uint8(1)
"""host.marks: differs from the last snapshot."""
HOST_STEPPED = np.uint8(2)
"""host.marks: changed in this step; the store is told at its end."""
HOST_JUDGE = np.uint8(4)
"""host.marks: its URLs held back are to be judged again at the end of the message."""

# positions in the totals
HELD, POOL, MINTED, SENT, RECEIVED, WRITTEN_OFF, KNOWN_URLS, VISITS, STALE, REFUSED, REPEATED = range(11)
TOTALS = (
    "held",
    "pool",
    "minted",
    "sent",
    "received",
    "written_off",
    "known",
    "visits",
    "stale_visits",
    "mints_refused",
    "admissions_repeated",
)
