"""The built-in list of query names that never select content, read from the file shipped beside this module."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Final, NamedTuple

__all__ = ["TRACKING_PREFIX", "TrackingList", "tracking_list"]

TRACKING_PREFIX: Final = b"utm_"
"""Names that begin so, in any case, are campaign tags."""


class TrackingList(NamedTuple):
    """The names and why they are in."""

    names: frozenset[bytes]
    """Exact names, case-sensitive."""
    classes: dict[str, str]
    """What each name identifies, for explanations."""


@lru_cache(maxsize=1)
def tracking_list() -> TrackingList:
    """The list of this version of the package; changing it changes the identity of URLs."""
    document = json.loads(files("meguri_canonicalizer").joinpath("data/tracking_params.json").read_bytes())
    classes = {entry["name"]: entry["class"] for entry in document["names"]}
    return TrackingList(frozenset(name.encode() for name in classes), classes)
