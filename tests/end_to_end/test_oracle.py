"""The frontier against a plain oracle: every page, link and redirect target made canonical one by one, in a set."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ada_url
import pytest
from program import (
    AT,
    EXAMPLE,
    apart,
    assert_sums,
    campaign,
    encoded,
    lines_of,
    rejects,
    small_crawl,
    urls_of,
    write_lines,
)

from meguri_canonicalizer.canonical import Rejected, canonicalize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

REDIRECTS = {301, 302, 303, 307, 308}
SHUFFLE_SEED = 20


@dataclass
class Oracle:
    """What must come out, whatever the order of the events and the number of partitions."""

    urls: set[str] = field(default_factory=set)
    pages: int = 0
    links: int = 0
    links_rejected: Counter[str] = field(default_factory=Counter)
    events_rejected: int = 0
    _memo: dict[tuple[str, str], str | Rejected] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        """One event."""
        match event.get("type", "page"):
            case "page":
                self._take_page(event)
            case "seed":
                self.urls.update(url for url in map(self._canonical, event["urls"]) if isinstance(url, str))
            case "sitemap":
                found = (self._canonical(entry["loc"], event["url"]) for entry in event["entries"])
                self.urls.update(url for url in found if isinstance(url, str))

    def _take_page(self, page: dict[str, Any]) -> None:
        own = self._canonical(page["url"])
        if isinstance(own, Rejected):
            self.events_rejected += 1
            return
        self.pages += 1
        self.urls.add(own)
        base = page["url"]
        if page.get("base") is not None and isinstance(self._canonical(page["base"], base), str):
            base = ada_url.join_url(base, page["base"])
        for link in page.get("links", ()):
            found = self._canonical(link if isinstance(link, str) else link["href"], base)
            self.links += 1
            if isinstance(found, Rejected):
                self.links_rejected[found.reason.name.lower()] += 1
            else:
                self.urls.add(found)
        if page.get("status", 200) in REDIRECTS and page.get("redirect") is not None:
            target = self._canonical(page["redirect"], page["url"])
            if isinstance(target, str):
                self.urls.add(target)

    def _canonical(self, href: str, base: str = "") -> str | Rejected:
        # What a link says in full doesn't depend on where it stands.
        key = ("" if href.startswith(("http://", "https://")) else base, href)
        if key not in self._memo:
            found = canonicalize(href, base or None)
            self._memo[key] = found if isinstance(found, Rejected) else found.url
        return self._memo[key]


def oracle_of(lines: Iterable[bytes]) -> Oracle:
    """The oracle's answer to some events."""
    oracle = Oracle()
    for line in lines:
        oracle.take(json.loads(line))
    assert oracle.urls
    return oracle


@dataclass(frozen=True)
class Crawl:
    """A file of events and what must come of it."""

    path: Path
    lines: Sequence[bytes]
    oracle: Oracle

    def shuffled(self, folder: Path) -> Path:
        lines = list(self.lines)
        random.Random(SHUFFLE_SEED).shuffle(lines)
        return write_lines(folder / "shuffled.jsonl.zst", lines)

    def reversed(self, folder: Path) -> Path:
        return write_lines(folder / "reversed.jsonl", self.lines[::-1])


@pytest.fixture(scope="module")
def crawls(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path | None], Crawl]:
    """Crawls by name; each is read once."""
    known: dict[str, Crawl] = {}

    def read(name: str, source: Path | None) -> Crawl:
        if name not in known:
            path = source or write_lines(tmp_path_factory.mktemp("small") / name, [encoded(*small_crawl())])
            lines = list(lines_of(path)) if path.suffix == ".zst" else path.read_bytes().splitlines(keepends=True)
            known[name] = Crawl(path, lines, oracle_of(lines))
        return known[name]

    return read


@pytest.fixture(params=["small.jsonl", "example", "docs-crawl.jsonl.zst", "cc-pages.jsonl.zst"])
def crawl(request: pytest.FixtureRequest, crawls: Callable[[str, Path | None], Crawl]) -> Crawl:
    name = request.param
    if name == "small.jsonl":
        return crawls(name, None)
    if name == "example":
        return crawls(name, EXAMPLE)
    path = request.getfixturevalue("test_data") / "data" / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    return crawls(name, path)


def check(document: dict[str, Any], data: Path, oracle: Oracle) -> None:
    """Everything that can be said without knowing how the partitions took turns."""
    urls = urls_of(data)
    assert set(urls) == oracle.urls
    assert len(urls) == len(oracle.urls), "each once"
    assert document["urls_total"] == document["urls_new"] == len(oracle.urls)
    assert document["pages"] == oracle.pages
    assert document["links"] == oracle.links
    assert document["links_rejected"] == dict(oracle.links_rejected)
    assert document["events_rejected"] == oracle.events_rejected
    assert document["cash_minted"] > 0
    assert_sums(document)


@pytest.mark.parametrize("partitions", [1, 3])
def test_the_frontier_is_the_oracles_set(
    crawl: Crawl, partitions: int, tmp_path: Path, say: Callable[[str, str], None]
) -> None:
    document = campaign(tmp_path / "data", crawl.path, partitions=partitions)
    check(document, tmp_path / "data", crawl.oracle)
    say(
        f"end to end, {crawl.path.name}", f"{len(crawl.oracle.urls):,} URLs of {crawl.oracle.links:,} links as expected"
    )


@pytest.mark.parametrize("order", ["shuffled", "reversed"])
def test_the_order_of_the_events_does_not_matter_to_the_set(crawl: Crawl, order: str, tmp_path: Path) -> None:
    path = getattr(crawl, order)(tmp_path)
    check(campaign(tmp_path / "data", path, partitions=3), tmp_path / "data", crawl.oracle)


def test_with_eight_partitions_as_a_process_of_its_own(crawl: Crawl, tmp_path: Path) -> None:
    done = apart("run", crawl.path, "--data", tmp_path / "data", "--partitions", "8", "--json")
    assert done.code == (1 if crawl.oracle.events_rejected else 0), done.err
    check(done.document, tmp_path / "data", crawl.oracle)
    assert len(rejects(tmp_path / "data")) == crawl.oracle.events_rejected


def test_the_small_crawl_has_every_kind_and_twist(crawls: Callable[[str, Path | None], Crawl]) -> None:
    oracle = crawls("small.jsonl", None).oracle
    kinds = Counter(json.loads(line).get("type", "page") for line in crawls("small.jsonl", None).lines)
    assert set(kinds) == {"page", "seed", "sitemap", "signal", "control"}
    assert {"scheme", "bad_host"} <= set(oracle.links_rejected)
    assert {"http://www.seeded.example/b", "https://site.example/m1", "https://www.h0.example/new"} <= oracle.urls
    assert "https://www.h3.example/from-gone" in oracle.urls, "links of an error page count"
    assert "https://www.h2.example/not-taken" not in oracle.urls, "a target without a redirect's status doesn't"
    assert "https://www.h0.example/canonical-is-no-link" not in oracle.urls


def test_seeds_and_vouches_given_again_change_nothing(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "in.jsonl", [encoded({"url": "http://a.example/", "fetched_at": AT, "links": ["x"]})]
    )
    data, seeds, vouched = tmp_path / "data", ["http://a.example/", "http://b.example/"], ["b.example"]
    first = campaign(data, source, partitions=3, seeds=seeds, vouched=vouched)
    assert first["cash_minted"] == 2 << 32
    again = campaign(data, source, seeds=seeds[::-1], vouched=vouched)
    assert again["cash_minted"] == 2 << 32
    assert set(urls_of(data)) == {"http://a.example/", "http://b.example/", "http://a.example/x"}
    more = campaign(data, seeds=["http://c.example/"])
    assert more["cash_minted"] == 3 << 32
    assert more["this_run"]["urls_new"] == 1
    assert_sums(more)
