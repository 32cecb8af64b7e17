"""Character classes of `terms/1`, unpacked from the checked-in tables."""

from __future__ import annotations

import re
from functools import cache

from meguri_common.content.unicode_tables import RUNS

__all__ = ["IGNORED", "MARK", "PAIRED", "SEPARATOR", "SYMBOL", "WORD", "class_table", "unassigned"]

SEPARATOR = 0
IGNORED = 1
WORD = 2
PAIRED = 3
"""A character of a script written without spaces."""
MARK = 4
SYMBOL = 5

_CODES = {
    "S": SEPARATOR,
    "U": SEPARATOR,
    "I": IGNORED,
    "W": WORD,
    "P": PAIRED,
    "M": MARK,
    "Y": SYMBOL,
    "V": SYMBOL,
}
_UNASSIGNED = "UV"


def _runs() -> list[tuple[str, int]]:
    return [(letter, int(length)) for letter, length in re.findall(r"([A-Z])(\d+)", RUNS)]


@cache
def class_table() -> bytes:
    """The class of every code point, one byte each (1,114,112 bytes)."""
    return b"".join(bytes([_CODES[letter]]) * length for letter, length in _runs())


@cache
def unassigned() -> re.Pattern[str]:
    """Finds runs of characters that the tables' Unicode version hasn't assigned; one group, for `split`."""
    ranges: list[str] = []
    first = 0
    for letter, length in _runs():
        if letter in _UNASSIGNED:
            ranges.append(f"{re.escape(chr(first))}-{re.escape(chr(first + length - 1))}")
        first += length
    return re.compile(f"([{''.join(ranges)}]+)")
