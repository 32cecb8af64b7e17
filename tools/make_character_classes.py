"""Write meguri_common/content/character_classes.py from this interpreter's Unicode tables.

Run it only to move to another Unicode version on purpose: fingerprints of some texts change with it, so that the
pipeline's version must change too.

    python tools/make_character_classes.py > libs/meguri_common/content/character_classes.py
"""

from __future__ import annotations

import sys
import textwrap
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def ranges(belongs: Callable[[str], bool]) -> str:
    """Code points of a class as hex ranges, both ends included."""
    found: list[list[int]] = []
    for point in range(sys.maxunicode + 1):
        if belongs(unicodedata.category(chr(point))):
            if found and found[-1][1] == point - 1:
                found[-1][1] = point
            else:
                found.append([point, point])
    return " ".join(f"{first:x}" if first == last else f"{first:x}-{last:x}" for first, last in found)


def main() -> None:
    """Print the module."""
    classes = {
        "LETTERS_AND_NUMBERS": ranges(lambda category: category[0] in "LN"),
        "MARKS": ranges(lambda category: category[0] == "M"),
        "FORMAT": ranges(lambda category: category == "Cf"),
    }
    print(f'"""Character classes of Unicode {unicodedata.unidata_version}: hex ranges, both ends included.')
    print("\nMade by tools/make_character_classes.py and checked in, so that no interpreter's own tables decide.\n")
    print('"""\n\nfrom __future__ import annotations\n')
    print(f"__all__ = {sorted([*classes, 'UNICODE'])!r}\n".replace("'", '"'))
    print(f'UNICODE = "{unicodedata.unidata_version}"\n')
    for name, text in classes.items():
        print(f"{name} = (")
        for line in textwrap.wrap(text, 108, break_on_hyphens=False):  # a range stays in one piece
            print(f'    "{line} "')
        print(")")


if __name__ == "__main__":
    main()
