"""Tokens of a text under `terms/1`, for any script.

What depends on the interpreter: character classes don't, they come from checked-in tables. NFKC and lower-casing are
the interpreter's. Unicode never changes how assigned characters decompose, compose and pair as upper and lower case,
so what could differ is characters that a newer version has assigned; those are kept away from both (`fold`) and stay
what the tables say of them: nothing. There remain corrections of properties that no stability policy covers (which
characters may stand around a final sigma) and faults of an interpreter. Should a fingerprint have to change, for these
or with newer tables, the pipeline's name changes, and fingerprints under different names are never compared.
"""

from __future__ import annotations

import itertools
import re
import unicodedata

from meguri_common.content.classes import IGNORED, MARK, PAIRED, SEPARATOR, SYMBOL, WORD, class_table, unassigned
from meguri_common.content.unicode_tables import UNICODE_VERSION

__all__ = ["decode", "fold", "tokens"]

_ASCII_TOKEN = re.compile("[a-z0-9]+")


def decode(data: bytes) -> str:
    """Text of UTF-8; every invalid sequence becomes U+FFFD, which separates tokens."""
    return data.decode("utf-8", "replace")


def fold(text: str) -> str:
    """NFKC, then full lower-casing, the same under every interpreter whose Unicode is the tables' or newer."""
    if text.isascii():
        return text.lower()
    if unicodedata.unidata_version == UNICODE_VERSION:
        return _fold_assigned(text)
    return _fold_around_unassigned(text)


def _fold_assigned(text: str) -> str:
    return unicodedata.normalize("NFKC", text).lower()


def _fold_around_unassigned(text: str) -> str:
    """Fold only what lies between unassigned characters: to the tables' version they are inert, as is U+FFFD."""
    pieces = unassigned().split(text)
    pieces[::2] = map(_fold_assigned, pieces[::2])
    return "".join(pieces)


def tokens(text: str | bytes) -> list[str]:
    """The tokens of a text, in order of appearance, repeats included.

    A run of word characters is one token; in scripts written without spaces every overlapping pair of characters is
    one, and a lone character is one. Marks stay with their character. Symbols and emoji are tokens each.

    Args:
        text: text, or UTF-8.
    """
    folded = fold(text if isinstance(text, str) else decode(text))
    if folded.isascii():
        return _ASCII_TOKEN.findall(folded)
    return _tokens_of_folded(folded)


def _tokens_of_folded(text: str) -> list[str]:
    found: list[str] = []
    units: list[str] = []
    """The run so far: one growing string of spaced script, or one string per character of an unspaced one."""
    kind = SEPARATOR
    table = class_table()
    for character in text:
        what = table[ord(character)]
        if what == IGNORED:
            continue
        if (what == MARK and kind != SEPARATOR) or what == kind == WORD:
            units[-1] += character
        elif what == kind == PAIRED:
            units.append(character)
        else:
            found += _run_tokens(units)
            kind = what if what in {WORD, PAIRED} else SEPARATOR
            units = [] if kind == SEPARATOR else [character]
            if what == SYMBOL:
                found.append(character)
    return found + _run_tokens(units)


def _run_tokens(units: list[str]) -> list[str]:
    return [left + right for left, right in itertools.pairwise(units)] if len(units) > 1 else units
