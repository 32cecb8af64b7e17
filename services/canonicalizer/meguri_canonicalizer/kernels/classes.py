"""What each byte of a link is to the kernels, and the built-in tracking names as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meguri_canonicalizer.tracking import tracking_list

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ENCODED",
    "END",
    "HEX_VALUE",
    "HOST_BYTE",
    "PATH_CLASS",
    "PATH_SPECIAL",
    "PERCENT",
    "PLAIN",
    "QUERY_CLASS",
    "RELATIVE_SPECIAL",
    "REMOVED",
    "SCHEME_BYTE",
    "SEPARATOR",
    "TABLE_FIRST",
    "TABLE_OFFSETS",
    "UNRESERVED",
    "UPPER_HEX",
    "tracking_table",
]

PLAIN: Final = 0
"""Stands for itself."""
SEPARATOR: Final = 1
"""Ends a path segment, or a query pair."""
END: Final = 2
"""Ends the path, or the query."""
ENCODED: Final = 3
"""The parser writes its escape."""
PERCENT: Final = 4
REMOVED: Final = 5
"""Tab, LF, CR: the parser leaves them out, wherever they stand."""

_UPPER: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LOWER: Final = b"abcdefghijklmnopqrstuvwxyz"
_DIGITS: Final = b"0123456789"
_NOT_PRINTABLE: Final = bytes(range(0x21)) + bytes(range(0x7F, 0x100))
_LEFT_OUT: Final = b"\t\n\r"


def _table(*marks: tuple[int, bytes]) -> NDArray[np.uint8]:
    """A value for each byte, 0 unless stated; what comes later wins."""
    table = np.zeros(256, np.uint8)
    for value, octets in marks:
        table[np.frombuffer(octets, np.uint8)] = value
    return table


PATH_CLASS: Final = _table(
    (ENCODED, _NOT_PRINTABLE + b'"<>^`{}'), (SEPARATOR, b"/\\"), (END, b"?#"), (PERCENT, b"%"), (REMOVED, _LEFT_OUT)
)
PATH_SPECIAL: Final = np.where((PATH_CLASS == PLAIN) | (np.arange(256) == ord("/")), 0, 1).astype(np.uint8)
"""0: copied as it is within a path, unless it ends a dot segment."""
RELATIVE_SPECIAL: Final = PATH_SPECIAL | _table((1, b":"))
"""The same where a colon may end a scheme."""
QUERY_CLASS: Final = _table(
    (ENCODED, _NOT_PRINTABLE + b"\"<>'"), (SEPARATOR, b"&"), (END, b"#"), (PERCENT, b"%"), (REMOVED, _LEFT_OUT)
)
_SMALL: Final = _LOWER + _DIGITS + b"-_."
HOST_BYTE: Final = _table(
    *((octet, bytes([octet])) for octet in _SMALL), *((octet | 32, bytes([octet])) for octet in _UPPER)
)
"""What a byte of a plain host is written as; 0 for all that needs the parser."""
SCHEME_BYTE: Final = _table((1, _UPPER + _LOWER), (2, _DIGITS + b"+-."))
"""1: may begin a scheme; 2: may go on in one."""
UNRESERVED: Final = _table((1, _UPPER + _LOWER + _DIGITS + b"-._~"))
HEX_VALUE: Final = _table(
    *((255, bytes([octet])) for octet in range(256)),
    *((int(digit, 16), digit.encode()) for digit in "0123456789ABCDEFabcdef"),
)
"""Value of a hex digit; 255 for other bytes."""
UPPER_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


TABLE_FIRST: Final = 8 * 256
"""Where the first rows stand in the table of `tracking_table`."""
TABLE_OFFSETS: Final = TABLE_FIRST + 8 * 257
"""Where the positions of the names stand."""


def tracking_table() -> NDArray[np.uint8]:
    """The built-in tracking names in one block of memory, for kernels.

    Returns:
        Little-endian words: for each byte, which lengths (bit n: n bytes, fewer than 64) the names have that begin with
        it; from TABLE_FIRST for each byte and one more, the row of the first name that doesn't begin with a lesser
        byte; from TABLE_OFFSETS for each row and one more, where its name begins in the block; then the names.
    """
    names = sorted(tracking_list().names)
    lengths = np.zeros(256, np.uint64)
    for name in names:
        lengths[name[0]] |= np.uint64(1 << len(name))
    first = np.searchsorted(np.array([name[0] for name in names]), np.arange(257)).astype(np.int64)
    offsets = np.cumsum([TABLE_OFFSETS + 8 * (len(names) + 1), *map(len, names)]).astype(np.int64)
    return np.frombuffer(bytearray(lengths.tobytes() + first.tobytes() + offsets.tobytes() + b"".join(names)), np.uint8)
