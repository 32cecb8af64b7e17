"""Decoding of public events: what is accepted, and what is said about the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meguri_common.events import (
    ControlAction,
    ControlEvent,
    EventRejected,
    LinkObject,
    Origin,
    PageEvent,
    RejectRecord,
    SeedEvent,
    decode_event,
    encode_reject,
    payload_text,
)
from meguri_common.events.decode import without_lone_surrogates


def reject(line: bytes) -> EventRejected:
    with pytest.raises(EventRejected) as found:
        decode_event(line)
    return found.value


def test_the_shortest_useful_event() -> None:
    event = decode_event(b'{"url":"http://h/","fetched_at":7,"links":["a",{"href":"b","rel":"nofollow"}]}')
    assert isinstance(event, PageEvent)
    assert (event.status, event.schema, event.depth) == (200, 1, None)
    assert event.links == ["a", LinkObject("b", rel="nofollow")]


def test_pages_do_not_share_their_defaults() -> None:
    one, two = (decode_event(b'{"url":"http://h/","fetched_at":7}') for _ in range(2))
    assert isinstance(one, PageEvent)
    assert isinstance(two, PageEvent)
    one.links.append("x")
    assert two.links == []


def test_the_type_is_found_wherever_it_stands() -> None:
    assert isinstance(decode_event(b'{"urls":["http://h/"],"observed_at":1,"type":"seed"}'), SeedEvent)
    assert isinstance(decode_event(b'{"at":1,"host":"h","action":"release","type":"control"}'), ControlEvent)


@pytest.mark.parametrize(
    ("line", "reason", "path"),
    [
        (b'{"url":"http://h/","fetched_at":"7"}', "invalid", "`$.fetched_at`"),
        (b'{"url":"http://h/","fetched_at":7,"links":["a",4]}', "invalid", "`$.links[1]`"),
        (b'{"url":"http://h/","fetched_at":7,"status":99}', "invalid", "`$.status`"),
        (b'{"url":"http://h/"}', "invalid", "`fetched_at`"),
        (b'{"type":"seed","urls":["a",1],"observed_at":1}', "invalid", "`$.urls[1]`"),
        (b'{"type":"signal","epoch":1,"hosts":[{"host":"h","score":-1}]}', "invalid", "`$.hosts[0].score`"),
        (b'{"type":"control","at":1,"action":"vouch"}', "invalid", "host"),
        (b'{"type":"news"}', "type", "`$.type`"),
        (b'{"schema":3,"url":"http://h/","fetched_at":7}', "schema", "`$.schema`"),
        (b'{"type":"seed","schema":true,"urls":["a"],"observed_at":1}', "schema", "`$.schema`"),
        (b'{"url":"http://h/","fetched_at":7', "invalid_json", ""),
        (b'{"url":"http://h/\xff","fetched_at":7}', "invalid_utf8", "byte 17"),
        (b'{"url":"' + b"x" * (8 << 20) + b'"}', "too_large", "8388618 bytes"),
    ],
)
def test_rejects_name_reason_and_path(line: bytes, reason: str, path: str) -> None:
    problem = reject(line)
    assert problem.reason == reason
    assert path in problem.detail


def test_lists_have_a_limit() -> None:
    for name, line in {
        "links": {"url": "http://h/", "fetched_at": 1, "links": ["a"]},
        "urls": {"type": "seed", "observed_at": 1, "urls": ["a"]},
        "entries": {"type": "sitemap", "url": "u", "observed_at": 1, "entries": [{"loc": "a"}]},
        "hosts": {"type": "signal", "epoch": 1, "hosts": [{"host": "a", "score": 1}]},
    }.items():
        decode_event(json.dumps(line | {name: line[name] * 50_000}).encode())  # type: ignore[operator]  # a list
        problem = reject(json.dumps(line | {name: line[name] * 50_001}).encode())  # type: ignore[operator]  # a list
        assert problem.reason == "too_many_links"
        assert f"`$.{name}`" in problem.detail


def test_a_lone_surrogate_costs_its_string() -> None:
    event = decode_event(rb'{"url":"http://h/","fetched_at":1,"links":["\ud800","a\udc00","b"],"etag":"\udbffx"}')
    assert isinstance(event, PageEvent)
    assert (event.links, event.etag) == (["b"], None)
    assert "`url`" in reject(rb'{"url":"\ud800","fetched_at":1}').detail


def test_pairs_and_written_out_escapes_are_left_alone() -> None:
    for line in (rb'{"a":"\ud83d\ude00"}', rb'{"a":"\\ud800"}', rb'{"a":"\\\\udc00"}', rb'{"a":"\ud83d\ude00\\"}'):
        assert without_lone_surrogates(line) is line
    for line in (rb'{"a":"\ud83d\\ude00"}', rb'{"a":"\\\ud800"}', rb'{"a":"\ude00\ud83d"}', rb'{"a":"\ud800\u0041"}'):
        assert without_lone_surrogates(line) == b"{}"


STRINGS = st.text(st.characters(codec=None, max_codepoint=0x10FFFF), max_size=4)
JSON_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(1 << 70), 1 << 70),
        st.floats(allow_nan=False, allow_infinity=False),
        STRINGS,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(STRINGS, inner, max_size=3)),
    max_leaves=8,
)


def has_lone(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, list):
        return any(map(has_lone, value))
    if isinstance(value, dict):
        return any(has_lone(name) or has_lone(item) for name, item in value.items())
    return False


@given(st.dictionaries(STRINGS, JSON_VALUES, max_size=4))
def test_cleaning_removes_all_lone_surrogates_and_nothing_else(value: dict[str, Any]) -> None:
    line = json.dumps(value).encode()
    value = json.loads(line)  # adjacent halves have joined
    cleaned = without_lone_surrogates(line)
    if has_lone(value):
        assert not has_lone(json.loads(cleaned))
        assert b"\\ud" not in cleaned
    else:
        assert json.loads(cleaned) == value


@given(st.binary(max_size=100))
def test_any_bytes_are_decoded_or_rejected(blob: bytes) -> None:
    assert reject(blob).reason in {"invalid_utf8", "invalid_json", "invalid", "type", "schema"}


def test_control_actions_have_codes() -> None:
    line = b'{"type":"control","at":1,"host":"h","action":"%s"}'
    for action in ControlAction:
        event = decode_event(line % action.name.lower().encode())
        assert isinstance(event, ControlEvent)
        assert ControlAction[event.action.upper()] == action
    assert [int(action) for action in ControlAction] == list(range(1, 9))


def test_reject_records_are_json() -> None:
    record = RejectRecord(
        at_service="s",
        topic="t",
        partition=0,
        offset=9,
        origin=Origin("f", 3),
        reason="r",
        detail="d",
        attempts=1,
        payload=payload_text(b"\xff" * 100_000),
    )
    found = json.loads(encode_reject(record))
    assert found["schema"] == 1
    assert found["origin"] == {"file": "f", "line": 3}
    assert len(found["payload"]) == 4 * ((65_536 + 2) // 3)
