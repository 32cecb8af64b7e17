"""Whatever stands on the pages topic, the service goes on, and says what it could not use."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_canonicalizer.policy import DEFAULT
from meguri_canonicalizer.service import canonicalizer_spec
from meguri_common.bus.port import Message
from meguri_common.runtime.outputs import Outputs
from meguri_common.topics import REJECTS
from meguri_common.wire.envelope import LARGE_ROW_LIMIT, decode

NOW = 1_800_000_000
MIB = 1 << 20
GOOD = b'{"url":"http://good.example/","fetched_at":1,"links":["a","b"]}'


def run(*payloads: bytes) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Links, visits and rejects of one step."""
    spec = canonicalizer_spec(1, 4, DEFAULT)
    outputs = Outputs(1)
    messages = [Message(at, payload, b"", NOW) for at, payload in enumerate(payloads)]
    spec.create(0, dict(spec.parameters)).apply(messages, outputs)
    found: dict[str, list[dict[str, Any]]] = {"LINK": [], "VISIT": [], "REJECT": []}
    for target, payload in outputs.envelopes():
        if target.topic == REJECTS:
            found["REJECT"].append(json.loads(bytes(payload)))
        else:
            assert memoryview(payload).nbytes <= LARGE_ROW_LIMIT + 4096
            kind, batch = decode(payload, 1)
            found.setdefault(kind.name, []).extend(batch.to_pylist())
    return found["LINK"], found["VISIT"], found["REJECT"]


def reasons(*payloads: bytes) -> list[str]:
    """Reasons of the rejects, with good events around that must come through."""
    _, visits, rejects = run(GOOD, *payloads, GOOD)
    assert [visit["url"] for visit in visits].count(b"http://good.example/") == 2
    return [reject["reason"] for reject in rejects]


def event(**fields: Any) -> bytes:
    return json.dumps({"url": "http://h.example/", "fetched_at": 1} | fields).encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\x00\x01\x02\xff\xfe", "invalid_utf8"),
        (b"\x28\xb5\x2f\xfd\x00", "invalid_utf8"),
        (b"garbage", "invalid_json"),
        (b"[]", "invalid"),
        (b"null", "invalid"),
        (b"{}", "invalid"),
        (b'{"url":"http://h/"}', "invalid"),
        (b'{"fetched_at":1}', "invalid"),
        (event(fetched_at="1"), "invalid"),
        (event(fetched_at=1.5), "invalid"),
        (event(fetched_at=-1), "invalid"),
        (event(fetched_at=1 << 70), "invalid"),
        (event(fetched_at=1 << 62), "future"),
        (event(url=None), "invalid"),
        (event(links=None), "invalid"),
        (event(links="a"), "invalid"),
        (event(links=[1]), "invalid"),
        (event(links=[None]), "invalid"),
        (event(links=[{}]), "invalid"),
        (event(status=99), "invalid"),
        (event(status=600), "invalid"),
        (event(depth=-1), "invalid"),
        (event(depth=65536), "invalid"),
        (event(error="tired"), "invalid"),
        (event(content_fp="xyz"), "invalid"),
        (event(content_fp="12345678901234567"), "invalid"),
        (event(latency_ms=-1), "invalid"),
        (event(text=["t"]), "invalid"),
        (event(type="pages"), "type"),
        (event(type=None), "type"),
        (event(type=["page"]), "type"),
        (event(schema=2), "schema"),
        (event(schema="1"), "schema"),
        (event(schema=None), "schema"),
        (event(type="seed", urls="http://h/", observed_at=1), "invalid"),
        (event(type="seed", urls=[], observed_at=1), "invalid"),
        (event(type="seed", urls=["http://h/"]), "invalid"),
        (event(type="seed", urls=["http://h/"], observed_at=1, cash=0), "invalid"),
        (event(type="seed", urls=["http://h/"], observed_at=1, cash=1e30), "invalid"),
        (event(type="control", at=1, action="dance", host="h.example"), "invalid"),
        (b'{"type":"control","at":1,"action":"vouch"}', "invalid"),
        (b'{"type":"control","at":1,"action":"vouch","host":"a.b","url":"http://a.b/"}', "invalid"),
        (event(url=""), "url"),
        (event(url="mailto:someone"), "url"),
        (event(url="http://" + "a" * 100_000), "url"),
        (event(url="http://h.example/" + "a" * 100_000), "url"),
        (event().replace(b"h.example", b"h\xff.example"), "invalid_utf8"),
        (event(x="y").replace(b"y", b"\xed\xa0\x80"), "invalid_utf8"),
        (event(url="http://h.example/\ud800"), "invalid"),
        (b'{"url":"http://h/","fetched_at":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"url":"http://h/","fetched_at":NaN}', "invalid_json"),
        (b'{"url":"http://h/","fetched_at":1,"x":"\\ud800","y":NaN}', "invalid_json"),
        (b'{"url":"http://h/","fetched_at":1,"x":"\\ud800"', "invalid_json"),
    ],
)
def test_each_kind_of_garbage_has_its_reason(line: bytes, reason: str) -> None:
    assert reasons(line) == [reason]
    _, _, rejects = run(GOOD + b"\n" + line + b"\n" + GOOD)
    assert [(reject["reason"], reject["line"]) for reject in rejects] == [(reason, 1)]
    assert base64.b64decode(rejects[0]["payload"]) == line[: 64 << 10]


def test_details_name_the_field() -> None:
    _, _, rejects = run(event(links=["a", {"href": 3}]), event(type="sitemap", observed_at=1, entries=[{"loc": 1}]))
    assert [reject["detail"].rpartition(" at ")[2] for reject in rejects] == ["`$.links[1].href`", "`$.entries[0].loc`"]


def test_every_truncation_of_an_event_is_rejected() -> None:
    line = event(links=["a", "b#c", {"href": "d"}], text='t\u00e9xt "quoted"', depth=1)
    for end in range(1, len(line)):
        assert reasons(line[:end]) == ["invalid_json"], line[:end]


def test_an_event_of_8_mib_is_taken_and_a_larger_one_is_not() -> None:
    line = event(links=["a"], x="")
    fitting = line.replace(b'"x": ""', b'"x": "' + b"y" * (8 * MIB - len(line)) + b'"')
    assert len(fitting) == 8 * MIB
    assert reasons(fitting) == []
    _, _, (reject,) = run(fitting.replace(b"yy", b"yyy", 1))
    assert reject["reason"] == "too_large"
    assert len(base64.b64decode(reject["payload"])) == 64 << 10


def test_50_000_links_are_taken_and_one_more_is_not() -> None:
    links = [f"/{number}" for number in range(50_000)]
    found, (visit,), rejects = run(event(links=links))
    assert (len(found), visit["links"], len(visit["target_path"]), rejects) == (50_000, 50_000, 50_000, [])
    assert reasons(event(links=[*links, "x"])) == ["too_many_links"]
    assert reasons(event(links=["x"] * 50_001)) == ["too_many_links"]
    assert reasons(event(links=[{"href": "x"}] * 50_001)) == ["too_many_links"]
    entries = [{"loc": link} for link in [*links, "x"]]
    assert reasons(event(type="sitemap", observed_at=1, entries=entries)) == ["too_many_links"]


def test_short_links_under_a_long_base_stay_within_bounds() -> None:
    base = "http://h.example/" + "d" * 8_000 + "/"
    links = [f"{number:x}" for number in range(50_000)]
    found, (visit,), rejects = run(event(base=base, links=links))
    assert rejects == []
    size = sum(len(row["url"]) for row in found)
    assert 16 * MIB - 9_000 < size <= 16 * MIB + 8_192
    assert visit["rejected"] == [0, 0, 0, 0, 0, 0, 50_000 - len(found)]
    assert len(visit["target_path"]) == len(found)


def test_many_events_under_long_bases_are_taken_in_groups() -> None:
    base = "http://h.example/" + "d" * 8_000 + "/"
    lines = [event(base=f"{base}{number}/", links=[f"{link:x}" for link in range(1_000)]) for number in range(9)]
    found, visits, _ = run(b"\n".join(lines), GOOD)
    assert [visit["links"] for visit in visits if visit["url"] == b"http://h.example/"] == [1_000] * 9
    assert len(found) == 9_002


def test_urls_of_100_kb_are_rejected_alone() -> None:
    links = ["x" * 100_000, "ok", "http://h.example/?" + "q" * 100_000, "/" + "é" * 2_000]
    found, (visit,), rejects = run(event(links=links))
    assert [row["url"] for row in found] == [b"http://h.example/ok"]
    assert visit["rejected"] == [0, 0, 0, 0, 0, 3, 0]
    assert rejects == []


def test_lone_surrogates_cost_their_string() -> None:
    line = (
        rb'{"url":"http://h.example/","fetched_at":1,"etag":"\udfff","text":"\ud800","not_modified":false,'
        rb'"links":["a","\ud800b",{"href":"\udc00"},{"href":"c","text":"\udc00"},"d\ud83d\ude00"],"x\ud800":1}'
    )
    found, (visit,), rejects = run(line)
    urls = [b"http://h.example/a", b"http://h.example/c", b"http://h.example/d%F0%9F%98%80"]
    assert [row["url"] for row in found] == urls
    assert (visit["etag"], visit["flags"], visit["content_fp"], visit["links"]) == (b"", 0, 0, 3)
    assert rejects == []


def test_validators_that_no_record_can_hold_count_as_absent() -> None:
    _, visits, rejects = run(
        event(etag="e" * 1025, last_modified=-1), event(etag="e" * 1024, last_modified=1 << 40, latency_ms=1 << 40)
    )
    assert rejects == []
    assert [len(visit["etag"]) for visit in visits] == [0, 1024]
    assert [visit["last_modified"] for visit in visits] == [0, 0]
    assert visits[1]["latency"] == 65535


def test_a_payload_may_be_any_buffer() -> None:
    spec = canonicalizer_spec(1, 4, DEFAULT)
    for payload in (memoryview(GOOD), bytearray(GOOD)):
        outputs = Outputs(1)
        spec.create(0, dict(spec.parameters)).apply([Message(0, payload, b"", NOW)], outputs)
        assert list(outputs.envelopes())


def test_a_late_line_of_a_large_step_is_found() -> None:
    """Messages beyond the size of one piece of work keep their offsets and lines."""
    filler = event(x="y" * (3 * MIB))
    _, visits, rejects = run(filler, filler + b"\n" + b"{}", filler)
    assert len(visits) == 3
    assert [(reject["offset"], reject["line"]) for reject in rejects] == [(1, 1)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(st.binary(max_size=60), st.sampled_from([GOOD, GOOD[:-3], event(links=["é", "x#y"])])), max_size=6
    )
)
def test_random_bytes_never_raise_and_nothing_is_lost(lines: list[bytes]) -> None:
    payload = b"\n".join(lines)
    _, visits, rejects = run(payload)
    full = [line for line in payload.split(b"\n") if line.strip(b" \t\r")]
    assert len(visits) + len(rejects) == len(full)
    assert len(visits) >= full.count(GOOD)
