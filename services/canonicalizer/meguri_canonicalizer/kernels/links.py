"""Canonicalising columns of links under the default policy, as far as bytes alone can tell.

What a kernel can't decide is marked for the parser. Hosts get numbers; their keys are looked up once per host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meguri_canonicalizer.kernels.classes import SCHEME_BYTE
from meguri_canonicalizer.kernels.codes import (
    BASE_FOLDER,
    BASE_HOST,
    BASE_LENGTH,
    BASE_ORIGIN,
    BASE_PATH,
    BASE_START,
    BASE_STATE,
    DONE,
    LONGEST_LINK,
    LONGEST_URL,
    NEEDS_HOSTS,
    NEEDS_ROOM,
    NEXT_ROW,
    NO_BASE,
    NO_BASE_GIVEN,
    ODD_ROWS,
    PAGE,
    PAGE_BYTES,
    PAGE_USED,
    SCHEME,
    TOO_LONG,
    TOO_MUCH,
    USABLE_BASE,
    WRITTEN,
)
from meguri_canonicalizer.kernels.hosts import ROOM_FOR_ONE, find_host
from meguri_canonicalizer.kernels.parts import (
    HAS_REMOVED,
    NEEDS_PARSER,
    copy_bytes,
    write_authority,
    write_path,
    write_query,
)
from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.xxh64 import path_key_slice

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["canonicalize_links"]

_NO_COLON: Final = -1


@kernel
def _colon(data: NDArray[np.uint8], at: int, end: int) -> int:
    """Where the scheme of a link ends; _NO_COLON for a link without one."""
    if at == end or SCHEME_BYTE[data[at]] != 1:
        return _NO_COLON
    while at < end and SCHEME_BYTE[data[at]] != 0:
        at += 1
    if at < end:
        if data[at] == 58:
            return at
        if data[at] == 9 or data[at] == 10 or data[at] == 13:
            return HAS_REMOVED
    return _NO_COLON


@inline_kernel
def _is_slash(data: NDArray[np.uint8], at: int, end: int) -> bool:
    return at < end and (data[at] == 47 or data[at] == 92)


@inline_kernel
def _is_web(data: NDArray[np.uint8], at: int, colon: int) -> bool:
    """Whether `data[at:colon]` is http or https, in any case."""
    size = colon - at
    return (
        (size == 4 or (size == 5 and data[at + 4] | 32 == 115))
        and data[at] | 32 == 104
        and data[at + 1] | 32 == 116
        and data[at + 2] | 32 == 116
        and data[at + 3] | 32 == 112
    )


@inline_kernel
def _write_scheme(out: NDArray[np.uint8], to: int, https: bool) -> int:
    out[to] = 104
    out[to + 1] = out[to + 2] = 116
    out[to + 3] = 112
    if https:
        out[to + 4] = 115
        to += 1
    out[to + 4] = 58
    out[to + 5] = out[to + 6] = 47
    return to + 7


@kernel
def _write_link(  # noqa: PLR0911 - each kind of link that bytes decide leaves as soon as it is known
    data: NDArray[np.uint8],
    at: int,
    end: int,
    base: NDArray[np.int64],
    base_data: NDArray[np.uint8],
    out: NDArray[np.uint8],
    start: int,
    index: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    host_names: NDArray[np.uint8],
    host_offsets: NDArray[np.int64],
    counters: NDArray[np.int64],
    names: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: NDArray[np.int64],
    lengths: NDArray[np.uint64],
) -> tuple[int, int, int]:
    """One link. Returns 0, a reject code, NEEDS_PARSER or HAS_REMOVED; where writing stopped; the host's number."""
    to = start
    colon = _colon(data, at, end)
    if colon == HAS_REMOVED:
        return HAS_REMOVED, start, 0
    authority = colon >= 0
    https = False
    if authority:
        if not _is_web(data, at, colon):
            return SCHEME, start, 0
        https = colon - at == 5
        at = colon + 3
        if at > end or data[at - 2] != 47 or data[at - 1] != 47:
            return NEEDS_PARSER, start, 0
    elif base[BASE_STATE] == NO_BASE_GIVEN:
        return NO_BASE, start, 0
    elif base[BASE_STATE] != USABLE_BASE:
        return NEEDS_PARSER, start, 0
    elif _is_slash(data, at, end) and _is_slash(data, at + 1, end):
        authority = True
        https = base_data[base[BASE_START] + 4] == 115
        at += 2
    if authority:
        to = _write_scheme(out, to, https)
        host = to
        at, host_end, to = write_authority(data, at, end, https, out, to)
        if at < 0:
            return at, start, 0
        number = find_host(out, host, host_end, index, hashes, host_names, host_offsets, counters)
        out[to] = 47
        to += 1
        if _is_slash(data, at, end):
            at += 1
        at, to = write_path(data, at, end, out, to, to)
    else:
        number = base[BASE_HOST]
        root = start + base[BASE_ORIGIN]
        kept = base[BASE_FOLDER]
        if at == end or data[at] == 35:
            kept = base[BASE_LENGTH]
            at = end
        elif data[at] == 63:
            kept = base[BASE_PATH]
        elif _is_slash(data, at, end):
            kept = base[BASE_ORIGIN]
            at += 1
        copy_bytes(base_data, base[BASE_START], out, start, kept)
        to = start + kept
        if at < end and data[at] != 63:
            at, to = write_path(data, at, end, out, to, root)
    if 0 <= at < end and data[at] == 63:
        at, to = write_query(data, at + 1, end, out, to, names, offsets, first, lengths)
    return (min(0, at)), to, number


@kernel
def canonicalize_links(
    data: NDArray[np.uint8],
    link_offsets: NDArray[np.int64],
    page: NDArray[np.int32],
    bases: NDArray[np.int64],
    base_data: NDArray[np.uint8],
    out: NDArray[np.uint8],
    out_offsets: NDArray[np.int64],
    path_key: NDArray[np.uint64],
    host: NDArray[np.int32],
    reject: NDArray[np.uint8],
    odd: NDArray[np.int64],
    scratch: NDArray[np.uint8],
    state: NDArray[np.int64],
    index: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    host_names: NDArray[np.uint8],
    host_offsets: NDArray[np.int64],
    counters: NDArray[np.int64],
    names: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first: NDArray[np.int64],
    lengths: NDArray[np.uint64],
) -> int:
    """Write the canonical URLs of the links that bytes decide, list the others.

    Goes on where it stopped: at NEEDS_ROOM the caller gives a larger `out`, at NEEDS_HOSTS larger host arrays.

    Args:
        data: bytes of links, at `link_offsets` (n + 1,).
        link_offsets: see `data`.
        page: (n,) row of each link's base; links of a page are neighbours.
        bases: (m, BASE_FIELDS), as `cut_bases` fills it.
        base_data: canonical URLs of the bases, padded by 8 bytes.
        out: receives canonical URLs.
        out_offsets: (n + 1,) into `out`; rows rejected or left to the parser are empty.
        path_key: (n,).
        host: (n,) number of the host, -1 for rejected rows and those left to the parser.
        reject: (n,) 0 or 1 + position in LINK_REJECT_REASONS.
        odd: (n,) receives the rows left to the parser, in order.
        scratch: LONGEST_LINK bytes.
        state: next row, bytes written, number of odd rows, current page, bytes of its URLs; at the start 0 0 0 -1 0.
        index: with `hashes`, `host_names`, `host_offsets`, `counters`: see `find_host`.
        hashes: see `index`.
        host_names: see `index`.
        host_offsets: see `index`.
        counters: see `index`.
        names: with `offsets`, `first`, `lengths`: tracking names, see `NameTable`.
        offsets: see `names`.
        first: see `names`.
        lengths: see `names`.

    Returns:
        DONE, NEEDS_ROOM or NEEDS_HOSTS.
    """
    to = state[WRITTEN]
    odd_count = state[ODD_ROWS]
    current = state[PAGE]
    used = state[PAGE_USED]
    row = state[NEXT_ROW]
    result = DONE
    while row < page.size:
        at, end = link_offsets[row], link_offsets[row + 1]
        while at < end and data[at] <= 32:
            at += 1
        while at < end and data[end - 1] <= 32:
            end -= 1
        if page[row] != current:
            current = page[row]
            used = 0
        base = bases[current]
        code = TOO_MUCH
        number = -1
        written = to
        if used <= PAGE_BYTES:
            if end - at > LONGEST_LINK:
                code = NEEDS_PARSER
            else:
                if to + base[BASE_LENGTH] + 3 * (end - at) + 64 > out.size:
                    result = NEEDS_ROOM
                    break
                if counters[0] >= hashes.size or host_offsets[counters[0]] + ROOM_FOR_ONE > host_names.size:
                    result = NEEDS_HOSTS
                    break
                source = data
                while True:
                    code, written, number = _write_link(
                        source,
                        at,
                        end,
                        base,
                        base_data,
                        out,
                        to,
                        index,
                        hashes,
                        host_names,
                        host_offsets,
                        counters,
                        names,
                        offsets,
                        first,
                        lengths,
                    )
                    if code != HAS_REMOVED:
                        break
                    size = 0
                    for position in range(at, end):
                        if not (source[position] == 9 or source[position] == 10 or source[position] == 13):
                            scratch[size] = source[position]
                            size += 1
                    source = scratch
                    at = 0
                    end = size
                if code == 0 and written - to > LONGEST_URL:
                    code = TOO_LONG
        if code == 0:
            path_key[row] = path_key_slice(out, to, written)
            host[row] = number
            reject[row] = 0
            used += written - to
            to = written
        else:
            path_key[row] = 0
            host[row] = -1
            reject[row] = 0
            if code == NEEDS_PARSER:
                odd[odd_count] = row
                odd_count += 1
            else:
                reject[row] = code
        row += 1
        out_offsets[row] = to
    state[NEXT_ROW] = row
    state[WRITTEN] = to
    state[ODD_ROWS] = odd_count
    state[PAGE] = current
    state[PAGE_USED] = used
    return result
