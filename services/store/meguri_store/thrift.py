"""Thrift's compact protocol, as far as Parquet's footers and page headers need it.

Structs are dicts from a field's id to its wire type and value; a list's value is a pair of the type of its elements
and the elements. So what this release knows nothing of survives being read and written again.

Method: the compact protocol's specification in Apache Thrift (doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

__all__ = ["Struct", "Wire", "decode_struct", "encode_struct"]

Struct = dict[int, tuple[int, Any]]


class Wire(IntEnum):
    """Types of the protocol."""

    TRUE = 1
    FALSE = 2
    BYTE = 3
    I16 = 4
    I32 = 5
    I64 = 6
    DOUBLE = 7
    BINARY = 8
    LIST = 9
    SET = 10
    MAP = 11
    STRUCT = 12


# As plain numbers: what a footer of some hundred fields asks about each of them.
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE_VALUE, _BINARY, _LIST, _SET, _STRUCT = map(
    int,
    (
        Wire.TRUE,
        Wire.FALSE,
        Wire.BYTE,
        Wire.I16,
        Wire.I64,
        Wire.DOUBLE,
        Wire.BINARY,
        Wire.LIST,
        Wire.SET,
        Wire.STRUCT,
    ),
)
_DOUBLE = struct.Struct("<d")
_LONG_LIST = 15
_VARINT_MORE = 0x80
_VARINT_BITS = 0x7F
_MOST_BITS = 70
_STEP = 15
"""The farthest a field's id may lie above the one before it to be written as a difference."""


def decode_struct(data: bytes, at: int = 0) -> tuple[Struct, int]:
    """A struct that begins at a byte, and where it ends.

    Raises:
        ValueError: there is none.
    """
    try:
        return _Reader(data, at).struct()
    except (IndexError, struct.error) as problem:
        msg = f"a Thrift struct of {len(data)} bytes is cut short"
        raise ValueError(msg) from problem


def encode_struct(fields: Struct, *, after: int = 0) -> bytes:
    """The bytes of a struct.

    Args:
        fields: what is in it.
        after: the field before them, where these are the rest of a struct whose beginning, without its last byte, is
            written already.
    """
    out = bytearray()
    _write_struct(out, fields, after)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def struct(self) -> tuple[Struct, int]:
        return self._struct(), self._at

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & _VARINT_BITS) << shift
            if byte < _VARINT_MORE:
                return value
            shift += 7
            if shift >= _MOST_BITS:
                msg = f"byte {self._at}: a number without an end"
                raise ValueError(msg)

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 0x0F
            fields[number] = (kind, kind == Wire.TRUE if kind <= Wire.FALSE else self._value(kind))
        return fields

    def _value(self, kind: int) -> Any:
        if Wire.I16 <= kind <= Wire.I64:
            return self._signed()
        if kind == Wire.BINARY:
            size = self._unsigned()
            value = self._data[self._at : self._at + size]
            if len(value) != size:
                msg = f"byte {self._at}: text of {size} bytes is cut short"
                raise ValueError(msg)
            self._at += size
            return value
        if kind == Wire.STRUCT:
            return self._struct()
        if kind in (Wire.LIST, Wire.SET):
            head = self._byte()
            size = head >> 4 if head >> 4 < _LONG_LIST else self._unsigned()
            element = head & 0x0F
            return element, [self._value(element) for _ in range(size)]
        if kind == Wire.DOUBLE:
            self._at += 8
            return _DOUBLE.unpack_from(self._data, self._at - 8)[0]
        if kind in (Wire.TRUE, Wire.FALSE, Wire.BYTE):
            return self._byte()
        msg = f"byte {self._at}: type {kind} isn't one of Parquet's"
        raise ValueError(msg)


def _write_unsigned(out: bytearray, value: int) -> None:
    while value > _VARINT_BITS:
        out.append(value & _VARINT_BITS | _VARINT_MORE)
        value >>= 7
    out.append(value)


def _write_signed(out: bytearray, value: int) -> None:
    _write_unsigned(out, value << 1 if value >= 0 else ~value << 1 | 1)


def _write_struct(out: bytearray, fields: Struct, last: int = 0) -> None:
    for number in sorted(fields):
        kind, value = fields[number]
        if kind <= _FALSE:
            kind = _TRUE if value else _FALSE
        if number - last <= _STEP:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_signed(out, number)
        last = number
        if kind > _FALSE:
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if _I16 <= kind <= _I64:
        _write_signed(out, value)
    elif kind == _BINARY:
        _write_unsigned(out, len(value))
        out += value
    elif kind == _STRUCT:
        _write_struct(out, value)
    elif kind in (_LIST, _SET):
        element, items = value
        if len(items) < _LONG_LIST:
            out.append(len(items) << 4 | element)
        else:
            out.append(_LONG_LIST << 4 | element)
            _write_unsigned(out, len(items))
        for item in items:
            _write_value(out, element, item)
    elif kind == _DOUBLE_VALUE:
        out += _DOUBLE.pack(value)
    elif kind <= _BYTE:
        out.append(value)
    else:
        msg = f"type {kind} isn't one of Parquet's"
        raise ValueError(msg)
