"""Arrays at addresses, as compiler intrinsics callable from kernels: how one kernel walks any number of arrays.

Callers own the bounds, and keep what the addresses point to alive.
"""

# ruff: noqa: ANN001, ANN202, ARG001 - the signatures are numba's: typing context, builder, signature, arguments
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"
from __future__ import annotations

from typing import TYPE_CHECKING

from numba import carray, types
from numba.extending import intrinsic

from meguri_common.kernels.jit import inline_kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["halves_at", "words_at"]


def _pointer_to(item):
    @intrinsic
    def pointer(typing_context, address):
        result = types.CPointer(item)

        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(result))

        return result(types.uint64), generate

    return pointer


_words = _pointer_to(types.uint64)
_halves = _pointer_to(types.uint32)


@inline_kernel
def words_at(address: np.uint64, size: np.int64) -> NDArray[np.uint64]:
    """The array of u64, (size,), at an address."""
    array: NDArray[np.uint64] = carray(_words(address), size)
    return array


@inline_kernel
def halves_at(address: np.uint64, size: np.int64) -> NDArray[np.uint32]:
    """The array of u32, (size,), at an address."""
    array: NDArray[np.uint32] = carray(_halves(address), size)
    return array
