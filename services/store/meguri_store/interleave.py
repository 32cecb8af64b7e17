"""Rows of two tables of one schema, put into one order: what a merge does with old rows and new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.wire.columns import binary_parts
from meguri_store.kernels.merge import gather_texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["interleaved"]

_SLACK = 32


def interleaved(base: pa.Table, new: pa.Table, order: NDArray[np.int64]) -> pa.Table:
    """Rows of `base` and `new`: row i of the first as i, row j of the second as base.num_rows + j; order (n,).

    Both have one chunk a column, of one schema.
    """
    columns = [
        _column(base.column(at).chunk(0), new.column(at).chunk(0), order, texts=field.name == "url")
        for at, field in enumerate(base.schema)
    ]
    return pa.Table.from_arrays(columns, schema=base.schema)


def _column(base: pa.Array, new: pa.Array, order: NDArray[np.int64], *, texts: bool) -> pa.Array:
    if texts:
        return _texts(base, new, order)
    if base.null_count == len(base) and new.null_count == len(new):
        return pa.nulls(len(order), base.type)
    if base.null_count or new.null_count or not pa.types.is_primitive(base.type):
        return pa.concat_arrays([base, new]).take(pa.array(order))
    old, fresh = base.to_numpy(), new.to_numpy()
    if (fresh == old[0]).all() and (old == old[0]).all():
        return pa.array(np.full(len(order), old[0], old.dtype))
    return pa.array(np.concatenate([old, fresh]).take(order))


def _texts(base: pa.StringArray, new: pa.StringArray, order: NDArray[np.int64]) -> pa.StringArray:
    base_offsets, base_data = (_fixed(part) for part in binary_parts(base))
    new_offsets, new_data = (_fixed(part) for part in binary_parts(new))
    size = sum(int(ends[-1]) - int(ends[0]) for ends in (base_offsets, new_offsets))
    offsets = np.empty(len(order) + 1, np.int32)
    # Of Arrow's memory pool, which hands out again what earlier row groups took.
    data = pa.allocate_buffer(size + _SLACK)
    room = np.frombuffer(data, np.uint8)
    gather_texts(order, base_offsets, base_data, new_offsets, new_data, offsets, room)
    return pa.StringArray.from_buffers(len(order), pa.py_buffer(offsets), data.slice(0, int(offsets[-1])))


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: one type for the kernel, wherever the array comes from."""
    view = values.view()
    view.flags.writeable = False
    return view
