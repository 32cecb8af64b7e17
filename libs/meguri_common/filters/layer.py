"""A blocked Bloom filter of a fixed size: the building block of filters that grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.filters.kernels.bloom import add_keys, probe_keys
from meguri_common.filters.sizing import blocks_for, check_size, expected_bits, shape_for

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

__all__ = ["Layer", "key_columns"]

_WORDS_PER_BLOCK = 8
_LINE = 64


def key_columns(host: NDArray[np.uint64], path: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Both halves of n keys as kernels take them: contiguous, aligned, read-only u64, shape (n,) each.

    Always read-only, so that columns of a message and of an array in memory share one compiled kernel.

    Raises:
        TypeError: another dtype, which would change keys silently.
        ValueError: shapes that differ or aren't (n,).
    """
    if host.dtype != np.uint64 or path.dtype != np.uint64:
        msg = f"keys are columns of uint64, not of {host.dtype} and {path.dtype}"
        raise TypeError(msg)
    if host.ndim != 1 or host.shape != path.shape:
        msg = f"host and path keys must be columns of one length, not {host.shape} and {path.shape}"
        raise ValueError(msg)
    return _kernel_view(host), _kernel_view(path)


class Layer:
    """Blocks of 512 bits for `capacity` keys at a rate; beyond that, `add` leaves keys to the owner's next layer."""

    def __init__(self, words: NDArray[np.uint64], probes: int, capacity: int, keys: int, bits_set: int) -> None:
        """Take over bits, shape (8 * blocks,); `sized` makes an empty layer."""
        self.words = words
        self.probes = probes
        self.capacity = capacity
        self.counts = np.array([keys, bits_set], np.int64)
        """Keys added, repeats included, and bits that are 1: shape (2,). Kernels that set bits keep both."""
        self._full_bits = expected_bits(capacity, self.blocks, probes)

    @classmethod
    def sized(cls, capacity: int, fp_rate: float) -> Self:
        """An empty layer that keeps the rate up to its capacity.

        Raises:
            ValueError: capacity below 1, or a rate outside (0, 1).
        """
        check_size(capacity, fp_rate)
        bits_per_key, probes = shape_for(fp_rate)
        return cls(_empty_words(blocks_for(capacity, bits_per_key)), probes, capacity, 0, 0)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.words.size // _WORDS_PER_BLOCK

    @property
    def bits(self) -> int:
        """Size in bits."""
        return self.words.size * 64

    def add(self, host: NDArray[np.uint64], path: NDArray[np.uint64], found: NDArray[np.bool_]) -> int:
        """Add keys that aren't `found` until the layer is full; gives how many of the n were dealt with.

        Afterwards found[i], of those, says whether key i may have been in before its turn.
        """
        if not self.words.flags.writeable:
            fresh = _empty_words(self.blocks)
            fresh[:] = self.words
            self.words = fresh
        return add_keys(self.words, self.probes, host, path, found, self.capacity, self._full_bits, self.counts)

    def probe(self, host: NDArray[np.uint64], path: NDArray[np.uint64], found: NDArray[np.bool_]) -> None:
        """found[i] |= whether key i may be in; shapes (n,)."""
        probe_keys(self.words, self.probes, host, path, found)


def _kernel_view(column: NDArray[np.uint64]) -> NDArray[np.uint64]:
    view = np.require(column, requirements=["C", "A"]).view()
    view.flags.writeable = False
    return view


def _empty_words(blocks: int) -> NDArray[np.uint64]:
    """Zeroed blocks that begin at a cache line, so that each is one."""
    spare = _LINE // 8
    words = np.zeros(blocks * _WORDS_PER_BLOCK + spare, np.uint64)
    start = -words.ctypes.data % _LINE // 8
    return words[start : start + blocks * _WORDS_PER_BLOCK]
