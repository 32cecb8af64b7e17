"""Parquet's encodings: differences of numbers and of texts in order, and numbers of a dictionary's entries.

Method: the Apache Parquet format, "Encodings": DELTA_BINARY_PACKED with blocks of 128 values in four miniblocks, and
DELTA_BYTE_ARRAY, which states of each text how much of it repeats the one before; bit packing of the hybrid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import load64, store64

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "PACKED_SLACK",
    "dictionary_codes",
    "join_prefixes",
    "pack_bits",
    "pack_deltas",
    "packed_bound",
    "split_prefixes",
    "unpack_deltas",
]

_BLOCK = 128
_MINIBLOCK = 32
_BYTE = 8
_LEAST_SMALL = -128
"""The least of the differences that take a byte, where they are written as whole bytes."""
PACKED_SLACK = 64
"""Bytes of head and overhang that `pack_deltas` needs beside those of its blocks."""


def packed_bound(count: int) -> int:
    """Bytes that `pack_deltas` writes for `count` values at most."""
    blocks = -(-count // _BLOCK) + 1
    return blocks * (_BLOCK * 8 + 16) + PACKED_SLACK


@inline_kernel
def _varint(out: NDArray[np.uint8], at: int, value: np.uint64) -> int:
    while value > np.uint64(0x7F):
        out[at] = np.uint8(value & np.uint64(0x7F)) | np.uint8(0x80)
        value = value >> np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


@inline_kernel
def _zigzag(value: np.int64) -> np.uint64:
    return (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> np.int64(63))


@kernel
def pack_deltas(values: NDArray[np.int64], out: NDArray[np.uint8], whole: bool) -> int:
    """Write values as DELTA_BINARY_PACKED.

    Args:
        values: (n,).
        out: filled in; has room for `packed_bound(n)`.
        whole: write differences as whole bytes, small ones all from one least value: longer by itself, but what comes
            behind, zstd, codes bytes by how often they come, and sees none in bits that are out of step.

    Returns:
        The number of bytes.
    """
    count = values.size
    at = _varint(out, 0, np.uint64(_BLOCK))
    at = _varint(out, at, np.uint64(_BLOCK // _MINIBLOCK))
    at = _varint(out, at, np.uint64(count))
    at = _varint(out, at, _zigzag(values[0] if count else np.int64(0)))
    done = 1
    while done < count:
        end = min(done + _BLOCK, count)
        least = values[done] - values[done - 1]
        most = least
        for i in range(done + 1, end):
            least = min(least, values[i] - values[i - 1])
            most = max(most, values[i] - values[i - 1])
        small = whole and least < most and least >= _LEAST_SMALL and most < _LEAST_SMALL + 256
        if small:
            least = np.int64(_LEAST_SMALL)
        at = _varint(out, at, _zigzag(least))
        widths = at
        at += _BLOCK // _MINIBLOCK
        for part in range(_BLOCK // _MINIBLOCK):
            start = done + part * _MINIBLOCK
            stop = min(start + _MINIBLOCK, end)
            joined = np.uint64(0)
            for i in range(start, stop):
                joined |= np.uint64(values[i] - values[i - 1] - least)
            width = 0
            while width < 64 and (joined >> np.uint64(width)) != np.uint64(0):
                width += 1
            if whole:
                width = (width + 7) & ~7
            out[widths + part] = width
            held = np.uint64(0)
            filled = 0
            place = at
            for i in range(start, stop if width else start):
                value = np.uint64(values[i] - values[i - 1] - least)
                held |= value << np.uint64(filled)
                filled += width
                if filled >= 64:
                    store64(out, place, held)
                    place += 8
                    filled -= 64
                    held = value >> np.uint64(width - filled) if filled else np.uint64(0)
            stored = (_MINIBLOCK * width) // 8
            if width:
                store64(out, place, held)
                for i in range(place + 8, at + stored):
                    out[i] = 0
            at += stored if start < stop else 0
        done = end
    return at


@kernel
def split_prefixes(
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    prefixes: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> int:
    """Of each text how long a beginning it shares with the one before it, and the rests, one after another.

    Args:
        offsets: where the texts begin, (n + 1,).
        data: their bytes.
        prefixes: filled in, (n,).
        lengths: bytes of each rest, filled in, (n,).
        out: the rests; has room for all texts and 8 bytes.

    Returns:
        Bytes of all rests.
    """
    written = 0
    size = data.size
    for row in range(lengths.size):
        start = offsets[row]
        end = offsets[row + 1]
        shared = 0
        if row:
            before = offsets[row - 1]
            most = min(start - before, end - start)
            while shared + 8 <= most and load64(data, before + shared) == load64(data, start + shared):
                shared += 8
            while shared < most and data[before + shared] == data[start + shared]:
                shared += 1
        prefixes[row] = shared
        rest = end - start - shared
        lengths[row] = rest
        source = start + shared
        done = 0
        while done < rest and source + done + 8 <= size:
            store64(out, written + done, load64(data, source + done))
            done += 8
        while done < rest:
            out[written + done] = data[source + done]
            done += 1
        written += rest
    return written


@kernel
def dictionary_codes(
    values: NDArray[np.uint32],
    least: np.uint32,
    places: NDArray[np.int32],
    entries: NDArray[np.uint32],
    codes: NDArray[np.uint32],
) -> int:
    """Number the distinct values in the order in which they first come.

    Args:
        values: (n,), 0, or from `least` to `least + places.size - 2`.
        least: the least value that isn't 0.
        places: -1 everywhere; is used up.
        entries: the distinct values, filled in; has room for `places.size`.
        codes: the number of each value, filled in, (n,).

    Returns:
        How many distinct values there are.
    """
    count = 0
    for row in range(values.size):
        place = values[row] - least + np.uint32(1) if values[row] else np.uint32(0)
        code = places[place]
        if code < 0:
            code = count
            places[place] = code
            entries[code] = values[row]
            count += 1
        codes[row] = code
    return count


@kernel
def pack_bits(codes: NDArray[np.uint32], width: int, out: NDArray[np.uint8]) -> None:
    """Write `width` bits, 1 to 32, of each code (n,), lowest first; `out` has room for them and 8 bytes."""
    held = np.uint64(0)
    filled = 0
    at = 0
    for row in range(codes.size):
        value = np.uint64(codes[row])
        held |= value << np.uint64(filled)
        filled += width
        if filled >= 64:
            store64(out, at, held)
            at += 8
            filled -= 64
            held = value >> np.uint64(width - filled) if filled else np.uint64(0)
    if filled:
        store64(out, at, held)


@inline_kernel
def _read_varint(data: NDArray[np.uint8], at: int) -> tuple[np.uint64, int]:
    """A number, and the byte after it; at most ten bytes are read."""
    value = np.uint64(0)
    shift = 0
    while shift < 70:
        byte = np.uint64(data[at])
        at += 1
        if shift < 64:
            value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        shift += 7
        if byte < np.uint64(0x80):
            break
    return value, at


@inline_kernel
def _unzigzag(value: np.uint64) -> np.int64:
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))


@kernel
def unpack_deltas(data: NDArray[np.uint8], start: int, size: int, out: NDArray[np.int64]) -> int:
    """Read DELTA_BINARY_PACKED values that begin at a byte; fills `out`, (n,).

    Args:
        data: `size` bytes, and `PACKED_SLACK` zeros.
        start: the first of the values' bytes.
        size: see above.
        out: filled in.

    Returns:
        The byte after them, or -1 where there aren't n values that `pack_deltas` could have written.
    """
    block, at = _read_varint(data, start)
    parts, at = _read_varint(data, at)
    count, at = _read_varint(data, at)
    first, at = _read_varint(data, at)
    good = block == np.uint64(_BLOCK) and parts == np.uint64(_BLOCK // _MINIBLOCK) and count == np.uint64(out.size)
    value = _unzigzag(first)
    done = 0
    if good and out.size:
        out[0] = value
        done = 1
    while good and done < out.size and at < size:
        zigzag, at = _read_varint(data, at)
        least = _unzigzag(zigzag)
        widths = at
        at += _BLOCK // _MINIBLOCK
        for part in range(_BLOCK // _MINIBLOCK):
            width = np.int64(data[widths + part])
            stop = min(done + _MINIBLOCK, out.size)
            stored = int(_MINIBLOCK * width // 8) if done < stop else 0
            if width > 64 or at + stored > size:
                good = False
                break
            if width in (0, _BYTE):
                for row in range(done, stop):
                    value += least + (np.int64(data[at + row - done]) if width else 0)
                    out[row] = value
                at += stored
                done = stop
                continue
            mask = np.uint64(0xFFFFFFFFFFFFFFFF)
            if width < 64:
                mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
            bit = np.int64(0)
            for row in range(done, stop):
                place = at + (bit >> 3)
                low = bit & 7
                delta = load64(data, place) >> np.uint64(low)
                if low + width > 64:
                    delta |= np.uint64(data[place + 8]) << np.uint64(64 - low)
                value += least + np.int64(delta & mask)
                out[row] = value
                bit += width
            at += stored
            done = stop
    return at if good and done == out.size and at <= size else -1


@kernel
def join_prefixes(
    prefixes: NDArray[np.int64],
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    start: int,
    out: NDArray[np.uint8],
) -> None:
    """Put texts together again from what each shares with the one before it, and the rests.

    Args:
        prefixes: bytes shared, at most as many as the text before has, (n,).
        offsets: where the texts begin in `out`, (n + 1,).
        data: holds the rests, one after another.
        start: where they begin.
        out: filled in; has room for the texts and `PACKED_SLACK` bytes.
    """
    source = start
    size = data.size
    for row in range(prefixes.size):
        at = offsets[row]
        end = offsets[row + 1]
        shared = prefixes[row]
        if shared:
            before = offsets[row - 1]
            done = 0
            while done < shared:
                # What a step writes beyond the shared bytes is written over by what comes next.
                first = load64(out, before + done)
                second = load64(out, before + done + 8)
                third = load64(out, before + done + 16)
                fourth = load64(out, before + done + 24)
                store64(out, at + done, first)
                store64(out, at + done + 8, second)
                store64(out, at + done + 16, third)
                store64(out, at + done + 24, fourth)
                done += 32
        at += shared
        rest = end - at
        done = 0
        while done < rest and source + done + 8 <= size:
            store64(out, at + done, load64(data, source + done))
            done += 8
        while done < rest:
            out[at + done] = data[source + done]
            done += 1
        source += rest
