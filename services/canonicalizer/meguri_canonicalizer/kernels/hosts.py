"""A table of hosts: from the bytes of a host to a number that stands for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meguri_canonicalizer.kernels.addresses import address_of, copy_bytes, peek, peek_signed, peek_word, poke_word
from meguri_common.kernels.jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ROOM_FOR_ONE", "enter_host", "find_host", "index_hosts"]

ROOM_FOR_ONE: Final = 272
"""Free bytes of names that callers leave for one more host."""

_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)
_ALL_BITS: Final = np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def _hash(at: int, end: int) -> np.uint64:
    """A hash of bytes, 7 more of which may be read."""
    hashed = np.uint64(end - at)
    while at < end:
        word = peek_word(at)
        if end - at < 8:
            word &= _ALL_BITS >> np.uint64(64 - 8 * (end - at))
        hashed = (hashed ^ word) * _MULTIPLIER
        hashed ^= hashed >> _HALF
        at += 8
    return hashed * _MULTIPLIER


@kernel
def find_host(start: int, end: int, index: int, mask: int, hashes: int, names: int, offsets: int, counters: int) -> int:
    """The number of the host between two addresses; a new one is entered with the next number.

    Callers leave room for one more host: a free row, ROOM_FOR_ONE bytes of names, and a free place in the index.

    Args:
        start: where the host begins; 7 bytes behind it may be read.
        end: where it ends.
        index: i64 places, 1 + number of a host or 0; linear probing.
        mask: how many places there are, a power of two, less one.
        hashes: u64 of each host.
        names: bytes of all hosts.
        offsets: i64, one more than hosts: where each begins in `names`.
        counters: i64, the number of hosts.
    """
    hashed = _hash(start, end)
    size = end - start
    place = np.int64(hashed >> _HALF) & mask
    number: int = peek_signed(index + 8 * place) - 1
    while number >= 0:
        name = peek_signed(offsets + 8 * number)
        if peek_word(hashes + 8 * number) == hashed and peek_signed(offsets + 8 * number + 8) - name == size:
            at = 0
            while at < size and peek(names + name + at) == peek(start + at):
                at += 1
            if at == size:
                return number
        place = (place + 1) & mask
        number = peek_signed(index + 8 * place) - 1
    number = peek_signed(counters)
    name = peek_signed(offsets + 8 * number)
    copy_bytes(start, names + name, size)
    poke_word(offsets + 8 * number + 8, np.uint64(name + size))
    poke_word(hashes + 8 * number, hashed)
    poke_word(index + 8 * place, np.uint64(number + 1))
    poke_word(counters, np.uint64(number + 1))
    return number


@kernel
def enter_host(
    host: NDArray[np.uint8],
    size: int,
    index: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    names: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    counters: NDArray[np.int64],
) -> int:
    """`find_host` for the first `size` bytes of an array that is padded by 8 bytes."""
    start = address_of(host)
    return find_host(
        start,
        start + size,
        address_of(index),
        index.size - 1,
        address_of(hashes),
        address_of(names),
        address_of(offsets),
        address_of(counters),
    )


@kernel
def index_hosts(index: NDArray[np.int64], hashes: NDArray[np.uint64], count: int) -> None:
    """Enter hosts 0 to `count` into an empty index."""
    mask = np.int64(index.size - 1)
    for number in range(count):
        place = np.int64(hashes[number] >> _HALF) & mask
        while index[place] != 0:
            place = (place + 1) & mask
        index[place] = number + 1
