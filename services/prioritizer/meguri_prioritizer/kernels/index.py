"""Open-addressing indexes from keys to the rows of append-only tables.

A slot is 0 or a row + 1 in its low bits, with as many bits of the key's hash above them as there is room for: a
stranger in the way is told by those bits, without a look at its record. Tables have a power of two of slots, always
more than rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import prefetch
from meguri_prioritizer.layout import integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "deal_pairs",
    "find_keys",
    "find_urls",
    "locate_keys",
    "locate_urls",
    "mix",
    "rebuild_keys",
    "rebuild_pairs",
    "rebuild_urls",
]

_FAR = 16
"""Rows between asking for an index slot's cache line and using it."""
_NEAR = 8
"""Rows between asking for the record that the slot names and using it."""


@inline_kernel
def _owner(host_key: np.uint64, partitions: np.uint64) -> int:
    """`keys.partition_of`, in two halves."""
    low = (host_key & np.uint64(0xFFFFFFFF)) * partitions
    high = (host_key >> np.uint64(32)) * partitions
    return integer((high + (low >> np.uint64(32))) >> np.uint64(32))


@inline_kernel
def mix(first: np.uint64, second: np.uint64) -> np.uint64:
    """A hash of two words: low half for the place, high half for the slot's check bits."""
    mixed = (second ^ (first * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(0xD6E8FEB86659FD93)
    return mixed ^ (mixed >> np.uint64(32))


@kernel
def locate_urls(
    slots: NDArray[np.uint32],
    urls: NDArray[Any],
    count: NDArray[np.int64],
    hosts: NDArray[np.int64],
    paths: NDArray[np.uint64],
    rows: NDArray[np.int64],
    append: bool,
) -> None:
    """rows[i] = row of the URL of host row hosts[i] and path key paths[i]; columns (n,).

    Unknown ones become new rows if `append`, which the table must have room for, else -1. `count[0]` is the number of
    rows.
    """
    mask = np.uint64(slots.size - 1)
    total = paths.size
    for i in range(total):
        if i + _FAR < total:
            prefetch(slots, integer(mix(np.uint64(hosts[i + _FAR]), paths[i + _FAR]) & mask))
        if i + _NEAR < total:
            ahead = np.uint64(slots[integer(mix(np.uint64(hosts[i + _NEAR]), paths[i + _NEAR]) & mask)]) & mask
            if ahead != np.uint64(0):
                prefetch(urls, integer(ahead) - 1)
        host = hosts[i]
        path = paths[i]
        hashed = mix(np.uint64(host), path)
        check = (hashed >> np.uint64(32)) & ~mask
        at = hashed & mask
        row = -1
        while True:
            slot = np.uint64(slots[integer(at)])
            if slot == np.uint64(0):
                row = -1
                break
            row = integer(slot & mask) - 1
            if (slot & ~mask) == check and urls[row].path_key == path and urls[row].host == host:
                break
            at = (at + np.uint64(1)) & mask
        if row < 0 and append:
            row = count[0]
            count[0] = row + 1
            urls[row].path_key = path
            urls[row].host = host
            urls[row].depth = 0xFFFF  # nobody has stated one; all else of a new record is 0
            slots[integer(at)] = np.uint32(check | np.uint64(row + 1))
        rows[i] = row


@kernel
def find_urls(
    slots: NDArray[np.uint32], urls: NDArray[Any], count: NDArray[np.int64], host: int, path: np.uint64
) -> int:
    """Row of a URL, or -1."""
    rows = np.empty(1, np.int64)
    locate_urls(slots, urls, count, np.full(1, host, np.int64), np.full(1, path, np.uint64), rows, False)
    return integer(rows[0])


@kernel
def rebuild_urls(slots: NDArray[np.uint32], urls: NDArray[Any], count: int) -> None:
    """Fill an empty index with the first `count` rows."""
    mask = np.uint64(slots.size - 1)
    for row in range(count):
        hashed = mix(np.uint64(urls[row].host), urls[row].path_key)
        at = hashed & mask
        while slots[integer(at)] != 0:
            at = (at + np.uint64(1)) & mask
        slots[integer(at)] = np.uint32(((hashed >> np.uint64(32)) & ~mask) | np.uint64(row + 1))


@kernel
def locate_keys(
    slots: NDArray[np.uint32],
    records: NDArray[Any],
    count: NDArray[np.int64],
    keys: NDArray[np.uint64],
    rows: NDArray[np.int64],
    append: bool,
) -> None:
    """`locate_urls` for records of one `key`. Equal keys in a row are looked up once."""
    mask = np.uint64(slots.size - 1)
    for i in range(keys.size):
        key = keys[i]
        if i > 0 and key == keys[i - 1]:
            rows[i] = rows[i - 1]
            continue
        hashed = mix(np.uint64(0), key)
        check = (hashed >> np.uint64(32)) & ~mask
        at = hashed & mask
        row = -1
        while True:
            slot = np.uint64(slots[integer(at)])
            if slot == np.uint64(0):
                row = -1
                break
            row = integer(slot & mask) - 1
            if (slot & ~mask) == check and records[row].key == key:
                break
            at = (at + np.uint64(1)) & mask
        if row < 0 and append:
            row = count[0]
            count[0] = row + 1
            records[row].key = key
            slots[integer(at)] = np.uint32(check | np.uint64(row + 1))
        rows[i] = row


@kernel
def find_keys(slots: NDArray[np.uint32], records: NDArray[Any], count: NDArray[np.int64], key: np.uint64) -> int:
    """Row of a key, or -1."""
    rows = np.empty(1, np.int64)
    locate_keys(slots, records, count, np.full(1, key, np.uint64), rows, False)
    return integer(rows[0])


@kernel
def rebuild_keys(slots: NDArray[np.uint32], records: NDArray[Any], count: int) -> None:
    """Fill an empty index with the first `count` rows."""
    mask = np.uint64(slots.size - 1)
    for row in range(count):
        hashed = mix(np.uint64(0), records[row].key)
        at = hashed & mask
        while slots[integer(at)] != 0:
            at = (at + np.uint64(1)) & mask
        slots[integer(at)] = np.uint32(((hashed >> np.uint64(32)) & ~mask) | np.uint64(row + 1))


@kernel
def rebuild_pairs(slots: NDArray[np.uint32], pairs: NDArray[Any], count: int) -> None:
    """Fill an empty index with the first `count` pairs."""
    mask = np.uint64(slots.size - 1)
    for row in range(count):
        hashed = mix(pairs[row].first, pairs[row].second)
        at = hashed & mask
        while slots[integer(at)] != 0:
            at = (at + np.uint64(1)) & mask
        slots[integer(at)] = np.uint32(((hashed >> np.uint64(32)) & ~mask) | np.uint64(row + 1))


@kernel
def deal_pairs(
    pairs: NDArray[Any],
    count: int,
    ends: NDArray[np.int64],
    first: NDArray[np.uint64],
    second: NDArray[np.uint64],
    units: NDArray[np.uint64],
    depth: NDArray[np.uint16],
) -> None:
    """Columns of the first `count` pairs, by the partition that owns `first`, in their order within it.

    ends[p] is where the rows of partition p end; shape (partitions,). The columns have room for `count` rows.
    """
    partitions = np.uint64(ends.size)
    ends[:] = 0
    for row in range(count):
        ends[_owner(pairs[row].first, partitions)] += 1
    for partition in range(1, ends.size):
        ends[partition] += ends[partition - 1]
    for row in range(count - 1, -1, -1):
        owner = _owner(pairs[row].first, partitions)
        ends[owner] -= 1
        at = ends[owner]
        first[at] = pairs[row].first
        second[at] = pairs[row].second
        units[at] = pairs[row].units
        depth[at] = pairs[row].depth
    # Each has gone down to where its rows begin, which is where those of the one before it end.
    for partition in range(ends.size - 1):
        ends[partition] = ends[partition + 1]
    ends[ends.size - 1] = count
