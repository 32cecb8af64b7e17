"""Records as kernels take them that merge by (host key, URL)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.wire.columns import binary_parts, numbers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

__all__ = ["Keyed", "fixed", "keyed"]

Keyed = tuple["NDArray[np.uint64]", "NDArray[np.int32]", "NDArray[np.uint8]"]
"""Host keys (n,), URL offsets (n + 1,) and URL bytes."""


def fixed(values: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: one type for the kernels, wherever the array comes from."""
    view = values.view()
    view.flags.writeable = False
    return view


def keyed(rows: pa.Table) -> Keyed:
    """Host keys, URL offsets and URL bytes of records, as the kernels take them."""
    batch = rows.combine_chunks().to_batches()
    if not batch:
        return fixed(np.zeros(0, np.uint64)), fixed(np.zeros(1, np.int32)), fixed(np.zeros(0, np.uint8))
    offsets, data = binary_parts(batch[0].column("url"))
    return fixed(numbers(batch[0], "host_key")), fixed(offsets), fixed(data)
