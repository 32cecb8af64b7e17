"""Some rows of a row group, without decoding the others.

Pages are decompressed whole, there is no other way; but of what comes out only the rows that are asked for become
values. Columns that aren't written as the store's own encoder does it are left to Arrow.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zstandard

from meguri_common.errors import CorruptGeneration
from meguri_store.encoding import CODES, DELTA_NUMBERS, DELTA_TEXTS, PLAIN, SPLIT_BYTES, UNCOMPRESSED, ZSTD
from meguri_store.generation import FILES
from meguri_store.kernels.encoding import PACKED_SLACK, unpack_deltas
from meguri_store.kernels.picking import pick_texts, texts_fit, unmark_codes
from meguri_store.schema import URL_SCHEMA
from meguri_store.thrift import decode_struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from meguri_store.column_chunks import Chunk
    from meguri_store.generation import Generation

    Wanted = Callable[[NDArray[Any]], NDArray[np.bool_]]

__all__ = ["Picker"]

_HEAD = 64
"""Bytes in which a page's header has room."""
_MOST = (1 << 31) - 256
_WIDEST = 16
_PACKED_RUN = 1
# A PageHeader: 1 kind, 2 size, 3 stored size, 4 checksum; of a data page in 5, of a dictionary in 7: 1 values,
# 2 encoding.
_ABOUT = {0: 5, 2: 7}
_DATA, _DICTIONARY = _ABOUT


@dataclass(frozen=True)
class _Page:
    size: int
    """Bytes when it is decompressed."""
    values: int
    encoding: int
    body: memoryview


class Picker:
    """Reads rows of a generation's row groups. Not for several threads at a time: pages share their room."""

    def __init__(self, generation: Generation) -> None:
        """Of an open generation."""
        self._generation = generation
        self._room = np.empty(0, np.uint8)
        self._numbers = np.empty((2, 0), np.int64)
        self._single: dict[tuple[int, str], NDArray[Any]] = {}
        """The one value, (1,), of columns of row groups that have one alone; most have."""

    def rows(
        self,
        group: int,
        rows: NDArray[np.int64],
        names: Sequence[str],
        known: Mapping[str, pa.Array] = MappingProxyType({}),
    ) -> pa.Table:
        """Rows of a row group.

        Args:
            group: the row group.
            rows: ascending, one may come more than once, (k,).
            names: columns, in the order of the table's.
            known: columns of these rows that are known already.

        Raises:
            CorruptGeneration: they can't be decoded; names the rows of the row group.
        """
        return pa.Table.from_arrays(
            [known[name] if name in known else self.column(group, name, rows) for name in names],
            schema=pa.schema([URL_SCHEMA.field(name).remove_metadata() for name in names]),
        )

    def column(self, group: int, name: str, rows: NDArray[np.int64] | None = None) -> pa.Array:
        """A column's values in these rows, (k,), or in all.

        Raises:
            CorruptGeneration: they can't be decoded.
        """
        field = URL_SCHEMA.field(name)
        found: pa.Array | None = None
        if not field.nullable:
            try:
                found = self._texts(group, rows) if name == "url" else self._values(group, field, rows)
            except (OSError, ValueError) as problem:
                raise self._corrupt(group, str(problem)) from problem
        if found is None:
            whole = self._generation.urls(group, [name]).column(0)
            if len(whole) != self._generation.group_rows(group):
                raise self._corrupt(group, f"{len(whole)} values of {name} come out")
            whole = whole.chunk(0) if whole.num_chunks == 1 else whole.combine_chunks()
            found = whole if rows is None else whole.take(pa.array(rows))
        return found

    def matching(self, group: int, wanted: Mapping[str, Wanted]) -> NDArray[np.int64]:
        """Rows of a row group in which each of these columns of whole numbers is as wanted.

        Args:
            group: the row group.
            wanted: of each column, tells of values (n,) which are: asked about distinct ones, where these are known.

        Raises:
            CorruptGeneration: they can't be decoded.
        """
        marks = np.ones(self._generation.group_rows(group), np.uint8)
        for name, tell in wanted.items():
            if not self._unmark(group, name, tell, marks):
                marks &= tell(self.column(group, name).to_numpy())
        return np.flatnonzero(marks.view(np.bool_))

    def _unmark(self, group: int, name: str, tell: Wanted, marks: NDArray[np.uint8]) -> bool:
        """Clear marks by a dictionary's codes; false, and nothing is cleared, where the column isn't of codes."""
        try:
            chunk = self._generation.column_chunk(group, name)
            coded = self._coded(chunk, _pages(chunk), np.dtype(np.uint32), len(marks))
        except (OSError, ValueError):
            return False  # reading the column says what is wrong with it
        if coded is None:
            return False
        entries, codes, start, width = coded
        fits = tell(entries)
        if not width:
            marks &= fits[0]
        elif not fits.all():
            table = np.zeros(1 << width, np.uint8)
            table[: len(fits)] = fits[: len(table)]
            unmark_codes(codes, start, width, table, marks)
        return True

    def _corrupt(self, group: int, problem: str) -> CorruptGeneration:
        first = sum(entry.rows for entry in self._generation.meta.groups[:group])
        last = first + self._generation.group_rows(group) - 1
        path = f"{self._generation.folder}/{FILES['urls']}"
        return CorruptGeneration(f"{path}: rows {first} to {last} can't be read: {problem}")

    def _values(self, group: int, field: pa.Field, rows: NDArray[np.int64] | None) -> pa.Array | None:
        """Numbers; None where they are written in another way than the encoder's."""
        count = self._generation.group_rows(group)
        single = self._single.get((group, field.name))
        if single is not None:
            return pa.array(np.repeat(single, count if rows is None else len(rows)), field.type)
        chunk = self._generation.column_chunk(group, field.name)
        pages = _pages(chunk)
        if not pages or pages[-1].values != count:
            return None
        dtype = np.dtype(field.type.to_pandas_dtype())
        wide = np.dtype(f"{dtype.kind}{max(dtype.itemsize, 4)}")
        values: NDArray[Any] | None = None
        if pages[-1].encoding == CODES:
            coded = self._coded(chunk, pages, wide, count)
            if coded is not None:
                values = _decoded(*coded, np.arange(count) if rows is None else rows)
                if not coded[-1]:
                    self._single[group, field.name] = coded[0][:1].astype(dtype)
        elif len(pages) == 1:
            values = self._plain(chunk, pages[0], wide, slice(None) if rows is None else rows)
        # What is handed out doesn't share the room of the next page.
        return None if values is None else pa.array(values.astype(dtype, copy=rows is None), field.type)

    def _plain(
        self, chunk: Chunk, page: _Page, wide: np.dtype[Any], where: slice | NDArray[np.int64]
    ) -> NDArray[Any] | None:
        """Numbers of a page without a dictionary; None where it is of another encoding, or another size."""
        if page.encoding == DELTA_NUMBERS:
            body = self._unpacked(chunk, page)
            whole = self._integers(page.values)[0]
            if unpack_deltas(body, 0, page.size, whole) < 0:
                msg = f"its page of {chunk.name} doesn't hold {page.values} numbers"
                raise ValueError(msg)
            numbers: NDArray[Any] = whole[where].view(wide)
            return numbers
        if page.size != page.values * wide.itemsize or page.encoding not in (PLAIN, SPLIT_BYTES):
            return None
        body = self._unpacked(chunk, page)[: page.size]
        if page.encoding == PLAIN:
            return body.view(wide)[where]
        return np.ascontiguousarray(body.reshape(wide.itemsize, page.values)[:, where].T).view(wide).ravel()

    def _texts(self, group: int, rows: NDArray[np.int64] | None) -> pa.Array | None:
        """URLs; None where they are written in another way than the encoder's."""
        if rows is None:
            return None
        chunk = self._generation.column_chunk(group, "url")
        pages = _pages(chunk)
        count = self._generation.group_rows(group)
        if not pages or len(pages) > 1 or pages[0].encoding != DELTA_TEXTS or pages[0].values != count:
            return None
        page = pages[0]
        body = self._unpacked(chunk, page)
        prefixes, lengths = self._integers(count)
        at = unpack_deltas(body, 0, page.size, prefixes)
        at = unpack_deltas(body, at, page.size, lengths) if at >= 0 else at
        if at < 0 or not texts_fit(prefixes, lengths, page.size - at):
            msg = f"its page doesn't hold {count} texts that fit together"
            raise ValueError(msg)
        ends = np.cumsum(prefixes[rows] + lengths[rows])
        total = int(ends[-1]) if len(ends) else 0
        if total > _MOST:
            msg = f"{len(rows)} texts of it have {total} bytes"
            raise ValueError(msg)
        offsets = np.zeros(len(rows) + 1, np.int32)
        offsets[1:] = ends
        out = np.empty(total, np.uint8)
        pick_texts(prefixes, lengths, body, at, rows, offsets, out)
        return pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(out))

    def _coded(
        self, chunk: Chunk, pages: list[_Page] | None, wide: np.dtype[Any], count: int
    ) -> tuple[NDArray[Any], NDArray[np.uint8], int, int] | None:
        """Entries of a dictionary, and the bytes that hold codes, where these begin, and their width.

        Of width 0: all rows have the first entry. None where it is no dictionary, or its codes aren't one run.
        """
        if not pages or len(pages) != 2 or pages[1].encoding != CODES or pages[1].values != count:  # noqa: PLR2004 - two
            return None
        entries = self._unpacked(chunk, pages[0])[: pages[0].size].copy().view(wide)
        body = self._unpacked(chunk, pages[1])
        run, start = _varint(body, 1)
        width = int(body[0])
        size = pages[1].size
        if len(entries) == 0 or width > _WIDEST:
            return None
        if not run & _PACKED_RUN:
            whole = run >> 1 == count and not body[start:size].any()
            return (entries, body, start, 0) if whole else None
        return (entries, body, start, width) if start + -(-count * width // 8) <= size and width else None

    def _unpacked(self, chunk: Chunk, page: _Page) -> NDArray[np.uint8]:
        """A page's bytes and `PACKED_SLACK` zeros, until the next page is asked for."""
        if not 0 <= page.size <= _MOST:
            msg = f"its page has {page.size} bytes"
            raise ValueError(msg)
        if len(self._room) < page.size + PACKED_SLACK:
            self._room = np.empty(page.size + (page.size >> 3) + PACKED_SLACK, np.uint8)
        room = self._room[: page.size + PACKED_SLACK]
        codec = chunk.meta[4][1]
        if codec == UNCOMPRESSED:
            got = len(page.body)
            if got == page.size:
                room[: page.size] = np.frombuffer(page.body, np.uint8)
        else:
            try:
                # As one frame that fits, it is decompressed to its place.
                with zstandard.ZstdDecompressor().stream_reader(page.body) as source:
                    got = source.readinto(room[: page.size].data)
                    got += len(source.read(1))
            except zstandard.ZstdError as problem:
                msg = f"its page can't be decompressed: {problem}"
                raise ValueError(msg) from problem
        if got != page.size:
            msg = f"its page doesn't have {page.size} bytes"
            raise ValueError(msg)
        room[page.size :] = 0
        return room

    def _integers(self, count: int) -> NDArray[np.int64]:
        """Room for two columns, (2, count)."""
        if self._numbers.shape[1] != count:
            self._numbers = np.empty((2, count), np.int64)
        return self._numbers


def _pages(chunk: Chunk) -> list[_Page] | None:
    """The pages of a chunk; None where they aren't those of the store's encoder.

    Raises:
        ValueError: one has another checksum than its header says.
    """
    if chunk.meta[4][1] not in (UNCOMPRESSED, ZSTD):
        return None
    data = memoryview(chunk.data)
    found = []
    at = 0
    while at < len(data):
        try:
            head, size = decode_struct(bytes(data[at : at + _HEAD]))
            kind, unpacked, stored, checksum = (head[field][1] for field in (1, 2, 3, 4))
            values, encoding = (head[_ABOUT[kind]][1][field][1] for field in (1, 2))
        except (ValueError, KeyError, TypeError):
            return None
        body = data[at + size : at + size + stored]
        at += size + stored
        if stored < 0 or at > len(data) or kind != (_DICTIONARY if at < len(data) else _DATA):
            return None
        if zlib.crc32(body) != checksum % (1 << 32):
            msg = "a page has another checksum than its header says"
            raise ValueError(msg)
        found.append(_Page(unpacked, values, encoding, body))
    return found


def _varint(data: NDArray[np.uint8], at: int) -> tuple[int, int]:
    """A number of at most five bytes, and the byte after it."""
    value = 0
    for shift in range(0, 35, 7):
        byte = int(data[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            break
    return value, at


def _decoded(
    entries: NDArray[Any], data: NDArray[np.uint8], start: int, width: int, rows: NDArray[np.int64]
) -> NDArray[Any]:
    """The entries of a dictionary that codes of `width` bits, up to 16, name in some rows."""
    bit = rows * width
    place = start + (bit >> 3)
    word = data[place].astype(np.int64) | data[place + 1].astype(np.int64) << 8 | data[place + 2].astype(np.int64) << 16
    codes = (word >> (bit & 7)) & ((1 << width) - 1)
    if len(codes) and codes.max() >= len(entries):
        msg = f"a code is {codes.max()}, and its dictionary has {len(entries)} entries"
        raise ValueError(msg)
    found: NDArray[Any] = entries[codes]
    return found
