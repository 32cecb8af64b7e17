"""Merge-join of rows in store order, and matching of rows with keys by hashing their URLs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import load64
from meguri_common.kernels.xxh64 import path_key_slice

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["compare_bytes", "match_rows", "merge_rows"]


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
    first = 0
    last = 0  # keys first..last are the ones of the current host
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
