"""The filters over a generation's keys: built from all of them, or carried over with what has come since.

Keys never leave a shard, so that the filter of the generation before stays right for all of its keys. It is carried
over as it is while those that came since are few, and they get a Bloom filter, which grows; else one ribbon filter is
built from all keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_common.errors import CorruptFilter, CorruptGeneration
from meguri_common.filters.bloom import Filter
from meguri_common.filters.resident import unmarshal_filter
from meguri_common.filters.ribbon_stream import RibbonStream
from meguri_store.generation import FILES

if TYPE_CHECKING:
    from typing import Self

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from meguri_common.filters.resident import ResidentFilter
    from meguri_common.filters.ribbon_stream import FileSpill
    from meguri_store.generation import Generation
    from meguri_store.publish import GenerationFiles

__all__ = ["CarriedFilter", "NewFilter", "filter_for", "open_filters"]

_BITS = 7
"""Bits of the ribbon's slots: one unknown key in 128 is taken for a known one, at 7.35 bits a key."""
_ROOM = 1 << 26
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


class _LateSpill:
    """A temporary file of a generation in the making that is there once something is put into it."""

    def __init__(self, made: GenerationFiles) -> None:
        self._made = made
        self._file: FileSpill | None = None

    def append(self, chunk: Buffer) -> None:
        if self._file is None:
            self._file = self._made.spill("keys")
        self._file.append(chunk)

    def read(self, at: int, size: int) -> Buffer:
        assert self._file is not None, "read after it was written"
        return self._file.read(at, size)

    def close(self) -> None:
        if self._file is not None:
            self._file.__exit__(None, None, None)


class NewFilter:
    """Filter over all keys of a generation."""

    carried = False
    recent = 0
    """Keys in recent.filter."""

    def __init__(self, made: GenerationFiles, expected: int) -> None:
        """For up to twice `expected` keys, or 2^26 if that is more; keys beyond four millions wait in a file."""
        self._made = made
        self._spill = _LateSpill(made)
        self._keys = RibbonStream(max(2 * expected, _ROOM), _BITS, spill=self._spill)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spill.close()

    def add(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> None:
        """Keys (n,); every one of the generation once."""
        self._keys.add(host, path)

    def write(self) -> None:
        """Write the generation's filters."""
        with self._made.create("filter") as sink:
            self._keys.finish().write(sink)


class CarriedFilter:
    """The filter of the base, and one over the keys that the base's filter doesn't hold."""

    carried = True

    def __init__(self, made: GenerationFiles, base: Generation, expected: int) -> None:
        """For about `expected` new keys."""
        self._made = made
        self._base = base.filter_blob()
        recent = base.filter_blob("recent")
        self._recent = Filter.load(recent) if recent else Filter(max(expected, 1), _RECENT_RATE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to let go."""

    @property
    def recent(self) -> int:
        """Keys in recent.filter."""
        return len(self._recent)

    def add(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> None:
        """Keys (n,) that the base doesn't have."""
        self._recent.add_batch(host, path)

    def write(self) -> None:
        """Write the generation's filters."""
        assert self._base is not None, "a generation has a filter"
        with self._made.create("filter") as sink:
            sink.write(self._base)
        if self.recent:
            with self._made.create("recent") as sink:
                sink.write(self._recent.marshal())


def filter_for(made: GenerationFiles, base: Generation | None, expected: int) -> NewFilter | CarriedFilter:
    """What a generation of about `expected` URLs after `base` needs, as a context.

    Raises:
        CorruptGeneration: the base's filter can't be read.
    """
    if base is None or (expected - base.meta.urls + base.meta.recent) * _RECENT_SHARE >= expected:
        return NewFilter(made, expected)
    try:
        return CarriedFilter(made, base, expected - base.meta.urls)
    except (OSError, CorruptFilter) as problem:
        msg = f"{base.folder}: its filters can't be carried over: {problem}"
        raise CorruptGeneration(msg) from problem
