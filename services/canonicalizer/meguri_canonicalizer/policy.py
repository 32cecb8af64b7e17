"""URL policies: what is folded beyond the certain rules, for whom, compiled once for a campaign.

Two forms go in: a mapping of fields, and a policy file
`{"version", "group_by", "default": {fields}, "hosts": {host: {fields}}}`. A host that is named in `hosts` has the
fields stated there and built-in values for the rest; what `default` says is for all other hosts. Aliases of all hosts
are one map, applied before a host's fields are looked up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from meguri_canonicalizer.parser import RejectReason, normal_host
from meguri_canonicalizer.session_params import QUERY_NAMES
from meguri_canonicalizer.tracking import TRACKING_PREFIX, tracking_list
from meguri_common.errors import PolicyError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

__all__ = ["DEFAULT", "GROUPINGS", "HostRules", "Policy", "load_policy"]

GROUPINGS: Final = ("registrable", "host")
_LAST_VERSION: Final = 0xFFFF
_FILE_FIELDS: Final = frozenset({"version", "group_by", "default", "hosts"})
_FILE_NOTES: Final = frozenset({"parent", "run_id", "evidence", "not_expressible", "conflicts"})
"""What a proposed policy file says about its own making; without effect here."""


@dataclass(frozen=True, slots=True)
class HostRules:
    """The fields that hold for one host, compiled."""

    fold_trailing_slash: bool = False
    fold_index: bool = False
    collapse_slashes: bool = False
    fold_case: bool = False
    fold_plus: bool = False
    keep_hashbang: bool = False
    strip_session_params: bool = False
    force_https: bool = False
    query_allow: frozenset[bytes] = frozenset()
    """Decoded names; in lower case under `fold_case`. Not empty: only these stay, and nothing is denied."""
    query_deny: frozenset[bytes] = frozenset()
    """Decoded names beyond the built-in list; in lower case under `fold_case`."""
    denied: frozenset[bytes] = field(init=False, compare=False, repr=False)
    """`query_deny` and the built-in list."""

    def __post_init__(self) -> None:
        """Join the deny lists, so that a pair costs one look-up."""
        built_in = tracking_list().names
        object.__setattr__(self, "denied", self.query_deny | _cased(built_in, self.fold_case))

    def document(self) -> dict[str, Any]:
        """All that compares, as JSON values in a fixed order."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.compare}
        return {k: sorted(n.decode() for n in v) if isinstance(v, frozenset) else v for k, v in values.items()}


_SWITCHES: Final = tuple(each.name for each in fields(HostRules) if each.type == "bool")
_NAME_LISTS: Final = ("query_allow", "query_deny")
_HOST_FIELDS: Final = frozenset({*_SWITCHES, *_NAME_LISTS, "host_alias"})


@dataclass(frozen=True, slots=True)
class Policy:
    """A compiled policy. Equal policies give equal results; the digest is part of the campaign identity."""

    version: int = 0
    """For people; without effect on results."""
    group_by: str = "registrable"
    default: HostRules = field(default_factory=HostRules)
    hosts: tuple[tuple[str, HostRules], ...] = ()
    """Hosts in normal form with rules of their own, sorted."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Hosts in normal form and the end of their alias chain, sorted."""
    _rules: dict[str, HostRules] = field(init=False, compare=False, repr=False)
    _targets: dict[str, str] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Index the pairs."""
        object.__setattr__(self, "_rules", dict(self.hosts))
        object.__setattr__(self, "_targets", dict(self.aliases))

    def alias(self, host: str) -> str:
        """The host that stands for this one."""
        return self._targets.get(host, host)

    def rules(self, host: str) -> HostRules:
        """The rules of a host, to be asked after `alias`."""
        return self._rules.get(host, self.default)

    def digest(self) -> str:
        """SHA-256, hex, of everything that decides identity, the built-in lists included."""
        document = {
            "version": self.version,
            "group_by": self.group_by,
            "default": self.default.document(),
            "hosts": [[host, rules.document()] for host, rules in self.hosts],
            "aliases": self.aliases,
            "tracking": [TRACKING_PREFIX.decode(), *sorted(name.decode() for name in tracking_list().names)],
            "sessions": sorted(name.decode() for name in QUERY_NAMES),
        }
        text = json.dumps(document, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> Self:
        """Compile a policy that is the same for every host.

        Args:
            values: fields that differ from the defaults.

        Raises:
            PolicyError: naming the field and the value that can't be used.
        """
        own = {k: v for k, v in values.items() if k in {"version", "group_by"}}
        rest = {k: v for k, v in values.items() if k not in own}
        return cls(**_checked_head(own), default=_rules(rest), aliases=_aliases([rest]))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Compile a policy file's content.

        Args:
            document: the decoded JSON object.

        Raises:
            PolicyError: naming the field and the value that can't be used.
        """
        for name in document:
            if name not in _FILE_FIELDS | _FILE_NOTES:
                raise PolicyError(f"unknown field {name!r} in a policy file; it has {', '.join(sorted(_FILE_FIELDS))}")
        default = _mapping("default", document.get("default", {}))
        stated = _mapping("hosts", document.get("hosts", {}))
        hosts: dict[str, HostRules] = {}
        for name, values in stated.items():
            host = _host("hosts", name)
            if host in hosts:
                raise PolicyError(f"hosts: {name!r} is {host!r} once more; state the fields of a host in one place")
            hosts[host] = _rules(_mapping(f"hosts.{name}", values), f"hosts.{name}.")
        return cls(
            **_checked_head({k: document[k] for k in ("version", "group_by") if k in document}),
            default=_rules(default, "default."),
            hosts=tuple(sorted(hosts.items(), key=lambda item: item[0])),
            aliases=_aliases([default, *stated.values()]),
        )


def load_policy(path: Path) -> Policy:
    """Read and compile a policy file.

    Raises:
        PolicyError: the file can't be read, is no JSON object, or holds something that can't be used.
    """
    try:
        document = json.loads(path.read_bytes())
        return Policy.from_document(_mapping("the file", document))
    except (OSError, ValueError) as error:
        raise PolicyError(f"policy file {path}: {error}") from error
    except PolicyError as error:
        raise PolicyError(f"policy file {path}: {error}") from error


def _cased(names: frozenset[bytes], fold_case: bool) -> frozenset[bytes]:
    return frozenset(name.lower() for name in names) if fold_case else names


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PolicyError(f"{name}: an object is needed, not {value!r}")
    return value


def _checked_head(values: Mapping[str, Any]) -> dict[str, Any]:
    version = values.get("version", 0)
    if type(version) is not int or not 0 <= version <= _LAST_VERSION:
        raise PolicyError(f"version: {version!r} is no whole number from 0 to {_LAST_VERSION}")
    group_by = values.get("group_by", "registrable")
    if group_by not in GROUPINGS:
        raise PolicyError(f"group_by: {group_by!r} is none of {', '.join(GROUPINGS)}")
    return {"version": version, "group_by": group_by}


def _rules(values: Mapping[str, Any], where: str = "") -> HostRules:
    for name in values:
        if name not in _HOST_FIELDS:
            raise PolicyError(f"{where}{name}: unknown field; a host has {', '.join(sorted(_HOST_FIELDS))}")
    for name in _SWITCHES:
        if not isinstance(values.get(name, False), bool):
            raise PolicyError(f"{where}{name}: {values[name]!r} is neither true nor false")
    switches: dict[str, bool] = {name: values[name] for name in _SWITCHES if name in values}
    fold_case = switches.get("fold_case", False)
    return HostRules(
        **switches,
        query_allow=_cased(_names(f"{where}query_allow", values.get("query_allow", ())), fold_case),
        query_deny=_cased(_names(f"{where}query_deny", values.get("query_deny", ())), fold_case),
    )


def _names(where: str, value: object) -> frozenset[bytes]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise PolicyError(f"{where}: a list of names is needed, not {value!r}")
    names = set()
    for name in value:
        if not isinstance(name, str):
            raise PolicyError(f"{where}: {name!r} is no text")
        try:
            names.add(name.encode())
        except UnicodeEncodeError as error:
            raise PolicyError(f"{where}: {name!r} can't be written as UTF-8") from error
    return frozenset(names)


def _host(where: str, name: object) -> str:
    host = normal_host(name) if isinstance(name, str) else RejectReason.BAD_HOST
    if isinstance(host, RejectReason):
        raise PolicyError(f"{where}: {name!r} is no host ({host})")
    return host


def _aliases(field_sets: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """One map of all aliases, each to the end of its chain."""
    targets: dict[str, str] = {}
    for values in field_sets:
        for name, value in _mapping("host_alias", values.get("host_alias", {})).items():
            source, target = _host("host_alias", name), _host("host_alias", value)
            if targets.setdefault(source, target) != target:
                raise PolicyError(f"host_alias: {source!r} has two values, {targets[source]!r} and {target!r}")
    links = {source: target for source, target in targets.items() if source != target}
    return tuple(sorted((source, _chain_end(source, links)) for source in links))


def _chain_end(source: str, links: Mapping[str, str]) -> str:
    """Where a chain ends.

    Raises:
        PolicyError: it doesn't.
    """
    passed = {source}
    host = links[source]
    while host in links:
        if host in passed:
            raise PolicyError(f"host_alias: {source!r} runs into a cycle at {host!r}")
        passed.add(host)
        host = links[host]
    return host


DEFAULT: Final = Policy()
"""No folding, grouped by registrable domain; the built-in tracking list alone."""
