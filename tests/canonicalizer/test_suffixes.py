"""The Public Suffix List's matcher against its rules, one by one, and the shipped lists against the right answers."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import pytest

from meguri_canonicalizer.session_params import QUERY_NAMES, is_session_pair
from meguri_canonicalizer.tracking import TRACKING_PREFIX, tracking_list
from meguri_common.suffixes import SuffixList, suffix_list

SMALL = SuffixList.parse("// a comment\ncom\n*.ck\n!www.ck\nco.uk\n\na.b.c.test // note\n公司.cn\n".encode())


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("com", "com"),
        ("a.com", "a.com"),
        ("b.a.com", "a.com"),
        ("ck", "ck"),
        ("x.ck", "x.ck"),
        ("y.x.ck", "y.x.ck"),
        ("z.y.x.ck", "y.x.ck"),
        ("www.ck", "www.ck"),
        ("a.www.ck", "www.ck"),
        ("uk", "uk"),
        ("co.uk", "co.uk"),
        ("a.uk", "a.uk"),
        ("b.a.co.uk", "a.co.uk"),
        ("c.test", "c.test"),
        ("b.c.test", "c.test"),
        ("a.b.c.test", "a.b.c.test"),
        ("y.x.a.b.c.test", "x.a.b.c.test"),
        ("x.y.xn--55qx5d.cn", "y.xn--55qx5d.cn"),
        ("unknown", "unknown"),
        ("a.b.unknown", "b.unknown"),
        ("10.0.0.1", "10.0.0.1"),
        ("[::1]", "[::1]"),
    ],
)
def test_rules(host: str, group: str) -> None:
    assert SMALL.registrable(host) == group


def test_every_rule_of_the_shipped_list() -> None:
    """A rule is a suffix, one label more is registrable, and further labels change nothing."""
    rules = suffix_list()
    assert len(rules.rules) > 9000
    for rule in rules.rules - rules.exceptions:
        assert rules.registrable(rule) == rule
        if rule not in rules.wildcards:
            name = f"zz9.{rule}"
            assert rules.registrable(name) == name
            assert rules.registrable(f"a.b.{name}") == name
    for parent in rules.wildcards:
        assert rules.registrable(f"a.b.zz9.{parent}") == f"b.zz9.{parent}"
    for name in rules.exceptions:
        assert rules.registrable(f"a.b.{name}") == name


def test_the_list_keeps_its_notice() -> None:
    text = files("meguri_common").joinpath("data/public_suffix_list.dat").read_text("utf-8")
    assert "Mozilla Public" in text[:300]
    assert re.search("^// COMMIT: [0-9a-f]{40}$", text, re.MULTILINE)


def test_tracking_list_is_the_agreed_one(test_data) -> None:
    document = json.loads((test_data / "conformance/canon_query_deny.json").read_bytes())
    assert tracking_list().names == {entry["name"].encode() for entry in document["names"]}
    assert [entry["prefix"].encode() for entry in document["match"]["prefixes"]] == [TRACKING_PREFIX]


def test_session_names_are_the_agreed_ones(test_data) -> None:
    document = json.loads((test_data / "conformance/canon_session_params.json").read_bytes())
    assert {name.encode() for name in document["query_names"]} == QUERY_NAMES
    for name in QUERY_NAMES:
        assert is_session_pair(name.upper(), f"{name.decode()}=1")
    assert is_session_pair(b"ASPSESSIONIDabcdEFGH", "")
    assert not is_session_pair(b"aspsessionidabcdefghi", "")
    assert is_session_pair(b"Sid", "Sid=" + "%30f" * 16 + "")
    assert not is_session_pair(b"sid", "sid=" + "0f" * 17)
