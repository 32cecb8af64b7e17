"""From the bytes of one line to a typed event, or to the reason why it can't be used."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from meguri_common.errors import MeguriError
from meguri_common.events.model import (
    EVENT_LIMIT,
    ITEM_LIMIT,
    SCHEMA_VERSION,
    ControlEvent,
    PageEvent,
    SeedEvent,
    SignalEvent,
    SitemapEvent,
)

if TYPE_CHECKING:
    from meguri_common.events.model import Event

__all__ = ["EventRejected", "decode_event", "decode_page_shell", "without_lone_surrogates"]

_PAGE = msgspec.json.Decoder(PageEvent)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "page": _PAGE,
    "seed": msgspec.json.Decoder(SeedEvent),
    "sitemap": msgspec.json.Decoder(SitemapEvent),
    "signal": msgspec.json.Decoder(SignalEvent),
    "control": msgspec.json.Decoder(ControlEvent),
}

decode_page_shell = _PAGE.decode
"""Decode a line that is most likely a page. Raises msgspec's errors: then `decode_event` says what is wrong."""

_ESCAPE = re.compile(
    rb"\\(?:u(?P<high>[dD][89abAB][0-9a-fA-F]{2})(?P<pair>\\u[dD][c-fC-F][0-9a-fA-F]{2})?"
    rb"|u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_CARRIERS = ("href", "loc", "host", "url")
"""Strings without which an element of an array says nothing: it goes with them."""


class EventRejected(MeguriError):
    """A public event can't be used. `reason` is a short constant, `detail` says where and what."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class _Head(msgspec.Struct):
    type: Any = "page"
    schema: Any = SCHEMA_VERSION


_HEAD = msgspec.json.Decoder(_Head)


def decode_event(line: bytes) -> Event:
    """Decode one line.

    A string with a lone surrogate counts as absent (an array's element is left out), the rest of the event stays.

    Raises:
        EventRejected: with the reason `too_large`, `invalid_utf8`, `invalid_json`, `type` (unknown kind of event),
            `schema` (unknown version), `invalid` (a field is missing or wrong; the detail holds its path) or
            `too_many_links`.
    """
    if len(line) > EVENT_LIMIT:
        raise EventRejected("too_large", f"the event takes {len(line)} bytes, at most {EVENT_LIMIT} are allowed")
    try:
        line.isascii() or line.decode()
    except UnicodeDecodeError as problem:
        raise EventRejected("invalid_utf8", f"byte {problem.start}: {problem.reason}") from None
    if b"\\ud" in line or b"\\uD" in line:
        line = without_lone_surrogates(line)
    try:
        try:
            event: Event = _PAGE.decode(line)
        except msgspec.ValidationError:
            event = _decoder_of(line).decode(line)
    except msgspec.ValidationError as problem:
        raise EventRejected("invalid", str(problem)) from None
    except msgspec.DecodeError as problem:
        raise EventRejected("invalid_json", str(problem)) from None
    except RecursionError:
        raise EventRejected("invalid_json", "nested too deeply") from None
    _check_items(event)
    return event


def _decoder_of(line: bytes) -> msgspec.json.Decoder[Event]:
    head = _HEAD.decode(line)
    decoder = _DECODERS.get(head.type) if isinstance(head.type, str) else None
    if decoder is None:
        raise EventRejected("type", f"{head.type!r:.100} is none of {', '.join(_DECODERS)} - at `$.type`")
    if type(head.schema) is not int or head.schema != SCHEMA_VERSION:
        raise EventRejected("schema", f"version {head.schema!r:.100}, known is {SCHEMA_VERSION} - at `$.schema`")
    return decoder


def _check_items(event: Event) -> None:
    for name in ("links", "urls", "entries", "hosts"):
        items = len(getattr(event, name, ()))
        if items > ITEM_LIMIT:
            raise EventRejected("too_many_links", f"{items} items, at most {ITEM_LIMIT} - at `$.{name}`")


def without_lone_surrogates(line: bytes) -> bytes:
    """The line without the strings that hold an unpaired surrogate escape; as it is if there is none or it's no JSON.

    Strict parsers refuse such a line as a whole, and skip unknown fields with one wrongly.
    """
    if not any(found["low"] or (found["high"] and not found["pair"]) for found in _ESCAPE.finditer(line)):
        return line
    try:
        value = json.loads(line, parse_constant=_refuse_constant)
    except RecursionError:
        raise EventRejected("invalid_json", "nested too deeply") from None
    except ValueError as problem:
        raise EventRejected("invalid_json", str(problem)) from None
    kept = _keep(value)
    # A bare string can be lost as a whole: it is no event either way.
    return json.dumps(kept, ensure_ascii=False).encode()


def _refuse_constant(name: str) -> None:
    msg = f"{name} is no JSON"
    raise ValueError(msg)


def _keep(value: Any) -> Any:
    """The value without lone surrogates: objects lose the member, arrays the element."""
    if isinstance(value, list):
        return [_keep(item) for item in value if not _lost(item)]
    if isinstance(value, dict):
        return {name: _keep(item) for name, item in value.items() if not (_broken(name) or _broken(item))}
    return None if _broken(value) else value


def _broken(value: Any) -> bool:
    return isinstance(value, str) and _SURROGATE.search(value) is not None


def _lost(item: Any) -> bool:
    return _broken(item) or (isinstance(item, dict) and any(_broken(item.get(name)) for name in _CARRIERS))
