"""What each byte of a link is to the kernels, and the built-in tracking names as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

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
    "PERCENT",
    "PLAIN",
    "QUERY_CLASS",
    "REMOVED",
    "SCHEME_BYTE",
    "SEPARATOR",
    "UNRESERVED",
    "UPPER_HEX",
    "NameTable",
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


class NameTable(NamedTuple):
    """Names grouped by their first byte."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """(names + 1,), the names in byte order."""
    first: NDArray[np.int64]
    """(257,): names that begin with byte b are rows `first[b]` to `first[b + 1]`."""
    lengths: NDArray[np.uint64]
    """(256,): bit n is set if a name that begins with the byte has n bytes."""


def tracking_table() -> NameTable:
    """The built-in tracking names; each has fewer than 64 bytes."""
    names = sorted(tracking_list().names)
    offsets = np.cumsum([0, *map(len, names)]).astype(np.int64)
    lengths = np.zeros(256, np.uint64)
    for name in names:
        lengths[name[0]] |= np.uint64(1 << len(name))
    starts = np.array([name[0] for name in names], np.int64)
    return NameTable(
        np.frombuffer(b"".join(names), np.uint8).copy(),
        offsets,
        np.searchsorted(starts, np.arange(257)).astype(np.int64),
        lengths,
    )
