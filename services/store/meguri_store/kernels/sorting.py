"""Sorting rows by (host key, URL): the order of the store's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import count_trailing_zeros, load64
from meguri_store.kernels.merge import compare_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STACK_ROWS", "distinct_rows", "sort_rows", "unordered_row"]

STACK_ROWS = 256
"""Segments that wait at most: three a halving of the rows, and more than enough for 2^63 of them."""

_SMALL = 12
_BY_HOST = -1
_BY_NUMBER = -2
_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
_EVEN_PAIRS = np.uint64(0x0000FFFF0000FFFF)


@inline_kernel
def _digit(offsets: NDArray[np.int32], data: NDArray[np.uint8], row: int, depth: int) -> np.uint64:
    """The 8 bytes of a URL from `depth` on as a big-endian number; zeros behind its end, where URLs have none."""
    at = np.int64(offsets[row]) + depth
    left = np.int64(offsets[row + 1]) - at
    word = np.uint64(0)
    if left >= 8:
        word = load64(data, at)
        word = ((word & _EVEN_BYTES) << np.uint64(8)) | ((word >> np.uint64(8)) & _EVEN_BYTES)
        word = ((word & _EVEN_PAIRS) << np.uint64(16)) | ((word >> np.uint64(16)) & _EVEN_PAIRS)
        word = (word << np.uint64(32)) | (word >> np.uint64(32))
    else:
        for place in range(left):
            word |= np.uint64(data[at + place]) << np.uint64(56 - 8 * place)
    return word


@inline_kernel
def _shared(offsets: NDArray[np.int32], data: NDArray[np.uint8], left: int, right: int, depth: int, most: int) -> int:
    """How many bytes from `depth` on two URLs share, `most` at most."""
    left_at = int(offsets[left]) + depth
    right_at = int(offsets[right]) + depth
    most = min(most, int(offsets[right + 1]) - right_at)
    done = 0
    while done < most:
        if done + 8 <= most:
            differ = load64(data, left_at + done) ^ load64(data, right_at + done)
            if differ != np.uint64(0):
                done += int(count_trailing_zeros(differ)) >> 3
                break
            done += 8
        elif data[left_at + done] == data[right_at + done]:
            done += 1
        else:
            break
    return done


@inline_kernel
def _precedes(
    host: NDArray[np.uint64], offsets: NDArray[np.int32], data: NDArray[np.uint8], left: int, right: int
) -> bool:
    """Whether a row comes before another by (host, URL, number)."""
    if host[left] != host[right]:
        return bool(host[left] < host[right])
    order = compare_bytes(data, offsets[left], offsets[left + 1], data, offsets[right], offsets[right + 1])
    return order < 0 or (order == 0 and left < right)


@inline_kernel
def _middle(a: np.uint64, b: np.uint64, c: np.uint64) -> np.uint64:
    if a > b:
        a, b = b, a
    return max(a, min(b, c))


@kernel
def sort_rows(
    host: NDArray[np.uint64],
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    order: NDArray[np.int32],
    keys: NDArray[np.uint64],
    stack: NDArray[np.int64],
) -> None:
    """Bring row numbers into the order (host, URL, number); URLs must be free of zero bytes.

    Multikey quicksort (Bentley and Sedgewick, "Fast Algorithms for Sorting and Searching Strings", SODA 1997) over
    digits of 8 bytes that are kept beside the row numbers. The host key is the first digit, the row number the last.

    Args:
        host: host keys, (n,).
        offsets: where the URLs begin, (n + 1,).
        data: their bytes.
        order: row numbers, (m,), in any order; sorted in place.
        keys: scratch, (m,) at least.
        stack: scratch, (STACK_ROWS, 3).
    """
    stack[0, 0], stack[0, 1], stack[0, 2] = 0, order.size, _BY_HOST
    waiting = 1
    while waiting > 0:
        waiting -= 1
        low, high, depth = stack[waiting, 0], stack[waiting, 1], stack[waiting, 2]
        if high - low <= _SMALL:
            for place in range(low + 1, high):
                row = order[place]
                hole = place
                while hole > low and _precedes(host, offsets, data, row, order[hole - 1]):
                    order[hole] = order[hole - 1]
                    hole -= 1
                order[hole] = row
            continue
        fresh = depth & 1 == 0 if depth >= 0 else True
        if depth >= 0:
            depth >>= 1
        if fresh:
            if depth >= 0:
                first = order[low]
                shared = np.int64(offsets[first + 1]) - offsets[first] - depth
                for place in range(low + 1, high):
                    if shared <= 0:
                        break
                    shared = _shared(offsets, data, first, order[place], depth, shared)
                depth += max(shared, 0)
            for place in range(low, high):
                row = order[place]
                if depth == _BY_HOST:
                    keys[place] = host[row]
                elif depth == _BY_NUMBER:
                    keys[place] = np.uint64(row)
                else:
                    keys[place] = _digit(offsets, data, row, depth)
        step = (high - low) >> 3
        center = (low + high) >> 1
        pivot = _middle(
            _middle(keys[low], keys[low + step], keys[low + 2 * step]),
            _middle(keys[center - step], keys[center], keys[center + step]),
            _middle(keys[high - 1 - 2 * step], keys[high - 1 - step], keys[high - 1]),
        )
        less, at, more = low, low, high
        while at < more:
            key = keys[at]
            if key < pivot:
                keys[at], keys[less] = keys[less], key
                order[at], order[less] = order[less], order[at]
                less += 1
                at += 1
            elif key > pivot:
                more -= 1
                keys[at], keys[more] = keys[more], key
                order[at], order[more] = order[more], order[at]
            else:
                at += 1
        # Kept keys are marked by an odd depth; host keys and row numbers are read again, which costs as little.
        again = depth if depth < 0 else 2 * depth + 1
        if depth == _BY_HOST:
            following = np.int64(0)
        elif depth == _BY_NUMBER or pivot & np.uint64(0xFF) == np.uint64(0):
            following = np.int64(_BY_NUMBER)
        else:
            following = 2 * (depth + 8)
        # The largest part waits longest, so that the stack stays short.
        base = waiting
        for part in range(3):
            if part == 0:
                begin, end, then = low, less, again
            elif part == 1:
                begin, end, then = less, more, following
            else:
                begin, end, then = more, high, again
            if end - begin < 2:
                continue
            slot = waiting
            while slot > base and stack[slot - 1, 1] - stack[slot - 1, 0] < end - begin:
                stack[slot, 0], stack[slot, 1], stack[slot, 2] = (
                    stack[slot - 1, 0],
                    stack[slot - 1, 1],
                    stack[slot - 1, 2],
                )
                slot -= 1
            stack[slot, 0], stack[slot, 1], stack[slot, 2] = begin, end, then
            waiting += 1


@kernel
def unordered_row(host: NDArray[np.uint64], offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> int:
    """The first row that isn't above the one before it by (host, URL); the number of rows if there is none.

    Args:
        host: host keys, (n,).
        offsets: where the URLs begin, (n + 1,).
        data: their bytes.
    """
    for row in range(1, host.size):
        if host[row] > host[row - 1]:
            continue
        if host[row] < host[row - 1]:
            return row
        if compare_bytes(data, offsets[row - 1], offsets[row], data, offsets[row], offsets[row + 1]) >= 0:
            return row
    return host.size


@kernel
def distinct_rows(
    host: NDArray[np.uint64], offsets: NDArray[np.int32], data: NDArray[np.uint8], order: NDArray[np.int32]
) -> int:
    """Of sorted row numbers keep the first of each (host, URL), in place; gives how many there are.

    Args:
        host: host keys, (n,).
        offsets: where the URLs begin, (n + 1,).
        data: their bytes.
        order: row numbers in the order that `sort_rows` gives.
    """
    kept = 0
    for place in range(order.size):
        row = order[place]
        if kept > 0:
            last = order[kept - 1]
            if host[last] == host[row]:
                same = compare_bytes(data, offsets[last], offsets[last + 1], data, offsets[row], offsets[row + 1])
                if same == 0:
                    continue
        order[kept] = row
        kept += 1
    return kept
