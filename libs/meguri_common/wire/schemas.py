"""Row kinds of the internal topics and the Arrow schema of each, for wire version 1.

No column is ever null: an empty binary, an empty list, 0 or the named sentinel says "absent". So readers can use
the buffers as they are. Times are epoch seconds (u32). `group_at` and `group_len` are the byte position and length
of the host group inside `url` (the group is always a part of the URL's host), so that no second string travels.
"""

from __future__ import annotations

from enum import IntEnum

import pyarrow as pa

from meguri_common.records import LINK_REJECT_REASONS

__all__ = ["ORDER", "SCHEMAS", "RowKind"]


class RowKind(IntEnum):
    """What the rows of an envelope are. The number is on the wire."""

    CONTROL = 1
    HOST_SIGNAL = 2
    URL_SIGNAL = 3
    SEED = 4
    LINK = 5
    VISIT = 6
    SEEDED = 7
    ADMISSION = 8
    CREDIT = 9
    VOTE = 10
    RELEASE = 11
    ADMITTED = 12
    UPDATE = 13
    HOST = 14
    OUTCOME = 15


_KEY = [("host_key", pa.uint64()), ("path_key", pa.uint64())]
_URL = [("url", pa.binary()), *_KEY, ("group_at", pa.uint16()), ("group_len", pa.uint16())]
_VISIT_FACTS = [
    ("fetched_at", pa.uint32()),
    ("status", pa.uint16()),  # HTTP status; 0 = no response, then `error` says why
    ("error", pa.uint8()),  # records.FetchError
    ("flags", pa.uint8()),  # records.VisitFlag
    ("depth", pa.uint16()),  # as stated by the fetcher; NO_DEPTH = not stated
    ("content_fp", pa.uint64()),  # 0 = none
    ("simhash", pa.uint64()),  # 0 = none
    ("etag", pa.binary()),
    ("last_modified", pa.uint32()),  # epoch seconds, 0 = none
    ("redirect", pa.binary()),  # canonical URL of the target, if it is one of the frontier
    ("retry_after", pa.uint32()),  # seconds, 0 = none
    ("crawl_delay", pa.uint16()),  # deciseconds; CRAWL_DELAY_UNSET = not stated
    ("latency", pa.uint16()),  # milliseconds, 0 = not stated
]

SCHEMAS: dict[RowKind, pa.Schema] = {
    # topic links (and frontier, passed through)
    RowKind.CONTROL: pa.schema(
        [
            ("at", pa.uint32()),
            ("action", pa.uint8()),  # events.ControlAction
            *_KEY,  # path_key 0: about the host
            ("value", pa.float64()),  # NaN = none given
        ]
    ),
    RowKind.HOST_SIGNAL: pa.schema([("host_key", pa.uint64()), ("score", pa.float32()), ("epoch", pa.uint32())]),
    RowKind.URL_SIGNAL: pa.schema([*_KEY, ("rank", pa.float32()), ("epoch", pa.uint32())]),
    RowKind.SEED: pa.schema([*_URL, ("observed_at", pa.uint32()), ("cash", pa.uint64())]),
    RowKind.LINK: pa.schema(
        [
            *_URL,
            ("source_host", pa.uint64()),  # HostKey of the page that holds the link
            ("depth", pa.uint16()),
            ("source", pa.uint8()),  # records.Source
            (
                "count",
                pa.uint32(),
            ),  # authored links that the row stands for; 0: redirect target, sitemap entry
            ("at", pa.uint32()),
        ]
    ),
    RowKind.VISIT: pa.schema(
        [
            *_URL,
            *_VISIT_FACTS,
            ("links", pa.uint32()),  # authored links of the page, rejected ones and repeats included
            ("rejected", pa.list_(pa.uint32(), len(LINK_REJECT_REASONS))),
            ("target_host", pa.list_(pa.uint64())),  # keys of the distinct out-links, never the page itself
            ("target_path", pa.list_(pa.uint64())),
        ]
    ),
    # topic frontier
    RowKind.SEEDED: pa.schema([*_URL, ("observed_at", pa.uint32()), ("cash", pa.uint64()), ("new", pa.uint8())]),
    RowKind.ADMISSION: pa.schema(
        [
            *_URL,
            ("source_host", pa.uint64()),
            ("depth", pa.uint16()),
            ("source", pa.uint8()),
            ("at", pa.uint32()),
        ]
    ),
    RowKind.CREDIT: pa.schema([*_KEY, ("units", pa.uint64()), ("depth", pa.uint16())]),
    RowKind.VOTE: pa.schema([("host_key", pa.uint64()), ("source_host", pa.uint64())]),
    RowKind.RELEASE: pa.schema([("host_key", pa.uint64())]),
    # topic deltas
    RowKind.ADMITTED: pa.schema(
        [
            *_URL,
            ("depth", pa.uint16()),
            ("source", pa.uint8()),
            ("at", pa.uint32()),
            ("priority", pa.float32()),
            ("reason", pa.uint8()),  # records.ParkReason; 0: scheduled
        ]
    ),
    RowKind.UPDATE: pa.schema(
        [
            *_KEY,
            ("fields", pa.uint8()),  # records.UpdateField
            ("priority", pa.float32()),
            ("depth", pa.uint16()),
            ("at", pa.uint32()),
        ]
    ),
    RowKind.HOST: pa.schema(
        [
            ("host_key", pa.uint64()),
            ("flags", pa.uint16()),  # records.HostFlag
            ("url_budget", pa.uint32()),  # 0 = unlimited
            ("url_count", pa.uint32()),  # admitted URLs, not parked ones
            ("depth_cap", pa.uint16()),  # 0 = unlimited
            ("host_score", pa.float32()),
            ("crawl_delay", pa.uint16()),  # deciseconds, set by an operator; CRAWL_DELAY_UNSET = not set
        ]
    ),
    RowKind.OUTCOME: pa.schema([*_KEY, *_VISIT_FACTS]),
}

ORDER: dict[RowKind, int] = {
    kind: rank
    for rank, kind in enumerate(
        [
            RowKind.CONTROL,
            RowKind.HOST_SIGNAL,
            RowKind.URL_SIGNAL,
            RowKind.SEED,
            RowKind.SEEDED,
            RowKind.LINK,
            RowKind.ADMISSION,
            RowKind.VISIT,
            RowKind.CREDIT,
            RowKind.VOTE,
            RowKind.RELEASE,
            RowKind.ADMITTED,
            RowKind.UPDATE,
            RowKind.HOST,
            RowKind.OUTCOME,
        ]
    )
}
"""Order in which a step sends the kinds to one partition; rows of a kind stay in inbox order."""
