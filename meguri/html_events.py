"""Page events from HTML: bytes in, event out. No file is opened here.

The parser is lexbor (through selectolax), which builds the tree that a browser would; entities are decoded by it
once, and an href is otherwise handed on as authored.
"""

from __future__ import annotations

import codecs
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

import ada_url
import msgspec
import orjson
from selectolax.lexbor import LexborHTMLParser

from meguri_common.events import PageEvent

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

__all__ = ["INDEX", "SiteFolder", "decode_html", "encode_page", "page_event", "visible_text"]

INDEX = "index.html"
"""The file that a URL ending in a slash stands for."""

_SNIFFED = 1024
"""Bytes in which an HTML document may declare its encoding (HTML Standard)."""

_DECLARED = re.compile(
    rb"""<\?xml\s[^>]*?encoding\s*=\s*["'](?P<xml>[\w:-]{1,40})"""
    rb"""|<meta\s[^>]*?charset\s*=\s*["']?\s*(?P<meta>[\w:-]{1,40})""",
    re.IGNORECASE,
)

_ENCODINGS = {
    "ascii": ("windows-1252", "cp1252"),
    "big5": ("big5", "big5hkscs"),
    "big5hkscs": ("big5", "big5hkscs"),
    "cp1252": ("windows-1252", "cp1252"),
    "cp866": ("ibm866", "cp866"),
    "cp874": ("windows-874", "cp874"),
    "cp932": ("shift_jis", "cp932"),
    "cp949": ("euc-kr", "cp949"),
    "euc_jp": ("euc-jp", "euc_jp"),
    "euc_kr": ("euc-kr", "cp949"),
    "gb18030": ("gb18030", "gb18030"),
    "gb2312": ("gbk", "gb18030"),
    "gbk": ("gbk", "gb18030"),
    "iso2022_jp": ("iso-2022-jp", "iso2022_jp"),
    "iso8859-1": ("windows-1252", "cp1252"),
    "iso8859-9": ("windows-1254", "cp1254"),
    "iso8859-11": ("windows-874", "cp874"),
    "koi8-r": ("koi8-r", "koi8-r"),
    "koi8-u": ("koi8-u", "koi8-u"),
    "mac-cyrillic": ("x-mac-cyrillic", "mac-cyrillic"),
    "mac-roman": ("macintosh", "mac-roman"),
    "shift_jis": ("shift_jis", "cp932"),
    "tis-620": ("windows-874", "cp874"),
    "utf-8": ("utf-8", "utf-8"),
    # A declaration that can be read as ASCII is not in UTF-16, whatever it says.
    "utf-16": ("utf-8", "utf-8"),
    "utf-16-be": ("utf-8", "utf-8"),
    "utf-16-le": ("utf-8", "utf-8"),
    **{
        f"iso8859-{part}": (f"iso-8859-{part}", f"iso8859-{part}") for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)
    },
    **{f"cp{page}": (f"windows-{page}", f"cp{page}") for page in (1250, 1251, 1253, 1254, 1255, 1256, 1257, 1258)},
}
"""Python's name of an encoding to the Encoding Standard's name and the codec that reads as browsers do.

Whatever isn't here (`unicode_escape`, `utf-7`, ...) is no encoding of the web and counts as not declared.
"""

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16le"), (codecs.BOM_UTF16_BE, "utf-16be"))

_UNSEEN_NAMES = (
    "canvas head iframe math noembed noframes noscript object script select style svg template textarea title"
)
_BLOCK_NAMES = (
    "address article aside blockquote br caption center dd details dialog dir div dl dt fieldset figcaption figure"
    " footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li listing main menu nav ol optgroup p plaintext pre"
    " search section summary table tbody td tfoot th thead tr ul xmp"
)
_UNSEEN = frozenset(_UNSEEN_NAMES.split())
_BLOCKS = frozenset(_BLOCK_NAMES.split())
_PREFORMATTED = frozenset(("pre", "listing", "plaintext", "xmp"))


class SiteFolder:
    """How the files of a folder and the URLs below a base stand for each other. Paths are relative, with `/`."""

    def __init__(self, base_url: str) -> None:
        """Take an absolute http(s) URL without query and fragment; one final slash is added where it lacks.

        Raises:
            ValueError: the URL is none of that.
        """
        try:
            parsed = ada_url.URL(base_url)
        except ValueError:
            msg = f"{base_url!r} is no absolute URL"
            raise ValueError(msg) from None
        if parsed.protocol not in {"http:", "https:"}:
            msg = f"{base_url!r} is neither http nor https"
            raise ValueError(msg)
        if "?" in base_url or "#" in base_url:
            msg = f"{base_url!r} has a query or a fragment: files are named below a path"
            raise ValueError(msg)
        self.base = parsed.href if parsed.href.endswith("/") else parsed.href + "/"

    def url_of(self, path: str) -> str:
        """URL of a file; bytes that can't stand in a path are escaped."""
        return self.base + quote(os.fsencode(path), safe="/-._~!$&'()*+,;=:@")

    def path_of(self, url: str) -> str | None:
        """File that an absolute URL stands for, whether it exists or not; None if it lies outside or has a query."""
        place = url.partition("#")[0]
        if not place.startswith(self.base) or "?" in place:
            return None
        path = os.fsdecode(unquote_to_bytes(place[len(self.base) :]))
        return path + INDEX if not path or path.endswith("/") else path

    def targets(self, page: PageEvent) -> list[str]:
        """Files that the links of a page lead to, in page order, each once, whether they exist or not."""
        against = page.url
        if page.base is not None:
            against = _join(page.url, page.base) or page.url
        found: dict[str, None] = {}
        for href in page.links:
            url = _join(against, href) if isinstance(href, str) else None
            path = self.path_of(url) if url is not None else None
            if path is not None:
                found[path] = None
        return list(found)


def _join(base: str, href: str) -> str | None:
    try:
        return ada_url.join_url(base, href)
    except ValueError:
        return None


def page_event(
    data: bytes, *, url: str, fetched_at: int, depth: int | None = None, modified: int | None = None
) -> PageEvent:
    """The event that a fetch of these bytes would have made.

    Args:
        data: the HTML file.
        url: absolute URL of the page.
        fetched_at: epoch seconds.
        depth: links from the start page, if known.
        modified: epoch seconds; with the size it makes the validators `etag` and `last_modified`.
    """
    text, charset = decode_html(data)
    tree = LexborHTMLParser(text)
    with_href = tree.css("[href]")
    return PageEvent(
        url=url,
        fetched_at=fetched_at,
        depth=depth,
        links=[_href(node) for node in with_href if node.tag in {"a", "area"}],
        base=next((_href(node) for node in with_href if node.tag == "base"), None),
        canonical=next((_href(node) for node in with_href if node.tag == "link" and _is_canonical(node)), None),
        charset=charset,
        text=visible_text(tree),
        etag=None if modified is None else f'"{len(data):x}-{modified:x}"',
        last_modified=modified,
    )


def encode_page(page: PageEvent) -> bytes:
    """One line of JSON with its LF; fields without a value are left out."""
    fields: dict[str, Any] = msgspec.to_builtins(page)
    return orjson.dumps(
        {name: value for name, value in fields.items() if value is not None and value is not False},
        option=orjson.OPT_APPEND_NEWLINE,
    )


def decode_html(data: bytes) -> tuple[str, str]:
    """Text of an HTML file and the name of its encoding.

    As browsers do: byte-order mark, else what the first 1,024 bytes declare, else UTF-8 if it is valid, else
    windows-1252. What the encoding can't read becomes U+FFFD.
    """
    for mark, name in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(name, "replace"), name
    for found in _DECLARED.finditer(data[:_SNIFFED]):
        known = _encoding(found["xml"] or found["meta"])
        if known is not None:
            name, codec = known
            return data.decode(codec, "replace"), name
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace"), "windows-1252"


def _encoding(label: bytes) -> tuple[str, str] | None:
    try:
        return _ENCODINGS.get(codecs.lookup(label.decode()).name)
    except (LookupError, UnicodeDecodeError):
        return None


def visible_text(tree: LexborHTMLParser) -> str:
    """What a reader sees of `<body>`, menus and footers included: one line a block, white space squashed.

    Line breaks stay in preformatted blocks.
    """
    body = tree.body
    if body is None:
        return ""
    pieces: list[str] = []
    preformatted = 0
    node = body.first_child
    while node is not None:
        tag = node.tag
        below = None
        if tag == "-text":
            text = node.text_content or ""
            pieces.append(text if preformatted else text.replace("\n", " "))
        elif tag in _BLOCKS:
            pieces.append("\n")
            preformatted += tag in _PREFORMATTED
            below = node.first_child
        elif tag not in _UNSEEN:
            below = node.first_child
        if below is not None:
            node = below
            continue
        node, preformatted = _next(node, body, pieces, preformatted)
    lines = (" ".join(line.split()) for line in "".join(pieces).replace("\r", " ").split("\n"))
    return "\n".join(line for line in lines if line)


def _next(node: LexborNode, body: LexborNode, pieces: list[str], preformatted: int) -> tuple[LexborNode | None, int]:
    """The node after this one in document order, its own content done; blocks that end on the way end a line."""
    while node is not None and node.mem_id != body.mem_id:
        if node.tag in _BLOCKS:
            pieces.append("\n")
            preformatted -= node.tag in _PREFORMATTED
        following = node.next
        if following is not None:
            return following, preformatted
        node = node.parent
    return None, preformatted


def _href(node: LexborNode) -> str:
    return node.attributes["href"] or ""


def _is_canonical(node: LexborNode) -> bool:
    return "canonical" in (node.attributes.get("rel") or "").lower().split()
