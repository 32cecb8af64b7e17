"""Columns of the store's files: one row per URL, one row per host group.

`urls.parquet` is ordered by (host_key, url), `hosts.parquet` by host_key. The PathKey isn't stored: it is a hash of
the URL. Times are epoch hours with 0 = never, unless a column says seconds. `describe` says what each column means.
Records of hosts are `HOST_SCHEMA` everywhere but in the file, which leaves out what follows from the rest of it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.records import CRAWL_DELAY_UNSET, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DEFAULT_CRAWL_DELAY",
    "DUE_STATUSES",
    "HOST_FILE_SCHEMA",
    "HOST_SCHEMA",
    "URL_SCHEMA",
    "describe",
    "filled",
]

DEFAULT_CRAWL_DELAY = 100
"""Deciseconds between two fetches of a host about which nobody has said anything."""

DUE_STATUSES = (Status.DISCOVERED, Status.SCHEDULED, Status.READY, Status.CRAWLED, Status.DUE_RECRAWL)
"""Statuses of URLs that are fetched when their hour has come."""


def _column(name: str, kind: pa.DataType, about: str, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={"about": about})


URL_SCHEMA = pa.schema(
    [
        _column("host_key", pa.uint64(), "xxh64 of the host group"),
        _column("url", pa.string(), "canonical URL, ASCII"),
        _column(
            "status",
            pa.uint8(),
            "0 discovered, 1 scheduled, 2 ready, 3 in flight, 4 crawled, 5 due for recrawl, 6 gone, "
            "7 excluded by robots, 8 trapped",
        ),
        _column("priority", pa.float32(), "worth of a fetch, greater is more"),
        _column("depth", pa.uint16(), "least known distance from a seed in links; 65535 not stated"),
        _column("source", pa.uint8(), "first admission: 0 seed, 1 link, 2 sitemap, 3 redirect, 4 manual"),
        _column("first_seen", pa.uint32(), "hour of the admission"),
        _column("last_crawled", pa.uint32(), "hour of the last fetch that brought a usable answer"),
        _column("last_changed", pa.uint32(), "hour of the last fetch that showed a real change"),
        _column("next_due", pa.uint32(), "hour from which on a fetch is due"),
        _column("lambda", pa.float32(), "estimated changes an hour; 0 not estimated"),
        _column("crawl_count", pa.uint32(), "fetches that brought a usable answer"),
        _column("change_count", pa.uint32(), "fetches that showed a real change"),
        _column("no_change_streak", pa.uint16(), "fetches without a real change since the last one with"),
        _column("etag", pa.binary(), "validator for conditional fetches", nullable=True),
        _column("last_modified", pa.uint32(), "validator, epoch seconds; 0 none"),
        _column("content_fp", pa.uint64(), "fingerprint of the last body; 0 none"),
        _column("simhash", pa.uint64(), "similarity hash of the last body; 0 none"),
        _column("http_status", pa.uint16(), "of the last visit; 0 no response, or never visited"),
        _column("redirect", pa.string(), "canonical URL that the last answer redirected to", nullable=True),
        _column("retry_count", pa.uint8(), "failures in a row"),
        _column("error_count", pa.uint16(), "failures in all"),
        _column(
            "reason",
            pa.uint8(),
            "why parked: 0 not, 1 depth, 2 budget, 3 calendar, 4 faceted, 5 session, 6 repetition, 7 nesting, "
            "8 same content, 9 operator",
        ),
    ]
)

HOST_SCHEMA = pa.schema(
    [
        _column("host_key", pa.uint64(), "xxh64 of the host group"),
        _column("host_group", pa.string(), "what its URLs share; empty while no URL of it was admitted"),
        _column("grouping", pa.uint8(), "0 by registrable domain, 1 by host"),
        _column("registrable_domain", pa.string(), "where the grouping tells it", nullable=True),
        _column("ip", pa.binary(), "resolved address, 4 or 16 bytes", nullable=True),
        _column("ip_expiry", pa.uint32(), "hour"),
        _column("robots_fetched", pa.uint32(), "hour"),
        _column("robots_expiry", pa.uint32(), "hour"),
        _column("robots", pa.binary(), "robots.txt as fetched", nullable=True),
        _column("crawl_delay", pa.uint16(), "deciseconds in force: set by an operator, else as stated, else 100"),
        _column("crawl_delay_set", pa.uint16(), f"deciseconds set by an operator; {CRAWL_DELAY_UNSET} not set"),
        _column("crawl_delay_stated", pa.uint16(), f"deciseconds as last seen; {CRAWL_DELAY_UNSET} never"),
        _column("next_eligible_host", pa.uint32(), "epoch seconds from which on the host may be asked"),
        _column("next_eligible_ip", pa.uint32(), "epoch seconds from which on its address may be asked"),
        _column("url_budget", pa.uint32(), "URLs that may be admitted; 0 unlimited"),
        _column("url_count", pa.uint32(), "URLs admitted, parked ones not counted"),
        _column("depth_cap", pa.uint16(), "greatest depth that is admitted; 0 unlimited"),
        _column("host_score", pa.float32(), "reputation"),
        _column("crawl_total", pa.uint32(), "fetches that brought a usable answer"),
        _column("error_total", pa.uint32(), "failures"),
        _column("avg_latency", pa.uint16(), "milliseconds, moving average with weight 1/8; 0 not known"),
        _column("flags", pa.uint16(), "1 trap suspect, 2 robots missing, 4 dead, 8 grouping override, 16 vouched for"),
        _column("first_row", pa.uint64(), "row of urls.parquet at which the host's URLs begin"),
    ]
)

HOST_FILE_SCHEMA = pa.schema(
    [
        _column(
            "host_key",
            pa.uint64(),
            "xxh64 of the host group; null: of host_group, and as urls.parquet has it at first_row",
            nullable=True,
        ),
        *(HOST_SCHEMA.field(at) for at in range(1, HOST_SCHEMA.get_field_index("registrable_domain"))),
        _column(
            "registrable_domain",
            pa.string(),
            "null: host_group, where grouping is 0 and it is no address; -: none",
            nullable=True,
        ),
        *(HOST_SCHEMA.field(at) for at in range(HOST_SCHEMA.get_field_index("ip"), len(HOST_SCHEMA))),
    ]
)
"""Host records as hosts.parquet holds them, see `host_file`."""


def describe(schema: pa.Schema) -> dict[str, str]:
    """What each column of a schema means, by name."""
    return {field.name: field.metadata[b"about"].decode() for field in schema}


def filled(schema: pa.Schema, rows: int, stated: Mapping[str, Any]) -> pa.Table:
    """Records of which some columns are stated (arrays, or one value for all rows); the others are 0, or null."""
    columns = []
    for field in schema:
        given = stated.get(field.name)
        if given is None and field.nullable:
            columns.append(pa.nulls(rows, field.type))
        elif isinstance(given, pa.Array):
            columns.append(given)
        elif isinstance(given, np.ndarray):
            columns.append(pa.array(given, field.type))
        elif given:
            columns.append(pa.array(np.full(rows, given, field.type.to_pandas_dtype())))
        else:
            columns.append(_zeros(field.type, 1 << rows.bit_length()).slice(0, rows))
    return pa.Table.from_arrays(columns, schema=schema)


@lru_cache(maxsize=64)
def _zeros(kind: pa.DataType, rows: int) -> pa.Array:
    """Zeros that many tables share."""
    return pa.array(np.zeros(rows, kind.to_pandas_dtype()))
