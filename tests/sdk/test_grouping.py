"""Partitions of the pages: as the canonicalizer groups, for every kind of event, whatever stands in it."""

from __future__ import annotations

import json

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from meguri.embedded.inputs import open_input
from meguri_canonicalizer.canonical import Canonical, canonicalize
from meguri_common.sdk import group_of_event, group_of_url, pages_partition

# key, partition of 1, 16 and 64: facts for whoever writes this in another language.
FACTS = [
    ("https://www.example.org/a?b#c", b"example.org"),
    ("http://EXAMPLE.org:8080", b"example.org"),
    ("https://example.org./", b"example.org"),
    ("https://a.b.example.co.uk/", b"example.co.uk"),
    ("https://user:secret@www.example.org/", b"example.org"),
    ("https://someone.github.io/x", b"someone.github.io"),
    ("https://github.io/", b"github.io"),
    ("https://bücher.example/", b"xn--bcher-kva.example"),
    ("https://XN--BCHER-KVA.example/", b"xn--bcher-kva.example"),
    ("http://192.0.2.7/", b"192.0.2.7"),
    ("http://0xC0.0.2.7:81/", b"192.0.2.7"),
    ("http://[2001:DB8::1]:8080/", b"[2001:db8::1]"),
    ("http://localhost/", b"localhost"),
    ("https:\\\\www.example.org\\x", b"example.org"),
    (" https://www.example.org/", b"example.org"),
    ("ftp://example.org/", None),
    ("mailto:a@example.org", None),
    ("//example.org/", None),
    ("https://a..example.org/", None),
    ("https://exa mple.org/", None),
    ("https://1.2.3.999/", None),
    ("https://", None),
    ("", None),
]


@pytest.mark.parametrize(("url", "group"), FACTS)
def test_key_of_a_url(url, group):
    assert group_of_url(url) == group


@pytest.mark.parametrize(("url", "group"), FACTS)
def test_it_is_the_canonicalizers_host_group(url, group):
    found = canonicalize(url, None)
    assert (found.host_group.encode() if isinstance(found, Canonical) else None) == group


@given(st.from_regex(r"https?://[a-zA-Z0-9.\-@:\[\]%_/?#é。]{0,40}", fullmatch=True))
def test_any_url_is_grouped_as_the_canonicalizer_does(url):
    found = canonicalize(url, None)
    if isinstance(found, Canonical):
        assert group_of_url(url) == found.host_group.encode()


def test_every_page_of_the_example_is_grouped_as_the_canonicalizer_does(test_data, say):
    files = sorted((test_data / "data" / "docs-crawl").glob("*.jsonl*")) or sorted(
        test_data.glob("data/**/*.jsonl.zst")
    )
    seen = set()
    for path in files:
        for line in b"".join(open_input(str(path)).chunks()).splitlines():
            event = json.loads(line)
            url = event.get("url")
            if isinstance(url, str) and url not in seen:
                seen.add(url)
                found = canonicalize(url, None)
                want = found.host_group.encode() if isinstance(found, Canonical) else None
                assert group_of_event(line) == want
    say("keys of pages", f"{len(seen)} URLs of {len(files)} files")
    assert seen


@pytest.mark.parametrize(
    ("event", "group"),
    [
        ({"url": "https://www.example.org/", "fetched_at": 1}, b"example.org"),
        ({"type": "page", "url": "https://www.example.org/", "links": ["https://other.example/"]}, b"example.org"),
        ({"type": "sitemap", "url": "https://www.example.org/s.xml", "entries": []}, b"example.org"),
        ({"type": "seed", "urls": ["https://www.example.org/", "https://example.org/b"]}, b"example.org"),
        ({"type": "control", "action": "vouch", "host": "www.Example.org"}, b"example.org"),
        ({"type": "control", "action": "release", "url": "https://www.example.org/x"}, b"example.org"),
        ({"type": "signal", "hosts": [{"host": "www.example.org", "score": 1}]}, b"example.org"),
        (
            {"type": "signal", "hosts": [], "urls": [{"url": "https://www.example.org/", "page_rank": 1}]},
            b"example.org",
        ),
        ({"type": "signal", "hosts": [], "urls": []}, None),
        ({"type": "seed", "urls": []}, None),
        ({"type": "seed", "urls": [7]}, None),
        ({"type": "seed", "urls": "https://www.example.org/"}, None),
        ({"type": "page", "url": 7}, None),
        ({"type": "page"}, None),
        ({"type": "other", "url": "https://www.example.org/"}, None),
        ({"type": ["page"], "url": "https://www.example.org/"}, None),
        ({"type": {}, "url": "https://www.example.org/"}, None),
    ],
)
def test_key_of_an_event(event, group):
    assert group_of_event(json.dumps(event).encode()) == group


@pytest.mark.parametrize(
    ("line", "group"),
    [
        (rb'{"url": "https://www.example.org/", "text": "\ud800"}', b"example.org"),
        (rb'{"url": "https://www.example.org/\ud800", "fetched_at": 1}', None),
        (b'{"url": "https://www.example.org/", "text": "\xff"}', None),
        (b'{"url": "https://www.example.org/"', None),
        (b"[]", None),
        (b'"https://www.example.org/"', None),
        (b"", None),
        (b"[" * 100_000, None),
        (b'{"x": ' + b"[" * 100_000, None),
    ],
)
def test_lines_that_are_hard_to_read_have_a_key_or_none(line, group):
    found = group_of_event(line)
    assert found in {group, b"example.org"} if group is None and b"example" in line else found == group


@given(st.binary(max_size=60))
def test_any_line_has_a_partition(line):
    assert 0 <= pages_partition(group_of_event(line), 16) < 16


@given(st.binary(min_size=1, max_size=40), st.integers(1, 4096))
def test_partition_is_the_share_of_the_key(group, partitions):
    want = xxhash.xxh64(group, seed=0).intdigest() * partitions // 2**64
    assert pages_partition(group, partitions) == want
    assert pages_partition(None, partitions) == 0
