"""`meguri events from-html`: what becomes of HTML files, and what the command does with a folder of them."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from meguri.__main__ import main
from meguri.commands import events as command
from meguri.commands.events import HtmlFile, page_events
from meguri.html_events import SiteFolder, decode_html, encode_page, page_event
from meguri_common.errors import MeguriError
from meguri_common.events import PageEvent, decode_event

if TYPE_CHECKING:
    from collections.abc import Callable

BASE = "https://www.example.org/docs/"


def page(html: str | bytes) -> PageEvent:
    data = html if isinstance(html, bytes) else html.encode()
    return page_event(data, url=BASE + "a.html", fetched_at=7)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """index -> a, sub/b; a -> c (through <base>); nothing leads to island."""
    folder = tmp_path / "site"
    (folder / "sub").mkdir(parents=True)
    pages = {
        "index.html": '<a href="a.html#top">A</a> <a href="sub/b.html">B</a> <a href="https://other.example/">O</a>',
        "a.html": '<base href="/docs/sub/"><a href="c.HTM">C</a> <a href="../">home</a>',
        "sub/b.html": '<a href="../a.html">A</a>',
        "sub/c.HTM": "<p>deep",
        "island.xhtml": "<p>alone",
        "notes.txt": "no page",
    }
    for number, (name, html) in enumerate(pages.items()):
        (folder / name).write_text(html)
        os.utime(folder / name, (0, 1_700_000_000 + number))
    return folder


@pytest.fixture
def rows(capfdbinary: pytest.CaptureFixture[bytes]) -> Callable[..., tuple[int, list[dict[str, Any]], str]]:
    """Run the command; exit code, events, standard error."""

    def run(*arguments: str | Path) -> tuple[int, list[dict[str, Any]], str]:
        code = main(["events", "from-html", *map(str, arguments)])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, [orjson.loads(line) for line in out.splitlines()], err.decode()

    return run


def test_links_are_as_authored_and_in_page_order() -> None:
    found = page(
        '<a href=" b.html ">x</a><map><area href="C.html#f"></map><a href>e</a><a href="">e</a><a name=n>no</a>'
        '<a href="?a=1&amp;b=2&copy=3">q</a><a href=" b.html ">again</a><link href=style.css>'
        '<a href="mailto:x@y.z">m</a><a href="é%C3%A9&#xD800;">u</a>'
    )
    assert found.links == [
        " b.html ",
        "C.html#f",
        "",
        "",
        "?a=1&b=2&copy=3",
        " b.html ",
        "mailto:x@y.z",
        "é%C3%A9\ufffd",
    ]


def test_misnested_links_are_those_of_a_browser() -> None:
    """A second <a> closes the first, and formatting that was open is opened again: the link is repeated."""
    assert page("<p><a href=1>one<a href=2>two</a>").links == ["1", "2"]
    assert page("<a href=1><div>x</a>y</div>").links == ["1", "1"]
    assert page("<!-- <a href=1> --><script>'<a href=2>'</script><textarea><a href=3></textarea>").links == []


def test_base_and_canonical_are_the_first_ones() -> None:
    found = page(
        "<head><base target=_top><base href='/x/'><base href='/y/'>"
        "<link rel='alternate' href=alt><link rel='shortlink CANONICAL' href=' /c '><link rel=canonical href=/late>"
    )
    assert (found.base, found.canonical) == ("/x/", " /c ")
    assert (page("<p>").base, page("<p>").canonical) == (None, None)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<title>T</title><p>one <b>two</b>\n three<p>four", "one two three\nfour"),
        ("a<br>b<hr>c<div>d</div>e", "a\nb\nc\nd\ne"),
        ("<ul><li>1<li>2</ul>tail", "1\n2\ntail"),
        ("<table><tr><td>1<td>2<tr><td>3</table>", "1\n2\n3"),
        ("<pre>x  y\n\n z\r\n</pre>after\nall", "x y\nz\nafter all"),
        ("<div><pre>a\nb</pre></div><p>c\nd</p>", "a\nb\nc d"),
        ("a<script>no</script><style>no</style><svg><text>no</text></svg><noscript>no</noscript>b", "ab"),
        ("<p>&lt;b&gt; &amp; &nbsp; &eacute;</p>", "<b> & é"),
        ("<select><option>no</select><textarea>no</textarea><template><p>no</template><button>yes</button>", "yes"),
        ("<frameset><frame src=x></frameset>", ""),
        ("", ""),
        ("<p>" * 3 + "<b>" * 20_000 + "deep", "deep"),
    ],
)
def test_text_is_what_a_reader_sees(html: str, text: str) -> None:
    assert page(html).text == text


@pytest.mark.parametrize(
    ("data", "text", "charset"),
    [
        ("é".encode(), "é", "utf-8"),
        (b"\xe9\x80", "é€", "windows-1252"),
        (b"\xef\xbb\xbf<meta charset=latin1>\xc3\xa9", "<meta charset=latin1>é", "utf-8"),
        ("é".encode("utf-16"), "é", "utf-16le"),
        (b"<meta charset=ISO-8859-1>\x80\xe9", "<meta charset=ISO-8859-1>€é", "windows-1252"),
        (b"<META http-equiv=x content='text/html; charset = KOI8-R'>\xc1", None, "koi8-r"),
        (b"<?xml version='1.0' encoding='windows-1251'?>\xe9", "<?xml version='1.0' encoding='windows-1251'?>й", None),
        (b"<meta charset=utf-16>\xc3\xa9", "<meta charset=utf-16>é", "utf-8"),
        (b"<meta charset=shift_jis>\x82\xa0", "<meta charset=shift_jis>あ", "shift_jis"),
        (b"<meta charset=utf-8>\xe9", "<meta charset=utf-8>\ufffd", "utf-8"),
        # No encodings of the web: as if not declared.
        (b"<meta charset=unicode_escape>\\ud800", "<meta charset=unicode_escape>\\ud800", "utf-8"),
        (b"<meta charset=rot13>\xe9", "<meta charset=rot13>é", "windows-1252"),
        (b"<meta charset=no-such>x", "<meta charset=no-such>x", "utf-8"),
        # Beyond what is looked at.
        (b" " * 1024 + b"<meta charset=koi8-r>\xc3\xa9", " " * 1024 + "<meta charset=koi8-r>é", "utf-8"),
    ],
)
def test_encoding(data: bytes, text: str | None, charset: str | None) -> None:
    found = decode_html(data)
    assert text is None or found[0] == text
    assert charset is None or found[1] == charset


SNIPPETS = (
    "<a href=|'x|'>|<p>|</p>|<pre>|</pre>|<table>|<svg>|<template>|<!--|-->|&#xD800;|<base href=/q>"
    "|<link rel=canonical href=c>|\n| w |<meta charset=gb18030>|</body>|<select>"
)
MARKUP = st.lists(st.sampled_from(SNIPPETS.split("|")) | st.text(max_size=4), max_size=30).map(
    lambda pieces: "".join(pieces).encode("utf-8", "surrogatepass")
)


@given(data=st.binary(max_size=200) | MARKUP)
def test_any_bytes_make_an_event_that_its_reader_takes(data: bytes) -> None:
    event = page_event(data, url=BASE, fetched_at=1, depth=2, modified=-5)
    line = encode_page(event)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_event(line[:-1]) == event
    text = event.text or ""
    assert text == "\n".join(" ".join(part.split()) for part in text.split("\n") if part.strip())


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("a.html", BASE + "a.html"),
        ("sub/b c.html", BASE + "sub/b%20c.html"),
        ("100%?#.html", BASE + "100%25%3F%23.html"),
        ("é.html", BASE + "%C3%A9.html"),
        ("\udce9.html", BASE + "%E9.html"),
        ("~u/(x);y=1.html", BASE + "~u/(x);y=1.html"),
    ],
)
def test_file_names_and_urls_stand_for_each_other(path: str, url: str) -> None:
    folder = SiteFolder(BASE.rstrip("/"))
    assert folder.url_of(path) == url
    assert folder.path_of(url + "#fragment") == path


def test_urls_outside_of_the_folder_or_with_a_query_are_no_files() -> None:
    folder = SiteFolder(BASE)
    assert folder.path_of(BASE) == "index.html"
    assert folder.path_of(BASE + "sub/") == "sub/index.html"
    assert folder.path_of(BASE + "a.html?print=1") is None
    assert folder.path_of("https://www.example.org/docsx/a.html") is None
    assert folder.path_of("http://www.example.org/docs/a.html") is None


@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_every_file_name_comes_back(name: str) -> None:
    folder = SiteFolder("http://h.example/x")
    assert folder.path_of(folder.url_of(f"d/{name}")) == f"d/{name}"


@pytest.mark.parametrize(
    "wrong", ["docs/", "//h/x", "ftp://h/", "http://", "https://h/?q", "https://h/#f", "http://[/"]
)
def test_a_base_url_that_names_no_folder_is_wrong_use(
    wrong: str, site: Path, rows: Callable[..., tuple[int, list[dict[str, Any]], str]]
) -> None:
    code, found, err = rows(site, "--base-url", wrong)
    assert (code, found) == (2, [])
    assert "--base-url" in err
    assert wrong in err


def test_a_folder_in_path_order(site: Path, rows: Callable[..., tuple[int, list[dict[str, Any]], str]]) -> None:
    code, found, err = rows(site, "--base-url", BASE)
    assert (code, err) == (0, "")
    names = ["a.html", "index.html", "island.xhtml", "sub/b.html", "sub/c.HTM"]
    assert [row["url"] for row in found] == [BASE + name for name in names]
    newest = 1_700_000_004  # the text file is newer, and doesn't count
    assert [row["fetched_at"] for row in found] == [newest + i for i in range(5)]
    assert found[0]["last_modified"] == 1_700_000_001
    assert found[0]["etag"] == f'"{(site / "a.html").stat().st_size:x}-{1_700_000_001:x}"'
    assert found[0]["base"] == "/docs/sub/"
    assert found[0]["links"] == ["c.HTM", "../"]
    assert {row["status"] for row in found} == {200}
    assert not any("depth" in row for row in found)
    for row in found:
        decode_event(orjson.dumps(row))


def test_a_folder_as_a_crawl_from_its_start_page(
    site: Path, rows: Callable[..., tuple[int, list[dict[str, Any]], str]]
) -> None:
    code, found, _ = rows(site, "--base-url", BASE, "--depth-from-start", "--fetched-at", "10")
    assert code == 0
    depths = [(row["url"].removeprefix(BASE), row.get("depth"), row["fetched_at"]) for row in found]
    assert depths == [
        ("index.html", 0, 10),
        ("a.html", 1, 11),
        ("sub/b.html", 1, 12),
        ("sub/c.HTM", 2, 13),
        ("island.xhtml", None, 14),
    ]
    _, found, _ = rows(site, "--base-url", BASE, "--start", "./sub/b.html")
    assert [(row["url"].removeprefix(BASE), row.get("depth")) for row in found] == [
        ("sub/b.html", 0),
        ("a.html", 1),
        ("sub/c.HTM", 2),
        # `../` of a.html leads to /docs/, which is index.html
        ("index.html", 2),
        ("island.xhtml", None),
    ]


def test_a_missing_start_page_is_wrong_use(
    site: Path, rows: Callable[..., tuple[int, list[dict[str, Any]], str]]
) -> None:
    code, found, err = rows(site, "--base-url", BASE, "--start", "none.html")
    assert (code, found) == (2, [])
    assert "none.html" in err


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_files_hold_the_same_as_standard_output_and_are_reproducible(
    suffix: str, site: Path, tmp_path: Path, rows: Callable[..., tuple[int, list[dict[str, Any]], str]]
) -> None:
    _, expected, _ = rows(site, "--base-url", BASE)
    contents = []
    for name in ("one", "two"):
        output = tmp_path / (name + suffix)
        assert rows(site, "--base-url", BASE, "--output", output) == (0, [], "")
        contents.append(output.read_bytes())
    assert contents[0] == contents[1]
    match suffix:
        case ".jsonl.gz":
            plain = gzip.decompress(contents[0])
        case ".jsonl.zst":
            plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(contents[0])).read()
        case _:
            plain = contents[0]
    assert [orjson.loads(line) for line in plain.splitlines()] == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["site", "one" + suffix, "two" + suffix])


def test_output_of_another_kind_is_wrong_use(
    site: Path, tmp_path: Path, rows: Callable[..., tuple[int, list[dict[str, Any]], str]]
) -> None:
    code, _, err = rows(site, "--base-url", BASE, "--output", tmp_path / "x.json")
    assert code == 2
    assert ".jsonl.zst" in err
    code, _, err = rows(site, "--base-url", BASE, "--output", tmp_path / "none" / "x.jsonl")
    assert code == 70
    assert err.count("\n") == 1
    assert "can't be written" in err


def test_unreadable_files_are_named_and_skipped(
    site: Path, rows: Callable[..., tuple[int, list[dict[str, Any]], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / "dangling.html").symlink_to("nowhere")
    os.mkfifo(site / "pipe.html")
    (site / "large.html").write_bytes(b"x" * 2000)
    (site / "folder.html").mkdir()
    monkeypatch.setattr(command, "FILE_LIMIT", 1999)
    code, found, err = rows(site, "--base-url", BASE, "--depth-from-start")
    assert code == 1
    assert len(found) == 5
    assert sorted(line.split(":")[0] for line in err.splitlines()) == [
        "skipped dangling.html",
        "skipped large.html",
        "skipped pipe.html",
    ]


def test_a_start_page_that_can_not_be_read_leaves_the_rest_without_depth() -> None:
    def read(path: str) -> bytes:
        if path == "index.html":
            raise PermissionError(13, "Permission denied", path)
        return b"<a href=index.html>"

    skipped: list[tuple[str, str]] = []
    lines = page_events(
        [HtmlFile("a.html", 3), HtmlFile("index.html", 4)],
        read,
        SiteFolder(BASE),
        lambda path, reason: skipped.append((path, reason)),
        fetched_at=100,
        start="index.html",
    )
    (row,) = (orjson.loads(line) for line in lines)
    assert skipped == [("index.html", "Permission denied")]
    assert (row["url"], row["fetched_at"], "depth" in row) == (BASE + "a.html", 100, False)


def test_pages_that_a_reader_would_refuse_are_skipped() -> None:
    contents = {
        "links.html": b"<a href=x>" * 50_001,
        "text.html": b"x" * (8 << 20),
        "fits.html": b"<a href=x>" * 50_000,
    }
    skipped = {}
    lines = page_events(
        [HtmlFile(path, 0) for path in contents],
        contents.__getitem__,
        SiteFolder(BASE),
        skipped.__setitem__,
        fetched_at=0,
    )
    (line,) = lines
    assert len(orjson.loads(line)["links"]) == 50_000
    assert set(skipped) == {"links.html", "text.html"}
    assert "50001 links" in skipped["links.html"]


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_a_folder_that_holds_nothing_readable(
    kind: str, tmp_path: Path, rows: Callable[..., tuple[int, list[dict[str, Any]], str]]
) -> None:
    folder = tmp_path / kind
    if kind == "file":
        folder.write_text("x")
    elif kind == "empty":
        folder.mkdir()
    code, found, err = rows(folder, "--base-url", BASE)
    assert (code, found) == (3, [])
    assert err.startswith(f"meguri: {folder}: ")
    assert err.count("\n") == 1


def test_a_failing_disk_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "x.jsonl.zst"

    def fail_with(problem: BaseException) -> None:
        with command.open_output(target) as write:
            write(b"{}\n")
            raise problem

    with pytest.raises(MeguriError, match="No space left"):
        fail_with(OSError(28, "No space left on device"))
    assert list(tmp_path.iterdir()) == []
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        fail_with(KeyboardInterrupt())
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.html").write_text("word " * 20_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "meguri", "events", "from-html", str(tmp_path), "--base-url", BASE],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.read(10) == b'{"type":"p'
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


def test_documentation_pages_agree_with_an_independent_reading(test_data: Path) -> None:
    """The shipped example and another program's reading of the same pages: same links and text, contacts apart."""
    example = Path(__file__).resolve().parents[2] / "examples" / "sqlite-docs.jsonl.zst"
    other = test_data / "data" / "docs-crawl-text.jsonl.zst"
    if not example.is_file() or not other.is_file():
        pytest.skip("no second reading of the example's pages")

    def read(path: Path) -> list[dict[str, Any]]:
        with path.open("rb") as raw, zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw) as stream:
            return [orjson.loads(line) for line in stream.read().split(b"\n") if line]

    ours = {row["url"]: row for row in read(example)}
    ours[SiteFolder("https://www.sqlite.org/").base] = ours["https://www.sqlite.org/index.html"]
    pairs = [(ours[row["url"]], row) for row in read(other) if row["url"] in ours]
    if not pairs:
        pytest.skip("no page of the example in the second reading")
    # The second reading replaces names and mail addresses in its own way, within words and hrefs.
    same_text = sum(mine["text"].split() == row["text"].split() for mine, row in pairs)
    same_links = sum(mine["links"] == row["links"] for mine, row in pairs)
    assert all(len(mine["links"]) == len(row["links"]) for mine, row in pairs)
    assert all(mine.get("canonical") == row["canonical"] for mine, row in pairs)
    assert same_text >= 0.9 * len(pairs)
    assert same_links >= 0.9 * len(pairs)
