"""Canonicalising columns of links under the default policy, as far as bytes alone can tell.

What a kernel can't decide is marked for the parser. Hosts get numbers; their keys are looked up once per host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meguri_canonicalizer.kernels.addresses import address_of, copy_bytes, peek, peek_signed, poke, poke_word
from meguri_canonicalizer.kernels.classes import PATH_CLASS, REMOVED, SCHEME_BYTE
from meguri_canonicalizer.kernels.codes import (
    BASE_FIELDS,
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
    HAS_COLON,
    HAS_REMOVED,
    NEEDS_PARSER,
    write_authority,
    write_path,
)
from meguri_canonicalizer.kernels.query import SORTING_ROOM, write_query
from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.xxh64 import path_key_slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SCRATCH_BYTES", "canonicalize_links"]

SCRATCH_BYTES: Final = 4 * LONGEST_LINK + SORTING_ROOM + 8
"""A link without what the parser leaves out, then a query that is being sorted."""
_HTTP: Final = np.uint64(int.from_bytes(b"http://", "little"))
_HTTPS: Final = np.uint64(int.from_bytes(b"https://", "little"))
_NO_COLON: Final = -1
_ROOM: Final = 64
"""Bytes that a URL may need beyond those of its base and three times those of the link."""


@kernel
def _colon(at: int, end: int) -> int:
    """Where the scheme of a link ends; _NO_COLON for a link without one."""
    if at == end or SCHEME_BYTE[peek(at)] != 1:
        return _NO_COLON
    while at < end and SCHEME_BYTE[peek(at)] != 0:
        at += 1
    if at < end:
        if peek(at) == 58:
            return at
        if PATH_CLASS[peek(at)] == REMOVED:
            return HAS_REMOVED
    return _NO_COLON


@inline_kernel
def _is_slash(at: int, end: int) -> bool:
    return at < end and (peek(at) == 47 or peek(at) == 92)


@inline_kernel
def _is_web(at: int, colon: int) -> bool:
    """Whether the text up to a colon is http or https, in any case."""
    size = colon - at
    return (
        (size == 4 or (size == 5 and peek(at + 4) | 32 == 115))
        and peek(at) | 32 == 104
        and peek(at + 1) | 32 == 116
        and peek(at + 2) | 32 == 116
        and peek(at + 3) | 32 == 112
    )


@inline_kernel
def _behind_web_scheme(at: int, end: int) -> int:
    """The position behind `http://` or `https://` in lower case; -1 if the link doesn't begin so."""
    if at + 8 > end or not (peek(at) == 104 and peek(at + 1) == 116 and peek(at + 2) == 116 and peek(at + 3) == 112):
        return -1
    at += 5 if peek(at + 4) == 115 else 4
    return at + 3 if peek(at) == 58 and peek(at + 1) == 47 and peek(at + 2) == 47 else -1


@inline_kernel
def _write_scheme(to: int, https: bool) -> int:
    poke_word(to, _HTTPS if https else _HTTP)
    return to + (8 if https else 7)


@inline_kernel
def _field(base: int, field: int) -> int:
    value: int = peek_signed(base + 8 * field)
    return value


@kernel
def _write_relative(at: int, end: int, base: int, base_data: int, start: int, may_be_scheme: bool) -> tuple[int, int]:
    """A link without scheme and host, up to its query; where reading and writing stopped, as `write_path` says it."""
    url = base_data + _field(base, BASE_START)
    if at == end or peek(at) == 35:
        copy_bytes(url, start, _field(base, BASE_LENGTH))
        return end, start + _field(base, BASE_LENGTH)
    if peek(at) == 63:
        copy_bytes(url, start, _field(base, BASE_PATH))
        return at, start + _field(base, BASE_PATH)
    kept = _field(base, BASE_FOLDER)
    if _is_slash(at, end):
        kept = _field(base, BASE_ORIGIN)
        at += 1
    copy_bytes(url, start, kept)
    return write_path(at, end, start + kept, start + _field(base, BASE_ORIGIN), may_be_scheme)


@kernel
def _write_link(
    at: int, end: int, base: int, base_data: int, start: int, table: int, scratch: int
) -> tuple[int, int, int]:
    """One link, from `at` to `end`, written from `start`; see `canonicalize_links` for the rest.

    Returns:
        0, a reject code, NEEDS_PARSER or HAS_REMOVED; where writing stopped; where the host ends in the URL, if it is
        not that of the base, else -1.
    """
    state = _field(base, BASE_STATE)
    host_end = -1
    stop = HAS_COLON
    to = start
    host = _behind_web_scheme(at, end)
    https = host == at + 8
    if host < 0 and state == USABLE_BASE:
        if _is_slash(at, end) and _is_slash(at + 1, end):
            host = at + 2
            https = peek(base_data + _field(base, BASE_START) + 4) == 115
        else:
            letter = at < end and SCHEME_BYTE[peek(at)] == 1
            stop, to = _write_relative(at, end, base, base_data, start, letter)
    if host < 0 and stop == HAS_COLON:
        colon = _colon(at, end)
        if colon >= 0:
            if not _is_web(at, colon):
                return SCHEME, start, -1
            host = colon + 3
            https = colon - at == 5
            if host > end or peek(host - 2) != 47 or peek(host - 1) != 47:
                return NEEDS_PARSER, start, -1
        elif colon == HAS_REMOVED:
            return HAS_REMOVED, start, -1
        elif state != USABLE_BASE:
            return (NO_BASE if state == NO_BASE_GIVEN else NEEDS_PARSER), start, -1
        else:
            stop, to = _write_relative(at, end, base, base_data, start, False)
    if host >= 0:
        stop, host_end, to = write_authority(host, end, https, _write_scheme(start, https))
        if stop < 0:
            return stop, start, -1
        poke(to, 47)
        to += 1
        if _is_slash(stop, end):
            stop += 1
        stop, to = write_path(stop, end, to, to, False)
    if 0 <= stop < end and peek(stop) == 63:
        stop, to = write_query(stop + 1, end, to, table, scratch)
    return (min(0, stop)), to, host_end


@kernel
def _without_removed(at: int, end: int, to: int) -> int:
    """Copy a link without tabs and line breaks; returns where it ends."""
    while at < end:
        if PATH_CLASS[peek(at)] != REMOVED:
            poke(to, peek(at))
            to += 1
        at += 1
    return to


@kernel
def canonicalize_links(
    data: NDArray[np.uint8],
    offsets: NDArray[np.int64],
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
    index: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    host_names: NDArray[np.uint8],
    host_offsets: NDArray[np.int64],
    counters: NDArray[np.int64],
    table: NDArray[np.uint8],
) -> int:
    """Write the canonical URLs of the links that bytes decide, list the others.

    Goes on where it stopped: at NEEDS_ROOM the caller gives a larger `out`, at NEEDS_HOSTS larger host arrays.

    Args:
        data: bytes of links, at `offsets` (n + 1,).
        offsets: see `data`.
        page: (n,) row of each link's base; links of a page are neighbours.
        bases: (m, BASE_FIELDS), as `cut_bases` fills it.
        base_data: canonical URLs of the bases, padded by 8 bytes.
        out: receives canonical URLs.
        out_offsets: (n + 1,) into `out`; rows rejected or left to the parser are empty.
        path_key: (n,).
        host: (n,) number of the host, -1 for rejected rows and those left to the parser.
        reject: (n,) 0 or 1 + position in LINK_REJECT_REASONS.
        odd: (n,) receives the rows left to the parser, in order.
        scratch: SCRATCH_BYTES bytes.
        state: next row, bytes written, number of odd rows, current page, bytes of its URLs; at the start 0 0 0 -1 0.
        index: with `hashes`, `host_names`, `host_offsets`, `counters`: see `find_host`.
        hashes: see `index`.
        host_names: see `index`.
        host_offsets: see `index`.
        counters: see `index`.
        table: see `tracking_table`.

    Returns:
        DONE, NEEDS_ROOM or NEEDS_HOSTS.
    """
    to = state[WRITTEN]
    odd_count = state[ODD_ROWS]
    current = state[PAGE]
    used = state[PAGE_USED]
    row = state[NEXT_ROW]
    result = DONE
    link_bytes = address_of(data)
    base_bytes = address_of(base_data)
    base_rows = address_of(bases)
    url_bytes = address_of(out)
    table_bytes = address_of(table)
    stripped = address_of(scratch)
    sorting = stripped + LONGEST_LINK
    index_bytes = address_of(index)
    mask = index.size - 1
    hash_bytes = address_of(hashes)
    name_bytes = address_of(host_names)
    offset_bytes = address_of(host_offsets)
    counter_bytes = address_of(counters)
    while row < page.size:
        at = link_bytes + offsets[row]
        end = link_bytes + offsets[row + 1]
        while at < end and peek(at) <= 32:
            at += 1
        while at < end and peek(end - 1) <= 32:
            end -= 1
        if page[row] != current:
            current = page[row]
            used = 0
        code = TOO_MUCH
        number = -1
        size = 0
        if used <= PAGE_BYTES and end - at > LONGEST_LINK:
            code = NEEDS_PARSER
        elif used <= PAGE_BYTES:
            if to + bases[current, BASE_LENGTH] + 3 * (end - at) + _ROOM > out.size:
                result = NEEDS_ROOM
                break
            if counters[0] >= hashes.size or host_offsets[counters[0]] + ROOM_FOR_ONE > host_names.size:
                result = NEEDS_HOSTS
                break
            start = url_bytes + to
            base = base_rows + 8 * BASE_FIELDS * current
            code, stop, host_end = _write_link(at, end, base, base_bytes, start, table_bytes, sorting)
            if code == HAS_REMOVED:
                end = _without_removed(at, end, stripped)
                code, stop, host_end = _write_link(stripped, end, base, base_bytes, start, table_bytes, sorting)
            size = stop - start
            if code == 0 and size > LONGEST_URL:
                code = TOO_LONG
            if code == 0:
                number = bases[current, BASE_HOST]
                if host_end >= 0:
                    host_start = start + (8 if peek(start + 4) == 115 else 7)
                    number = find_host(
                        host_start, host_end, index_bytes, mask, hash_bytes, name_bytes, offset_bytes, counter_bytes
                    )
        reject[row] = 0
        if code == 0:
            path_key[row] = path_key_slice(out, to, to + size)
            used += size
            to += size
        else:
            path_key[row] = 0
            number = -1
            if code == NEEDS_PARSER:
                odd[odd_count] = row
                odd_count += 1
            else:
                reject[row] = code
        host[row] = number
        row += 1
        out_offsets[row] = to
    state[NEXT_ROW] = row
    state[WRITTEN] = to
    state[ODD_ROWS] = odd_count
    state[PAGE] = current
    state[PAGE_USED] = used
    return result
