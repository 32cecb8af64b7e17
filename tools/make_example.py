"""Make the shipped example, `examples/sqlite-docs.jsonl.zst`, from the HTML of the Debian package sqlite3-doc.

    apt-get download sqlite3-doc
    dpkg -x sqlite3-doc_*.deb tree
    python tools/make_example.py tree/usr/share/doc/sqlite3 examples/sqlite-docs.jsonl.zst

The same as `meguri events from-html DIR --base-url https://www.sqlite.org/ --depth-from-start --output FILE`, but
mail addresses and telephone numbers of people are replaced, and the file is compressed harder.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import orjson

from meguri.commands.events import list_html, open_output, page_events, read_page
from meguri.html_events import INDEX, SiteFolder

BASE_URL = "https://www.sqlite.org/"
LEVEL = 19

_MAIL = re.compile(r"[\w.+-]+(?P<at>@|%40)[\w-]+(?:\.[\w-]+)+")
_TELEPHONE = re.compile(r"(?<![\w.])(?:\+1\.)?\d{3}\.\d{3}\.\d{4}(?![\w.])")


def _without_contacts(text: str) -> str:
    return _TELEPHONE.sub("555.0100", _MAIL.sub(r"mail\g<at>example.org", text))


def main() -> int:
    """Write the example and print its counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    skipped: list[str] = []

    def skip(path: str, reason: str) -> None:
        skipped.append(f"{path}: {reason}")

    files = list_html(arguments.tree, skip)
    lines = page_events(
        files,
        lambda path: read_page(arguments.tree / path),
        SiteFolder(BASE_URL),
        skip,
        fetched_at=max(file.modified for file in files),
        start=INDEX,
    )
    pages = links = reached = characters = 0
    with open_output(arguments.output, LEVEL) as write:
        for line in lines:
            page = orjson.loads(line)
            page["links"] = [_without_contacts(href) for href in page["links"]]
            page["text"] = _without_contacts(page["text"])
            write(orjson.dumps(page, option=orjson.OPT_APPEND_NEWLINE))
            pages += 1
            links += len(page["links"])
            reached += "depth" in page
            characters += len(page["text"])
    size = arguments.output.stat().st_size
    sys.stdout.write(
        f"{pages} pages ({reached} reached from {INDEX}), {links} links, {characters} characters, {size} bytes\n"
    )
    for line_skipped in skipped:
        sys.stderr.write(f"skipped {line_skipped}\n")
    return 1 if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
