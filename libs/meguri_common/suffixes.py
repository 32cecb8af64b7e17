"""The Public Suffix List: which part of a host names who owns it.

The list, private section included, is a file shipped with the package and pinned for a campaign: a newer one would
group hosts differently and give known URLs new keys.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

import ada_url

if TYPE_CHECKING:
    from typing import Self

__all__ = ["SuffixList", "is_address", "registrable", "suffix_list"]

_LONGEST_NAME: Final = 253
_RULE, _WILDCARD, _EXCEPTION = 1, 2, 4  # as in meguri_canonicalizer.kernels.suffixes, which would import numba


class SuffixList(NamedTuple):
    """Compiled rules, all in A-labels; method: publicsuffix.org/list, algorithm section."""

    rules: frozenset[str]
    wildcards: frozenset[str]
    """`*.x` is kept as `x`."""
    exceptions: frozenset[str]
    """`!y.x` is kept as `y.x`."""
    depth: int
    """Labels of the longest rule and one more: no label further left matters."""
    digest: str
    """SHA-256 of the file, hex; part of the campaign identity."""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Compile the text of a list file (UTF-8)."""
        rules: dict[str, set[str]] = {"": set(), "*": set(), "!": set()}
        for line in data.decode().splitlines():
            rule = line.partition(" ")[0].strip().lower()
            if not rule or rule.startswith("//"):
                continue
            kind = rule[0] if rule[0] in "*!" else ""
            name = rule.removeprefix("*.").removeprefix("!")
            rules[kind].add(name if name.isascii() else ada_url.idna_to_ascii(name).decode("ascii"))
        depth = 3 + max(name.count(".") for names in rules.values() for name in names | {""})
        return cls(
            frozenset(rules[""]), frozenset(rules["*"]), frozenset(rules["!"]), depth, hashlib.sha256(data).hexdigest()
        )

    def marks(self) -> dict[str, int]:
        """All names that a walk over a host's labels comes by, and what they are.

        The marks are those of `meguri_canonicalizer.kernels.suffixes`.
        """
        found: dict[str, int] = {}
        for names, mark in ((self.rules, _RULE), (self.wildcards, _WILDCARD), (self.exceptions, _EXCEPTION)):
            for name in names:
                found[name] = found.get(name, 0) | mark
        for name in list(found):
            at = name.find(".") + 1
            while at and name[at:] not in found:
                found[name[at:]] = 0
                at = name.find(".", at) + 1
        return found

    def registrable(self, host: str) -> str:
        """The registrable domain of a host in normal form; the host itself if it is a public suffix or an address."""
        if is_address(host):
            return host
        at = len(host) + 1
        for _ in range(self.depth):
            at = host.rfind(".", 0, at - 1) + 1
            if at == 0:
                break
        longer = host[at:]
        while True:
            name = host[at:]
            dot = host.find(".", at)
            if name in self.exceptions:
                return name
            if name in self.rules or dot < 0 or host[dot + 1 :] in self.wildcards:
                return longer
            longer = name
            at = dot + 1


def is_address(host: str) -> bool:
    """Whether a host in normal form is an IP address; a name whose last label is a number doesn't parse."""
    return host.startswith("[") or host[host.rfind(".") + 1 :].isdigit()


@lru_cache(maxsize=1)
def suffix_list() -> SuffixList:
    """The list shipped with this version of the package."""
    return SuffixList.parse(files("meguri_common").joinpath("data/public_suffix_list.dat").read_bytes())


@lru_cache(maxsize=1 << 16)
def _cached_registrable(host: str) -> str:
    return suffix_list().registrable(host)


def registrable(host: str) -> str:
    """`SuffixList.registrable` of the shipped list, remembered by host."""
    return _cached_registrable(host) if len(host) <= _LONGEST_NAME else suffix_list().registrable(host)
