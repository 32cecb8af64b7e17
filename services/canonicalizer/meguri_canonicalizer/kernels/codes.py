"""Bounds, codes and positions that the kernels of a batch and their caller agree on."""

from __future__ import annotations

from typing import Final

from meguri_common.records import LINK_REJECT_REASONS

__all__ = [
    "BASE_FIELDS",
    "BASE_FOLDER",
    "BASE_HOST",
    "BASE_LENGTH",
    "BASE_ORIGIN",
    "BASE_PATH",
    "BASE_START",
    "BASE_STATE",
    "DONE",
    "LONGEST_LINK",
    "LONGEST_URL",
    "NEEDS_HOSTS",
    "NEEDS_ROOM",
    "NEXT_ROW",
    "NO_BASE",
    "NO_BASE_GIVEN",
    "ODD_BASE",
    "ODD_ROWS",
    "PAGE",
    "PAGE_BYTES",
    "PAGE_USED",
    "SCHEME",
    "TOO_LONG",
    "TOO_MUCH",
    "USABLE_BASE",
    "WRITTEN",
]

LONGEST_URL: Final = 8192
"""Bytes of a canonical URL; longer ones are rejected."""
PAGE_BYTES: Final = 16 << 20
"""Once the URLs of a page's links have more bytes than this, its further links are rejected."""
LONGEST_LINK: Final = 16384
"""Longer links are left to the parser."""

SCHEME: Final = LINK_REJECT_REASONS.index("scheme") + 1
NO_BASE: Final = LINK_REJECT_REASONS.index("no_base") + 1
TOO_LONG: Final = LINK_REJECT_REASONS.index("too_long") + 1
TOO_MUCH: Final = LINK_REJECT_REASONS.index("too_much") + 1

BASE_START: Final = 0
BASE_ORIGIN: Final = 1
"""Length up to the slash that begins the path, this one included."""
BASE_FOLDER: Final = 2
"""Length up to the last slash of the path."""
BASE_PATH: Final = 3
"""Length without the query."""
BASE_LENGTH: Final = 4
BASE_HOST: Final = 5
"""Number of the host."""
BASE_STATE: Final = 6
BASE_FIELDS: Final = 7
NO_BASE_GIVEN: Final = 0
"""Links without a scheme are rejected."""
USABLE_BASE: Final = 1
ODD_BASE: Final = 2
"""Links without a scheme need the parser."""

NEXT_ROW: Final = 0
WRITTEN: Final = 1
ODD_ROWS: Final = 2
PAGE: Final = 3
PAGE_USED: Final = 4
"""Elements of the running state of `canonicalize_links`."""

DONE: Final = 0
NEEDS_ROOM: Final = 1
NEEDS_HOSTS: Final = 2
