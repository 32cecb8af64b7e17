"""The envelope: a small fixed header and an Arrow IPC record batch of the schema that version and kind name.

Header, little-endian: magic u16, wire version u16, row kind u16, reserved u16 (0), campaign digest u64, rows u32,
reserved u32 (0). The batch carries neither schema nor metadata.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

from meguri_common.errors import EnvelopeError
from meguri_common.identity import WIRE_VERSION
from meguri_common.wire.schemas import SCHEMAS, RowKind

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ENVELOPE_LIMIT", "LARGE_ROW_LIMIT", "campaign_of", "decode", "encode"]

ENVELOPE_LIMIT = 512 * 1024
"""Bytes of rows that an envelope holds at most; a larger row travels alone."""

LARGE_ROW_LIMIT = 1024 * 1024
"""Bytes that a row which travels alone may take."""

_MAGIC = 0x676D
_HEADER = struct.Struct("<HHHHQII")


def encode(kind: RowKind, batch: pa.RecordBatch, campaign: int) -> bytes:
    """Wrap a batch of `SCHEMAS[kind]` for the bus; `campaign` is `CampaignIdentity.digest()`."""
    header = _HEADER.pack(_MAGIC, WIRE_VERSION, kind, 0, campaign, batch.num_rows, 0)
    return header + memoryview(batch.serialize())


def campaign_of(payload: Buffer) -> int:
    """The campaign's digest that an envelope states, for those who look at any campaign's.

    Raises:
        EnvelopeError: it is too short to state one.
    """
    view = memoryview(payload)
    if view.nbytes < _HEADER.size:
        msg = f"message of {view.nbytes} bytes is no envelope (the header alone takes {_HEADER.size})"
        raise EnvelopeError(msg)
    digest: int = _HEADER.unpack_from(view)[4]
    return digest


def decode(payload: Buffer, campaign: int) -> tuple[RowKind, pa.RecordBatch]:
    """Unwrap an envelope; the batch's buffers are views of the payload.

    Raises:
        EnvelopeError: not an envelope, another wire version, an unknown kind, another campaign, or damaged.
    """
    campaign_of(payload)
    view = memoryview(payload)
    magic, version, number, _, digest, rows, _ = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        msg = f"message starts with {magic:#06x}, not with the envelope's mark {_MAGIC:#06x}"
        raise EnvelopeError(msg)
    if version != WIRE_VERSION:
        msg = f"envelope has wire version {version}, this program speaks {WIRE_VERSION}: use the release that wrote it"
        raise EnvelopeError(msg)
    if digest != campaign:
        msg = f"envelope is of campaign {digest:016x}, this is {campaign:016x}"
        raise EnvelopeError(msg)
    try:
        kind = RowKind(number)
        batch = pa.ipc.read_record_batch(pa.py_buffer(view[_HEADER.size :]), SCHEMAS[kind])
    except (ValueError, pa.ArrowException, OSError) as problem:
        msg = f"envelope of kind {number} can't be decoded: {problem}"
        raise EnvelopeError(msg) from problem
    if batch.num_rows != rows:
        msg = f"envelope of kind {kind.name} states {rows} rows and holds {batch.num_rows}"
        raise EnvelopeError(msg)
    return kind, batch
