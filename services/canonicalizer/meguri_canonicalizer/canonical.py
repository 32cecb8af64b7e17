"""From a link as authored to the one URL, and the one key, under which the frontier knows the page.

`canonicalize` never raises, and depends on its arguments, the suffix list and the parser's tables alone. Every rule
that is not certain keeps URLs distinct; what is folded beyond that is folded by policy.
"""

from __future__ import annotations

import re
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from meguri_canonicalizer.escapes import fold_letters, normal_escapes, percent_decoded
from meguri_canonicalizer.parser import RejectReason, link_text, resolve, strip_root
from meguri_canonicalizer.policy import DEFAULT, HostRules, Policy
from meguri_canonicalizer.session_params import is_session_pair, without_path_sessions
from meguri_canonicalizer.tracking import TRACKING_PREFIX
from meguri_common.keys import host_key, path_key
from meguri_common.suffixes import registrable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Canonical", "Rejected", "Step", "canonicalize", "explain_steps", "host_group"]

_SLASHES: Final = re.compile("//+")
_INDEX_NAMES: Final = frozenset(
    {
        *(f"index.{extension}" for extension in ("html", "htm", "shtml", "php", "asp", "aspx", "jsp")),
        *(f"default.{extension}" for extension in ("html", "htm", "asp", "aspx")),
    }
)


class Canonical(NamedTuple):
    """A canonical URL and what is derived from it."""

    url: str
    """Printable ASCII without space."""
    host_group: str
    """Registrable domain, address or host, by the policy's grouping; always a part of the URL."""
    host_key: int
    """u64."""
    path_key: int
    """u64."""
    group_at: int
    """Byte position of the host group in the URL."""

    @property
    def group_len(self) -> int:
        """Length of the host group in bytes."""
        return len(self.host_group)


class Rejected(NamedTuple):
    """Why there is no canonical URL."""

    reason: RejectReason


class Step(NamedTuple):
    """One step on the way, for explanations."""

    name: str
    value: str
    """The URL after the step; a reason at the end if the link is rejected."""
    changed: bool


class _Parts:
    """The parts of a URL on its way through the steps."""

    __slots__ = ("fragment", "host", "path", "port", "query", "rules", "scheme", "userinfo")

    def __init__(self, serialised: str) -> None:
        """Cut a URL that the parser wrote: it has an authority and a path, and escapes stand for odd delimiters."""
        self.scheme, _, rest = serialised.partition("://")
        rest, _, self.fragment = rest.partition("#")
        rest, _, self.query = rest.partition("?")
        authority, _, path = rest.partition("/")
        self.path = "/" + path
        self.userinfo, _, self.host = authority.rpartition("@")
        self.port = ""
        if not self.host.endswith("]"):
            host, _, port = self.host.rpartition(":")
            if host:
                self.host, self.port = host, port
        self.rules: HostRules = DEFAULT.default

    def url(self) -> str:
        """The URL as it stands. What is empty leaves no delimiter behind."""
        userinfo = f"{self.userinfo}@" if self.userinfo else ""
        port = f":{self.port}" if self.port else ""
        query = f"?{self.query}" if self.query else ""
        fragment = f"#{self.fragment}" if self.fragment else ""
        return f"{self.scheme}://{userinfo}{self.host}{port}{self.path}{query}{fragment}"


def _strip_root(parts: _Parts, _policy: Policy) -> RejectReason | None:
    host = strip_root(parts.host)
    if isinstance(host, RejectReason):
        return host
    parts.host = host
    return None


def _drop_userinfo(parts: _Parts, _policy: Policy) -> None:
    parts.userinfo = ""


def _apply_host_policy(parts: _Parts, policy: Policy) -> None:
    if not parts.port:
        parts.host = policy.alias(parts.host)
    parts.rules = policy.rules(parts.host)
    if parts.rules.force_https and not parts.port:
        parts.scheme = "https"


def _normalise_escapes(parts: _Parts, _policy: Policy) -> None:
    parts.path = normal_escapes(parts.path)
    parts.query = normal_escapes(parts.query)


def _apply_path_policy(parts: _Parts, _policy: Policy) -> None:
    rules, path = parts.rules, parts.path
    if rules.strip_session_params:
        path = without_path_sessions(path)
    if rules.collapse_slashes:
        path = _SLASHES.sub("/", path)
    if rules.fold_case:
        path = fold_letters(path)
    before = ""
    while path != before:
        before = path
        if rules.fold_trailing_slash and path.endswith("/") and len(path) > 1 and path[-2] != "/":
            path = path[:-1]
        if rules.fold_index:
            parent, _, name = path.rpartition("/")
            if name in _INDEX_NAMES:
                path = parent + "/"
    parts.path = path


def _canonical_query(parts: _Parts, _policy: Policy) -> None:
    if not parts.query:
        return
    rules, query = parts.rules, parts.query
    if rules.fold_plus:
        query = query.replace("+", "%20")
    if rules.fold_case:
        query = fold_letters(query)
    kept = []
    for pair in query.split("&"):
        name = percent_decoded(pair.partition("=")[0])
        if pair and not _dropped(name, pair, rules):
            kept.append((name, pair))
    kept.sort(key=itemgetter(0))
    parts.query = "&".join([pair for _, pair in kept])


def _dropped(name: bytes, pair: str, rules: HostRules) -> bool:
    compared = name.lower() if rules.fold_case else name
    if rules.query_allow:
        unwanted = compared not in rules.query_allow
    else:
        unwanted = compared in rules.denied or name[: len(TRACKING_PREFIX)].lower() == TRACKING_PREFIX
    return unwanted or (rules.strip_session_params and is_session_pair(name, pair))


def _cut_fragment(parts: _Parts, _policy: Policy) -> None:
    if parts.rules.keep_hashbang and parts.fragment.startswith("!"):
        parts.fragment = normal_escapes(parts.fragment)
    else:
        parts.fragment = ""


_STEPS: Final[tuple[tuple[str, Callable[[_Parts, Policy], RejectReason | None]], ...]] = (
    ("userinfo", _drop_userinfo),
    ("host", _strip_root),
    ("host policy", _apply_host_policy),
    ("escapes", _normalise_escapes),
    ("path policy", _apply_path_policy),
    ("query", _canonical_query),
    ("fragment", _cut_fragment),
)
_REJECTED: Final = {reason: Rejected(reason) for reason in RejectReason}


def canonicalize(raw: str | bytes, base: str | bytes | None = None, policy: Policy = DEFAULT) -> Canonical | Rejected:
    """The canonical URL of a link.

    Args:
        raw: the link as authored; bytes are read as UTF-8, and octets that aren't keep their own escapes.
        base: what it resolves against; None, or a text that doesn't parse, for no base.
        policy: what is folded beyond the certain rules.

    Returns:
        The URL with its keys, or why there is none. The canonical form of a canonical URL is itself.
    """
    serialised = resolve(link_text(raw), base)
    if isinstance(serialised, RejectReason):
        return _REJECTED[serialised]
    parts = _Parts(serialised)
    for _, step in _STEPS:
        reason = step(parts, policy)
        if reason is not None:
            return _REJECTED[reason]
    return _result(parts, policy)


def explain_steps(raw: str | bytes, base: str | bytes | None = None, policy: Policy = DEFAULT) -> list[Step]:
    """How `canonicalize` comes to its answer: the URL after each step, in order, or the reason it ends with."""
    text = link_text(raw)
    serialised = resolve(text, base)
    if isinstance(serialised, RejectReason):
        return [Step("resolve", str(serialised), changed=True)]
    steps = [Step("resolve", serialised, changed=serialised != text)]
    parts = _Parts(serialised)
    for name, step in _STEPS:
        reason = step(parts, policy)
        if reason is not None:
            return [*steps, Step(name, str(reason), changed=True)]
        url = parts.url()
        steps.append(Step(name, url, changed=url != steps[-1].value))
    return steps


def _result(parts: _Parts, policy: Policy) -> Canonical:
    url = parts.url()
    group, key = _keyed_group(parts.host, policy.group_by)
    group_at = len(parts.scheme) + 3 + len(parts.host) - len(group)
    return Canonical(url, group, key, path_key(url.encode("ascii")), group_at)


def host_group(host: str, policy: Policy = DEFAULT) -> str:
    """The host group of a host in normal form."""
    return host if policy.group_by == "host" else registrable(host)


def _keyed_group(host: str, group_by: str) -> tuple[str, int]:
    group = host if group_by == "host" else registrable(host)
    return group, host_key(group.encode("ascii"))
