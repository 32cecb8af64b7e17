"""Which partition of the pages an event belongs to: all events of a host, from whichever publisher, to the same one.

The key is the registrable domain of the host of the event's URL, as the URL Standard parses it, before any policy.
It is the key also where a campaign groups by host: a coarser key keeps the order of what is within it. The partition
is the key's share of the 64-bit space: `(xxh64(key) * partitions) >> 64`. An event without a usable URL has no key
and goes to partition 0; it will be rejected wherever it is.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import ada_url
import msgspec

from meguri_common.events.decode import EventRejected, without_lone_surrogates
from meguri_common.keys import host_key, partition_of
from meguri_common.suffixes import registrable

__all__ = ["group_of_event", "group_of_url", "pages_partition"]

_PLAIN: Final = re.compile(r"https?://([A-Za-z0-9.-]{1,253})(?=[/?#]|$)")
"""A URL whose host can be cut out as it stands."""
_WEB: Final = ("http://", "https://")
_AUTHORITY_END: Final = re.compile(r"[/?#]")


class _Routed(msgspec.Struct):
    """What of an event says where it belongs."""

    type: Any = "page"
    url: Any = None
    host: Any = None
    urls: Any = None
    hosts: Any = None


_DECODER = msgspec.json.Decoder(_Routed)


def pages_partition(group: bytes | None, partitions: int) -> int:
    """The partition of the pages for a key.

    Args:
        group: what `group_of_event` or `group_of_url` gave.
        partitions: how many the topic has.
    """
    return partition_of(host_key(group), partitions) if group else 0


def group_of_url(url: str) -> bytes | None:
    """The key of an absolute http(s) URL; None if it is none.

    A string with unpaired surrogates has no key.
    """
    plain = _PLAIN.match(url)
    if plain is not None:
        return _group_of_host(plain[1])
    try:
        serialised = ada_url.normalize_url(url)
    except (ValueError, UnicodeEncodeError):
        return None
    if not serialised.startswith(_WEB):
        return None
    authority = serialised.partition("://")[2]
    end = _AUTHORITY_END.search(authority)
    host = (authority if end is None else authority[: end.start()]).rpartition("@")[2]
    return _group_of_host(re.sub(r":[0-9]+$", "", host))


def group_of_event(line: bytes) -> bytes | None:
    """The key of an event; None if there is none to be had.

    It is that of the URL of a page or sitemap, of the first URL of a seed, of the host or URL of a control, and of the
    first host, or else the first URL, of a signal.

    Args:
        line: the event, JSON.
    """
    try:
        routed = _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # A string that strict parsers refuse costs that string, not the event: as the canonicalizer has it.
        try:
            routed = _DECODER.decode(without_lone_surrogates(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, EventRejected):
            return None
    if not isinstance(routed.type, str):
        return None
    if routed.type in {"page", "sitemap"}:
        return group_of_url(routed.url) if isinstance(routed.url, str) else None
    return _group_of_other(routed)


def _group_of_other(routed: _Routed) -> bytes | None:
    if routed.type == "control" and isinstance(routed.host, str):
        return group_of_url(f"http://{routed.host}/")
    if routed.type == "control" and isinstance(routed.url, str):
        return group_of_url(routed.url)
    if routed.type not in {"seed", "signal"}:
        return None
    first = routed.hosts[0] if isinstance(routed.hosts, list) and routed.hosts else None
    if isinstance(first, dict) and isinstance(first.get("host"), str):
        return group_of_url(f"http://{first['host']}/")
    first = routed.urls[0] if isinstance(routed.urls, list) and routed.urls else None
    url = first.get("url") if isinstance(first, dict) else first
    return group_of_url(url) if isinstance(url, str) else None


@lru_cache(maxsize=1 << 16)
def _group_of_host(host: str) -> bytes | None:
    """The registrable domain of a host, in the normal form of the URL Standard."""
    try:
        name = ada_url.normalize_url(f"http://{host}/")[7:-1].removesuffix(".")
    except ValueError:
        return None
    if not name or name.startswith(".") or ".." in name or name.endswith("."):
        return None
    return registrable(name).encode("ascii")
