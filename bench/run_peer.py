"""What the links of a crawl cost in plain Python: json, urljoin, a canonical form if w3lib is there, and a set.

It keeps nothing on disk, counts no cash and knows no hosts: it does a small part of what `meguri run` does.
Prints a JSON object; started by `bench/run.py`.
"""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import zstandard

if TYPE_CHECKING:
    from collections.abc import Callable


def plain(url: str) -> str:
    """Leave a URL as it is."""
    return url


def count(path: Path, canonical: Callable[[str], str]) -> tuple[int, int, float]:
    """Links, distinct URLs, CPU seconds."""
    begun = time.process_time()
    seen: set[str] = set()
    links = 0
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        for line in io.BufferedReader(stream):
            page = json.loads(line)
            base = page.get("base") or page["url"]
            for href in page.get("links") or ():
                links += 1
                try:
                    seen.add(canonical(urljoin(base, href if isinstance(href, str) else href["href"])))
                except ValueError:
                    continue
    return links, len(seen), time.process_time() - begun


def main() -> None:
    """Run it."""
    path = Path(sys.argv[1])
    ways = {"json, urljoin, set": plain}
    if importlib.util.find_spec("w3lib"):
        from w3lib.url import canonicalize_url  # noqa: PLC0415 - it may not be installed

        ways["json, urljoin, w3lib, set"] = canonicalize_url
    out = {}
    for name, canonical in ways.items():
        links, urls, seconds = count(path, canonical)
        out[name] = {"links": links, "urls": urls, "us_a_link": seconds * 1e6 / links}
    print(json.dumps(out))


if __name__ == "__main__":
    main()
