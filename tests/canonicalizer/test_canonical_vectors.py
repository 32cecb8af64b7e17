"""Every row of the conformance vectors, with what must hold for each accepted one beside its value."""

from __future__ import annotations

import re

import pytest

from meguri_canonicalizer.canonical import Canonical, Rejected, canonicalize, explain_steps, host_group
from meguri_canonicalizer.parser import RejectReason, normal_host
from meguri_canonicalizer.policy import DEFAULT, Policy
from meguri_common.errors import PolicyError
from meguri_common.keys import host_key

CASE_FILES = ("canon_own.jsonl", "canon_public.jsonl", "canon_golden.jsonl")
PRINTABLE = re.compile(r"[!-~]+")

# A few telling cases that hold without the files: raw, base, canonical URL or reason.
KNOWN = [
    ("hTTpS://example.com", None, "https://example.com/"),
    ("..\\a", "http://h.test/b/c/d", "http://h.test/b/a"),
    ("http://0x7f.1/", None, "http://127.0.0.1/"),
    ("http://u:p@h.test:0080/%7e%2f?b&a&#f", None, "http://h.test/~%2F?a&b"),
    ("http://[2001:DB8::00A:0]:8080/", None, "http://[2001:db8::a:0]:8080/"),
    ("http://h.test./", None, "http://h.test/"),
    ("http://h.test/%%34%31", None, "http://h.test/%%341"),
    ("http://h.test/%2%65", None, "http://h.test/%2%65"),
    ("http://h.test/%%47", None, "http://h.test/%G"),
    ("http://h.test/?b=1&a=2&b=0&a=1", None, "http://h.test/?a=2&a=1&b=1&b=0"),
    ("http://h.test/?Utm_x=1&gclid=2&GCLID=3", None, "http://h.test/?GCLID=3"),
    ("http://h.test/?it's", None, "http://h.test/?it%27s"),
    ("http://h.test/\ud800", None, "http://h.test/%EF%BF%BD"),
    ("http://h.test/\ud83d\ude00", None, "http://h.test/%F0%9F%98%80"),
    (b"http://h.test/?q=\xe9", None, "http://h.test/?q=%E9"),
    (b"h\xff", b"http://h.test/\xfe/", "http://h.test/%FE/h%FF"),
    ("http:x", "http://h.test/a/b", "http://h.test/a/x"),
    ("http:x", "https://h.test/a/b", "http://x/"),
    ("http:x", "http://[bad", "http://x/"),
    ("", "http://h.test/a?b#c", "http://h.test/a?b"),
    ("ftp://a b/", None, "scheme"),
    ("//h.test/", "file:///a", "scheme"),
    ("#a", "mailto:x", "scheme"),
    ("a", "http://[bad", "no_base"),
    ("a", None, "no_base"),
    ("", "#", "no_base"),
    ("http://u@:80/", None, "empty_host"),
    ("http://%2e:x/", None, "empty_host"),
    ("http:///", None, "empty_host"),
    ("http://a..b/", None, "bad_host"),
    ("http://a.1:x/", None, "bad_host"),
    ("http://[::1:80/", None, "bad_host"),
    ("http://h.test:65536/", None, "bad_port"),
    ("http://[::1]:6x/", None, "bad_port"),
    ("/p", "http://a..b/", "bad_host"),
]


def answer(result: Canonical | Rejected) -> str:
    return result.url if isinstance(result, Canonical) else str(result.reason)


def check_accepted(result: Canonical, policy: Policy) -> None:
    """What every canonical URL is, whatever it was made from."""
    assert PRINTABLE.fullmatch(result.url)
    head, _, rest = result.url.partition("://")
    authority, _, tail = rest.partition("/")
    assert '"' not in tail
    assert result.url[result.group_at : result.group_at + result.group_len] == result.host_group
    assert len(head) + 3 <= result.group_at <= len(head) + 3 + len(authority) - result.group_len
    assert canonicalize(result.url, None, policy) == result
    assert canonicalize(result.url.encode(), None, policy) == result
    assert explain_steps(result.url, None, policy)[-1].value == result.url


@pytest.mark.parametrize(("raw", "base", "expected"), KNOWN)
def test_known_cases(raw: str | bytes, base: str | bytes | None, expected: str) -> None:
    result = canonicalize(raw, base)
    assert answer(result) == expected
    if isinstance(result, Canonical):
        check_accepted(result, DEFAULT)


@pytest.mark.parametrize("name", CASE_FILES)
def test_cases(name: str, golden_rows) -> None:
    policies: dict[str, Policy] = {}
    wrong = []
    for row in golden_rows(f"conformance/{name}"):
        raw = bytes.fromhex(row["raw_hex"]) if "raw_hex" in row else row["raw"]
        base = bytes.fromhex(row["base_hex"]) if "base_hex" in row else row.get("base")
        fields = row.get("policy", {})
        policy = policies.setdefault(repr(fields), Policy.from_fields(fields))
        result = canonicalize(raw, base, policy)
        if row["ok"]:
            expected = tuple(row[field] for field in ("canon", "host_group", "host_key", "path_key"))
            got = (
                (result.url, result.host_group, f"{result.host_key:016x}", f"{result.path_key:016x}")
                if isinstance(result, Canonical)
                else result
            )
        else:
            expected, got = row["reject_reason"], answer(result)
        if got != expected:
            wrong.append((row["id"], expected, got))
            continue
        if isinstance(result, Canonical):
            check_accepted(result, policy)
        if isinstance(raw, str):
            try:
                as_bytes = raw.encode()
            except UnicodeEncodeError:
                continue  # a lone surrogate has no UTF-8 form
            assert canonicalize(as_bytes, base, policy) == result, row["id"]
        assert explain_steps(raw, base, policy)[-1].value == answer(result), row["id"]
    assert not wrong, f"{len(wrong)} rows, the first: {wrong[:5]}"


def test_pairs(golden_rows) -> None:
    for row in golden_rows("conformance/canon_pairs.jsonl"):
        policy = Policy.from_fields(row.get("policy", {}))
        one, two = (
            canonicalize(bytes.fromhex(row[f"{side}_hex"]) if f"{side}_hex" in row else row[side], None, policy)
            for side in "ab"
        )
        assert answer(one) == row["canon_a"], row
        assert answer(two) == row.get("canon_b", row["canon_a"]), row
        assert isinstance(one, Canonical), row
        assert isinstance(two, Canonical), row
        same_key = (one.host_key, one.path_key) == (two.host_key, two.path_key)
        assert same_key == (row["kind"] == "merge"), row


def test_registrable(golden_rows) -> None:
    for row in golden_rows("conformance/canon_registrable.jsonl"):
        host = normal_host(row["host_raw"])
        if not row["ok"]:
            assert host == row["reject_reason"], row
            assert isinstance(host, RejectReason), row
            continue
        assert host == row["host"], row
        assert host_group(host) == row["group"], row
        assert f"{host_key(host_group(host).encode()):016x}" == row["host_key"], row
        assert host_group(host, Policy.from_fields({"group_by": "host"})) == host


def test_keys(golden_rows) -> None:
    rows = golden_rows("conformance/canon_keys.jsonl")
    keys = []
    for row in rows:
        result = canonicalize(row["canon"])
        assert isinstance(result, Canonical), row
        assert (result.url, result.host_group) == (row["canon"], row["host_group"])
        assert result.host_key.to_bytes(8, "little") + result.path_key.to_bytes(8, "little") == bytes.fromhex(
            row["key16_hex"]
        )
        keys.append((result.host_key, result.path_key))
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_policy_errors(golden_rows) -> None:
    for row in golden_rows("conformance/canon_policy_errors.jsonl"):
        with pytest.raises(PolicyError):
            Policy.from_fields(row["policy"])
