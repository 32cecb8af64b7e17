"""Tokens of the pipeline `terms/1`, in any script.

On ASCII a token is a maximal run of letters and digits, lower-cased. Elsewhere text is NFKC-normalised and lower-cased
first; marks belong to the character before them; scripts written without spaces give overlapping pairs; emoji and
symbols are tokens of their own.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import pairwise

from meguri_common.content.character_classes import FORMAT, LETTERS_AND_NUMBERS, MARKS

__all__ = ["tokens"]

_SPACELESS = (
    "e00-eff f00-fff 1000-109f 1780-17ff 19e0-19ff 1a20-1aaf 2e80-2fdf 3005-3007 3021-3029 3031-3035 3038-303b "
    "3040-30ff 31f0-31ff 3400-4dbf 4e00-9fff a9e0-a9ff aa60-aa7f f900-faff ff66-ff9f 1aff0-1b16f 20000-3ffff"
)
"""Scripts written without spaces: Thai, Lao, Tibetan, Myanmar, Khmer, Han, kana and their neighbours."""
_SYMBOLS = "2600-27bf 1f000-1faff"
_INVISIBLE = "fe00-fe0f 1f3fb-1f3ff"
"""Variation selectors and skin tones: ignored, as format characters are."""

_ASCII_TOKEN = re.compile(r"[A-Za-z0-9]+")


def tokens(text: str | bytes) -> list[str]:
    """Tokens in order of appearance.

    Args:
        text: decoded, or UTF-8 in which invalid sequences separate.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    if text.isascii():
        return [token.lower() for token in _ASCII_TOKEN.findall(text)]
    ignored, found, unit = _patterns()
    folded = ignored.sub("", unicodedata.normalize("NFKC", text).lower())
    out: list[str] = []
    for match in found.finditer(folded):
        if match.lastgroup == "spaceless":
            units = unit.findall(match.group())
            out += units if len(units) == 1 else [a + b for a, b in pairwise(units)]
        else:
            out.append(match.group())
    return out


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """What is ignored; a run or symbol; a character of a spaceless script with its marks."""
    mark, spaceless = _class(MARKS), _class(_SPACELESS)
    word = _class(LETTERS_AND_NUMBERS)
    # A word character is looked at twice: is it one at all, and is it of a script without spaces?
    unit = f"(?=[{spaceless}])[{word}][{mark}]*"
    spaced = f"(?![{spaceless}])[{word}][{mark}]*"
    found = f"(?P<spaced>(?:{spaced})+)|(?P<spaceless>(?:{unit})+)|(?P<symbol>[{_class(_SYMBOLS)}])"
    return re.compile(f"[{_class(FORMAT)}{_class(_INVISIBLE)}]"), re.compile(found), re.compile(unit)


def _class(ranges: str) -> str:
    """The inside of a regular expression's character class."""
    parts = []
    for part in ranges.split():
        first, _, last = part.partition("-")
        parts.append(rf"\U{int(first, 16):08x}-\U{int(last or first, 16):08x}")
    return "".join(parts)
