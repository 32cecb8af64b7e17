"""Files of records as tables: Parquet or JSON Lines, as `meguri export` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from meguri.embedded.inputs import open_input
from meguri.embedded.record_lines import record_tables
from meguri_common.errors import InputUnreadable, RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from meguri_store.import_records import Place

__all__ = ["files_of", "tables_of_files"]

_PARQUET = ".parquet"
_SUFFIXES = (_PARQUET, ".jsonl", ".jsonl.zst", ".jsonl.gz")
_ROWS = 65_536
_LONGEST_LINE = 64 << 20
_ALIKE = (
    {pa.string(), pa.large_string(), pa.string_view()},
    {pa.binary(), pa.large_binary(), pa.binary_view()},
)
"""Types of one kind of value, which other tools use in place of one another."""


def files_of(inputs: Sequence[str]) -> list[str]:
    """The files that inputs stand for: a folder stands for those in it, by name.

    Raises:
        InputUnreadable: a folder has none, or a file has an unknown suffix.
    """
    found: list[str] = []
    for name in inputs:
        path = Path(name)
        if name != "-" and path.is_dir():
            inside = [str(entry) for entry in sorted(path.iterdir()) if entry.name.endswith(_SUFFIXES)]
            found += [entry for entry in inside if not Path(entry).name.startswith(".")]
            if not inside:
                msg = f"{name}: holds no file that ends in {', '.join(_SUFFIXES)}"
                raise InputUnreadable(msg)
        elif name == "-" or name.endswith(_SUFFIXES):
            found.append(name)
        else:
            msg = f"{name}: ends in none of {', '.join(_SUFFIXES)}"
            raise InputUnreadable(msg)
    return found


def tables_of_files(files: Iterable[str], schema: pa.Schema, place: Place) -> Iterator[pa.Table]:
    """Records of files, one after another, in tables of a schema.

    Args:
        files: `.parquet`, or JSON Lines, which may be compressed; `-` is JSON Lines on standard input.
        schema: `URL_SCHEMA` or `HOST_SCHEMA`.
        place: kept: where the table in hand begins; records count from 0 in each file.

    Raises:
        InputUnreadable: a file can't be read.
        RecordError: a file holds something else; names it, and row or line and field.
    """
    for name in files:
        place.file, place.row = name, 0
        for table in _parquet(name, schema) if name.endswith(_PARQUET) else _json(name, schema):
            yield table
            place.row += table.num_rows


def _json(name: str, schema: pa.Schema) -> Iterator[pa.Table]:
    stream = open_input(name)
    try:
        yield from record_tables(name, _lines(name, stream.chunks()), schema)
    finally:
        stream.close()


def _parquet(name: str, schema: pa.Schema) -> Iterator[pa.Table]:
    try:
        with pq.ParquetFile(name) as file:
            _check_columns(name, file.schema_arrow, schema)
            first = 0
            for batch in file.iter_batches(_ROWS, columns=schema.names, use_threads=False):
                table = pa.Table.from_batches([batch]).select(schema.names)
                _check_nulls(name, table, schema, first)
                first += table.num_rows
                yield table.cast(schema)
    except (OSError, pa.ArrowException) as problem:
        msg = f"{name}: can't be read: {problem}"
        raise InputUnreadable(msg) from problem


def _check_columns(name: str, found: pa.Schema, schema: pa.Schema) -> None:
    missing = [column for column in schema.names if column not in found.names]
    unknown = [column for column in found.names if column not in schema.names]
    if missing or unknown:
        told = [f"lacks the columns {', '.join(missing)}"] if missing else []
        told += [f"has the columns {', '.join(unknown)}, which no such record has"] if unknown else []
        raise RecordError(f"{name}: {'; '.join(told)}")
    for field in schema:
        given = found.field(field.name).type
        if given != field.type and not any({given, field.type} <= alike for alike in _ALIKE):
            msg = f"{name}: column {field.name} is of type {given}, not {field.type}"
            raise RecordError(msg)


def _check_nulls(name: str, table: pa.Table, schema: pa.Schema, first: int) -> None:
    for field in schema:
        column = table.column(field.name)
        if column.null_count and not field.nullable:
            row = first + column.is_null().to_pylist().index(True)
            msg = f"{name}: row {row}: {field.name} can't be null"
            raise RecordError(msg)


def _lines(name: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
        if len(rest) > _LONGEST_LINE:
            msg = f"{name}: has a line of more than {_LONGEST_LINE} bytes, which no record takes"
            raise RecordError(msg)
    if rest:
        yield rest
