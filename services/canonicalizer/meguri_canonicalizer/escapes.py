"""Percent escapes: the one spelling of a text that the parser wrote, and the octets that a name stands for."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

__all__ = ["fold_letters", "normal_escapes", "percent_decoded"]

_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
_STRAY: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_PIECE: Final = re.compile("%[0-9A-Fa-f]{2}|%[0-9A-Fa-f]?|[^%]+")
_FOLDED: Final = re.compile("%[0-9A-F]{2}|[A-Z]+")


def _written(escape: str) -> str:
    character = chr(int(escape[1:], 16))
    return character if character in _UNRESERVED else escape.upper()


_SPELLINGS: Final = {
    f"%{high}{low}": _written(f"%{high}{low}") for high in sorted(_HEX_DIGITS) for low in sorted(_HEX_DIGITS)
}
"""Every escape and what stands for it in a canonical URL."""


def _spelling(found: re.Match[str]) -> str:
    return _SPELLINGS[found[0]]


def normal_escapes(text: str) -> str:
    """Escapes of unreserved characters decoded, all others with upper-case digits, in one pass from the left.

    A `%` that begins no escape is stray and stays. An escape of a hex digit right after a stray `%` (or after that and
    one more hex digit) is not decoded: it would make the stray `%` begin an escape, and a second pass would go on.
    """
    if "%" not in text:
        return text
    if _STRAY.search(text) is None:
        return _ESCAPE.sub(_spelling, text)
    out: list[str] = []
    after_stray = False
    for piece in _PIECE.findall(text):
        is_escape = piece in _SPELLINGS
        if is_escape:
            plain = _SPELLINGS[piece]
            out.append(piece.upper() if after_stray and plain in _HEX_DIGITS else plain)
        else:
            out.append(piece)
        after_stray = not is_escape and piece[0] == "%"
    return "".join(out)


def fold_letters(text: str) -> str:
    """`A-Z` in lower case, outside of escapes; for a text that `normal_escapes` wrote."""
    return _FOLDED.sub(lambda found: found[0] if found[0][0] == "%" else found[0].lower(), text)


def percent_decoded(text: str) -> bytes:
    """The octets of an ASCII text after decoding each escape once; stray `%` and `+` stand for themselves."""
    return unquote_to_bytes(text) if "%" in text else text.encode("ascii")
