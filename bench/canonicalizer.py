"""How fast links become canonical URLs: kernels, the parser's share, and which links those are.

Run as `python bench/canonicalizer.py events.jsonl.zst --pages 1000 --odd 30`.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import zstandard

from meguri_canonicalizer.batch import BaseColumns, BatchCanonicalizer, LinkColumns
from meguri_canonicalizer.canonical import canonicalize


def packed(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Bytes and offsets of texts."""
    data = np.frombuffer(bytearray(b"".join(texts)), np.uint8)
    return data, np.cumsum([0, *map(len, texts)]).astype(np.int64)


def read_batches(path: Path, pages: int) -> list[tuple[LinkColumns, BaseColumns]]:
    """The file's links, distinct within their page, in batches of pages; URLs one a line are links without a base."""
    batches = []
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
        lines = io.BufferedReader(stream).read().splitlines()
    if not lines[0].startswith(b"{"):
        events = [(b"", lines)]
    else:
        events = []
        for line in lines:
            event = json.loads(line)
            base = event.get("base") or event["url"]
            links = dict.fromkeys(link if isinstance(link, str) else link["href"] for link in event["links"])
            events.append((base.encode(), [link.encode("utf-8", "replace") for link in links]))
    for start in range(0, len(events), pages):
        some = events[start : start + pages]
        page = np.repeat(np.arange(len(some), dtype=np.int32), [len(links) for _, links in some])
        columns = LinkColumns(*packed([link for _, links in some for link in links]), page)
        batches.append((columns, BaseColumns(*packed([base for base, _ in some]))))
    return batches


def main() -> None:
    """Measure one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("events", type=Path)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--odd", type=int, default=0)
    arguments = parser.parse_args()
    batches = read_batches(arguments.events, arguments.pages)
    BatchCanonicalizer().run(*batches[0])
    canonicalizer = BatchCanonicalizer()
    started = time.perf_counter()
    results = [canonicalizer.run(*batch) for batch in batches]
    elapsed = time.perf_counter() - started
    links = sum(batch.page.size for batch, _ in batches)
    rejected = sum(int(np.count_nonzero(result.reject)) for result in results)
    print(f"{links} links, {rejected} rejected, {canonicalizer.odd_links} by the parser", end=" ")
    print(f"({100 * canonicalizer.odd_links / links:.2f} %), {1e9 * elapsed / links:.0f} ns a link")
    odd: Counter[tuple[bytes, bytes]] = Counter()
    for batch, bases in batches:
        for link, base in odd_links(batch, bases):
            odd[link, base] += 1
    started = time.perf_counter()
    for link, base in odd:
        canonicalize(link, base)
    if odd:
        print(f"{len(odd)} distinct odd links, {1e6 * (time.perf_counter() - started) / len(odd):.1f} us each")
    for (link, base), count in odd.most_common(arguments.odd):
        print(count, link[:100], base[:60])


def odd_links(links: LinkColumns, bases: BaseColumns) -> list[tuple[bytes, bytes]]:
    """The links that went to the parser, each with its base."""
    rows: list[int] = []

    class Watching(BatchCanonicalizer):
        def _answers(self, links, bases, odd):  # noqa: ANN001, ANN202 - the overridden method's types
            rows.extend(odd.tolist())
            return super()._answers(links, bases, odd)

    Watching().run(links, bases)
    found = []
    for row in rows:
        page = links.page[row]
        link = links.data[links.offsets[row] : links.offsets[row + 1]].tobytes()
        found.append((link, bases.data[bases.offsets[page] : bases.offsets[page + 1]].tobytes()))
    return found


if __name__ == "__main__":
    main()
