"""Inputs for `bench/run.py`: a crawl stretched to more sites, or repeated in time.

A copy of a crawl renames every registrable domain in the raw lines, so that it is the same crawl of other sites:
`://docs.python.org/` becomes `://docs.c7-python.org/`, `://git.github.io/` becomes `://c7-git.github.io/` (the public
suffix stays one). Links of a copy stay within the copy, its start pages keep depth 0. Copy 0 is the crawl as it is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zstandard

from meguri.embedded.inputs import open_input
from meguri_common.suffixes import is_address, registrable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Crawl", "read_crawl", "write_interleaved", "write_later", "write_stretched"]

_AUTHORITY = re.compile(rb'(?::|")//([^/?#"\\\s<>]+)')
_FETCHED_AT = re.compile(rb'"fetched_at":(\d+)')
_COMPRESSION = 1


@dataclass(frozen=True)
class Crawl:
    """A crawl in memory, and what is in it."""

    lines: list[bytes]
    """With their line ends."""
    pages: int
    links: int
    """As authored."""
    distinct: int
    """Links, repeats within their page left out."""
    size: int
    """Bytes of the lines."""


def read_crawl(path: Path) -> Crawl:
    """Read a file of page events."""
    stream = open_input(str(path))
    lines = [line + b"\n" for line in b"".join(stream.chunks()).splitlines()]
    stream.close()
    links = [json.loads(line).get("links") or [] for line in lines]
    distinct = sum(len({link if isinstance(link, str) else link["href"] for link in page}) for page in links)
    return Crawl(lines, len(lines), sum(map(len, links)), distinct, sum(map(len, lines)))


def write_stretched(crawl: Crawl, target: Path, copies: int) -> None:
    """Write copies of all sites, one crawl after the other."""
    pieces = _cut(b"".join(crawl.lines))
    _write(target, (_mark(copy).join(pieces) for copy in range(copies)))


def write_interleaved(crawl: Crawl, target: Path, copies: int) -> None:
    """Write copies of all sites that take turns page by page, as crawls do that go on side by side."""
    cut = [_cut(line) for line in crawl.lines]
    _write(target, (_mark(copy).join(pieces) for pieces in cut for copy in range(copies)))


def write_later(crawl: Crawl, target: Path, times: int) -> None:
    """Write the same pages again and again, each time fetched later."""
    stamps = [int(found[1]) for line in crawl.lines if (found := _FETCHED_AT.search(line))]
    span = max(stamps, default=0) - min(stamps, default=0) + 1

    def again(turn: int) -> bytes:
        return _FETCHED_AT.sub(lambda found: b'"fetched_at":%d' % (int(found[1]) + turn * span), everything)

    everything = b"".join(crawl.lines)
    _write(target, map(again, range(times)))


def _mark(copy: int) -> bytes:
    return b"c%d-" % copy if copy else b""


def _cut(text: bytes) -> list[bytes]:
    """The text, cut wherever a registrable domain begins."""
    pieces, done = [], 0
    for found in _AUTHORITY.finditer(text):
        begin, end = found.span(1)
        at = text.rfind(b"@", begin, end)
        begin = at + 1 if at >= 0 else begin
        colon = text.find(b":", begin, end)
        host = text[begin : colon if colon >= 0 else end].decode("utf-8", "replace").lower()
        if not host or not host.isascii() or is_address(host):
            continue
        place = begin + max(len(host) - len(registrable(host)), 0)
        pieces.append(text[done:place])
        done = place
    pieces.append(text[done:])
    return pieces


def _write(target: Path, parts: Iterator[bytes]) -> None:
    compressor = zstandard.ZstdCompressor(level=_COMPRESSION)
    with target.open("wb") as raw, compressor.stream_writer(raw) as file:
        for part in parts:
            file.write(part)
