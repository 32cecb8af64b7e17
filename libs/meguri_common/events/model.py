"""The public events, as typed definitions: what fetchers and operators publish to `meguri.pages`.

The JSON Schemas in `docs/schemas` are generated from these classes. Unknown fields are ignored, `schema` and (for a
page) `type` have defaults, times are epoch seconds. A change must keep old events valid.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "EVENT_LIMIT",
    "ITEM_LIMIT",
    "SCHEMA_VERSION",
    "ControlEvent",
    "Event",
    "HostScore",
    "LinkObject",
    "PageEvent",
    "SeedEvent",
    "SignalEvent",
    "SitemapEntry",
    "SitemapEvent",
    "UrlRank",
]

SCHEMA_VERSION = 1
"""Version of the public events."""

EVENT_LIMIT = 8 << 20
"""Bytes that an event's line may take."""

ITEM_LIMIT = 50_000
"""Links of a page, and as many entries, URLs or hosts of another event."""

_I64 = 2**63 - 1
Time = Annotated[int, Meta(ge=0, le=_I64, description="epoch seconds")]
Count = Annotated[int, Meta(ge=0, le=_I64)]
Fingerprint = Annotated[
    str, Meta(pattern="^[0-9a-fA-F]{1,16}$", description="an unsigned 64-bit number in hexadecimal; 0 = none")
]
Status = Annotated[
    int,
    Meta(
        ge=0,
        le=599,
        description="HTTP status; 0 = no response, then `error` says why",
        extra_json_schema={"not": {"minimum": 1, "maximum": 99}},
    ),
]


class LinkObject(msgspec.Struct, frozen=True):
    """A link with what stood around it; only `href` is used."""

    href: str
    text: str | None = None
    rel: str | None = None


class PageEvent(msgspec.Struct, tag_field="type", tag="page", kw_only=True):
    """One fetch of a page. `url` and `fetched_at` are required and identify the visit."""

    url: Annotated[str, Meta(description="the URL that was fetched, absolute")]
    fetched_at: Annotated[Time, Meta(description="epoch seconds, end of the fetch")]
    schema: Literal[1] = 1
    status: Status = 200
    error: Literal["dns", "connect", "timeout", "tls", "robots", "other"] | None = None
    depth: Annotated[int, Meta(ge=0, le=65535, description="link distance from the nearest seed")] | None = None
    links: Annotated[
        list[str | LinkObject],
        Meta(
            description="hrefs exactly as authored, in order, repeats included",
            extra_json_schema={"maxItems": ITEM_LIMIT},
        ),
    ] = []
    base: Annotated[str, Meta(description="the document's <base href>, as authored")] | None = None
    charset: str | None = None
    redirect: Annotated[str, Meta(description="target as received, for status 301, 302, 303, 307, 308")] | None = None
    canonical: Annotated[str, Meta(description="href of rel=canonical, as authored")] | None = None
    text: Annotated[str, Meta(description="visible text; fingerprinted and dropped")] | None = None
    content_fp: Fingerprint | None = None
    simhash: Fingerprint | None = None
    pipeline: Annotated[str, Meta(description="version of the pipeline that made the fingerprints")] | None = None
    etag: str | None = None
    last_modified: Annotated[int, Meta(ge=-_I64, le=_I64, description="epoch seconds")] | None = None
    not_modified: bool = False
    latency_ms: Count | None = None
    retry_after_s: Count | None = None
    crawl_delay_ds: Annotated[Count, Meta(description="tenths of a second")] | None = None
    ip: str | None = None
    cert_names: list[str] | None = None
    analytics_ids: list[str] | None = None

    def __post_init__(self) -> None:
        if 0 < self.status < 100:  # noqa: PLR2004 - the first HTTP status
            msg = f"Expected 0 or 100 to 599, got {self.status} - at `$.status`"
            raise ValueError(msg)


class SeedEvent(msgspec.Struct, tag_field="type", tag="seed", kw_only=True):
    """Start URLs, all of one host group."""

    urls: Annotated[list[str], Meta(min_length=1, extra_json_schema={"maxItems": ITEM_LIMIT})]
    observed_at: Time
    schema: Literal[1] = 1
    cash: Annotated[float, Meta(gt=0, le=1_000_000, description="importance given to each URL")] = 1.0


class SitemapEntry(msgspec.Struct, frozen=True):
    """One URL of a sitemap."""

    loc: str
    lastmod: str | int | None = None
    priority: float | None = None


class SitemapEvent(msgspec.Struct, tag_field="type", tag="sitemap", kw_only=True):
    """A sitemap that was fetched."""

    url: str
    observed_at: Time
    entries: Annotated[list[SitemapEntry], Meta(extra_json_schema={"maxItems": ITEM_LIMIT})]
    schema: Literal[1] = 1


class HostScore(msgspec.Struct, frozen=True):
    """Imported reputation of a host."""

    host: str
    score: Annotated[float, Meta(ge=0, le=1e30)]


class UrlRank(msgspec.Struct, frozen=True):
    """Imported rank of a URL."""

    url: str
    page_rank: Annotated[float, Meta(ge=0, le=1e30)]


class SignalEvent(msgspec.Struct, tag_field="type", tag="signal", kw_only=True):
    """Imported reputation. A newer epoch overwrites, an older one is ignored."""

    epoch: Time
    schema: Literal[1] = 1
    hosts: Annotated[list[HostScore], Meta(extra_json_schema={"maxItems": ITEM_LIMIT})] = []
    urls: Annotated[list[UrlRank], Meta(extra_json_schema={"maxItems": ITEM_LIMIT})] = []


class ControlEvent(msgspec.Struct, tag_field="type", tag="control", kw_only=True):
    """What an operator decides about a host, or about one URL."""

    at: Time
    action: Literal["vouch", "unvouch", "budget", "depth_cap", "release", "flag", "robots_changed", "crawl_delay"]
    schema: Literal[1] = 1
    host: str | None = None
    url: str | None = None
    value: Annotated[float, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        if (self.host is None) == (self.url is None):
            msg = "Expected one of `host` and `url` - at `$`"
            raise ValueError(msg)
        if self.value is not None and not math.isfinite(self.value):
            msg = f"Expected a finite number, got {self.value} - at `$.value`"
            raise ValueError(msg)


Event = PageEvent | SeedEvent | SitemapEvent | SignalEvent | ControlEvent
