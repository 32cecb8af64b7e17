"""Between Arrow arrays without nulls and the numpy buffers that kernels work on, without copying."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["binary_array", "binary_parts", "list_array", "list_parts", "numbers", "row_sizes"]

_EMPTY = np.zeros(0, np.uint8)


def numbers(batch: pa.RecordBatch, name: str) -> NDArray[Any]:
    """A primitive column as a numpy view, shape (rows,), dtype of the schema."""
    values: NDArray[Any] = batch.column(name).to_numpy(zero_copy_only=True)
    return values


def binary_parts(array: pa.BinaryArray) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets (rows + 1,) i32 and data (bytes,) u8 of a binary column; offsets index into data, from any start."""
    _, offsets, data = array.buffers()
    if offsets is None:
        return np.zeros(1, np.int32), _EMPTY
    first = array.offset
    parts = np.frombuffer(offsets, np.int32)[first : first + len(array) + 1]
    return parts, (np.frombuffer(data, np.uint8) if data is not None else _EMPTY)


def binary_array(offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> pa.BinaryArray:
    """A binary column of offsets (rows + 1,) i32 and data (bytes,) u8; shares the buffers."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def list_parts(array: pa.ListArray) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Offsets (rows + 1,) i32 and values of a list column of numbers; offsets index into the values."""
    _, offsets = array.buffers()[:2]
    values = array.values.to_numpy(zero_copy_only=True)
    if offsets is None:
        return np.zeros(1, np.int32), values
    first = array.offset
    return np.frombuffer(offsets, np.int32)[first : first + len(array) + 1], values


def list_array(offsets: NDArray[np.int32], values: NDArray[Any]) -> pa.ListArray:
    """A list column of offsets (rows + 1,) i32 and number values; shares the buffers."""
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


def row_sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes that each row takes in an envelope, without the fixed overhead; shape (rows,) i64."""
    sizes = np.zeros(batch.num_rows, np.int64)
    fixed = 0
    for column in batch.columns:
        kind = column.type
        if pa.types.is_binary(kind):
            sizes += np.diff(binary_parts(column)[0])
            fixed += 4
        elif pa.types.is_fixed_size_list(kind):
            fixed += kind.list_size * kind.value_type.bit_width // 8
        elif pa.types.is_list(kind):
            sizes += np.diff(list_parts(column)[0]).astype(np.int64) * (kind.value_type.bit_width // 8)
            fixed += 4
        else:
            fixed += kind.bit_width // 8
    sizes += fixed
    return sizes
