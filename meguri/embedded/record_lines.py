"""Records as JSON Lines, and back without loss.

Keys and fingerprints are 16 hex digits, since many readers of JSON round integers beyond 2^53. An entity tag or a
robots.txt is the text it is in UTF-8; octets that aren't UTF-8 are {"hex": "..."}. An address is written as addresses
are. 32-bit floats are written with enough digits.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from meguri_common.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["record_lines", "record_tables"]

_HEX = ("host_key", "content_fp", "simhash")
_BYTES = ("etag", "robots")
_LINES = 4096
"""Rows that are converted at once."""


def record_lines(table: pa.Table) -> Iterator[bytes]:
    """JSON Lines of records, some thousand at a time."""
    names = table.column_names
    for start in range(0, table.num_rows, _LINES):
        part = table.slice(start, _LINES)
        values = [_written(name, part.column(name).to_pylist()) for name in names]
        rows = zip(*values, strict=True)
        yield b"".join(
            orjson.dumps(dict(zip(names, row, strict=True)), option=orjson.OPT_APPEND_NEWLINE) for row in rows
        )


def record_tables(name: str, lines: Iterable[bytes], schema: pa.Schema) -> Iterator[pa.Table]:
    """Tables of a schema from what `record_lines` wrote.

    Args:
        name: of the source, for messages.
        lines: with or without their LF; empty ones are passed over.
        schema: `URL_SCHEMA` or `HOST_SCHEMA`.

    Raises:
        RecordError: a line is no such record; names line and field.
    """
    rows: list[tuple[int, dict[str, Any]]] = []
    wanted = set(schema.names)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as problem:
            msg = f"{name}:{number}: no JSON: {problem}"
            raise RecordError(msg) from problem
        if not isinstance(row, dict) or row.keys() != wanted:
            raise RecordError(f"{name}:{number}: {_misfit(row, wanted)}")
        rows.append((number, row))
        if len(rows) == _LINES:
            yield _table(name, rows, schema)
            rows = []
    if rows:
        yield _table(name, rows, schema)


def _misfit(row: Any, wanted: set[str]) -> str:
    if not isinstance(row, dict):
        return "no object"
    missing, unknown = sorted(wanted - row.keys()), sorted(row.keys() - wanted)
    told = [f"lacks {', '.join(missing)}"] if missing else []
    told += [f"has {', '.join(unknown)}, which no such record has"] if unknown else []
    return "; ".join(told)


def _table(name: str, rows: list[tuple[int, dict[str, Any]]], schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        values = [row[field.name] for _, row in rows]
        try:
            columns.append(_read(field, values))
        except (ValueError, TypeError, OverflowError, pa.ArrowException):
            for number, row in rows:
                try:
                    _read(field, [row[field.name]])
                except (ValueError, TypeError, OverflowError, pa.ArrowException) as problem:
                    msg = f"{name}:{number}: {field.name} is {row[field.name]!r}: {problem}"
                    raise RecordError(msg) from problem
            raise
    return pa.Table.from_arrays(columns, schema=schema)


def _written(name: str, values: list[Any]) -> list[Any]:
    if name in _HEX:
        return [f"{value:016x}" for value in values]
    convert: Callable[[bytes], Any] | None = _text_of if name in _BYTES else _address_text if name == "ip" else None
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _read(field: pa.Field, values: list[Any]) -> pa.Array:
    if not field.nullable and None in values:
        msg = "it can't be null"
        raise ValueError(msg)
    if field.name in _HEX:
        values = [_key(value) for value in values]
    elif pa.types.is_binary(field.type):
        convert = _address if field.name == "ip" else _octets
        values = [None if value is None else convert(value) for value in values]
    elif pa.types.is_string(field.type):
        if any(value is not None and not isinstance(value, str) for value in values):
            msg = "it is no text"
            raise TypeError(msg)
    elif any(isinstance(value, bool) or not isinstance(value, _numbers(field)) for value in values):
        msg = "it is no number" if pa.types.is_floating(field.type) else "it is no whole number"
        raise TypeError(msg)
    array = pa.array(values, field.type)
    if pa.types.is_floating(field.type) and not pc.all(pc.is_finite(array)).as_py():
        msg = f"it doesn't fit into a {field.type}"
        raise ValueError(msg)
    return array


def _numbers(field: pa.Field) -> tuple[type, ...]:
    return (int, float) if pa.types.is_floating(field.type) else (int,)


def _key(text: Any) -> int:
    if not isinstance(text, str) or len(text) != 16:  # noqa: PLR2004 - digits of 64 bits
        msg = "it is not 16 hex digits"
        raise ValueError(msg)
    return int(text, 16)


def _text_of(octets: bytes) -> Any:
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": octets.hex()}


def _octets(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8")
    if isinstance(value, dict) and value.keys() == {"hex"} and isinstance(value["hex"], str):
        return bytes.fromhex(value["hex"])
    msg = 'it is neither text nor {"hex": ...}'
    raise ValueError(msg)


def _address_text(octets: bytes) -> Any:
    try:
        return str(ipaddress.ip_address(octets))
    except ValueError:
        return {"hex": octets.hex()}


def _address(value: Any) -> bytes:
    return ipaddress.ip_address(value).packed if isinstance(value, str) else _octets(value)
