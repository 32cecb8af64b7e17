"""The parts of a plain link, read and written byte by byte: authority, path, query.

Each function reads `data` from `at` to at most `end` and writes to `out` from `to`, which has room for three times as
many bytes and 16 more. It returns where it stopped reading and writing; NEEDS_PARSER or HAS_REMOVED in place of the
first if it can't decide. What it writes is what `canonicalize` writes under the default policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meguri_canonicalizer.kernels.classes import (
    ENCODED,
    END,
    HEX_VALUE,
    HOST_BYTE,
    PATH_CLASS,
    PERCENT,
    PLAIN,
    QUERY_CLASS,
    REMOVED,
    SEPARATOR,
    UNRESERVED,
    UPPER_HEX,
)
from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import load64, store64

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HAS_REMOVED", "LONGEST_HOST", "NEEDS_PARSER", "copy_bytes", "write_authority", "write_path", "write_query"]

NEEDS_PARSER: Final = -1
HAS_REMOVED: Final = -2
"""A tab or a line break stands in the link: it is to be read again without those."""
LONGEST_HOST: Final = 253
_ONE: Final = np.uint64(1)
_HEX_BASE: Final = 16


@inline_kernel
def copy_bytes(source: NDArray[np.uint8], at: int, out: NDArray[np.uint8], to: int, count: int) -> None:
    """Copy in words of 8 bytes: up to 7 bytes more are read and written, both arrays are padded for that."""
    done = 0
    while done < count:
        store64(out, to + done, load64(source, at + done))
        done += 8


@inline_kernel
def _write_escape(out: NDArray[np.uint8], to: int, octet: int) -> int:
    out[to] = 37
    out[to + 1] = UPPER_HEX[octet >> 4]
    out[to + 2] = UPPER_HEX[octet & 15]
    return to + 3


@kernel
def _write_percent(data: NDArray[np.uint8], at: int, end: int, out: NDArray[np.uint8], to: int) -> tuple[int, int]:
    """An escape, or a stray `%` with what is bound to it; `data[at]` is `%`."""
    high = HEX_VALUE[data[at + 1]] if at + 1 < end else 255
    low = HEX_VALUE[data[at + 2]] if at + 2 < end else 255
    if high < _HEX_BASE and low < _HEX_BASE:
        octet = high * 16 + low
        if UNRESERVED[octet]:
            out[to] = octet
            return at + 3, to + 1
        return at + 3, _write_escape(out, to, octet)
    out[to] = 37
    at += 1
    to += 1
    if high < _HEX_BASE:
        out[to] = data[at]
        at += 1
        to += 1
    if at + 2 < end and data[at] == 37:
        high = HEX_VALUE[data[at + 1]]
        low = HEX_VALUE[data[at + 2]]
        if high < _HEX_BASE and low < _HEX_BASE and HEX_VALUE[high * 16 + low] < _HEX_BASE:
            return at + 3, _write_escape(out, to, high * 16 + low)
    return at, to


@kernel
def write_authority(
    data: NDArray[np.uint8], at: int, end: int, https: bool, out: NDArray[np.uint8], to: int
) -> tuple[int, int, int]:
    """Host and port, for hosts of plain names.

    Returns:
        Where reading stopped (at a delimiter or the end), where the host ends in `out`, where writing stopped.
    """
    label = host = to
    while at < end:
        octet = HOST_BYTE[data[at]]
        if octet == 0:
            break
        if octet == 46:
            if to == label:
                return NEEDS_PARSER, to, to
            label = to + 1
        out[to] = octet
        to += 1
        at += 1
        if to == label + 4 and out[label] == 120 and out[label + 1] == 110 and out[label + 2] == 45 and octet == 45:
            return NEEDS_PARSER, to, to
    if to == label or to - host > LONGEST_HOST or out[label] < 97:  # empty, or an address: its last label is a number
        return NEEDS_PARSER, to, to
    host_end = to
    if at < end and data[at] == 58:
        at += 1
        port = -1
        while at < end and 48 <= data[at] <= 57:
            port = 10 * max(port, 0) + int(data[at]) - 48
            port = min(port, 65536)
            at += 1
        if port > 65535:
            return NEEDS_PARSER, to, to
        if port >= 0 and port != (443 if https else 80):
            out[to] = 58
            to += 1
            scale = 10000
            while scale > max(port, 1):
                scale //= 10
            while scale > 0:
                out[to] = 48 + port // scale % 10
                to += 1
                scale //= 10
    if at < end and not (data[at] == 47 or data[at] == 92 or data[at] == 63 or data[at] == 35):
        return NEEDS_PARSER, to, to
    return at, host_end, to


@kernel
def write_path(
    data: NDArray[np.uint8], at: int, end: int, out: NDArray[np.uint8], to: int, root: int
) -> tuple[int, int]:
    """Path segments, up to `?`, `#` or the end; dot segments take back what was written.

    Args:
        data: bytes of the link.
        at: where its path begins: behind a slash, or at the start of a relative path.
        end: end of the link.
        out: bytes of canonical URLs.
        to: where to write; `out[to - 1]` is a slash.
        root: where the path's first segment begins in `out`.
    """
    segment = to
    while True:
        kind = PATH_CLASS[data[at]] if at < end else END
        while kind == PLAIN:
            out[to] = data[at]
            to += 1
            at += 1
            kind = PATH_CLASS[data[at]] if at < end else END
        if kind == ENCODED:
            to = _write_escape(out, to, data[at])
            at += 1
        elif kind == PERCENT:
            at, to = _write_percent(data, at, end, out, to)
        elif kind == REMOVED:
            return HAS_REMOVED, to
        else:
            size = to - segment
            if 1 <= size <= 2 and out[segment] == 46 and out[to - 1] == 46:
                if size == 2 and segment > root:
                    segment -= 1
                    while segment > root and out[segment - 1] != 47:
                        segment -= 1
                to = segment
            elif kind == SEPARATOR:
                out[to] = 47
                to += 1
                segment = to
            if kind == END:
                return at, to
            at += 1


@inline_kernel
def _is_tracking(
    out: NDArray[np.uint8],
    start: int,
    end: int,
    names: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: NDArray[np.int64],
    lengths: NDArray[np.uint64],
) -> bool:
    """Whether the name `out[start:end]` is in the built-in list; with an escape left in it, only by the prefix."""
    size = end - start
    is_utm = size >= 4 and out[start] | 32 == 117 and out[start + 1] | 32 == 116 and out[start + 2] | 32 == 109
    if is_utm and out[start + 3] == 95:
        return True
    if size == 0 or size > 63 or (lengths[out[start]] >> np.uint64(size)) & _ONE == 0:
        return False
    for row in range(first[out[start]], first[np.int64(out[start]) + 1]):
        if offsets[row + 1] - offsets[row] == size:
            same = True
            for at in range(size):
                if names[offsets[row] + at] != out[start + at]:
                    same = False
                    break
            if same:
                return True
    return False


@kernel
def write_query(
    data: NDArray[np.uint8],
    at: int,
    end: int,
    out: NDArray[np.uint8],
    to: int,
    names: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: NDArray[np.int64],
    lengths: NDArray[np.uint64],
) -> tuple[int, int]:
    """`?` and the pairs that stay, up to `#` or the end; `data[at]` is behind the `?`. Nothing if no pair stays.

    Pairs in another order than that of their names, and several with escapes left in their names, need the parser.
    """
    start = to
    out[to] = 63
    to += 1
    before = before_end = -1
    escapes = kept = 0
    while True:
        pair = to
        name_end = -1
        name_escaped = False
        while True:
            kind = QUERY_CLASS[data[at]] if at < end else END
            if kind == PLAIN:
                if data[at] == 61 and name_end < 0:
                    name_end = to
                out[to] = data[at]
                to += 1
                at += 1
            elif kind == ENCODED:
                name_escaped |= name_end < 0
                to = _write_escape(out, to, data[at])
                at += 1
            elif kind == PERCENT:
                written = to
                at, to = _write_percent(data, at, end, out, to)
                name_escaped |= name_end < 0 and out[written] == 37
            elif kind == REMOVED:
                return HAS_REMOVED, to
            else:
                break
        if to > pair:
            if name_end < 0:
                name_end = to
            if _is_tracking(out, pair, name_end, names, offsets, first, lengths):
                to = pair
            else:
                kept += 1
                escapes += name_escaped
                if kept > 1 and (escapes > 0 or _is_less(out, pair, name_end, before, before_end)):
                    return NEEDS_PARSER, to
                before = pair
                before_end = name_end
                out[to] = 38
                to += 1
        if kind == END:
            return at, (to - 1 if kept > 0 else start)
        at += 1


@inline_kernel
def _is_less(out: NDArray[np.uint8], one: int, one_end: int, two: int, two_end: int) -> bool:
    """Whether name one comes before name two."""
    while one < one_end and two < two_end:
        if out[one] != out[two]:
            return bool(out[one] < out[two])
        one += 1
        two += 1
    return one == one_end and two < two_end
