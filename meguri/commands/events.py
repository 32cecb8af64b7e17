"""`meguri events`: make page events out of what is at hand."""

from __future__ import annotations

import gzip
import os
import stat
import sys
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

import click
import zstandard

from meguri.html_events import INDEX, SiteFolder, encode_page, page_event
from meguri_common.errors import InputUnreadable, MeguriError
from meguri_common.events import EVENT_LIMIT, ITEM_LIMIT, PageEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["HtmlFile", "events", "list_html", "open_output", "page_events", "read_page"]

HTML_SUFFIXES = (".html", ".htm", ".xhtml")
OUTPUT_SUFFIXES = (".jsonl", ".jsonl.zst", ".jsonl.gz")
FILE_LIMIT = 64 << 20
"""Bytes of an HTML file; its tree takes several times as much memory."""
_ZSTD_LEVEL = 12
_EXIT_SKIPPED = 1


class HtmlFile(NamedTuple):
    """An HTML file of the folder: its path there, with `/`, and its modification time in epoch seconds."""

    path: str
    modified: int


def _known_suffix(_: click.Context, __: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and not value.name.endswith(OUTPUT_SUFFIXES):
        raise click.BadParameter(f"{str(value)!r} ends in none of {', '.join(OUTPUT_SUFFIXES)}")
    return value


@click.group()
def events() -> None:
    """Make page events out of what is at hand."""


@events.command("from-html")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--base-url", required=True, metavar="URL", help="Where the folder stands on the web.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=_known_suffix,
    help=f"Instead of standard output; its name ends in {', '.join(OUTPUT_SUFFIXES)}.",
)
@click.option(
    "--depth-from-start",
    is_flag=True,
    help="Follow the links from the start page: crawl order, with each page's depth.",
)
@click.option("--start", metavar="PATH", help=f"Start page within DIR, by default {INDEX}; implies --depth-from-start.")
@click.option(
    "--fetched-at",
    metavar="EPOCH",
    type=click.IntRange(min=0),
    help="Time of the first page, one second more for each further one; by default that of the newest file.",
)
def from_html(
    folder: Path,
    base_url: str,
    output: Path | None,
    depth_from_start: bool,
    start: str | None,
    fetched_at: int | None,
) -> int:
    """Turn a folder of HTML files into page events, as if each had been fetched.

    One JSON event a line: the links as authored, base, canonical, visible text and validators of every .html, .htm and
    .xhtml file below DIR. Equal folders give equal events.

    \b
    Exit codes: 0 done; 1 done, but some files were skipped (named on standard error);
    2 wrong use; 3 the folder can't be read; 70 the output can't be written.

    \b
    Examples:
      meguri events from-html ./site --base-url https://www.example.org/docs/ > site.jsonl
      meguri events from-html ./site --base-url https://www.example.org/ \\
          --depth-from-start --output site.jsonl.zst
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    try:
        site = SiteFolder(base_url)
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="--base-url") from None
    skipped: list[str] = []

    def skip(path: str, reason: str) -> None:
        skipped.append(path)
        click.echo(f"skipped {path}: {reason}", err=True)

    files = list_html(folder, skip)
    if not files:
        raise InputUnreadable(f"{folder}: no file there ends in {', '.join(HTML_SUFFIXES)}")
    begin: str | None = None
    if depth_from_start or start is not None:
        begin = Path(start or INDEX).as_posix()
        if all(file.path != begin for file in files):
            raise click.BadParameter(f"there is no {begin} in {folder}: name the start page", param_hint="--start")
    first = max(file.modified for file in files) if fetched_at is None else fetched_at
    found = page_events(files, lambda path: read_page(folder / path), site, skip, fetched_at=max(first, 0), start=begin)
    with open_output(output) as write:
        for page in _watched(found, len(files)):
            write(page)
    return _EXIT_SKIPPED if skipped else 0


def list_html(folder: Path, skip: Callable[[str, str], None]) -> list[HtmlFile]:
    """HTML files below a folder, ordered by path. Links to files are followed, links to folders are not.

    Args:
        folder: where to look.
        skip: told the path and the reason of what can't be read.

    Raises:
        InputUnreadable: the folder itself can't be listed.
    """

    def unreadable(problem: OSError) -> None:
        if Path(problem.filename) == folder:
            raise InputUnreadable(f"{folder}: can't be listed: {problem.strerror}") from problem
        skip(Path(problem.filename).relative_to(folder).as_posix(), f"can't be listed: {problem.strerror}")

    found = []
    for place, _, names in os.walk(folder, onerror=unreadable):
        for name in names:
            if not name.lower().endswith(HTML_SUFFIXES):
                continue
            file = Path(place, name)
            path = file.relative_to(folder).as_posix()
            try:
                status = file.stat()
            except OSError as problem:
                skip(path, problem.strerror or str(problem))
                continue
            if not stat.S_ISREG(status.st_mode):
                skip(path, "not a regular file")
                continue
            found.append(HtmlFile(path, int(status.st_mtime)))
    found.sort()
    return found


def read_page(file: Path) -> bytes:
    """Content of an HTML file.

    Raises:
        OSError: it can't be read.
        MeguriError: it is larger than `FILE_LIMIT`.
    """
    with file.open("rb") as stream:
        data = stream.read(FILE_LIMIT + 1)
    if len(data) > FILE_LIMIT:
        raise MeguriError(f"larger than {FILE_LIMIT} bytes")
    return data


def page_events(
    files: Sequence[HtmlFile],
    read: Callable[[str], bytes],
    site: SiteFolder,
    skip: Callable[[str, str], None],
    *,
    fetched_at: int,
    start: str | None = None,
) -> Iterator[bytes]:
    """The events of the files, one a line, as bytes; one page is in memory at a time.

    In the order given; with a start page in the order of a crawl from there, breadth first, with depths, and at the
    end, without a depth, what its links don't lead to.

    Args:
        files: the pages.
        read: content of a file, by its path.
        site: paths to URLs.
        skip: told the path and the reason of a file that makes no event.
        fetched_at: epoch seconds of the first event; each further one comes a second later.
        start: path of the start page; one of `files`.
    """
    waiting = {file.path: file for file in files}
    reached: deque[tuple[HtmlFile, int]] = deque()
    if start is not None:
        reached.append((waiting.pop(start), 0))
    made = 0
    while reached or waiting:
        depth: int | None
        if reached:
            file, depth = reached.popleft()
        else:
            file, depth = waiting.pop(next(iter(waiting))), None
        try:
            data = read(file.path)
            page = page_event(
                data, url=site.url_of(file.path), fetched_at=fetched_at + made, depth=depth, modified=file.modified
            )
            line = _encoded(page)
        except (OSError, MeguriError) as problem:
            skip(file.path, getattr(problem, "strerror", None) or str(problem))
            continue
        made += 1
        yield line
        if depth is not None:
            reached.extend((waiting.pop(path), depth + 1) for path in site.targets(page) if path in waiting)


def _encoded(page: PageEvent) -> bytes:
    """The line of an event that a reader will not refuse."""
    if len(page.links) > ITEM_LIMIT:
        raise MeguriError(f"{len(page.links)} links, an event holds at most {ITEM_LIMIT}")
    line = encode_page(page)
    if len(line) > EVENT_LIMIT:
        raise MeguriError(f"its event takes {len(line)} bytes, at most {EVENT_LIMIT} are allowed")
    return line


@contextmanager
def open_output(path: Path | None, level: int = _ZSTD_LEVEL) -> Iterator[Callable[[bytes], object]]:
    """A writer of lines to a file, compressed as its name says, or to standard output.

    A file appears under its name when everything is in it, and not at all after an error.

    Raises:
        MeguriError: the file can't be written; names it.
    """
    if path is None:
        yield sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    # Beside the target, so that the rename stays within one file system.
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as raw:
            stream = _compressor(raw, path, level)
            yield stream.write
            if stream is not raw:
                stream.close()
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(path)
    except OSError as problem:
        raise MeguriError(f"{path}: can't be written: {problem.strerror or problem}") from problem
    finally:
        partial.unlink(missing_ok=True)


def _compressor(raw: BinaryIO, path: Path, level: int) -> BinaryIO:
    if path.suffix == ".zst":
        # Neither name nor time goes into the file: equal events make equal files.
        writer = zstandard.ZstdCompressor(level=level, write_checksum=True).stream_writer(raw, closefd=False)
        return cast("BinaryIO", writer)
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))
    return raw


def _watched(pages: Iterable[bytes], total: int) -> Iterator[bytes]:
    """The pages, with a progress bar on standard error if someone looks at it."""
    if not sys.stderr.isatty():
        yield from pages
        return
    from rich.console import Console  # noqa: PLC0415 - costs 100 ms, and is for a terminal alone
    from rich.progress import track  # noqa: PLC0415 - likewise

    yield from track(pages, "pages", total=total, console=Console(stderr=True), transient=True)
