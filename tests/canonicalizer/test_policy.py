"""Policies: what compiles, what doesn't and why, whose fields hold, what the digest tells apart."""

from __future__ import annotations

import json

import pytest

from meguri_canonicalizer.canonical import Canonical, canonicalize
from meguri_canonicalizer.policy import DEFAULT, Policy, load_policy
from meguri_common.errors import PolicyError

CHANGES = [
    {"version": 7},
    {"group_by": "host"},
    *({name: True} for name in ("fold_trailing_slash", "fold_index", "collapse_slashes", "fold_case", "fold_plus")),
    *({name: True} for name in ("keep_hashbang", "strip_session_params", "force_https")),
    {"query_allow": ["a"]},
    {"query_deny": ["a"]},
    {"host_alias": {"a.test": "b.test"}},
]


def url(raw: str, policy: Policy) -> str:
    result = canonicalize(raw, None, policy)
    assert isinstance(result, Canonical)
    return result.url


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"version": 65536}, ["version", "65536"]),
        ({"version": True}, ["version", "True"]),
        ({"group_by": "domain"}, ["group_by", "'domain'"]),
        ({"fold_slash": True}, ["fold_slash"]),
        ({"fold_case": "yes"}, ["fold_case", "'yes'"]),
        ({"query_deny": "ref"}, ["query_deny", "'ref'"]),
        ({"query_allow": [1]}, ["query_allow", "1"]),
        ({"query_allow": ["\ud800"]}, ["query_allow"]),
        ({"host_alias": ["a.test"]}, ["host_alias", "a.test"]),
        ({"host_alias": {"a b": "c.test"}}, ["host_alias", "'a b'"]),
        ({"host_alias": {"a.test": "c.test:80"}}, ["host_alias", "'c.test:80'"]),
        ({"host_alias": {"a.test": "u@c.test"}}, ["host_alias", "'u@c.test'"]),
        ({"host_alias": {"A.test": "b.test", "a.test.": "c.test"}}, ["host_alias", "'a.test'"]),
        ({"host_alias": {"a.test": "b.test", "b.test": "c.test", "c.test": "b.test"}}, ["host_alias", "cycle"]),
    ],
)
def test_what_does_not_build_says_field_and_value(fields: dict[str, object], names: list[str]) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.from_fields(fields)
    for name in names:
        assert name in str(caught.value)


def test_alias_to_itself_is_ignored_and_chains_end() -> None:
    policy = Policy.from_fields({"host_alias": {"A.test": "a.test", "b.test": "c.test", "c.test": "Bücher.test"}})
    assert policy.aliases == (("b.test", "xn--bcher-kva.test"), ("c.test", "xn--bcher-kva.test"))


def test_each_field_changes_the_digest_and_equality() -> None:
    policies = [DEFAULT, *(Policy.from_fields(change) for change in CHANGES)]
    assert len({policy.digest() for policy in policies}) == len(policies)
    assert len(set(policies)) == len(policies)
    for change in CHANGES:
        assert Policy.from_fields(change) == Policy.from_fields(change)
        assert Policy.from_fields(change).digest() == Policy.from_fields(change).digest()


def test_what_means_the_same_has_the_same_digest() -> None:
    one = Policy.from_fields({"query_deny": ["b", "a", "a"], "host_alias": {"a.test": "b.test", "b.test": "c.test"}})
    two = Policy.from_fields({"query_deny": ["a", "b"], "host_alias": {"B.test.": "c.test", "a.test": "C.test"}})
    assert one == two
    assert one.digest() == two.digest()
    assert Policy.from_fields({}) == DEFAULT == Policy.from_document({})
    assert Policy.from_fields({"fold_case": True, "query_deny": ["A"]}) == Policy.from_fields(
        {"fold_case": True, "query_deny": ["a"]}
    )


def test_a_named_host_has_its_own_fields_and_aliases_are_one_map() -> None:
    policy = Policy.from_document(
        {
            "version": 3,
            "default": {"fold_case": True, "host_alias": {"old.test": "mid.test"}},
            "hosts": {"NEW.test.": {"fold_index": True, "host_alias": {"mid.test": "new.test"}}, "off.test": {}},
        }
    )
    assert policy.version == 3
    assert url("http://other.test/A/index.html", policy) == "http://other.test/a/index.html"
    assert url("http://new.test/A/index.html", policy) == "http://new.test/A/"
    assert url("http://old.test/A/index.html", policy) == "http://new.test/A/"
    assert url("http://new.test:81/A/index.html", policy) == "http://new.test:81/A/"
    assert url("http://off.test/A/index.html", policy) == "http://off.test/A/index.html"


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"fold_case": True}, "fold_case"),
        ({"hosts": []}, "hosts"),
        ({"default": {"version": 1}}, "default.version"),
        ({"hosts": {"a.test": {"group_by": "host"}}}, "hosts.a.test.group_by"),
        ({"hosts": {"a.test": {"fold_case": 1}}}, "hosts.a.test.fold_case"),
        ({"hosts": {"a.test": []}}, "hosts.a.test"),
        ({"hosts": {"a b": {}}}, "'a b'"),
        ({"hosts": {"a.test": {}, "A.test": {}}}, "'A.test'"),
        (
            {"hosts": {"a.test": {"host_alias": {"x.test": "a.test"}}, "b.test": {"host_alias": {"x.test": "b.test"}}}},
            "'x.test'",
        ),
    ],
)
def test_what_a_file_cannot_say(document: dict[str, object], name: str) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy.from_document(document)
    assert name in str(caught.value)


def test_load_names_the_file(tmp_path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"version": 2, "parent": 1, "evidence": [], "hosts": {"a.test": {"fold_plus": True}}}))
    assert load_policy(path).version == 2
    for text in ("{", "[]", '{"version": -1}'):
        path.write_text(text)
        with pytest.raises(PolicyError, match=r"policy\.json"):
            load_policy(path)
    with pytest.raises(PolicyError, match="missing"):
        load_policy(tmp_path / "missing")
