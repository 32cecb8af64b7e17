"""What canonical links become: rows to send, folded over the step, and the out-links and rejects of each page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import load64, store64

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["gather_urls", "settle_links"]

_ONE = np.uint64(1)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_HIGH = np.uint64(32)


@inline_kernel
def _first_slot(host: np.uint64, path: np.uint64, mask: np.uint64) -> np.uint64:
    mixed = (path ^ (host >> _HIGH)) * _MIX
    return (mixed ^ (mixed >> _HIGH)) & mask


@kernel
def settle_links(
    host_key: NDArray[np.uint64],
    path_key: NDArray[np.uint64],
    reject: NDArray[np.uint8],
    counts: NDArray[np.uint32],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    extra_first: NDArray[np.int64],
    extra_last: NDArray[np.int64],
    own_host: NDArray[np.uint64],
    own_path: NDArray[np.uint64],
    extra_only: NDArray[np.bool_],
    table: NDArray[np.int64],
    out_row: NDArray[np.int64],
    out_event: NDArray[np.int64],
    out_extra: NDArray[np.bool_],
    out_count: NDArray[np.uint32],
    seen_by: NDArray[np.int64],
    rejected: NDArray[np.uint32],
    target_host: NDArray[np.uint64],
    target_path: NDArray[np.uint64],
    target_end: NDArray[np.int32],
) -> int:
    """Go through the canonical links of a step's events, in order; returns how many rows there are to send.

    A URL gets one row for all its authored links of the step: the first one decides where it came from, the others
    add their counts. Extra rows (redirect targets, sitemap entries) count for nothing; one that comes first keeps a
    row of its own, and one for a URL that has a row is dropped.

    Args:
        host_key: (rows,) of the canonical links and extra rows.
        path_key: (rows,).
        reject: (rows,) 0, or the position in `LINK_REJECT_REASONS` + 1.
        counts: (rows,) authored links that a row stands for.
        first: (events,) first authored row of each event.
        last: (events,) end of its authored rows.
        extra_first: (events,) first extra row.
        extra_last: (events,) end of its extra rows.
        own_host: (events,) key of the page itself.
        own_path: (events,).
        extra_only: (events,) whether the out-links are the extra row alone (a redirect), else they are the others.
        table: scratch, a power of two of at least twice as many slots as there are rows, all -1.
        out_row: (rows,) out: position of the URL to send.
        out_event: (rows,) out: the event it came from.
        out_extra: (rows,) out: whether it is an extra row.
        out_count: (rows,) out: authored links it stands for.
        seen_by: (rows,) scratch: the event that last held the URL.
        rejected: (events, reasons) out: authored links that can't be used.
        target_host: (rows,) out: distinct out-links of each page but itself, in order.
        target_path: (rows,) out.
        target_end: (events + 1,) out: where the out-links of each event end in the two columns, from entry 1 on.
    """
    sent = 0
    targets = 0
    mask = np.uint64(table.size - 1)
    target_end[0] = 0
    for event in range(first.size):
        here, here_path = own_host[event], own_path[event]
        authored = last[event] - first[event]
        for step in range(authored + extra_last[event] - extra_first[event]):
            extra = step >= authored
            row = extra_first[event] + step - authored if extra else first[event] + step
            if reject[row] != 0:
                if not extra:
                    rejected[event, reject[row] - 1] += counts[row]
                continue
            host, path = host_key[row], path_key[row]
            slot = _first_slot(host, path, mask)
            while True:
                entry = table[np.int64(slot)]
                if entry < 0 or (path_key[out_row[entry]] == path and host_key[out_row[entry]] == host):
                    break
                slot = (slot + _ONE) & mask
            repeat = entry >= 0 and seen_by[entry] == event
            if entry < 0 or (out_extra[entry] and not extra):
                table[np.int64(slot)] = sent
                out_row[sent] = row
                out_event[sent] = event
                out_extra[sent] = extra
                out_count[sent] = np.uint32(0) if extra else counts[row]
                entry = sent
                sent += 1
            elif not extra:
                out_count[entry] += counts[row]
            seen_by[entry] = event
            if extra == extra_only[event] and (extra or not repeat) and not (host == here and path == here_path):
                target_host[targets] = host
                target_path[targets] = path
                targets += 1
        target_end[event + 1] = targets
    return sent


@kernel
def gather_urls(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    out: NDArray[np.uint8],
    out_offsets: NDArray[np.int32],
) -> None:
    """Copy the URLs of some rows, in their order.

    Args:
        data: bytes, at least 8 longer than the last URL's end.
        offsets: one more than there are URLs.
        rows: (n,) which ones.
        out: out, their bytes, and at least 8 more.
        out_offsets: (n + 1,) out.
    """
    end = 0
    out_offsets[0] = 0
    for position in range(rows.size):
        start = offsets[rows[position]]
        length = offsets[rows[position] + 1] - start
        done = 0
        while done < length:
            store64(out, end + done, load64(data, start + done))
            done += 8
        end += length
        out_offsets[position + 1] = end
