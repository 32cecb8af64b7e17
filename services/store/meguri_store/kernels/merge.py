"""Merge-join of rows in store order, and matching of rows with keys by hashing their URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import load64, store64
from meguri_common.kernels.xxh64 import path_key_slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["compare_bytes", "gather_texts", "match_rows", "merge_rows"]


@inline_kernel
def compare_bytes(
    left: NDArray[np.uint8], left_at: int, left_end: int, right: NDArray[np.uint8], right_at: int, right_end: int
) -> int:
    """-1, 0 or 1 as the left bytes are less than, equal to or greater than the right ones."""
    shared = min(left_end - left_at, right_end - right_at)
    done = 0
    while done + 8 <= shared and load64(left, left_at + done) == load64(right, right_at + done):
        done += 8
    while done < shared and left[left_at + done] == right[right_at + done]:
        done += 1
    if done < shared:
        order = -1 if left[left_at + done] < right[right_at + done] else 1
    elif left_end - left_at == right_end - right_at:
        order = 0
    else:
        order = -1 if left_end - left_at < right_end - right_at else 1
    return order


@inline_kernel
def _repeats(host: NDArray[np.uint64], offsets: NDArray[np.int32], data: NDArray[np.uint8], row: int) -> bool:
    """Whether a row equals the one before it."""
    return (
        row > 0
        and host[row - 1] == host[row]
        and compare_bytes(data, offsets[row - 1], offsets[row], data, offsets[row], offsets[row + 1]) == 0
    )


@kernel
def merge_rows(
    base_host: NDArray[np.uint64],
    base_offsets: NDArray[np.int32],
    base_data: NDArray[np.uint8],
    new_host: NDArray[np.uint64],
    new_offsets: NDArray[np.int32],
    new_data: NDArray[np.uint8],
    start: int,
    limit: int,
    out: NDArray[np.int64],
) -> tuple[int, int]:
    """Merge a chunk of base rows with the new rows from `start` on, both in (host, URL) order.

    All base rows are taken, and new rows up to the last of them; without base rows, new rows until `out` holds
    `limit` of them. A new row that equals a base row, or the new row before it, is passed over.

    Args:
        base_host: host keys of the chunk, (b,).
        base_offsets: where its URLs begin, (b + 1,).
        base_data: their bytes.
        new_host: host keys of the new rows, (n,).
        new_offsets: where their URLs begin, (n + 1,).
        new_data: their bytes.
        start: first new row not yet taken.
        limit: see above.
        out: (b + n - start,) at least; base row i as i, new row j as b + j.

    Returns:
        Rows written to `out`, and the first new row not yet taken.
    """
    rows = 0
    at = start
    count = base_host.size
    for row in range(count):
        host = base_host[row]
        while at < new_host.size and new_host[at] <= host:
            if new_host[at] == host:
                order = compare_bytes(
                    new_data,
                    new_offsets[at],
                    new_offsets[at + 1],
                    base_data,
                    base_offsets[row],
                    base_offsets[row + 1],
                )
                if order > 0:
                    break
            else:
                order = -1
            if order < 0 and not _repeats(new_host, new_offsets, new_data, at):
                out[rows] = count + at
                rows += 1
            at += 1
        out[rows] = row
        rows += 1
    if count == 0:
        while at < new_host.size and rows < limit:
            if not _repeats(new_host, new_offsets, new_data, at):
                out[rows] = at
                rows += 1
            at += 1
    return rows, at


@kernel
def match_rows(
    host: NDArray[np.uint64],
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    key_host: NDArray[np.uint64],
    key_path: NDArray[np.uint64],
    out: NDArray[np.int64],
) -> None:
    """out[i] = index of row i's key among the keys, or -1; only URLs of hosts among the keys are hashed.

    Args:
        host: host keys in ascending order, (n,).
        offsets: where the URLs begin, (n + 1,).
        data: their bytes.
        key_host: host keys of distinct keys, ascending by (host, path), (k,).
        key_path: their path keys, (k,).
        out: (n,).
    """
    if host.size == 0:
        return
    first = 0
    high = key_host.size
    while first < high:
        middle = (first + high) // 2
        if key_host[middle] < host[0]:
            first = middle + 1
        else:
            high = middle
    # A bit for each key, at its low bits: most URLs are told apart from all keys by a look at it.
    bits = 64
    end = first
    while end < key_host.size and key_host[end] <= host[host.size - 1]:
        end += 1
    while bits < 16 * (end - first):
        bits *= 2
    marks = np.zeros(bits // 64, np.uint64)
    for key in range(first, end):
        bit = key_path[key] & np.uint64(bits - 1)
        marks[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
    last = first  # keys first..last are the ones of the current host
    for row in range(host.size):
        if row == 0 or host[row] != host[row - 1]:
            low = last
            high = key_host.size
            while low < high:
                middle = (low + high) // 2
                if key_host[middle] < host[row]:
                    low = middle + 1
                else:
                    high = middle
            first = low
            last = first
            while last < key_host.size and key_host[last] == host[row]:
                last += 1
        out[row] = -1
        if first == last:
            continue
        path = path_key_slice(data, offsets[row], offsets[row + 1])
        bit = path & np.uint64(bits - 1)
        if not marks[bit >> np.uint64(6)] >> (bit & np.uint64(63)) & np.uint64(1):
            continue
        low = first
        high = last
        while low < high:
            middle = (low + high) // 2
            if key_path[middle] < path:
                low = middle + 1
            else:
                high = middle
        if low < last and key_path[low] == path:
            out[row] = low


@kernel
def gather_texts(
    order: NDArray[np.int64],
    base_offsets: NDArray[np.int32],
    base_data: NDArray[np.uint8],
    new_offsets: NDArray[np.int32],
    new_data: NDArray[np.uint8],
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
) -> None:
    """Texts of two columns, one after another in an order.

    Args:
        order: row i of the first column as i, row j of the second as its number of rows + j; (n,).
        base_offsets: where the first column's texts begin.
        base_data: their bytes.
        new_offsets: where the second column's texts begin.
        new_data: their bytes.
        offsets: filled in, (n + 1,).
        data: filled in; has room for the texts and 32 bytes.
    """
    count = base_offsets.size - 1
    at = 0
    for row in range(order.size):
        offsets[row] = at
        source = order[row]
        if source < count:
            start = base_offsets[source]
            size = base_offsets[source + 1] - start
            done = 0
            while done < size and start + done + 32 <= base_data.size:
                for step in range(0, 32, 8):
                    store64(data, at + done + step, load64(base_data, start + done + step))
                done += 32
            while done < size:
                data[at + done] = base_data[start + done]
                done += 1
        else:
            start = new_offsets[source - count]
            size = new_offsets[source - count + 1] - start
            for i in range(size):
                data[at + i] = new_data[start + i]
        at += size
    offsets[order.size] = at
