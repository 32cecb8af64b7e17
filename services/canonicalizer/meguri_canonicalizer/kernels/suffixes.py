"""Grouping hosts by registrable domain: the Public Suffix List's rules in a table, and the walk over labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meguri_common.kernels.jit import kernel
from meguri_common.kernels.xxh64 import xxh64_slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EXCEPTION", "INNER", "RULE", "WILDCARD", "group_hosts", "index_suffixes", "key_hosts"]

INNER: Final = 0
"""Mark of a name that only leads to longer ones."""
RULE: Final = 1
"""Mark of a name that is a public suffix."""
WILDCARD: Final = 2
"""Mark of a name below which any one label more is a public suffix."""
EXCEPTION: Final = 4
"""Mark of a name that is registrable in spite of the wildcard above it."""

_DOT: Final = 46
_ZERO: Final = 48
_NINE: Final = 57
_BRACKET: Final = 91
_HALF: Final = np.uint64(32)


@kernel
def index_suffixes(names: NDArray[np.uint8], offsets: NDArray[np.int32], index: NDArray[np.int32]) -> None:
    """Enter all names, which are distinct, into an empty index: 1 + number, or 0; linear probing."""
    mask = np.int64(index.size - 1)
    for number in range(offsets.size - 1):
        place = np.int64(xxh64_slice(names, offsets[number], offsets[number + 1]) >> _HALF) & mask
        while index[place] != 0:
            place = (place + 1) & mask
        index[place] = number + 1


@kernel
def _find(
    host: NDArray[np.uint8],
    start: int,
    end: int,
    names: NDArray[np.uint8],
    offsets: NDArray[np.int32],
    index: NDArray[np.int32],
) -> int:
    """The number of the name `host[start:end]`, or -1."""
    mask = np.int64(index.size - 1)
    place = np.int64(xxh64_slice(host, start, end) >> _HALF) & mask
    number = int(index[place]) - 1
    while number >= 0:
        name = np.int64(offsets[number])
        if offsets[number + 1] - name == end - start:
            at = 0
            while at < end - start and names[name + at] == host[start + at]:
                at += 1
            if at == end - start:
                break
        place = (place + 1) & mask
        number = int(index[place]) - 1
    return number


@kernel
def _is_address(host: NDArray[np.uint8], start: int, end: int) -> bool:
    """Whether a host in normal form is an address: bracketed, or its last label a number."""
    if start < end and host[start] == _BRACKET:
        return True
    at = end
    while at > start and _ZERO <= host[at - 1] <= _NINE:
        at -= 1
    return at < end and (at == start or host[at - 1] == _DOT)


@kernel
def group_hosts(
    hosts: NDArray[np.uint8],
    host_offsets: NDArray[np.int64],
    first: int,
    count: int,
    depth: int,
    names: NDArray[np.uint8],
    offsets: NDArray[np.int32],
    marks: NDArray[np.uint8],
    index: NDArray[np.int32],
    lengths: NDArray[np.int64],
) -> None:
    """lengths[i] = bytes of the registrable domain of host i, for i from `first` to `count`; it is the host's end.

    Method: publicsuffix.org/list, algorithm section: the longest rule wins, and the registrable domain is one label
    more, or the name of an exception itself. Labels are walked from the last one on, for as long as the list has
    anything that ends like this; at most `depth` of them.
    """
    for number in range(first, count):
        start = host_offsets[number]
        end = host_offsets[number + 1]
        lengths[number] = end - start
        if _is_address(hosts, start, end):
            continue
        answer = start
        below = False  # whether the name before this one has a wildcard
        extend = False  # whether the name before this one is the longest public suffix so far
        known = True  # whether the list has anything that ends like this
        at = end
        for labels in range(depth):
            while at > start and hosts[at - 1] != _DOT:
                at -= 1
            if extend:
                answer = at
            mark = INNER
            if known:
                name = _find(hosts, at, end, names, offsets, index)
                known = name >= 0
                mark = int(marks[name]) if known else INNER
            exception = (mark & EXCEPTION) != 0
            extend = not exception and ((mark & RULE) != 0 or below or labels == 0)
            if exception or extend:
                answer = at
            if at == start or not (known or extend):
                break
            below = (mark & WILDCARD) != 0
            at -= 1
        lengths[number] = end - answer


@kernel
def key_hosts(
    hosts: NDArray[np.uint8],
    host_offsets: NDArray[np.int64],
    first: int,
    count: int,
    lengths: NDArray[np.int64],
    keys: NDArray[np.uint64],
) -> None:
    """keys[i] = HostKey of the last lengths[i] bytes of host i, for i from `first` to `count`."""
    for number in range(first, count):
        end = host_offsets[number + 1]
        keys[number] = xxh64_slice(hosts, end - lengths[number], end)
