"""A table of hosts: from the bytes of a host to a number that stands for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from meguri_common.kernels.jit import kernel
from meguri_common.kernels.xxh64 import xxh64_slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ROOM_FOR_ONE", "find_host", "index_hosts"]


ROOM_FOR_ONE: Final = 256
"""Free bytes of names that callers leave for one more host."""


@kernel
def find_host(
    data: NDArray[np.uint8],
    start: int,
    end: int,
    index: NDArray[np.int32],
    hashes: NDArray[np.uint64],
    names: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    counters: NDArray[np.int64],
) -> int:
    """The number of host `data[start:end]`; a new one is entered with the next number.

    Callers leave room for one more host: a free row, its bytes in `names`, and a free place in `index`.

    Args:
        data: bytes that hold the host.
        start: where it begins.
        end: where it ends.
        index: power of two many places, 1 + number of a host or 0; linear probing.
        hashes: (rows,) xxh64 of each host.
        names: bytes of all hosts.
        offsets: (rows + 1,) into `names`.
        counters: element 0 is the number of hosts.
    """
    hashed = xxh64_slice(data, start, end)
    mask = np.int64(index.size - 1)
    place = np.int64(hashed >> np.uint64(32)) & mask
    while index[place] != 0:
        number = index[place] - 1
        first = offsets[number]
        if hashes[number] == hashed and offsets[number + 1] - first == end - start:
            same = True
            for at in range(end - start):
                if names[first + at] != data[start + at]:
                    same = False
                    break
            if same:
                return int(number)
        place = (place + 1) & mask
    number = counters[0]
    first = offsets[number]
    for at in range(end - start):
        names[first + at] = data[start + at]
    offsets[number + 1] = first + end - start
    hashes[number] = hashed
    index[place] = number + 1
    counters[0] = number + 1
    return int(number)


@kernel
def index_hosts(index: NDArray[np.int32], hashes: NDArray[np.uint64], count: int) -> None:
    """Enter hosts 0 to `count` into an empty index."""
    mask = np.int64(index.size - 1)
    for number in range(count):
        place = np.int64(hashes[number] >> np.uint64(32)) & mask
        while index[place] != 0:
            place = (place + 1) & mask
        index[place] = number + 1
