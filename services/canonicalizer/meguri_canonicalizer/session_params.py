"""Which query pairs and path parameters carry a session: names that servers of known kinds put there themselves."""

from __future__ import annotations

import re
from typing import Final

from meguri_canonicalizer.escapes import percent_decoded

__all__ = ["QUERY_NAMES", "is_session_pair", "without_path_sessions"]

QUERY_NAMES: Final = frozenset(
    {b"jsessionid", b"phpsessid", b"sessionid", b"session_id", b"oscsid", b"zenid", b"cfid", b"cftoken"}
)
"""Names of query pairs, in lower case; compared in any case. `s` and `sid` alone are too generic."""

_SUFFIXED_NAME: Final = re.compile(rb"aspsessionid[a-z]{8}")
_SESSION_VALUE: Final = re.compile(rb"[0-9A-Fa-f]{32}")
_PATH_PARAMETER: Final = re.compile(r";jsessionid=[^;/]*", re.IGNORECASE)
_DOT_SEGMENTS: Final = frozenset({".", ".."})


def is_session_pair(name: bytes, pair: str) -> bool:
    """Whether a query pair carries a session.

    Args:
        name: decoded name of the pair.
        pair: the whole pair as written; its value matters for `sid`, which must be 32 hex digits.
    """
    lowered = name.lower()
    if lowered == b"sid":
        return _SESSION_VALUE.fullmatch(percent_decoded(pair.partition("=")[2])) is not None
    return lowered in QUERY_NAMES or _SUFFIXED_NAME.fullmatch(lowered) is not None


def without_path_sessions(path: str) -> str:
    """The path without `;jsessionid=...` parameters, except where a dot segment would remain."""
    if ";" not in path:
        return path
    segments = path.split("/")
    for at, segment in enumerate(segments):
        left = _PATH_PARAMETER.sub("", segment)
        if left not in _DOT_SEGMENTS:
            segments[at] = left
    return "/".join(segments)
