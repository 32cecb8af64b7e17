"""Test vectors of the partition rule, for publishers in other languages.

`python -m meguri_common.events.schemas docs/schemas` writes them as JSON, `python -m meguri_common.sdk.vectors
docs/fetchers.md` renews the table on that page; tests fail when either differs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from meguri_common.keys import host_key
from meguri_common.sdk.grouping import group_of_event, group_of_url, pages_partition

__all__ = ["PARTITION_COUNTS", "partition_vectors", "table", "with_table"]

PARTITION_COUNTS = (1, 3, 16, 64, 1000)
"""Numbers of partitions for which the vectors say the partition."""

_BEGIN = "<!-- vectors: python -m meguri_common.sdk.vectors docs/fetchers.md -->\n"
_END = "<!-- end of vectors -->"

_URLS = (
    "https://example.org/",
    "https://www.example.org/a?b#c",
    "http://EXAMPLE.org:8080",
    "https://example.org./x",
    "https://user:secret@www.example.org/",
    "https:\\\\www.example.org\\x",
    " https://www.example.org/",
    "https://www.ex\tample.org/",
    "https://ex%61mple.org/",
    "https://www.example.com/",
    "https://example.com/",
    "https://a.b.example.co.uk/",
    "https://co.uk/",
    "https://someone.github.io/x",
    "https://github.io/",
    "https://www.city.kawasaki.jp/",
    "https://a.b.kawasaki.jp/",
    "https://a.b.nowhere-known/",
    "https://b\u00fccher.example/",
    "https://XN--BCHER-KVA.example/",
    "https://stra\u00dfe.example/",
    "https://\uff45xample.org/",
    "https://a\u3002example.org/",
    "http://192.0.2.7/",
    "http://0xC0.0.2.7:81/",
    "http://3221225991/",
    "http://[2001:DB8::1]:8080/",
    "http://localhost/",
    "ftp://example.org/",
    "//example.org/",
    "/a",
    "https://a..example.org/",
    "https://exa mple.org/",
    "https://1.2.3.999/",
    "https://",
    "",
)

_EVENTS: tuple[Any, ...] = (
    {"url": "https://www.example.org/", "fetched_at": 1767571200, "links": ["https://other.example/"]},
    {"type": "page", "schema": 1, "url": "https://www.example.org/", "fetched_at": 1767571200},
    {"type": "sitemap", "url": "https://www.example.org/s.xml", "observed_at": 1767571200, "entries": []},
    {"type": "seed", "urls": ["https://www.example.org/", "https://example.org/b"], "observed_at": 1767571200},
    {"type": "control", "at": 1767571200, "action": "vouch", "host": "www.Example.org"},
    {"type": "control", "at": 1767571200, "action": "release", "url": "https://www.example.org/x"},
    {"type": "signal", "epoch": 1767571200, "hosts": [{"host": "www.example.org", "score": 1}], "urls": []},
    {"type": "signal", "epoch": 1767571200, "urls": [{"url": "https://www.example.org/", "page_rank": 0.5}]},
    {"type": "signal", "epoch": 1767571200},
    {"type": "page", "url": 7, "fetched_at": 1767571200},
    {"type": "unheard-of", "url": "https://www.example.org/"},
)


def partition_vectors() -> dict[str, Any]:
    """The vectors: of URLs and events the key (null: none) and its partition for some numbers of partitions."""
    return {
        "rule": "partition = (xxh64(key, seed 0) * partitions) >> 64; without a key, 0",
        "urls": [{"url": url, **_where(group_of_url(url))} for url in _URLS],
        "events": [{"event": event, **_where(group_of_event(json.dumps(event).encode()))} for event in _EVENTS],
    }


def _where(key: bytes | None) -> dict[str, Any]:
    return {
        "key": None if key is None else key.decode(),
        "xxh64": None if key is None else f"{host_key(key):016x}",
        "partitions": {str(count): pages_partition(key, count) for count in PARTITION_COUNTS},
    }


def table() -> str:
    """The vectors of URLs as a table in Markdown, for two numbers of partitions."""
    rows = ["| URL | key | xxh64 | of 16 | of 64 |", "|---|---|---|---|---|"]
    for vector in partition_vectors()["urls"]:
        url = json.dumps(vector["url"], ensure_ascii=False)
        key = "none" if vector["key"] is None else f"`{vector['key']}`"
        where = vector["partitions"]
        rows.append(f"| `{url}` | {key} | {vector['xxh64'] or ''} | {where['16']} | {where['64']} |")
    return "\n".join(rows) + "\n"


def with_table(page: str) -> str:
    """A page with the table put between its marks.

    Raises:
        ValueError: the page has no such marks.
    """
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        msg = f"the page has no marks {_BEGIN!r} and {_END!r}"
        raise ValueError(msg)
    return f"{before}{begin}{table()}{end}{after}"


if __name__ == "__main__":
    page_file = Path(sys.argv[1])
    page_file.write_text(with_table(page_file.read_text(encoding="utf-8")), encoding="utf-8")
