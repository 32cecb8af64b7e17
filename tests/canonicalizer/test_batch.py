"""Batches against the canonicaliser of one link: every vector, made-up links, real pages, and the bounds."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_canonicalizer.batch import LONGEST_BASE, BaseColumns, BatchCanonicalizer, CanonicalColumns, LinkColumns
from meguri_canonicalizer.canonical import Rejected, canonicalize
from meguri_canonicalizer.policy import DEFAULT, Policy
from meguri_common.records import LINK_REJECT_REASONS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LONGEST_URL = 8192
PAGE_BYTES = 16 << 20
OWN_RULES = Policy.from_document(
    {
        "version": 5,
        "hosts": {
            "b.test": {"fold_trailing_slash": True, "query_deny": ["b"]},
            "c.test": {"host_alias": {"www.b.test": "b.test", "a.test": "c.test"}, "force_https": True},
        },
    }
)


class Row(NamedTuple):
    url: bytes = b""
    host_key: int = 0
    path_key: int = 0
    group_at: int = 0
    group_len: int = 0
    reason: str = ""


Pages = list[tuple[bytes, list[bytes]]]


def columns(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)]).astype(np.int64)


def run(canonicalizer: BatchCanonicalizer, pages: Pages) -> list[Row]:
    links = [link for _, own in pages for link in own]
    page = np.repeat(np.arange(len(pages), dtype=np.int32), [len(own) for _, own in pages])
    found = canonicalizer.run(LinkColumns(*columns(links), page), BaseColumns(*columns([base for base, _ in pages])))
    assert found.data.size >= found.offsets[-1] + 8
    return rows(found)


def rows(found: CanonicalColumns) -> list[Row]:
    return [
        Row(
            found.data[start:end].tobytes(),
            *(int(column[row]) for column in (found.host_key, found.path_key, found.group_at, found.group_len)),
            reason=LINK_REJECT_REASONS[code - 1] if (code := int(found.reject[row])) else "",
        )
        for row, (start, end) in enumerate(zip(found.offsets[:-1].tolist(), found.offsets[1:].tolist(), strict=True))
    ]


def twin(pages: Pages, policy: Policy = DEFAULT) -> list[Row]:
    """What a batch is to give, one link after another."""
    out = []
    for base, links in pages:
        used, full = 0, False
        for link in links:
            row = Row(reason="too_much")
            if not full:
                result = canonicalize(link, base if 0 < len(base) <= LONGEST_BASE else None, policy)
                if isinstance(result, Rejected):
                    row = Row(reason=str(result.reason))
                elif len(result.url) > LONGEST_URL:
                    row = Row(reason="too_long")
                else:
                    row = Row(
                        result.url.encode(), result.host_key, result.path_key, result.group_at, len(result.host_group)
                    )
            full = full or used + len(row.url) > PAGE_BYTES
            if full:
                row = Row(reason="too_much")
            used += len(row.url)
            out.append(row)
    return out


def check(pages: Pages, policy: Policy = DEFAULT, canonicalizer: BatchCanonicalizer | None = None) -> None:
    found = run(canonicalizer or BatchCanonicalizer(policy), pages)
    expected = twin(pages, policy)
    links = [(link, base) for base, own in pages for link in own]
    for link, got, wanted in zip(links, found, expected, strict=True):
        assert got == wanted, link


def vector_pages(golden_rows) -> Pages:
    pages = []
    for name in ("canon_own.jsonl", "canon_public.jsonl", "canon_golden.jsonl"):
        for row in golden_rows(f"conformance/{name}"):
            raw = bytes.fromhex(row["raw_hex"]) if "raw_hex" in row else row["raw"].encode("utf-8", "replace")
            base = bytes.fromhex(row.get("base_hex", "")) or row.get("base", "").encode("utf-8", "replace")
            pages.append((base, [raw]))
    return pages


def test_every_vector(golden_rows) -> None:
    pages = vector_pages(golden_rows)
    check(pages)
    check(pages, canonicalizer=BatchCanonicalizer(with_kernels=False))
    check(pages, OWN_RULES)
    check(pages, Policy.from_fields({"group_by": "host"}))
    check(pages, Policy.from_fields({"fold_case": True, "keep_hashbang": True}))


def test_every_vector_against_other_bases(golden_rows) -> None:
    """Inputs of the vectors as links of pages that they were not written for."""
    links = [link for _, own in vector_pages(golden_rows) for link in own]
    bases = [
        "https://h.test",
        "http://h.test/a/b?z&a#f",
        "http://h.test:81/%7e/..//x",
        "https://[::1]/é/ü?é",
        "mailto:a",
    ]
    canonicalizer = BatchCanonicalizer()
    check([(base.encode(), links) for base in bases], canonicalizer=canonicalizer)
    parsed = canonicalizer.odd_links
    check([(base.encode(), links) for base in bases[:1]], canonicalizer=canonicalizer)
    assert parsed < 5 * len(links), "nothing was decided by bytes alone"


PIECES = [
    *("http://", "https://", "HTTP://", "hTtps:", "//", "/", "\\", "?", "#", "&", "=", ";", ":", "@", "mailto:"),
    *("%", "%2", "%25", "%2e", "%2E%2e", "%2F", "%41", "%4", "%65", "%zz", "%E9", "%c3%a9", "%00", "+", " ", "\t"),
    *(".", "..", "./", "../", "/../", "a", "A", "Z9", "b.test", "B.Test", "www.", "c.test", "a.test", "localhost"),
    *("xn--", "Xn--a", "1", "-", "_", ".1", "0x7", ":80", ":443", ":0080", ":0", ":65535", ":65536", ":8080", "u:p@"),
    *("a=1", "b", "b=", "c=%20", "utm_source=x", "UTM_", "u%74m_a", "gclid", "gclid=1", "fbclid&", "x-y+z.", "\n"),
    *("é", "'", '"', "\x01", "\x7f", "^", "`{}"),
]
pieces = st.lists(st.sampled_from(PIECES), max_size=10).map(lambda parts: "".join(parts).encode())
some_bytes = st.binary(max_size=12)
plain = st.sampled_from(
    [b"http://b.test/", b"https://a.b.test/p/", b"//c.test?", b"../", b"?b&a=", b"x/./y/", b"http://B.test"]
)
made_links = pieces | st.tuples(plain, pieces, some_bytes).map(b"".join) | st.tuples(plain, pieces).map(b"".join)
made_bases = (
    st.sampled_from([b"", b"https://b.test/a/b/c?d=e#f", b"http://www.b.test", b"http://h.test:80/a%2e/..", b"nothing"])
    | made_links
)
made_pages = st.lists(st.tuples(made_bases, st.lists(made_links, max_size=8)), min_size=1, max_size=4)
shared = {policy: BatchCanonicalizer(policy) for policy in (DEFAULT, OWN_RULES)}


names = st.sampled_from(
    ["a", "b", "B", "ab", "", "%61", "%C3%A9", "é", "%00", "a%5B", "%%41", "%", "utm_x", "gclid", "+", "'"]
)
made_queries = st.lists(st.tuples(names, st.sampled_from(["", "=", "=1", "==", "=%7e'&", "&"])), max_size=90).map(
    lambda pairs: "&".join(name + value for name, value in pairs).encode()
)


@given(st.lists(made_queries, min_size=1, max_size=8))
@settings(max_examples=150, deadline=None)
def test_made_queries(queries: list[bytes]) -> None:
    """Pairs in any order, more of them than kernels sort, names that compare by what their escapes stand for."""
    check(
        [(b"https://h.test/p?" + queries[0], [b"?" + query for query in queries] + [b""])],
        canonicalizer=shared[DEFAULT],
    )


def test_bytes_decide_nearly_all_links_of_real_pages(test_data: Path) -> None:
    """The first pages of the real crawls: equal columns, and hardly a link for the parser."""
    for name in ("data/docs-crawl.jsonl.zst", "data/cc-pages.jsonl.zst"):
        pages: Pages = []
        with (test_data / name).open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            for line in itertools.islice(io.BufferedReader(stream), 60):
                event = json.loads(line)
                links = dict.fromkeys(event["links"])
                pages.append(((event.get("base") or event["url"]).encode(), [link.encode() for link in links]))
        canonicalizer = BatchCanonicalizer()
        check(pages, canonicalizer=canonicalizer)
        assert canonicalizer.odd_links < 0.03 * sum(len(links) for _, links in pages)


def test_one_link_needs_no_compiler() -> None:
    """Commands for one URL must not wait for numba."""
    code = "import sys, meguri_canonicalizer.canonical; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(made_pages, st.sampled_from([DEFAULT, OWN_RULES]))
@settings(max_examples=400, deadline=None)
def test_made_links(pages: Pages, policy: Policy) -> None:
    check(pages, policy, shared[policy])


@pytest.mark.parametrize(
    ("link", "base"),
    [("http://h.test/" + "a" * n, "") for n in (LONGEST_URL - 15, LONGEST_URL - 14, LONGEST_URL - 13, 20_000, 100_000)]
    + [
        ("http://h.test/" + "%20" * 100_000, ""),
        ("http://h.test/#" + "a" * 100_000, ""),
        ("http://h.test/?utm_x=" + "a" * 100_000, ""),
        ("é" * 3000, "http://h.test/"),
        ("a", "http://h.test/" + "b" * (LONGEST_URL - 15) + "/"),
        ("a", "http://h.test/" + "b" * (LONGEST_URL - 16) + "/"),
        ("../a", "http://h.test/" + "b" * 10_000 + "/"),
        ("#", "http://h.test/" + "b" * 10_000 + "/"),
        ("/a", "http://h.test/" + "b" * (LONGEST_BASE - 14)),
        ("/a", "http://h.test/" + "b" * (LONGEST_BASE - 13)),
        ("http://h.test/a", "http://h.test/" + "b" * LONGEST_BASE),
        ("http://" + "a." * 126 + "bb/", ""),
        ("http://" + "a." * 200 + "bb/", ""),
        ("b", "http://" + "a." * 200 + "bb/"),
    ],
)
def test_lengths(link: str, base: str) -> None:
    check([(base.encode(), [link.encode(), b"x", b"http://y.test/"])])


@pytest.mark.parametrize("policy", [DEFAULT, OWN_RULES])
def test_a_page_has_a_bound(policy: Policy) -> None:
    """Short links under a long base: the bound holds whichever way the links go, and ends with the page."""
    base = b"http://b.test/" + b"a" * 8000 + b"/"
    links = [*(b"l%d" % n for n in range(1500)), *(b"l%d?b&a" % n for n in range(1500)), b"mailto:", b"http://x.test/"]
    pages = [(base, links), (base, [b"x"]), (b"", [b"http://x.test/"])]
    check(pages, policy)
    found = run(BatchCanonicalizer(policy), pages)
    assert [row.reason for row in found[-4:]] == ["too_much", "too_much", "", ""]
    assert PAGE_BYTES - LONGEST_URL < sum(len(row.url) for row in found[:-2]) <= PAGE_BYTES


def test_many_hosts_grow_the_table() -> None:
    canonicalizer = BatchCanonicalizer()
    for batch in range(3):
        links = [b"http://h%d.%s.test/" % (n, b"l" * (n % 60 + 1)) for n in range(batch * 5000, batch * 5000 + 12_000)]
        check([(b"", links)], canonicalizer=canonicalizer)


def test_results_stay_valid_and_empty_batches_work() -> None:
    canonicalizer = BatchCanonicalizer()
    first = canonicalizer.run(
        LinkColumns(*columns([b"http://a.test/?b&a", b"http://a.test/x"]), np.zeros(2, np.int32)),
        BaseColumns(*columns([b""])),
    )
    before = rows(first)
    run(canonicalizer, [(b"http://b.test/", [b"y" * 500] * 50)])
    assert rows(first) == before
    assert run(canonicalizer, []) == []
    assert run(canonicalizer, [(b"http://b.test/", [])]) == []
