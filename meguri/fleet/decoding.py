"""Messages of any topic as JSON values, for people and programs that look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from meguri_common.errors import EnvelopeError
from meguri_common.events.decode import EventRejected, without_lone_surrogates
from meguri_common.records import ControlAction, FetchError, ParkReason, Source
from meguri_common.wire.envelope import campaign_of, decode

if TYPE_CHECKING:
    from enum import IntEnum

    from meguri.fleet.reading import Placed

__all__ = ["document_of"]

_ENVELOPE_START = b"\x6d\x67"
"""How envelopes begin, and no JSON does."""
_KEYS = frozenset({"host_key", "path_key", "source_host", "content_fp", "simhash"})
_KEY_LISTS = frozenset({"target_host", "target_path"})
_NAMES: dict[str, type[IntEnum]] = {
    "action": ControlAction,
    "error": FetchError,
    "reason": ParkReason,
    "source": Source,
}


def document_of(placed: Placed, *, rows: int | None = None) -> dict[str, Any]:
    """A message as JSON values.

    Args:
        placed: the message.
        rows: how many rows or lines to show at most (default: all).

    Returns:
        topic, partition, offset, at (epoch seconds), headers; of an envelope kind, campaign, count and rows, with keys
        in 16 hex digits; of public events count and events; of what can't be read, problem and bytes.
    """
    payload = bytes(placed.message.payload)
    out: dict[str, Any] = {
        "topic": placed.source.topic,
        "partition": placed.source.partition,
        "offset": placed.message.offset,
        "at": placed.message.appended_at,
        "headers": _json(placed.message.headers) if placed.message.headers else None,
    }
    if payload.startswith(_ENVELOPE_START):
        return out | _envelope(payload, rows)
    lines = [line for line in payload.split(b"\n") if line.strip()]
    return out | {"count": len(lines), "events": [_json(line) for line in lines[:rows]]}


def _envelope(payload: bytes, rows: int | None) -> dict[str, Any]:
    try:
        campaign = campaign_of(payload)
        kind, batch = decode(payload, campaign)
    except EnvelopeError as problem:
        return {"problem": str(problem), "bytes": len(payload)}
    shown = batch if rows is None else batch.slice(0, rows)
    return {
        "kind": kind.name,
        "campaign": f"{campaign:016x}",
        "count": batch.num_rows,
        "rows": [_row(row) for row in shown.to_pylist()],
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in row.items()}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if name in _KEYS:
        return f"{value:016x}"
    if name in _KEY_LISTS:
        return [f"{key:016x}" for key in value]
    kind = _NAMES.get(name)
    if kind is not None and value in set(kind):
        return kind(value).name.lower()
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN stands for none
        return None
    return value


def _json(line: bytes) -> Any:
    """A line of JSON; what is none, as text."""
    try:
        return msgspec.json.decode(without_lone_surrogates(line))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, EventRejected):
        return line.decode("utf-8", "backslashreplace")
