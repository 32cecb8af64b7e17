"""Rows of runs back into keys: the hash that orders them is undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["keys_of_rows"]

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_WORD = 1 << 64
_UNMIX_1 = np.uint64(pow(_MIX_1, -1, _WORD))
_UNMIX_2 = np.uint64(pow(_MIX_2, -1, _WORD))


def keys_of_rows(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Host and path keys, (m, 2), of rows of hash and host key, (2m,).

    `hash_key` is mix(path + mix(host + golden)) and mix is a bijection: so path = unmix(hash) - mix(host + golden).
    """
    hashed, host = rows[0::2], rows[1::2]
    keys = np.empty((host.size, 2), np.uint64)
    keys[:, 0] = host
    keys[:, 1] = _unmix(hashed) - _mix(host + np.uint64(_GOLDEN))
    return keys


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MIX_2)
    return z ^ (z >> np.uint64(31))


def _unmix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = _unshift(z, 31) * _UNMIX_2
    z = _unshift(z, 27) * _UNMIX_1
    return _unshift(z, 30)


def _unshift(z: NDArray[np.uint64], by: int) -> NDArray[np.uint64]:
    """The x of which z is x ^ (x >> by), for a `by` of which three make a word at least."""
    x: NDArray[np.uint64] = z ^ (z >> np.uint64(by)) ^ (z >> np.uint64(2 * by))
    return x
