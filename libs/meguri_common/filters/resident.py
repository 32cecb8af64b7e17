"""Reading a filter without knowing what kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from meguri_common.filters.blob import BlobKind, open_blob
from meguri_common.filters.bloom import Filter
from meguri_common.filters.ribbon import RibbonFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = ["ResidentFilter", "unmarshal_filter"]


class ResidentFilter(Protocol):
    """What every kind of filter answers."""

    def __len__(self) -> int:
        """Number of keys."""
        ...

    @property
    def bits_per_url(self) -> float:
        """Bits in memory per key; 0 for an empty filter."""
        ...

    def maybe_contains(self, host: int, path: int) -> bool:
        """Whether the key may be in."""
        ...

    def maybe_contains_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Of each key whether it may be in; shapes (n,)."""
        ...


_LOADERS: dict[BlobKind, Callable[[Buffer], ResidentFilter]] = {
    BlobKind.BLOOM: Filter.load,
    BlobKind.RIBBON: RibbonFilter.load,
    BlobKind.SHARDED_RIBBON: RibbonFilter.load,
}


def unmarshal_filter(blob: Buffer) -> ResidentFilter:
    """The filter of a blob, on the blob's own bytes (which may be a mapped file).

    Raises:
        CorruptFilter: cut short, altered, or of an unknown version or kind.
    """
    kind, _ = open_blob(blob)
    return _LOADERS[kind](blob)
