"""The frame of every filter blob: version and kind before the body, a checksum of all of it after."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import xxhash

from meguri_common.errors import CorruptFilter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = ["BLOB_VERSION", "CHECKSUM_SIZE", "BlobKind", "blob_parts", "open_blob", "seal_blob"]

BLOB_VERSION = 1
CHECKSUM_SIZE = 8
_SMALLEST = 2 + CHECKSUM_SIZE


class BlobKind(IntEnum):
    """What a blob's byte 1 says."""

    BLOOM = 0
    RIBBON = 1
    SHARDED_RIBBON = 2


def blob_parts(*parts: Buffer) -> Iterator[Buffer]:
    """A header, that begins with version and kind, and payloads, followed by the xxh64 of them all."""
    checksum = xxhash.xxh64()
    for part in parts:
        checksum.update(part)
        yield part
    yield checksum.intdigest().to_bytes(CHECKSUM_SIZE, "little")


def seal_blob(*parts: Buffer) -> bytes:
    """The same in one piece."""
    return b"".join(blob_parts(*parts))


def open_blob(blob: Buffer) -> tuple[BlobKind, memoryview]:
    """Check a blob; gives its kind and all of it but the checksum, as a view.

    Raises:
        CorruptFilter: too short, of an unknown version or kind, or altered.
    """
    view = memoryview(blob).cast("B")
    if view.nbytes < _SMALLEST:
        msg = f"filter blob of {view.nbytes} bytes is cut short: the frame alone takes {_SMALLEST}"
        raise CorruptFilter(msg)
    body = view[:-CHECKSUM_SIZE]
    if xxhash.xxh64_intdigest(body) != int.from_bytes(view[-CHECKSUM_SIZE:], "little"):
        msg = f"filter blob of {view.nbytes} bytes doesn't fit its checksum: it is cut short or altered"
        raise CorruptFilter(msg)
    if body[0] != BLOB_VERSION:
        msg = f"filter blob has version {body[0]}, this program reads {BLOB_VERSION}: use the release that wrote it"
        raise CorruptFilter(msg)
    try:
        return BlobKind(body[1]), body
    except ValueError as problem:
        msg = f"filter blob is of kind {body[1]}, which this program doesn't know"
        raise CorruptFilter(msg) from problem
