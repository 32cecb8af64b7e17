"""The URL Standard's parser behind three questions: what is this text, what does it resolve to, is this a host?

The parser is ada-url. Its URL objects are slow from Python, so one call gives the serialised URL and the parts are
cut from that by position.
"""

from __future__ import annotations

import codecs
import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

import ada_url

__all__ = ["PARSER_LEVEL", "RejectReason", "link_text", "normal_host", "resolve", "strip_root"]

PARSER_LEVEL: Final = "whatwg/ada-4"
"""Names the tables of the URL parser; part of the campaign identity, since hosts map differently under others."""

_NEUTRAL_BASE: Final = "about:blank"
"""A base that leaves every link with a scheme of its own untouched."""

_CACHED_BASE_LENGTH: Final = 8192
_TRIMMED: Final = "".join(map(chr, range(0x21)))
_REMOVED: Final = {9: None, 10: None, 13: None}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
_WEB_SCHEMES: Final = frozenset({"http", "https"})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_AUTHORITY_END: Final = re.compile(r"[/\\?#]")
_NO_HOST_TEXT: Final = re.compile(r"[\t\n\r/\\?#@]")


class RejectReason(StrEnum):
    """Why a text is no URL of the frontier: the first that applies, in this order."""

    SCHEME = "scheme"
    """Its scheme, or that of the base of a link without one, is not http or https."""
    NO_BASE = "no_base"
    """It has no scheme, and the base is missing or doesn't parse."""
    EMPTY_HOST = "empty_host"
    """There is no host text, or nothing but the root dot."""
    BAD_HOST = "bad_host"
    """The host parser refuses the host, or one of its labels is empty."""
    BAD_PORT = "bad_port"
    """The host is good; the port is no decimal number up to 65535."""


def _escape_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"%{octet:02X}" for octet in error.object[error.start : error.end]), error.end


codecs.register_error("meguri-escape", _escape_bytes)


def link_text(raw: str | bytes) -> str:
    """The text of a link as authored, fit for the parser.

    Bytes are read as UTF-8; each byte of an invalid sequence becomes its own escape, so that links in legacy encodings
    stay apart. In a `str`, halves of a surrogate pair are joined and lone ones become U+FFFD, as in a browser.
    """
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "meguri-escape")
    if raw.isascii() or _SURROGATE.search(raw) is None:
        return raw
    return raw.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _parse(link: str, base: str) -> str | None:
    try:
        return ada_url.join_url(base, link)
    except ValueError:
        return None


def _parse_alone(text: str) -> str | None:
    """Unlike against the neutral base, a mere fragment doesn't parse."""
    try:
        return ada_url.normalize_url(text)
    except ValueError:
        return None


@lru_cache(maxsize=512)
def _cached_base(base: str) -> str | None:
    return _parse_alone(base)


def _parsed_base(base: str | bytes | None) -> str | None:
    """The serialised base, or None where there is none or it doesn't parse."""
    if base is None:
        return None
    text = link_text(base)
    return _cached_base(text) if len(text) <= _CACHED_BASE_LENGTH else _parse_alone(text)


def _is_web(serialised: str) -> bool:
    return serialised.startswith(("http://", "https://"))


def normal_host(text: str) -> str | RejectReason:
    """A host in its normal form: A-labels in lower case, addresses folded, without the root dot.

    Args:
        text: a host and nothing else: no userinfo, no port; an IPv6 address in brackets.

    Returns:
        The host, or the reason why it is none.
    """
    if not text:
        return RejectReason.EMPTY_HOST
    if _NO_HOST_TEXT.search(text) is not None or _host_end(text) != len(text):
        return RejectReason.BAD_HOST
    parsed = _parse(f"http://{text}/", _NEUTRAL_BASE)
    return RejectReason.BAD_HOST if parsed is None else strip_root(parsed[7:-1])


def strip_root(host: str) -> str | RejectReason:
    """The host that the parser wrote, without one trailing dot; every label must then have letters."""
    if host.endswith("."):
        host = host[:-1]
        if not host:
            return RejectReason.EMPTY_HOST
        if host.endswith("."):
            return RejectReason.BAD_HOST
    if host.startswith(".") or ".." in host:
        return RejectReason.BAD_HOST
    return host


def _host_end(authority: str) -> int:
    """Where the host ends: at the first colon that stands outside of brackets."""
    bracketed = False
    for at, character in enumerate(authority):
        if character == "[":
            bracketed = True
        elif character == "]":
            bracketed = False
        elif character == ":" and not bracketed:
            return at
    return len(authority)


def _fault(after_scheme: str) -> RejectReason:
    """Why a web link that doesn't parse doesn't: its host is judged before its port."""
    rest = after_scheme.lstrip("/\\")
    end = _AUTHORITY_END.search(rest)
    authority = (rest if end is None else rest[: end.start()]).rpartition("@")[2]
    host = normal_host(authority[: _host_end(authority)])
    return host if isinstance(host, RejectReason) else RejectReason.BAD_PORT


def resolve(link: str, base: str | bytes | None) -> str | RejectReason:
    """Parse a link against a base.

    Args:
        link: what `link_text` gave.
        base: what links of the page resolve against; None, or a text that doesn't parse, for no base.

    Returns:
        The serialised http(s) URL, or the reason why there is none.
    """
    if _is_web(link):
        serialised = _parse(link, _NEUTRAL_BASE)
        if serialised is not None:
            return serialised
    link = link.strip(_TRIMMED).translate(_REMOVED)
    found = _SCHEME.match(link)
    if found is not None:
        if found[1].lower() not in _WEB_SCHEMES:
            return RejectReason.SCHEME
        serialised = _parse(link, _parsed_base(base) or _NEUTRAL_BASE)
        return _fault(link[found.end() :]) if serialised is None else serialised
    parsed_base = _parsed_base(base)
    if parsed_base is None:
        return RejectReason.NO_BASE
    if not _is_web(parsed_base):
        return RejectReason.SCHEME
    serialised = _parse(link, parsed_base)
    return _fault(link) if serialised is None else serialised
