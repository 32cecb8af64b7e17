"""The change verdict over columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.content.change import Change
from meguri_common.content.simhash import NEAR_BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["classify_changes", "observe_changes"]


def classify_changes(
    old_fp: NDArray[np.uint64],
    new_fp: NDArray[np.uint64],
    old_simhash: NDArray[np.uint64],
    new_simhash: NDArray[np.uint64],
) -> NDArray[np.uint8]:
    """`classify_change` of each row, as codes of `Change`; all arguments u64 (n,), the result u8 (n,)."""
    near = (old_simhash != 0) & (new_simhash != 0) & (np.bitwise_count(old_simhash ^ new_simhash) <= NEAR_BITS)
    verdict: NDArray[np.uint8] = np.where(near, np.uint8(Change.COSMETIC_CHANGE), np.uint8(Change.REAL_CHANGE))
    verdict[old_fp == new_fp] = Change.NO_CHANGE
    verdict[(old_fp == 0) | (new_fp == 0)] = Change.UNKNOWN
    return verdict


def observe_changes(
    old_fp: NDArray[np.uint64],
    new_fp: NDArray[np.uint64],
    old_simhash: NDArray[np.uint64],
    new_simhash: NDArray[np.uint64],
    not_modified: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """`observe_change` of each row; all arguments (n,)."""
    verdict = classify_changes(old_fp, new_fp, old_simhash, new_simhash)
    changed: NDArray[np.bool_] = (verdict == Change.REAL_CHANGE) & ~not_modified
    return changed
