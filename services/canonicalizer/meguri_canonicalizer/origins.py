"""Where rejected events came from, and the records of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from meguri_common.events.rejects import Origin, RejectRecord, encode_reject, payload_text
from meguri_common.topics import PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from meguri_canonicalizer.extract import Extracted
    from meguri_common.bus.port import Message

__all__ = ["reject_messages"]


class _Headers(msgspec.Struct):
    """What a publisher may say about a message: the file, where its lines stand there, earlier attempts."""

    file: str | None = None
    line: int | None = None
    """Number of its first line, if they follow one another."""
    lines: list[tuple[int, int]] | None = None
    """Else runs of lines: the number of the first, and how many."""
    attempts: int = 0

    def number(self, position: int) -> int | None:
        """Number in the file of a line of the message, from 1; None if the publisher didn't say."""
        for first, count in self.lines or ():
            if position < count:
                return first + position
            position -= count
        return None if self.line is None else self.line + position


_HEADERS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Headers)


def reject_messages(
    partition: int, messages: Sequence[Message], found: Extracted, rejects: Mapping[int, tuple[str, str]]
) -> Iterator[bytes]:
    """The rejects of some messages, as they are published, in order.

    Args:
        partition: of the pages topic.
        messages: what was read there.
        found: their lines.
        rejects: reason and detail by line.
    """
    lines = sorted(rejects)
    headers = [_headers(message.headers) for message in messages] if lines else []
    for line, position in zip(lines, found.positions_in_messages(lines), strict=True):
        reason, detail = rejects[line]
        stated = headers[found.message_of[line]]
        number = stated.number(position)
        origin = None if stated.file is None or number is None else Origin(file=stated.file, line=number)
        record = RejectRecord(
            at_service="canonicalizer",
            topic=PAGES,
            partition=partition,
            offset=messages[found.message_of[line]].offset,
            line=position,
            origin=origin,
            reason=reason,
            detail=detail,
            attempts=stated.attempts + 1,
            payload=payload_text(found.line_bytes(line)),
        )
        yield encode_reject(record)


def _headers(blob: bytes) -> _Headers:
    """The headers; those of other publishers, which aren't ours to judge, say nothing."""
    try:
        headers: _Headers = _HEADERS.decode(blob)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Headers()
    sound = headers.attempts >= 0 and all(first >= 0 and count >= 0 for first, count in headers.lines or ())
    return headers if sound else _Headers()
