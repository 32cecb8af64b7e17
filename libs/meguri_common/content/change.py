"""Whether a body has changed, from the fingerprints of the last fetch and of this one."""

from __future__ import annotations

from enum import IntEnum

from meguri_common.content.fingerprint import near

__all__ = ["Change", "classify_change", "observe_change"]


class Change(IntEnum):
    """What became of a body."""

    NO_CHANGE = 0
    COSMETIC_CHANGE = 1
    """Another body, but near: a rotating ad, a clock. Counts as no change for the change rate."""
    REAL_CHANGE = 2


def classify_change(old_fp: int, new_fp: int, old_simhash: int, new_simhash: int) -> Change:
    """Compare two bodies; an empty simhash can't be near."""
    if old_fp == new_fp:
        return Change.NO_CHANGE
    return Change.COSMETIC_CHANGE if near(old_simhash, new_simhash) else Change.REAL_CHANGE


def observe_change(
    stored_fp: int, stored_simhash: int, *, not_modified: bool, fetched_fp: int, fetched_simhash: int
) -> bool:
    """Whether a fetch shows a real change of a record; with nothing to compare (fp 0) it doesn't."""
    if not_modified or stored_fp == 0 or fetched_fp == 0:
        return False
    return classify_change(stored_fp, fetched_fp, stored_simhash, fetched_simhash) == Change.REAL_CHANGE
