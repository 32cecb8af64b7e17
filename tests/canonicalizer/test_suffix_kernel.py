"""The kernel that groups many hosts at once, against the matcher that groups one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_canonicalizer.canonical import host_group
from meguri_canonicalizer.host_numbers import HostNumbers, suffix_table
from meguri_canonicalizer.kernels.suffixes import group_hosts
from meguri_canonicalizer.policy import DEFAULT, Policy
from meguri_common.keys import host_key
from meguri_common.suffixes import SuffixList, suffix_list

LABELS = st.sampled_from(["a", "b", "c", "www", "test", "com", "ck", "uk", "co", "7", "07", ""])
RULES = st.lists(st.tuples(st.sampled_from(["", "", "*.", "!"]), st.lists(LABELS.filter(bool), min_size=1, max_size=4)))
HOSTS = st.lists(st.one_of(st.lists(LABELS, min_size=1, max_size=7).map(".".join), st.just("[::1]")), min_size=1)


def groups(suffixes: SuffixList, hosts: list[str]) -> list[str]:
    """The registrable domain of each host, by the kernel."""
    data = np.frombuffer("".join(hosts).encode() + bytes(8), np.uint8)
    offsets = np.cumsum([0, *map(len, hosts)])
    lengths = np.zeros(len(hosts), np.int64)
    group_hosts(data, offsets, 0, len(hosts), *suffix_table(suffixes), lengths)
    return [host[len(host) - length :] for host, length in zip(hosts, lengths.tolist(), strict=True)]


@settings(deadline=None)
@given(RULES, HOSTS)
def test_kernel_agrees_with_the_matcher(rules: list[tuple[str, list[str]]], hosts: list[str]) -> None:
    text = "\n".join(kind + ".".join(labels) for kind, labels in rules)
    suffixes = SuffixList.parse(text.encode())
    assert groups(suffixes, hosts) == [suffixes.registrable(host) for host in hosts]


def test_every_name_of_the_shipped_list() -> None:
    shipped = suffix_list()
    hosts = [before + name for name in shipped.marks() for before in ("", "a.", "b.a.", "c.b.a.")]
    assert groups(shipped, hosts) == [shipped.registrable(host) for host in hosts]


def test_hosts_by_number() -> None:
    """Groups, keys and own rules of hosts entered in two goes, under either grouping."""
    for policy in (DEFAULT, Policy.from_fields({"group_by": "host"})):
        numbers = HostNumbers(policy, {"own.example.co.uk"})
        hosts = [
            "a.b.example.com",
            "own.example.co.uk",
            "10.0.0.1",
            "[::1]",
            "github.io",
            *map("h{}.io".format, range(9000)),
        ]
        for half in (hosts[:3], hosts):
            found = [numbers.number(host.encode()) for host in half]
            numbers.resolve()
        assert found == list(range(len(hosts)))
        expected = [host_group(host, policy) for host in hosts]
        assert numbers.group_lengths[: len(hosts)].tolist() == [len(group) for group in expected]
        assert numbers.keys[: len(hosts)].tolist() == [host_key(group.encode()) for group in expected]
        assert np.flatnonzero(numbers.has_own_rules).tolist() == [1]
