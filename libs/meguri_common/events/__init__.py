"""The public events: typed definitions, decoding with reasons, and the schemas generated from them."""

from meguri_common.events.decode import EventRejected, decode_event
from meguri_common.events.model import (
    EVENT_LIMIT,
    ITEM_LIMIT,
    SCHEMA_VERSION,
    ControlEvent,
    Event,
    HostScore,
    LinkObject,
    PageEvent,
    SeedEvent,
    SignalEvent,
    SitemapEntry,
    SitemapEvent,
    UrlRank,
)
from meguri_common.events.rejects import PAYLOAD_LIMIT, Origin, RejectRecord, encode_reject, payload_text
from meguri_common.records import ControlAction

__all__ = [
    "EVENT_LIMIT",
    "ITEM_LIMIT",
    "PAYLOAD_LIMIT",
    "SCHEMA_VERSION",
    "ControlAction",
    "ControlEvent",
    "Event",
    "EventRejected",
    "HostScore",
    "LinkObject",
    "Origin",
    "PageEvent",
    "RejectRecord",
    "SeedEvent",
    "SignalEvent",
    "SitemapEntry",
    "SitemapEvent",
    "UrlRank",
    "decode_event",
    "encode_reject",
    "payload_text",
]
