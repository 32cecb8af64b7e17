"""Where a rejected event came from, and the record of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from meguri_common.events.rejects import Origin, RejectRecord, encode_reject, payload_text
from meguri_common.topics import PAGES

if TYPE_CHECKING:
    from meguri_canonicalizer.extract import Extracted
    from meguri_common.bus.port import Message

__all__ = ["reject_message"]


class _Headers(msgspec.Struct):
    """What a publisher may say about a message: the file, the number of its first line there, earlier attempts."""

    file: str | None = None
    line: int | None = None
    attempts: int = 0


_HEADERS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Headers)


def reject_message(partition: int, message: Message, found: Extracted, line: int, reason: str, detail: str) -> bytes:
    """The reject of one line of a message, as it is published."""
    headers = _headers(message.headers)
    position = found.position_in_message(line)
    origin = None
    if headers.file is not None and headers.line is not None:
        origin = Origin(file=headers.file, line=headers.line + position)
    record = RejectRecord(
        at_service="canonicalizer",
        topic=PAGES,
        partition=partition,
        offset=message.offset,
        line=position,
        origin=origin,
        reason=reason,
        detail=detail,
        attempts=headers.attempts + 1,
        payload=payload_text(found.line_bytes(line)),
    )
    return encode_reject(record)


def _headers(blob: bytes) -> _Headers:
    """The headers; those of other publishers, which aren't ours to judge, say nothing."""
    try:
        headers: _Headers = _HEADERS.decode(blob)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Headers()
    return headers if headers.attempts >= 0 else _Headers()
