"""Unaligned loads and stores, prefetch and bit counts, as compiler intrinsics callable from kernels.

Callers own the bounds: a load or store of 8 bytes at `i` needs `i + 8 <= array.size`; buffers are padded for that.
"""

# ruff: noqa: ANN001, ANN201, ANN202, ARG001 - the signatures are numba's: typing context, builder, signature, arguments
# mypy: disable-error-code="no-untyped-def,misc"
from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["band_parities", "count_trailing_zeros", "load64", "popcount", "prefetch", "store64"]


@intrinsic
def load64(typing_context, array, index):
    """Little-endian u64 at byte `index` of a u8 array."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.PointerType(ir.IntType(64)))
        return builder.load(pointer, typ=ir.IntType(64), align=1)

    return types.uint64(array, types.int64), generate


@intrinsic
def store64(typing_context, array, index, value):
    """Write a u64, little-endian, at byte `index` of a u8 array."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.PointerType(ir.IntType(64)))
        builder.store(arguments[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


@intrinsic
def prefetch(typing_context, array, index):
    """Ask for the cache line of element `index`; never faults."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        byte_pointer = ir.PointerType(ir.IntType(8))
        int32 = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32]),
            "llvm.prefetch.p0",
        )
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer)
        read, high_locality, data_cache = (ir.Constant(int32, value) for value in (0, 3, 1))
        builder.call(function, [pointer, read, high_locality, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def count_trailing_zeros(typing_context, value):
    """Zero bits below the lowest set bit of a u64; 64 for 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generate


@intrinsic
def popcount(typing_context, value):
    """Set bits of a u64."""

    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def band_parities(typing_context, words, index, stride, first, second, third):
    """Eight parities at once: bit j is that of the bits that three masks leave of three words of a column.

    Column j is words `index + j`, `index + stride + j` and `index + 2 * stride + j` of a u32 array; the u32 masks
    `first`, `second` and `third` belong to them in this order. Reads 8 words at each of the three places.
    """

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        vector = ir.VectorType(ir.IntType(32), 8)
        unset = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(vector, [0] * 8)
        at = arguments[1]
        left = zeros
        for mask in arguments[3:]:
            pointer = builder.bitcast(builder.gep(data, [at]), ir.PointerType(vector))
            spread = builder.insert_element(unset, mask, ir.Constant(ir.IntType(32), 0))
            spread = builder.shuffle_vector(spread, unset, zeros)
            left = builder.xor(left, builder.and_(builder.load(pointer, typ=vector, align=4), spread))
            at = builder.add(at, arguments[2])
        count = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector]), "llvm.ctpop.v8i32")
        odd = builder.trunc(builder.call(count, [left]), ir.VectorType(ir.IntType(1), 8))
        return builder.zext(builder.bitcast(odd, ir.IntType(8)), ir.IntType(64))

    masks = (types.uint32, types.uint32, types.uint32)
    return types.uint64(words, types.int64, types.int64, *masks), generate
