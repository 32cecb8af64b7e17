"""The program as the end-to-end tests use it: in this process, where that is faithful, or as a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard

from meguri.__main__ import main
from meguri.embedded.campaign import open_campaign
from meguri.embedded.run import RunOptions, run_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "sqlite-docs.jsonl.zst"
AT = 1_700_000_000
"""Time of hand-made events, epoch seconds."""
NEVER_SAME = ("seconds", "cpu_seconds", "this_run", "store_bytes", "bytes_per_url")
"""Fields of the closing document that two equal campaigns may differ in: the files hold offsets and sequence numbers,
whose digits depend on how many messages and snapshots it took."""


@dataclass
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object that `--json` ends with."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def here(*arguments: str | Path, stdin: bytes = b"") -> Done:
    """Run the command line in this process."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    given, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
    finally:
        sys.stdin = given
        for number, handler in before.items():
            signal.signal(number, handler)
    out.seek(0)
    return Done(code, out.read(), err.getvalue())


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start the command line as a process, its output piped."""
    command = [sys.executable, "-m", "meguri", *map(str, arguments)]
    # Not in the checkout: what is installed is what is tested.
    options.setdefault("cwd", "/")
    options.setdefault("env", os.environ | {"COLUMNS": "120"})
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finish(process: subprocess.Popen[str], seconds: float = 120.0) -> Done:
    """Wait for a process to end; one that doesn't is killed, and the test fails."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Done(process.returncode, out, err)


def apart(*arguments: str | Path, **options: Any) -> Done:
    """Run the command line as a process."""
    return finish(start(*arguments, **options))


def campaign(
    data: Path, *inputs: Path, partitions: int | None = None, seeds: Sequence[str] = (), vouched: Sequence[str] = ()
) -> dict[str, Any]:
    """Run inputs into a data folder, below the command line; the closing document."""
    opened = open_campaign(data, partitions=partitions)
    try:
        result = run_inputs(opened, [str(path) for path in inputs], RunOptions(seeds, vouched))
    finally:
        opened.close()
    return result.document()


def exported(data: Path) -> tuple[list[str], list[str]]:
    """Every URL record and every host record, all columns, as lines in the order of the store."""
    urls, hosts = here("export", "--data", data), here("export", "--hosts", "--data", data)
    assert urls.code == 0, urls.err
    assert hosts.code == 0, hosts.err
    return urls.out.splitlines(), hosts.out.splitlines()


def urls_of(data: Path) -> list[str]:
    """The URLs exported, in the order of the store."""
    return [json.loads(line)["url"] for line in exported(data)[0]]


def lasting(document: dict[str, Any]) -> dict[str, Any]:
    """What equal campaigns have in common of their closing documents."""
    return {name: value for name, value in document.items() if name not in NEVER_SAME}


def assert_sums(document: dict[str, Any]) -> None:
    """The sums that every campaign must satisfy."""
    rejected = sum(document["links_rejected"].values())
    assert document["links"] == rejected + document["links_new"] + document["links_known"]
    assert document["cash_total"] == document["cash_minted"]
    assert document["urls_new"] == document["urls_total"]


def rejects(data: Path) -> list[dict[str, Any]]:
    """The rejected events, oldest first."""
    done = here("inspect", "--rejects", "-n", "100000", "--json", "--data", data)
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = done.document["rejects"]
    return found


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a .jsonl.zst file."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        yield from io.BufferedReader(reader, 1 << 20)


def write_lines(path: Path, lines: Iterable[bytes]) -> Path:
    """Write lines to a file, compressed if its name says so."""
    content = b"".join(lines)
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(content) if path.suffix == ".zst" else content)
    return path


def encoded(*events: dict[str, Any] | bytes) -> bytes:
    """Events as lines; bytes are lines as they are."""
    return b"".join((event if isinstance(event, bytes) else json.dumps(event).encode()) + b"\n" for event in events)


def small_crawl(seed: int = 7) -> list[dict[str, Any]]:
    """A few dozen events of all kinds, with the twists of real pages."""
    rng = random.Random(seed)
    events: list[dict[str, Any]] = [
        {"type": "control", "schema": 1, "at": AT, "action": "vouch", "host": "vouched.example"},
        {"type": "control", "schema": 1, "at": AT, "action": "budget", "host": "small.example", "value": 3},
        {"type": "control", "schema": 1, "at": AT, "action": "depth_cap", "host": "deep.example", "value": 2},
        {"type": "control", "schema": 1, "at": AT, "action": "crawl_delay", "host": "slow.example", "value": 50},
        {
            "type": "seed",
            "schema": 1,
            "urls": ["http://seeded.example/", "HTTP://www.Seeded.example:80/b?"],
            "observed_at": AT,
        },
        {"type": "seed", "schema": 1, "urls": ["http://bücher.example/"], "observed_at": AT, "cash": 2.5},
        {
            "type": "sitemap",
            "schema": 1,
            "url": "https://site.example/map.xml",
            "observed_at": AT,
            "entries": [{"loc": "/m1", "priority": 0.8}, {"loc": "https://site.example/m2", "lastmod": "2023-11-01"}],
        },
        {
            "type": "signal",
            "schema": 1,
            "epoch": AT,
            "hosts": [{"host": "site.example", "score": 3.5}],
            "urls": [{"url": "https://site.example/m1", "page_rank": 1.5}],
        },
    ]
    hrefs = [
        "/", "a", "./b/../c", "?q=1&utm_source=x", "#top", "", "//other.example/x", "http://small.example/1",
        "HTTP://SMALL.example:80/%7euser", "mailto:x@y.example", "javascript:void(0)", "http://[bad", "data:,x",
        "http://deep.example/a/b", "https://vouched.example/", "  /padded\n", "index.html", "/é?ü=ß", "http://1.2.3.4/",
        "tel:1", "https://bücher.example/x", "http://xn--bcher-kva.example/x",
        "a;jsessionid=0123456789ABCDEF0123456789ABCDEF",
    ]  # fmt: skip
    for number in range(24):
        host = f"www.h{number % 5}.example"
        links = rng.choices([*hrefs, *(f"http://small.example/{n}" for n in range(9))], k=rng.randrange(1, 25))
        page: dict[str, Any] = {"url": f"https://{host}/p{number}", "fetched_at": AT + number, "links": links}
        if number < 5:
            page["depth"] = 0
        if number % 7 == 3:
            page["base"] = rng.choice(["/sub/", "http://based.example/x/", "http://[bad", "mailto:x"])
        if number % 6 == 5:
            page["links"] = [{"href": href, "text": "t", "rel": "nofollow"} for href in links]
        events.append(page)
    events += [
        {"url": "https://www.h0.example/old", "fetched_at": AT + 50, "status": 301, "redirect": "/new"},
        {"url": "https://www.h1.example/old", "fetched_at": AT + 50, "status": 302, "redirect": "http://[bad"},
        {"url": "https://www.h2.example/old", "fetched_at": AT + 50, "redirect": "/not-taken"},
        {"url": "https://www.h3.example/gone", "fetched_at": AT + 50, "status": 410, "links": ["/from-gone"]},
        {"url": "https://www.h4.example/", "fetched_at": AT + 50, "status": 0, "error": "timeout"},
        {"url": "https://www.h0.example/p0", "fetched_at": AT, "links": ["/"], "depth": 0},
        {"url": "https://www.h0.example/p0", "fetched_at": AT + 999, "canonical": "/canonical-is-no-link", "etag": "e"},
        {"url": "https://www.h1.example/same", "fetched_at": AT + 51, "status": 304, "not_modified": True},
    ]
    return events
