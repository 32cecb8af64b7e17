"""Run files: sorted, immutable keys on disk, written whole or not at all, and mapped to be read.

Little-endian: rows of hash and host key, the directory of u32, then a trailer that says what the file is, whose it is
and how to check it. See `kernels.runs` for rows and directory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from meguri_common.errors import CampaignMismatch, CorruptSnapshot
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.snapshots import SnapshotWriter
from meguri_dedup.kernels.runs import check_rows, count_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.snapshots import FileRef

__all__ = ["ROLE", "ROW_BYTES", "Run", "RunFolder", "local_folder", "verify_run"]

ROLE = "run"
"""Of a run in a snapshot."""
ROW_BYTES = 16
PIECE_ROWS = 8192
"""Rows that are held at once while a file is read or written from front to back."""

_VERSION = 1
_MAGIC = b"mgrseen\n"
_TRAILER = struct.Struct("<8sHHIQQQQ")
"""Magic, version, bits of a bucket, partition, campaign, rows, checksums of the directory and of this."""
_BUCKET_ROWS = 128
"""A bucket holds at most about as many rows; twice, where the number of buckets asked for is larger, never."""
_MOST_BITS = 30


@dataclass(frozen=True)
class RunFolder:
    """Where a partition's runs are, whose they are, and what writing them takes."""

    files: FileSystem
    folder: str
    """Below the data root; snapshots of the partition name files in it."""
    campaign: int
    """Digest of the campaign's identity."""
    partition: int
    token: Callable[[], str]
    """A random name part."""
    timer: Callable[[], float] = perf_counter
    """What the seconds of merges are measured by."""

    def write(self, pieces: Callable[[], Iterable[NDArray[np.uint64]]], rows: int, buckets: int) -> Run:
        """A new, durable run.

        Args:
            pieces: gives the rows in order, (2m,) each, `rows` of them in all.
            rows: their number.
            buckets: least number of buckets in the directory.

        Raises:
            OSError: it couldn't be written; nothing of it stays under its name.
            CorruptSnapshot: the pieces aren't `rows` rows: a file that they come from isn't as it was.
        """
        try:
            return self._written(pieces(), rows, buckets)
        except FileNotFoundError:  # paused for longer than the grace time: what was being written is swept
            return self._written(pieces(), rows, buckets)

    def _written(self, pieces: Iterable[NDArray[np.uint64]], rows: int, buckets: int) -> Run:
        bits = _bits_for(rows, buckets)
        counts = np.zeros((1 << bits) + 1, np.uint32)
        written = 0
        self.files.make_folder(self.folder)
        writer = SnapshotWriter(self.files, self.folder, 0, (), quick=False, token=self.token)
        with writer.create(ROLE, "keys", rows=rows) as file:
            for piece in pieces:
                count_rows(piece, bits, counts)
                file.write(piece)
                written += piece.size // 2
            if written != rows:
                msg = f"{self.folder}: {written} rows came where {rows} were to be merged: verify the folder"
                raise CorruptSnapshot(msg)
            directory = np.cumsum(counts, dtype=np.uint32)
            file.write(directory)
            head = _TRAILER.pack(_MAGIC, _VERSION, bits, self.partition, self.campaign, rows, _sum(directory.data), 0)[
                :-8
            ]
            file.write(head + struct.pack("<Q", _sum(head)))
        if self.files.size(writer.kept[0].path) is None:
            raise FileNotFoundError(writer.kept[0].path)
        return self._mapped(writer.kept[0])

    def open(self, reference: FileRef) -> Run:
        """Map a run; its size, trailer and directory are checked, its rows aren't.

        Raises:
            CorruptSnapshot: missing, cut short or altered.
            CampaignMismatch: of another campaign or partition.
        """
        path = reference.path
        try:
            if self.files.size(path) != reference.size:
                msg = f"{path}: {self.files.size(path)} bytes, not the {reference.size} that were written"
                raise CorruptSnapshot(msg)
            return self._mapped(reference)
        except OSError as problem:
            msg = f"{path}: can't be read: {problem}"
            raise CorruptSnapshot(msg) from problem

    def _mapped(self, reference: FileRef) -> Run:
        path = reference.path
        with self.files.open(path) as file:  # the mapping outlives it
            content = file.read_buffer(reference.size)
        if reference.size < _TRAILER.size:
            msg = f"{path}: {reference.size} bytes are cut short: a run's trailer alone takes {_TRAILER.size}"
            raise CorruptSnapshot(msg)
        trailer = bytes(content.slice(reference.size - _TRAILER.size))
        magic, version, bits, partition, campaign, rows, directory_sum, own_sum = _TRAILER.unpack(trailer)
        if magic != _MAGIC or own_sum != _sum(trailer[:-8]):
            msg = f"{path}: its trailer is none of a run: altered or cut short"
            raise CorruptSnapshot(msg)
        if version != _VERSION:
            msg = f"{path}: run version {version}, this program reads {_VERSION}: use the release that wrote it"
            raise CorruptSnapshot(msg)
        if (campaign, partition) != (self.campaign, self.partition):
            msg = (
                f"{path}: keys of campaign {campaign:016x}, partition {partition}, not of {self.campaign:016x}, "
                f"partition {self.partition}: put it back where it belongs"
            )
            raise CampaignMismatch(msg)
        at = rows * ROW_BYTES
        if at + 4 * ((1 << bits) + 1) + _TRAILER.size != reference.size:
            msg = f"{path}: {rows} rows in {1 << bits} buckets don't take {reference.size} bytes"
            raise CorruptSnapshot(msg)
        # Copied, so that it stays in memory.
        directory = np.frombuffer(content, np.uint32, (1 << bits) + 1, at).copy()
        if _sum(directory.data) != directory_sum:
            msg = f"{path}: its directory is altered"
            raise CorruptSnapshot(msg)
        return Run(reference, np.frombuffer(content, np.uint64, 2 * rows), directory, bits)


@dataclass(frozen=True, eq=False)
class Run:
    """A mapped run."""

    reference: FileRef
    data: NDArray[np.uint64]
    """Rows of hash and host key, (2 * rows,), mapped: what isn't read isn't in memory."""
    directory: NDArray[np.uint32]
    """First row of each bucket, and their number, (2^bits + 1,)."""
    bits: int

    def __len__(self) -> int:
        """Number of rows."""
        return self.data.size // 2

    def pieces(self) -> Iterator[NDArray[np.uint64]]:
        """The rows from front to back, a bounded number at a time."""
        for start in range(0, self.data.size, 2 * PIECE_ROWS):
            yield self.data[start : start + 2 * PIECE_ROWS]


def verify_run(folder: RunFolder, reference: FileRef) -> int:
    """Read all of a run; gives its rows.

    Raises:
        CorruptSnapshot: missing, cut short, altered, out of order, or a key repeats.
        CampaignMismatch: of another campaign or partition.
    """
    run = folder.open(reference)
    path, hashing, at, before = reference.path, xxhash.xxh64(), 0, np.uint64(0)
    counts = np.zeros_like(run.directory)
    for piece in run.pieces():
        wrong = check_rows(piece, before, at == 0)
        if wrong >= 0:
            msg = f"{path}: row {at + wrong} isn't behind the row before it"
            raise CorruptSnapshot(msg)
        count_rows(piece, run.bits, counts)
        hashing.update(piece.data)
        at, before = at + piece.size // 2, piece[-2]
    with folder.files.open(path) as file:
        file.seek(at * ROW_BYTES)
        hashing.update(file.read())
    if hashing.hexdigest() != reference.checksum:
        msg = f"{path}: doesn't fit the snapshot's checksum: altered"
        raise CorruptSnapshot(msg)
    if not np.array_equal(np.cumsum(counts, dtype=np.uint32), run.directory):
        msg = f"{path}: its directory isn't that of its rows"
        raise CorruptSnapshot(msg)
    return len(run)


def local_folder(path: Path, *, campaign: int = 0, partition: int = 0) -> RunFolder:
    """Runs in a folder of the local disk, for a set that stands by itself."""
    import secrets  # noqa: PLC0415 - the one place where chance comes in

    return RunFolder(LocalFiles(path), "runs", campaign, partition, lambda: secrets.token_hex(6))


def _bits_for(rows: int, buckets: int) -> int:
    wanted = max(buckets, -(-rows // _BUCKET_ROWS), 2)
    return min((wanted - 1).bit_length(), _MOST_BITS)


def _sum(content: Buffer) -> int:
    return xxhash.xxh64_intdigest(content)
