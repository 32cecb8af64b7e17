"""The record of a public event that can't be used, as it stands on `meguri.rejects`."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = ["PAYLOAD_LIMIT", "Origin", "RejectRecord", "encode_reject", "payload_text"]

PAYLOAD_LIMIT = 64 << 10
"""Bytes of the rejected event that its record keeps."""


class Origin(msgspec.Struct, frozen=True):
    """The file and the line (1 is the first) that an event was read from."""

    file: str
    line: Annotated[int, Meta(ge=0)]


class RejectRecord(msgspec.Struct, kw_only=True):
    """Why a public event was rejected, and where it came from."""

    at_service: str
    topic: str
    partition: int
    offset: int
    line: Annotated[int, Meta(ge=0, description="position of the event's line in its message, from 0")] = 0
    origin: Origin | None = None
    reason: str
    detail: str
    attempts: Annotated[int, Meta(ge=1, description="how often the event was tried, this time included")]
    payload: Annotated[str, Meta(description=f"the event, base64, its first {PAYLOAD_LIMIT} bytes")]
    schema: Literal[1] = 1


def payload_text(line: bytes) -> str:
    """Base64 of the first `PAYLOAD_LIMIT` bytes of an event."""
    return base64.b64encode(line[:PAYLOAD_LIMIT]).decode()


def encode_reject(record: RejectRecord) -> bytes:
    """JSON of the record, as it is published."""
    return msgspec.json.encode(record)
