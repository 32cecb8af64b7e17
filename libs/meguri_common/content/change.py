"""Whether a page has changed, judged by the fingerprints of its last two bodies."""

from __future__ import annotations

from enum import IntEnum

from meguri_common.content.simhash import near

__all__ = ["Change", "classify_change", "observe_change"]


class Change(IntEnum):
    """What two bodies of a page say about change."""

    UNKNOWN = 0
    """One of the bodies has no fingerprint: nothing to compare, the other one only (re)seeds the record."""
    NO_CHANGE = 1
    COSMETIC_CHANGE = 2
    """Near one another: a rotating advertisement, a clock. Counts as no change for the change rate."""
    REAL_CHANGE = 3


def classify_change(old_fp: int, new_fp: int, old_simhash: int, new_simhash: int) -> Change:
    """The verdict on two bodies; fingerprints of 0 are missing ones, and without both simhashes nothing is cosmetic."""
    if old_fp == 0 or new_fp == 0:
        return Change.UNKNOWN
    if old_fp == new_fp:
        return Change.NO_CHANGE
    return Change.COSMETIC_CHANGE if near(old_simhash, new_simhash) else Change.REAL_CHANGE


def observe_change(old_fp: int, new_fp: int, old_simhash: int, new_simhash: int, *, not_modified: bool = False) -> bool:
    """Whether a fetch counts as a change: only a real one does, and an answer of "not modified" never."""
    return not not_modified and classify_change(old_fp, new_fp, old_simhash, new_simhash) is Change.REAL_CHANGE
