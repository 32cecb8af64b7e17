"""The filters over a generation's keys: built from all of them, or carried over with what has come since.

Keys never leave a shard, so that the filter of the generation before stays right for all of its keys. It is carried
over as it is while those that came since are few, and they get a filter of their own that grows; else one filter is
built from all keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_common.errors import CorruptFilter, CorruptGeneration
from meguri_common.filters.bloom import Filter
from meguri_common.filters.resident import unmarshal_filter
from meguri_store.generation import FILES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from meguri_common.filters.resident import ResidentFilter
    from meguri_store.generation import Generation
    from meguri_store.publish import GenerationFiles

__all__ = ["CarriedFilter", "NewFilter", "filter_for", "open_filters"]

_RATE = 0.01
_RECENT_RATE = 0.005
_RECENT_SHARE = 8
"""A filter is carried over while fewer than one in so many keys came since it was built."""


def open_filters(generation: Generation) -> list[ResidentFilter]:
    """The filters of a generation; a key that none of them may hold isn't there.

    Raises:
        CorruptGeneration: one can't be read.
    """
    found = []
    for role in ("filter", "recent"):
        try:
            blob = generation.filter_blob(role)
            if blob is not None:
                found.append(unmarshal_filter(blob))
        except (OSError, CorruptFilter) as problem:
            msg = f"{generation.folder}/{FILES[role]}: {problem}"
            raise CorruptGeneration(msg) from problem
    return found


class NewFilter:
    """Filter over all keys of a generation."""

    carried = False

    def __init__(self, expected: int) -> None:
        """For about `expected` keys."""
        self._filter = Filter(max(expected, 1), _RATE)

    @property
    def recent(self) -> int:
        """Keys in recent.filter."""
        return 0

    def add(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> None:
        """Keys (n,); every one of the generation once."""
        self._filter.add_batch(host, path)

    def write(self, made: GenerationFiles) -> None:
        """Write the generation's filters."""
        with made.create("filter") as sink:
            sink.write(self._filter.marshal())


class CarriedFilter:
    """The filter of the base, and one over the keys that the base's filter doesn't hold."""

    carried = True

    def __init__(self, base: Generation, expected: int) -> None:
        """For about `expected` new keys."""
        self._base = base.filter_blob()
        recent = base.filter_blob("recent")
        self._recent = Filter.load(recent) if recent else Filter(max(expected, 1), _RECENT_RATE)

    @property
    def recent(self) -> int:
        """Keys in recent.filter."""
        return len(self._recent)

    def add(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> None:
        """Keys (n,) that the base doesn't have."""
        self._recent.add_batch(host, path)

    def write(self, made: GenerationFiles) -> None:
        """Write the generation's filters."""
        assert self._base is not None, "a generation has a filter"
        with made.create("filter") as sink:
            sink.write(self._base)
        if self.recent:
            with made.create("recent") as sink:
                sink.write(self._recent.marshal())


def filter_for(base: Generation | None, expected: int) -> NewFilter | CarriedFilter:
    """What a generation of about `expected` URLs after `base` needs.

    Raises:
        CorruptGeneration: the base's filter can't be read.
    """
    if base is None or (expected - base.meta.urls + base.meta.recent) * _RECENT_SHARE >= expected:
        return NewFilter(expected)
    try:
        return CarriedFilter(base, expected - base.meta.urls)
    except (OSError, CorruptFilter) as problem:
        msg = f"{base.folder}: its filters can't be carried over: {problem}"
        raise CorruptGeneration(msg) from problem
