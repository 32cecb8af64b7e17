"""URL keys: which 128-bit number stands for a canonical URL, and which partition owns it.

HostKey is xxh64 (seed 0) of the host group, PathKey is xxh64 (seed 0) of a fixed 8-byte prefix and the whole
canonical URL. Keys compare as (HostKey, PathKey), unsigned. As bytes: both halves little-endian, HostKey first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xxhash

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PATH_KEY_PREFIX", "host_key", "partition_of", "partitions_of", "path_key"]

PATH_KEY_PREFIX = (0x9E3779B97F4A7C15).to_bytes(8, "little")
"""What goes before the URL in the hash of a PathKey, so that it never equals a HostKey of the same bytes."""


def host_key(group: bytes) -> int:
    """HostKey of a host group (registrable domain, address, or host)."""
    return xxhash.xxh64_intdigest(group)


def path_key(canonical_url: bytes) -> int:
    """PathKey of a whole canonical URL."""
    return xxhash.xxh64_intdigest(PATH_KEY_PREFIX + canonical_url)


def partition_of(host: int, partitions: int) -> int:
    """The partition that owns a HostKey: contiguous ranges of equal width."""
    return (host * partitions) >> 64


def partitions_of(hosts: NDArray[np.uint64], partitions: int) -> NDArray[np.int64]:
    """`partition_of` for a column: shape (n,) u64 -> shape (n,) i64; partitions at most 65,535.

    Done in two 32-bit halves, since numpy has no 128-bit product.
    """
    count = np.uint64(partitions)
    low = (hosts & np.uint64(0xFFFFFFFF)) * count
    high = (hosts >> np.uint64(32)) * count
    return ((high + (low >> np.uint64(32))) >> np.uint64(32)).astype(np.int64)
