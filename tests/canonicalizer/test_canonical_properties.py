"""What holds for any input whatever: an answer, printable ASCII, a fixed point, the same for text and bytes."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_canonicalizer.canonical import Canonical, Rejected, canonicalize, explain_steps
from meguri_canonicalizer.escapes import normal_escapes
from meguri_canonicalizer.parser import RejectReason
from meguri_canonicalizer.policy import DEFAULT, HostRules, Policy
from meguri_common.suffixes import suffix_list

FRAGMENTS = [
    *("http:", "https:", "HTTP:", "ftp:", "mailto:", "//", "/", "\\", "/\\", "?", "#", "#!", "&", "=", ";", ":", "@"),
    *("%", "%2", "%25", "%2e", "%2F", "%41", "%4", "%65", "%zz", "%E9", "%C3%A9", "%00", "+", " ", "\t", "\n", "\x00"),
    *(".", "..", "./", "../", "a", "A", "b.test", "www.", "example.co.uk", "localhost", "xn--bcher-kva", "bücher"),
    *("[::1]", "127.1", "0x7f", "1.2.3.4", ":80", ":443", ":0", ":65536", "u:p@", "。", "%E3%80%82", "\ud800", '"'),
    *("index.html", "default.asp", "a=1", "b", "utm_source=x", "gclid", "sid=" + "0f" * 16, ";jsessionid=1", "İ", "ß"),
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join) | st.text(max_size=30)
inputs = texts | st.binary(max_size=30) | texts.map(lambda text: text.encode("utf-8", "replace") + b"\xff/a")
bases = st.none() | inputs | st.just("https://h.test/a/b/c?d#e")
SWITCHES = [field for field in HostRules.__dataclass_fields__ if HostRules.__dataclass_fields__[field].type == "bool"]
policies = st.builds(
    lambda switches, names, allow, alias, group: Policy.from_fields(
        dict.fromkeys(switches, True)
        | ({"query_allow": names} if allow else {"query_deny": names})
        | ({"host_alias": {"www.b.test": "b.test", "a": "127.0.0.1"}} if alias else {})
        | {"group_by": group}
    ),
    st.sets(st.sampled_from(SWITCHES)),
    st.sets(st.sampled_from(["a", "A", "b", "", "gclid"])),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["registrable", "host"]),
)


@given(inputs, bases, st.just(DEFAULT) | policies)
@settings(max_examples=600, deadline=None)
def test_total_ascii_idempotent(raw: str | bytes, base: str | bytes | None, policy: Policy) -> None:
    result = canonicalize(raw, base, policy)
    assert result == canonicalize(raw, base, policy)
    steps = explain_steps(raw, base, policy)
    if isinstance(result, Rejected):
        assert result.reason in RejectReason
        assert steps[-1].value == result.reason
        return
    assert steps[-1].value == result.url
    assert re.fullmatch("[!-~]+", result.url)
    assert result.url[result.group_at : result.group_at + result.group_len] == result.host_group
    again = canonicalize(result.url, None, policy)
    assert again == result
    assert canonicalize(result.url.encode(), b"http://other.test/", policy) == result


@given(texts, bases)
@settings(max_examples=300, deadline=None)
def test_text_and_its_bytes_agree(raw: str, base: str | bytes | None) -> None:
    if any("\ud800" <= character <= "\udfff" for character in raw):
        raw = raw.encode("utf-8", "replace").decode()
    assert canonicalize(raw, base) == canonicalize(raw.encode(), base)


@given(st.lists(st.sampled_from([*"%%%%25406aAgG./", "%4", "%41", "%2f"]), max_size=12).map("".join))
@settings(max_examples=400, deadline=None)
def test_escapes_settle_in_one_pass(text: str) -> None:
    once = normal_escapes(text)
    assert normal_escapes(once) == once
    assert len(re.findall("%(?![0-9A-Fa-f]{2})", once)) == len(
        re.findall("%(?![0-9A-Fa-f]{2})", _without_escapes(text))
    )


def _without_escapes(text: str) -> str:
    """The text with each escape, taken from the left, replaced by a letter that is no hex digit."""
    return re.sub("%[0-9A-Fa-f]{2}", "x", text)


def test_long_inputs_take_no_time() -> None:
    """None of these may take time that grows with the square of the length."""
    many = 100_000
    for raw in (
        "http://" + "a." * many + "test/",
        "http://h.test/" + "../a/" * many,
        "http://h.test/?" + "b&a=%41&" * many,
        "http://h.test/" + "%%34" * many,
        "http://" + "@" * many + "/",
        "http://" + "[" * many + "/",
        " \t" * many + "mailto:",
        "/" * many + "h.test:x",
    ):
        result = canonicalize(raw, "http://b.test/")
        assert isinstance(result, Canonical | Rejected)
        policy = Policy.from_fields(dict.fromkeys(SWITCHES, True))
        assert isinstance(canonicalize(raw, "http://b.test/", policy), Canonical | Rejected)


@given(
    st.lists(st.sampled_from(["a", "www", "city", "kobe", "jp", "co", "uk", "ck", "github", "io", "com"]), min_size=1)
)
def test_group_is_a_suffix_of_whole_labels(labels: list[str]) -> None:
    host = ".".join(labels)
    group = suffix_list().registrable(host)
    assert host == group or host.endswith("." + group)
    assert suffix_list().registrable(group) == group
    assert suffix_list().registrable("x." * 50 + host).endswith(group)
