"""Memory that goes back to the system as soon as it is let go, which the allocator's own may not for long."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["zeroed_words"]

_FROM = 1 << 17
"""Words from which it is worth a mapping of its own: a megabyte."""


def zeroed_words(count: int) -> NDArray[np.uint64]:
    """An array of zeros, (count,), that begins at a cache line where it is large; untouched pages take no memory."""
    if count < _FROM:
        return np.zeros(count, np.uint64)
    memory = mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint64)
