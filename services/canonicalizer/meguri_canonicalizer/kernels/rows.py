"""Rows of a batch: what its parts mean to the kernels, where bases are cut, and how all rows come together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_canonicalizer.kernels.addresses import address_of, copy_bytes
from meguri_canonicalizer.kernels.codes import (
    BASE_FOLDER,
    BASE_HOST,
    BASE_LENGTH,
    BASE_ORIGIN,
    BASE_PATH,
    BASE_START,
    PAGE_BYTES,
    TOO_MUCH,
)
from meguri_common.kernels.jit import kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["cut_bases", "join_rows"]


@kernel
def cut_bases(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    host: NDArray[np.int32],
    bases: NDArray[np.int64],
) -> None:
    """Positions within canonical bases.

    Args:
        data: canonical URLs, that of row i at `starts[i]` to `ends[i]`.
        starts: (m,).
        ends: (m,).
        host: (m,) number of the host; -1 for rows without a canonical URL, which are left as they are.
        bases: (m, BASE_FIELDS); receives all but BASE_STATE.
    """
    for row in range(host.size):
        if host[row] < 0:
            continue
        start, end = starts[row], ends[row]
        at = start + 8
        while data[at] != 47:
            at += 1
        at += 1
        bases[row, BASE_START] = start
        bases[row, BASE_ORIGIN] = at - start
        bases[row, BASE_LENGTH] = end - start
        bases[row, BASE_HOST] = host[row]
        folder = at
        while at < end and data[at] != 63:
            at += 1
            if data[at - 1] == 47:
                folder = at
        bases[row, BASE_FOLDER] = folder - start
        bases[row, BASE_PATH] = at - start


@kernel
def join_rows(
    page: NDArray[np.int32],
    fast: NDArray[np.uint8],
    fast_offsets: NDArray[np.int64],
    host: NDArray[np.int32],
    odd: NDArray[np.int64],
    odd_data: NDArray[np.uint8],
    odd_offsets: NDArray[np.int64],
    keys: NDArray[np.uint64],
    host_lengths: NDArray[np.int64],
    group_lengths: NDArray[np.int64],
    out: NDArray[np.uint8],
    out_offsets: NDArray[np.int64],
    host_key: NDArray[np.uint64],
    path_key: NDArray[np.uint64],
    group_at: NDArray[np.uint16],
    group_len: NDArray[np.uint16],
    reject: NDArray[np.uint8],
) -> None:
    """Bring together what the kernel and the parser made, in the order of the links, within each page's bound.

    Args:
        page: (n,).
        fast: what `canonicalize_links` wrote, at `fast_offsets` (n + 1,), padded by 8 bytes.
        fast_offsets: see `fast`.
        host: (n,) number of the host, -1 for rejected rows.
        odd: rows that the parser did, in order; their other columns are filled in.
        odd_data: their URLs at `odd_offsets` (odd rows + 1,), padded by 8 bytes.
        odd_offsets: see `odd_data`.
        keys: HostKey of each host number.
        host_lengths: bytes of each host.
        group_lengths: bytes of its group.
        out: receives the URLs; 8 bytes longer than all of them.
        out_offsets: (n + 1,).
        host_key: (n,).
        path_key: (n,).
        group_at: (n,).
        group_len: (n,).
        reject: (n,).
    """
    to = 0
    out_offsets[0] = 0
    done = 0
    current = -1
    used = 0
    full = False
    for row in range(page.size):
        if page[row] != current:
            current = int(page[row])
            used = 0
            full = False
        is_odd = done < odd.size and odd[done] == row
        size = 0
        if is_odd:
            size = int(odd_offsets[done + 1] - odd_offsets[done])
        elif host[row] >= 0:
            size = int(fast_offsets[row + 1] - fast_offsets[row])
        full = full or used + size > PAGE_BYTES
        if full:
            reject[row] = TOO_MUCH
            size = 0
        elif is_odd:
            copy_bytes(address_of(odd_data) + odd_offsets[done], address_of(out) + to, size)
        elif host[row] >= 0:
            start = fast_offsets[row]
            copy_bytes(address_of(fast) + start, address_of(out) + to, size)
            number = host[row]
            host_key[row] = keys[number]
            group_len[row] = group_lengths[number]
            group_at[row] = 7 + (fast[start + 4] == 115) + host_lengths[number] - group_lengths[number]
        done += is_odd
        if size == 0:
            host_key[row] = path_key[row] = 0
            group_at[row] = group_len[row] = 0
        to += size
        used += size
        out_offsets[row + 1] = to
