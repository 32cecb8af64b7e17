"""Bytes and words at addresses, callable from kernels.

A kernel takes the addresses of its arrays once and hands them to its helpers as plain integers: passing arrays on
costs several times what most links cost (each is seven values, and counts its references atomically).
Callers own the bounds, and keep the arrays alive.
"""

# ruff: noqa: ANN001, ANN201, ANN202, ARG001 - the signatures are numba's: typing context, builder, signature, arguments
# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc"
from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from meguri_common.kernels.jit import inline_kernel

__all__ = ["address_of", "copy_bytes", "peek", "peek_signed", "peek_word", "poke", "poke_word"]


def _pointer(builder, address, bits):
    return builder.inttoptr(address, ir.PointerType(ir.IntType(bits)))


@intrinsic
def address_of(typing_context, array):
    """Where the elements of an array begin, as i64."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), generate


@intrinsic
def peek(typing_context, address):
    """The byte at an address, as i64."""

    def generate(context, builder, signature, arguments):
        byte = builder.load(_pointer(builder, arguments[0], 8), typ=ir.IntType(8))
        return builder.zext(byte, ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def poke(typing_context, address, value):
    """Write the low byte of an i64."""

    def generate(context, builder, signature, arguments):
        byte = builder.trunc(arguments[1], ir.IntType(8))
        builder.store(byte, _pointer(builder, arguments[0], 8))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def peek_word(typing_context, address):
    """The 8 bytes at an address as a little-endian u64."""

    def generate(context, builder, signature, arguments):
        return builder.load(_pointer(builder, arguments[0], 64), typ=ir.IntType(64), align=1)

    return types.uint64(types.int64), generate


@intrinsic
def peek_signed(typing_context, address):
    """The 8 bytes at an address as a little-endian i64."""

    def generate(context, builder, signature, arguments):
        return builder.load(_pointer(builder, arguments[0], 64), typ=ir.IntType(64), align=1)

    return types.int64(types.int64), generate


@intrinsic
def poke_word(typing_context, address, value):
    """Write a u64, little-endian."""

    def generate(context, builder, signature, arguments):
        builder.store(arguments[1], _pointer(builder, arguments[0], 64), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), generate


@inline_kernel
def copy_bytes(source: int, target: int, count: int) -> None:
    """Copy in words: up to 7 bytes more are read and written, both places are padded for that."""
    done = 0
    while done < count:
        poke_word(target + done, peek_word(source + done))
        done += 8
