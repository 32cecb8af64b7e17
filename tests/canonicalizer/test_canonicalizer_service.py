"""The service against a twin in plain Python that treats one link, one page, one row at a time."""

from __future__ import annotations

import base64
import io
import json
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_canonicalizer.batch import LONGEST_BASE
from meguri_canonicalizer.canonical import Canonical, canonicalize
from meguri_canonicalizer.policy import DEFAULT, Policy
from meguri_canonicalizer.service import DEFAULTS, canonicalizer_spec
from meguri_common.bus.port import Message
from meguri_common.content import PIPELINE_VERSION
from meguri_common.keys import partition_of
from meguri_common.records import LINK_REJECT_REASONS, VisitFlag
from meguri_common.runtime.outputs import Outputs
from meguri_common.topics import LINKS, PAGES, REJECTS
from meguri_common.wire.envelope import decode
from meguri_common.wire.schemas import ORDER, RowKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PARTITIONS = 8
CAMPAIGN = 77
NOW = 1_800_000_000
NO_DEPTH = 65535
Rows = dict[tuple[int, str], list[dict[str, Any]]]


def run(
    messages: Sequence[Message], policy: Policy = DEFAULT, partitions: int = PARTITIONS
) -> tuple[Rows, list[dict[str, Any]]]:
    """Rows by partition and kind, and rejects, of one step."""
    spec = canonicalizer_spec(CAMPAIGN, partitions, policy)
    service = spec.create(3, dict(spec.parameters))
    outputs = Outputs(CAMPAIGN)
    service.apply(messages, outputs)
    rows: Rows = defaultdict(list)
    rejects = []
    last: dict[int, int] = {}
    for target, payload in outputs.envelopes():
        if target.topic == REJECTS:
            assert target.partition == 0
            rejects.append(json.loads(bytes(payload)))
            continue
        assert target.topic == LINKS
        kind, batch = decode(payload, CAMPAIGN)
        assert last.get(target.partition, -1) <= ORDER[kind]
        last[target.partition] = ORDER[kind]
        rows[target.partition, kind.name].extend(batch.to_pylist())
    return dict(rows), rejects


def step(*events: Any, headers: bytes = b"", policy: Policy = DEFAULT) -> tuple[Rows, list[dict[str, Any]]]:
    """One message with some events, given as objects or as bytes."""
    lines = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return run([Message(5, b"\n".join(lines), headers, NOW)], policy)


def flat(rows: Rows, kind: str) -> list[dict[str, Any]]:
    return [row for (_, name), found in sorted(rows.items()) if name == kind for row in found]


class Twin:
    """What the specification says, one thing after another."""

    def __init__(self, policy: Policy, partitions: int) -> None:
        self.policy, self.partitions = policy, partitions
        self.rows: Rows = defaultdict(list)
        self.links: dict[tuple[int, int], dict[str, Any]] = {}
        self.rejects: list[str] = []

    def canonical(self, raw: str, base: str | None = None) -> Canonical | str:
        found = canonicalize(raw, base, self.policy)
        if not isinstance(found, Canonical):
            return str(found.reason)
        return "too_long" if len(found.url) > 8192 else found

    def add(self, kind: str, row: dict[str, Any]) -> None:
        self.rows[partition_of(row["host_key"], self.partitions), kind].append(row)

    @staticmethod
    def url(found: Canonical) -> dict[str, Any]:
        return {
            "url": found.url.encode(),
            "host_key": found.host_key,
            "path_key": found.path_key,
            "group_at": found.group_at,
            "group_len": found.group_len,
        }

    def link(self, found: Canonical, source_host: int, depth: int, source: int, count: int, at: int) -> None:
        known = self.links.get((found.host_key, found.path_key))
        if known is not None and (count == 0 or known["source"] == 1):
            known["count"] += count
            return
        row = self.url(found) | {"source_host": source_host, "depth": depth, "source": source, "count": count, "at": at}
        self.links[found.host_key, found.path_key] = row
        self.add("LINK", row)

    def page(self, event: dict[str, Any]) -> None:
        own = self.canonical(event["url"])
        if isinstance(own, str):
            self.rejects.append("url")
            return
        base = event["url"]
        if event.get("base") is not None and isinstance(canonicalize(event["base"], event["url"]), Canonical):
            resolved = absolute(event["base"], event["url"])
            base = resolved if len(resolved) <= LONGEST_BASE else base
        stated = event.get("depth")
        depth = NO_DEPTH if stated is None else min(stated, NO_DEPTH - 1)
        rejected = dict.fromkeys(LINK_REJECT_REASONS, 0)
        found: dict[tuple[int, int], tuple[Canonical, int]] = {}
        hrefs = [link if isinstance(link, str) else link["href"] for link in event.get("links", [])]
        for href in hrefs:
            target = self.canonical(href, base)
            if isinstance(target, str):
                rejected[target] += 1
            else:
                key = (target.host_key, target.path_key)
                found[key] = (target, found.get(key, (target, 0))[1] + 1)
        for target, count in found.values():
            link_depth = NO_DEPTH if stated is None else min(stated + 1, NO_DEPTH - 1)
            self.link(target, own.host_key, link_depth, 1, count, event["fetched_at"])
        keys = [key for key in found if key != (own.host_key, own.path_key)]
        flags, redirect = 0, b""
        status = event.get("status", 200)
        if status in {301, 302, 303, 307, 308}:
            keys = []
            if event.get("redirect") is not None:
                target = self.canonical(event["redirect"], event["url"])
                if isinstance(target, str):
                    flags |= VisitFlag.REDIRECT_UNUSABLE
                elif target.url == own.url:
                    flags |= VisitFlag.REDIRECT_SELF
                else:
                    self.link(target, own.host_key, depth, 3, 0, event["fetched_at"])
                    keys, redirect = [(target.host_key, target.path_key)], target.url.encode()
        if event.get("not_modified") or status == 304:
            flags |= VisitFlag.NOT_MODIFIED
        last_modified = event.get("last_modified") or 0
        given = event.get("pipeline") == PIPELINE_VERSION and event.get("content_fp") is not None
        self.add(
            "VISIT",
            self.url(own)
            | {
                "fetched_at": event["fetched_at"],
                "status": status,
                "error": 0
                if status
                else [None, "dns", "connect", "timeout", "tls", "robots", "other"].index(event.get("error") or "other"),
                "flags": flags,
                "depth": depth,
                "content_fp": int(event["content_fp"], 16) if given else 0,
                "simhash": int(event.get("simhash") or "0", 16) if given else 0,
                "etag": (event.get("etag") or "").encode(),
                "last_modified": last_modified if 0 <= last_modified < 1 << 32 else 0,
                "redirect": redirect,
                "retry_after": min(event.get("retry_after_s") or 0, (1 << 32) - 1),
                "crawl_delay": 65535 if event.get("crawl_delay_ds") is None else min(event["crawl_delay_ds"], 65534),
                "latency": min(event.get("latency_ms") or 0, 65535),
                "links": len(hrefs),
                "rejected": [rejected[reason] for reason in LINK_REJECT_REASONS],
                "target_host": [host for host, _ in keys],
                "target_path": [path for _, path in keys],
            },
        )

    def seed(self, event: dict[str, Any]) -> None:
        found = [self.canonical(url) for url in event["urls"]]
        if any(isinstance(url, str) for url in found):
            self.rejects.append("url")
        elif len({url.host_key for url in found if isinstance(url, Canonical)}) > 1:
            self.rejects.append("mixed_hosts")
        else:
            for url in found:
                assert isinstance(url, Canonical)
                units = round(event.get("cash", 1.0) * 2**32)
                self.add("SEED", self.url(url) | {"observed_at": event["observed_at"], "cash": units})

    def sitemap(self, event: dict[str, Any]) -> None:
        own = self.canonical(event["url"])
        if isinstance(own, str):
            self.rejects.append("url")
            return
        for entry in event["entries"]:
            found = self.canonical(entry["loc"], event["url"])
            if isinstance(found, Canonical):
                self.link(found, own.host_key, NO_DEPTH, 2, 0, event["observed_at"])

    def signal(self, event: dict[str, Any]) -> None:
        hosts = [(self.canonical(f"http://{item['host']}/"), item["score"]) for item in event.get("hosts", [])]
        urls = [(self.canonical(item["url"]), item["page_rank"]) for item in event.get("urls", [])]
        if any(isinstance(found, str) for found, _ in hosts + urls):
            self.rejects.append("url")
            return
        for found, score in hosts:
            assert isinstance(found, Canonical)
            self.add("HOST_SIGNAL", {"host_key": found.host_key, "score": score, "epoch": event["epoch"]})
        for found, rank in urls:
            assert isinstance(found, Canonical)
            keys = {"host_key": found.host_key, "path_key": found.path_key}
            self.add("URL_SIGNAL", keys | {"rank": rank, "epoch": event["epoch"]})

    def control(self, event: dict[str, Any]) -> None:
        about_host = event.get("host") is not None
        found = self.canonical(f"http://{event['host']}/" if about_host else event["url"])
        if isinstance(found, str):
            self.rejects.append("url")
            return
        actions = ["vouch", "unvouch", "budget", "depth_cap", "release", "flag", "robots_changed", "crawl_delay"]
        self.add(
            "CONTROL",
            {
                "at": event["at"],
                "action": actions.index(event["action"]) + 1,
                "host_key": found.host_key,
                "path_key": 0 if about_host else found.path_key,
                "value": event.get("value"),
            },
        )

    def take(self, event: dict[str, Any]) -> None:
        getattr(self, event.get("type", "page"))(event)


def absolute(link: str, base: str) -> str:
    import ada_url  # noqa: PLC0415 - the twin's own way to resolve

    return ada_url.URL(link, base=base).href


def without_nan(rows: Rows) -> Rows:
    for row in (row for (_, kind), found in rows.items() if kind == "CONTROL" for row in found):
        if isinstance(row["value"], float) and math.isnan(row["value"]):
            row["value"] = None
    return rows


def agree(events: Sequence[dict[str, Any]], policy: Policy = DEFAULT, partitions: int = PARTITIONS) -> Rows:
    """One step over all events is what the twin makes of them; the rows, for more questions."""
    lines = [json.dumps(event).encode() for event in events]
    third = len(lines) // 3
    parts = [lines[:third], lines[third : 2 * third], lines[2 * third :]]
    messages = [Message(at, b"\n".join(part) + b"\n", b"", NOW) for at, part in enumerate(parts) if part]
    rows, rejects = run(messages, policy, partitions)
    twin = Twin(policy, partitions)
    for event in events:
        twin.take(event)
    assert without_nan(rows) == twin.rows
    assert [reject["reason"] for reject in rejects] == twin.rejects
    return rows


def pages_of(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    if not path.is_file():
        pytest.skip(f"no {path}")
    with path.open("rb") as file:
        text = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8", newline="\n")
        return [json.loads(line) for _, line in zip(range(limit or 1 << 60), text, strict=False)]


@pytest.mark.parametrize(("name", "limit"), [("docs-crawl", 200), ("cc-pages", None), ("trap-site-synthetic", 150)])
def test_real_pages(test_data: Path, name: str, limit: int | None) -> None:
    events = pages_of(test_data / "data" / f"{name}.jsonl.zst", limit)
    for event in events:
        event.pop("text", None)
    rows = agree(events)
    visits = flat(rows, "VISIT")
    assert len(visits) == len(events)
    authored = sum(len(event["links"]) for event in events)
    assert sum(row["links"] for row in visits) == authored
    assert sum(row["count"] for row in flat(rows, "LINK")) + sum(sum(row["rejected"]) for row in visits) == authored


def test_folding_over_the_step_keeps_the_first_origin() -> None:
    rows, _ = step(
        {"url": "http://a.com/1", "fetched_at": 10, "depth": 4, "links": ["http://c.net/x", "http://c.net/x#y"]},
        {"url": "http://b.org/2", "fetched_at": 20, "depth": 0, "links": ["http://c.net/x"]},
    )
    (link,) = flat(rows, "LINK")
    (first,) = [row for row in flat(rows, "VISIT") if row["url"] == b"http://a.com/1"]
    assert (link["count"], link["depth"], link["at"], link["source_host"]) == (3, 5, 10, first["host_key"])


def test_link_after_redirect_or_sitemap_has_a_row_of_its_own() -> None:
    """Dedup counts a URL that was first met as a redirect apart; its authored links are all known ones."""
    redirect = {"url": "http://a.com/r", "fetched_at": 1, "status": 301, "redirect": "/t"}
    page = {"url": "http://a.com/p", "fetched_at": 2, "links": ["t", "t"]}
    rows, _ = step(redirect, page, redirect, page)
    assert [(row["source"], row["count"]) for row in flat(rows, "LINK")] == [(3, 0), (1, 4)]
    rows, _ = step(page, redirect)
    assert [(row["source"], row["count"]) for row in flat(rows, "LINK")] == [(1, 2)]


def test_redirect_pays_its_target_alone() -> None:
    event = {"url": "http://a.com/r", "fetched_at": 1, "status": 302, "redirect": "t", "links": ["t", "u"], "depth": 7}
    rows, _ = step(event)
    (visit,) = flat(rows, "VISIT")
    links = {row["url"]: row for row in flat(rows, "LINK")}
    assert visit["target_path"] == [links[b"http://a.com/t"]["path_key"]]
    assert visit["redirect"] == b"http://a.com/t"
    assert set(links) == {b"http://a.com/t", b"http://a.com/u"}
    rows, _ = step(event | {"redirect": "mailto:x"})
    assert (flat(rows, "VISIT")[0]["flags"], flat(rows, "VISIT")[0]["target_path"]) == (VisitFlag.REDIRECT_UNUSABLE, [])
    rows, _ = step(event | {"redirect": "HTTP://A.com:80/r#x"})
    assert (flat(rows, "VISIT")[0]["flags"], flat(rows, "VISIT")[0]["target_path"]) == (VisitFlag.REDIRECT_SELF, [])


def test_relative_bases_and_unusable_ones() -> None:
    def link(base: str) -> bytes:
        rows, _ = step({"url": "http://a.com/d/p", "fetched_at": 1, "base": base, "links": ["x"]})
        return bytes(flat(rows, "LINK")[0]["url"])

    assert link("/e/") == b"http://a.com/e/x"
    assert link("//b.org/f/g") == b"http://b.org/f/x"
    assert link("") == b"http://a.com/d/x"
    for unusable in ("mailto:x", "http://", "http://b..c/", "javascript:void(0)"):
        assert link(unusable) == b"http://a.com/d/x"


def test_links_resolve_against_the_url_as_given() -> None:
    policy = Policy.from_fields({"fold_index": True, "fold_trailing_slash": True})
    rows, _ = step({"url": "http://a.com/d/index.html", "fetched_at": 1, "links": ["x"]}, policy=policy)
    assert flat(rows, "VISIT")[0]["url"] == b"http://a.com/d"
    assert flat(rows, "LINK")[0]["url"] == b"http://a.com/d/x"


def test_hashbangs_are_pages_where_the_policy_says_so() -> None:
    event = {"url": "http://a.com/", "fetched_at": 1, "links": ["p#!one", "p#!two", "p#two", "p"]}
    assert len(flat(step(event)[0], "LINK")) == 1
    urls = [row["url"] for row in flat(step(event, policy=Policy.from_fields({"keep_hashbang": True}))[0], "LINK")]
    assert urls == [b"http://a.com/p#!one", b"http://a.com/p#!two", b"http://a.com/p"]


def test_text_is_fingerprinted_unless_the_same_pipeline_did() -> None:
    page = {"url": "http://a.com/", "fetched_at": 1, "text": "some words that make a body, more than a few of them"}
    (made,) = flat(step(page)[0], "VISIT")
    assert made["content_fp"] != 0
    assert made["simhash"] != 0
    given = page | {"content_fp": "ab", "simhash": "cd"}
    (kept,) = flat(step(given | {"pipeline": PIPELINE_VERSION})[0], "VISIT")
    assert (kept["content_fp"], kept["simhash"]) == (0xAB, 0xCD)
    for other in ({"pipeline": "other/9"}, {}):
        (again,) = flat(step(given | other)[0], "VISIT")
        assert (again["content_fp"], again["simhash"]) == (made["content_fp"], made["simhash"])
    (empty,) = flat(step(page | {"text": " \n "})[0], "VISIT")
    assert empty["flags"] == VisitFlag.EMPTY_BODY
    rows, _ = step(page, {"url": "http://a.com/2", "fetched_at": 1}, page | {"url": "http://a.com/3", "text": ""})
    assert [(row["flags"], row["content_fp"] == made["content_fp"]) for row in flat(rows, "VISIT")] == [
        (0, True),
        (0, False),
        (VisitFlag.EMPTY_BODY, False),
    ]


def test_times_far_ahead_are_rejected() -> None:
    limit = NOW + DEFAULTS["clock_tolerance"]
    late = [
        {"url": "http://a.com/", "fetched_at": limit + 1},
        {"type": "seed", "urls": ["http://a.com/"], "observed_at": limit + 1},
        {"type": "sitemap", "url": "http://a.com/", "observed_at": limit + 1, "entries": []},
        {"type": "signal", "epoch": limit + 1},
        {"type": "control", "at": NOW * 1000, "action": "vouch", "host": "a.com"},
    ]
    rows, rejects = step({"url": "http://a.com/", "fetched_at": limit}, *late)
    assert [(reject["reason"], reject["line"]) for reject in rejects] == [("future", line) for line in range(1, 6)]
    assert [reject["detail"].rpartition("`$.")[2] for reject in rejects] == [
        "fetched_at`",
        "observed_at`",
        "observed_at`",
        "epoch`",
        "at`",
    ]
    assert len(flat(rows, "VISIT")) == 1


def test_rejects_say_where_they_came_from() -> None:
    good = {"url": "http://a.com/", "fetched_at": 1}
    headers = b'{"file":"crawl.jsonl","line":41}'
    rows, (reject,) = step(good, b"", b'{"url": 7, "fetched_at": 1}', good, headers=headers)
    assert len(flat(rows, "VISIT")) == 2
    assert reject == {
        "schema": 1,
        "at_service": "canonicalizer",
        "topic": PAGES,
        "partition": 3,
        "offset": 5,
        "line": 2,
        "origin": {"file": "crawl.jsonl", "line": 43},
        "reason": "invalid",
        "detail": "Expected `str`, got `int` - at `$.url`",
        "attempts": 1,
        "payload": base64.b64encode(b'{"url": 7, "fetched_at": 1}').decode(),
    }
    for headers, origin, attempts in [
        (b"", None, 1),
        (b"not json", None, 1),
        (b"\xff", None, 1),
        (b'{"file":"x"}', None, 1),
        (b'{"file":"x","line":"y"}', None, 1),
        (b'{"attempts":2}', None, 3),
        (b'{"file":"x","lines":[[7,1]]}', {"file": "x", "line": 7}, 1),
        (b'{"file":"x","lines":[[7,-1]]}', None, 1),
        (b'{"file":"x","lines":[]}', None, 1),
    ]:
        _, (reject,) = step(b"{}", headers=headers)
        assert (reject["origin"], reject["attempts"]) == (origin, attempts)


def test_rejects_of_a_message_that_was_put_together_of_scattered_lines_name_the_right_one() -> None:
    headers = b'{"file":"crawl.jsonl","lines":[[3,2],[9,1],[20,3]]}'
    _, rejects = step(*[b'{"url": 7}'] * 7, headers=headers)
    assert [reject["line"] for reject in rejects] == list(range(7))
    numbers = [reject["origin"] and reject["origin"]["line"] for reject in rejects]
    assert numbers == [3, 4, 9, 20, 21, 22, None]


def test_unusable_urls_are_named() -> None:
    bad = [
        {"url": "/relative", "fetched_at": 1, "links": ["http://b.org/"]},
        {"type": "seed", "urls": ["http://a.com/", "ftp://a.com/"], "observed_at": 1},
        {"type": "seed", "urls": ["http://a.com/", "http://b.org/"], "observed_at": 1},
        {"type": "signal", "epoch": 1, "hosts": [{"host": "a.com", "score": 1}, {"host": "a b", "score": 1}]},
        {"type": "signal", "epoch": 1, "hosts": [{"host": "a.com/path", "score": 1}]},
        {"type": "signal", "epoch": 1, "urls": [{"url": "x", "page_rank": 1}]},
        {"type": "control", "at": 1, "action": "vouch", "host": "a.com:80"},
        {"type": "control", "at": 1, "action": "release", "url": "http://"},
    ]
    rows, rejects = step(*bad)
    assert rows == {}
    assert [reject["reason"] for reject in rejects] == [
        "url",
        "url",
        "mixed_hosts",
        "host",
        "host",
        "url",
        "host",
        "url",
    ]
    assert "'ftp://a.com/' - at `$.urls[1]`" in rejects[1]["detail"]
    assert "'http://b.org/'" in rejects[2]["detail"]


def test_cash_is_rounded_half_to_even() -> None:
    def units(cash: float) -> list[int]:
        rows, _ = step({"type": "seed", "urls": ["http://a.com/"], "observed_at": 1, "cash": cash})
        return [row["cash"] for row in flat(rows, "SEED")]

    assert units(1.0) == [1 << 32]
    assert units(2.5 / 2**32) == [2]
    assert units(3.5 / 2**32) == [4]
    assert units(1_000_000) == [1_000_000 << 32]
    for refused in (0, -1, 1_000_000.5, math.nan, math.inf):
        _, rejects = step({"type": "seed", "urls": ["http://a.com/"], "observed_at": 1, "cash": refused})
        assert len(rejects) == 1, refused


def test_addresses_and_aliases_of_hosts() -> None:
    policy = Policy.from_fields({"host_alias": {"www.mirror.net": "a.com"}})
    events = [
        {"type": "control", "at": 1, "action": "vouch", "host": host}
        for host in ("www.mirror.net", "A.com", "www.a.com.", "[::1]", "127.0.0.1", "bücher.example")
    ]
    rows = agree(events, policy)
    keys = [row["host_key"] for row in flat(rows, "CONTROL")]
    assert len(set(keys)) == 4


def test_an_empty_step_and_empty_messages() -> None:
    assert run([]) == ({}, [])
    assert run([Message(0, b"", b"", NOW), Message(1, b"\n\r\n", b"", NOW)]) == ({}, [])


def test_grouping_of_messages_changes_no_fact(test_data: Path) -> None:
    """Counts by URL, first origins, visits: the same for one message a step as for all in one step."""
    events = pages_of(test_data / "data" / "docs-crawl.jsonl.zst", 60)
    messages = [Message(at, json.dumps(event).encode(), b"", NOW) for at, event in enumerate(events)]
    together, _ = run(messages)
    counts: dict[bytes, int] = defaultdict(int)
    origins: dict[bytes, tuple[int, int, int]] = {}
    visits = []
    for message in messages:
        rows, _ = run([message])
        visits += flat(rows, "VISIT")
        for row in flat(rows, "LINK"):
            counts[row["url"]] += row["count"]
            origins.setdefault(row["url"], (row["source_host"], row["depth"], row["at"]))
    joined = {row["url"]: row for row in flat(together, "LINK")}
    assert {url: row["count"] for url, row in joined.items()} == counts
    assert {url: (row["source_host"], row["depth"], row["at"]) for url, row in joined.items()} == origins
    by_url = sorted(visits, key=lambda row: row["url"])
    assert sorted(flat(together, "VISIT"), key=lambda row: row["url"]) == by_url


HOSTS = st.sampled_from(["a.com", "www.a.com", "b.org", "c.co.uk", "A.COM", "127.1", "[::1]", "x_y.b.org"])
PATHS = st.sampled_from(
    ["/", "", "/p", "/p?b&a", "/d/", "/d/%7Ex", "/p#f", "/p #f", "/é", "/d/../p", "?utm_source=1&k=2"]
)
URLS = st.builds(
    lambda scheme, host, path: f"{scheme}://{host}{path}", st.sampled_from(["http", "https"]), HOSTS, PATHS
)
HREFS = st.one_of(
    URLS,
    PATHS,
    st.text(st.sampled_from("ab/#.?&=%! \\\t'é日:@"), max_size=8),
    st.sampled_from(
        ["mailto:x", "//b.org/y", "http://", "http://h:99999/", "http://..", "x" * 9000, "../../..", "#!x"]
    ),
)
TIMES = st.integers(0, NOW)
SMALL = st.one_of(st.none(), st.integers(0, 70_000))
PAGE_EVENTS = st.fixed_dictionaries(
    {"url": st.one_of(URLS, HREFS), "fetched_at": TIMES},
    optional={
        "type": st.just("page"),
        "status": st.sampled_from([0, 200, 204, 301, 302, 303, 304, 307, 308, 404, 500]),
        "error": st.sampled_from([None, "dns", "robots", "other"]),
        "depth": st.one_of(st.none(), st.sampled_from([0, 1, 65533, 65534, 65535])),
        "links": st.lists(st.one_of(HREFS, st.fixed_dictionaries({"href": HREFS})), max_size=12),
        "base": st.one_of(st.none(), HREFS),
        "redirect": st.one_of(st.none(), HREFS),
        "content_fp": st.sampled_from([None, "0", "ffffffffffffffff", "A1"]),
        "simhash": st.sampled_from([None, "1f"]),
        "pipeline": st.sampled_from([None, PIPELINE_VERSION, "other/1"]),
        "etag": st.sampled_from([None, "", '"e"', "é"]),
        "last_modified": st.one_of(st.none(), st.integers(-5, 1 << 33)),
        "not_modified": st.booleans(),
        "latency_ms": SMALL,
        "retry_after_s": st.one_of(st.none(), st.integers(0, 1 << 40)),
        "crawl_delay_ds": SMALL,
        "unknown": st.just({"links": ["http://never.example/"]}),
    },
)
EVENTS = st.one_of(
    PAGE_EVENTS,
    PAGE_EVENTS,
    st.fixed_dictionaries(
        {"type": st.just("seed"), "urls": st.lists(URLS, min_size=1, max_size=3), "observed_at": TIMES},
        optional={"cash": st.floats(1e-9, 1e6)},
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("sitemap"),
            "url": st.one_of(URLS, HREFS),
            "observed_at": TIMES,
            "entries": st.lists(st.fixed_dictionaries({"loc": HREFS}), max_size=5),
        }
    ),
    st.fixed_dictionaries(
        {"type": st.just("signal"), "epoch": TIMES},
        optional={
            "hosts": st.lists(st.fixed_dictionaries({"host": HOSTS, "score": st.floats(0, 9, width=32)}), max_size=3),
            "urls": st.lists(st.fixed_dictionaries({"url": HREFS, "page_rank": st.floats(0, 9, width=32)}), max_size=3),
        },
    ),
    st.fixed_dictionaries(
        {"type": st.just("control"), "at": TIMES, "action": st.sampled_from(["vouch", "budget", "crawl_delay"])},
        optional={"value": st.one_of(st.none(), st.floats(0, 1e9))},
    ).flatmap(
        lambda event: st.one_of(
            HOSTS.map(lambda host: event | {"host": host}), HREFS.map(lambda url: event | {"url": url, "host": None})
        )
    ),
)
POLICIES = st.sampled_from(
    [
        DEFAULT,
        Policy.from_fields({"keep_hashbang": True, "fold_case": True}),
        Policy.from_fields({"host_alias": {"www.a.com": "b.org"}, "force_https": True}),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(EVENTS, max_size=8), POLICIES, st.sampled_from([1, 3, 8, 64]))
def test_random_events(events: list[dict[str, Any]], policy: Policy, partitions: int) -> None:
    agree(events, policy, partitions)


def test_row_kinds_of_the_links_topic_only() -> None:
    """Each kind of event makes the kinds of rows that dedup reads."""
    rows, rejects = step(
        {"url": "http://a.com/", "fetched_at": 1, "links": ["x"]},
        {"type": "seed", "urls": ["http://a.com/"], "observed_at": 1},
        {"type": "signal", "epoch": 1, "hosts": [{"host": "a.com", "score": 1}], "urls": []},
        {"type": "signal", "epoch": 1, "urls": [{"url": "http://a.com/", "page_rank": 1}]},
        {"type": "control", "at": 1, "action": "flag", "host": "a.com", "value": 1},
    )
    kinds = {RowKind.CONTROL, RowKind.HOST_SIGNAL, RowKind.URL_SIGNAL, RowKind.SEED, RowKind.LINK, RowKind.VISIT}
    assert {name for _, name in rows} == {kind.name for kind in kinds}
    assert rejects == []
