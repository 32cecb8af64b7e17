"""Sorting what is said about URLs by their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["order_by_keys"]


def order_by_keys(
    host: NDArray[np.uint64], path: NDArray[np.uint64], order: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Row numbers in the order (host key, path key); rows of equal keys stay as they were.

    Args:
        host: host keys, (n,).
        path: path keys, (n,).
        order: row numbers as they are now, (m,); None is all of them, ascending.
    """
    if order is None:
        order = np.arange(len(host))
    return _stable(host, _stable(path, order))


def _stable(column: NDArray[np.uint64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort row numbers (m,) by a column of keys.

    Keys are hashes: their high bits tell them apart, and the low ones make room for the place that keeps equal ones in
    order. Numbers without an index beside them sort several times as fast; keys that differ in the low bits only are
    noticed afterwards.
    """
    low = np.uint64((1 << max(len(order) - 1, 1).bit_length()) - 1)
    packed = column[order]
    packed &= ~low
    packed |= np.arange(len(order), dtype=np.uint64)
    packed.sort()
    packed &= low
    found = order[packed.view(np.int64)]
    keys = column[found]
    if (keys[1:] < keys[:-1]).any():
        return order[np.argsort(column[order], kind="stable")]
    return found
