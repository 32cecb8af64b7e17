"""Input that is no input: lines, files. What can't be used is named with file and line, the rest is processed."""

from __future__ import annotations

import gzip
import json
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from program import AT, assert_sums, encoded, here, rejects, small_crawl, urls_of, write_lines

from meguri_common.events.model import EVENT_LIMIT, ITEM_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = 0
"""Exit codes, as documented."""
REJECTED, WRONG_USE, UNREADABLE = 1, 2, 3

TOO_MUCH = 16 << 20
"""Canonical bytes that one event's links may take."""


def page(number: int, **fields: Any) -> dict[str, Any]:
    return {"url": f"http://good{number}.example/", "fetched_at": AT, "links": ["/link"], **fields}


def good_urls(*numbers: int) -> set[str]:
    return {f"http://good{number}.example/{path}" for number in numbers for path in ("", "link")}


def run(data: Path, *inputs: Path | str, code: int, stdin: bytes = b"") -> dict[str, Any]:
    """Run inputs; the closing document, its sums checked."""
    done = here("run", *inputs, "--data", data, "--partitions", "2", "--json", stdin=stdin)
    assert done.code == code, done.err
    document = done.document
    assert_sums(document)
    document["said"] = done.err
    return document


def between_good_lines(bad: list[bytes]) -> bytes:
    """Bad lines on even line numbers, good ones before, between and behind them."""
    lines = [encoded(page(0))]
    for number, line in enumerate(bad, start=1):
        lines += [line + b"\n", encoded(page(number))]
    return b"".join(lines)


def check_each_rejected(folder: Path, bad: list[bytes], wanted: list[tuple[str, str]]) -> None:
    """Each of the lines is rejected for its reason, with its file and line; every good line comes through."""
    source = write_lines(folder / "in.jsonl", [between_good_lines(bad)])
    document = run(folder / "data", source, code=REJECTED)
    assert document["events_rejected"] == len(bad)
    assert document["pages"] == len(bad) + 1
    assert f"{len(bad)} events were rejected" in document["said"]
    found = sorted(rejects(folder / "data"), key=lambda row: row["line"])
    assert [(row["file"], row["line"]) for row in found] == [(str(source), 2 * n) for n in range(1, len(bad) + 1)]
    for row, line, (reason, detail) in zip(found, bad, wanted, strict=True):
        assert row["reason"] == reason, f"{line[:200]!r}: {row}"
        assert detail in re.sub(r"\[\d+\]", "[...]", row["detail"]), f"{line[:200]!r}: {row}"
    assert set(urls_of(folder / "data")) == good_urls(*range(len(bad) + 1))


# -- lines

NO_EVENTS: list[tuple[bytes, str]] = [
    (b'{"url": "http://x.example/", "fetched_at": 1', "invalid_json"),
    (b'{"url": "http://x.exa', "invalid_json"),
    (b"{", "invalid_json"),
    (b"}", "invalid_json"),
    (b"x", "invalid_json"),
    (b'{"url": "http://x.example/", "fetched_at": 1}}', "invalid_json"),
    (b'{"url": "http://x.example/", "fetched_at": 1} {"url": 1}', "invalid_json"),
    (b'{"url": "http://x.example/", "fetched_at": NaN}', "invalid_json"),
    (b"{'url': 'http://x.example/', 'fetched_at': 1}", "invalid_json"),
    (b"\xef\xbb\xbf" + b'{"url": "http://x.example/", "fetched_at": 1}', "invalid_json"),
    (b'{"url": "http://x.example/\t", "fetched_at": 1}', "invalid_json"),
    (b'{"url": "http://x.example/\0", "fetched_at": 1}', "invalid_json"),
    (b'\0{"url": "http://x.example/", "fetched_at": 1}', "invalid_json"),
    (b'{"links": ' + b"[" * 100_000, "invalid_json"),
    (b"[" * 100_000, "invalid"),
    (b'{"url": "http://x.example/\xff", "fetched_at": 1}', "invalid_utf8"),
    (b'{"url": "http://x.example/\xed\xa0\x80", "fetched_at": 1}', "invalid_utf8"),
    (b'{"url": "http://x.example/\xc0\xaf", "fetched_at": 1}', "invalid_utf8"),
    (b'{"unknown": "\xe2\x82", "url": "http://x.example/", "fetched_at": 1}', "invalid_utf8"),
    (bytes(byte for byte in range(256) if byte != 10), "invalid_utf8"),
    (random.Random(3).randbytes(5000).replace(b"\n", b""), "invalid_utf8"),
    (b"\x28\xb5\x2f\xfd\x04\x00", "invalid_utf8"),
    (b"5", "invalid"),
    (b'"http://x.example/"', "invalid"),
    (b"null", "invalid"),
    (b"[]", "invalid"),
    (b"{}", "invalid"),
    (b'{"url": "http://x.example/"}', "invalid"),
    (b'{"fetched_at": 1}', "invalid"),
    (b'{"type": "pages", "url": "http://x.example/", "fetched_at": 1}', "type"),
    (b'{"type": 5, "url": "http://x.example/", "fetched_at": 1}', "type"),
    (b'{"schema": 2, "url": "http://x.example/", "fetched_at": 1}', "schema"),
    (b'{"schema": "1", "url": "http://x.example/", "fetched_at": 1}', "schema"),
    (b'{"url": "", "fetched_at": 1}', "url"),
    (b'{"url": "/relative", "fetched_at": 1}', "url"),
    (b'{"url": "ftp://x.example/", "fetched_at": 1}', "url"),
    (b'{"url": "http://x.example:99999/", "fetched_at": 1}', "url"),
    (b'{"url": "http://x\\u0000.example/", "fetched_at": 1}', "url"),
    (b'{"url": "http://x.example/' + b"a" * 100_000 + b'", "fetched_at": 1}', "url"),
    (b'{"url": "http://x.example/", "fetched_at": 99999999999}', "future"),
    (b'{"url": "http://\\ud800.example/", "fetched_at": 1}', "invalid"),
    (b'{"type": "seed", "schema": 1, "urls": [], "observed_at": 1}', "invalid"),
    (b'{"type": "seed", "schema": 1, "urls": ["http://a.example/", "mailto:x"], "observed_at": 1}', "url"),
    (b'{"type": "seed", "urls": ["http://a.example/", "http://b.example/"], "observed_at": 1}', "mixed_hosts"),
    (b'{"type": "control", "schema": 1, "at": 1, "action": "vouch"}', "invalid"),
    (b'{"type": "control", "schema": 1, "at": 1, "action": "vouch", "host": "a/b"}', "host"),
    (b'{"type": "control", "schema": 1, "at": 1, "action": "vouch", "host": ""}', "host"),
    (b'{"type": "sitemap", "schema": 1, "url": "x", "observed_at": 1, "entries": []}', "url"),
]  # fmt: skip


def test_lines_that_are_no_events(tmp_path: Path) -> None:
    check_each_rejected(tmp_path, [line for line, _ in NO_EVENTS], [(reason, "") for _, reason in NO_EVENTS])


WHOLE: list[dict[str, Any]] = [
    {
        "type": "page", "url": "http://x.example/", "fetched_at": AT, "schema": 1, "status": 200, "error": "dns",
        "depth": 1, "links": ["a", {"href": "b", "text": "t", "rel": "r"}], "base": "/", "charset": "utf-8",
        "redirect": "/r", "canonical": "/c", "text": "t", "content_fp": "1f", "simhash": "0", "pipeline": "p/1",
        "etag": "e", "last_modified": 5, "not_modified": False, "latency_ms": 1, "retry_after_s": 1,
        "crawl_delay_ds": 1, "ip": "192.0.2.1", "cert_names": ["a"], "analytics_ids": ["b"],
    },
    {"type": "seed", "schema": 1, "urls": ["http://x.example/"], "observed_at": AT, "cash": 1.0},
    {
        "type": "sitemap", "schema": 1, "url": "http://x.example/s", "observed_at": AT,
        "entries": [{"loc": "/a", "lastmod": "2020", "priority": 0.5}],
    },
    {
        "type": "signal", "schema": 1, "epoch": AT, "hosts": [{"host": "x.example", "score": 1.0}],
        "urls": [{"url": "http://x.example/", "page_rank": 1.0}],
    },
    {"type": "control", "schema": 1, "at": AT, "action": "budget", "host": "x.example", "value": 3},
    {"type": "control", "schema": 1, "at": AT, "action": "flag", "url": "http://x.example/", "value": 3},
]  # fmt: skip


def wrong_values(path: str, value: Any) -> list[Any]:
    """Values of a wrong type or beyond the bounds of what a field takes."""
    match value:
        case bool():
            return [1, "true", {}]
        case int():
            out: list[Any] = ["5", 1.5, True, {}, [], 1 << 63, -(1 << 63)]
            return [item for item in out if not (path == "$.value" and item in (1.5, 1 << 63))]
        case float():
            return ["5", True, {}, []]
        case str():
            return [item for item in (5, True, {}, ["x"]) if not (path.endswith(".lastmod") and item == 5)]
        case list():
            return ["x", 5, {}, [5], [None], [[]]]
    raise AssertionError(value)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """All fields, those of objects in lists too."""
    if isinstance(value, dict):
        return [place for name, item in value.items() for place in [(*path, name), *places(item, (*path, name))]]
    if isinstance(value, list):
        return [place for at, item in enumerate(value) if isinstance(item, dict) for place in places(item, (*path, at))]
    return []


def json_path(place: tuple[str | int, ...]) -> str:
    """The place as the detail of a reject names it: positions in lists are left open."""
    return "$" + "".join("[...]" if isinstance(part, int) else f".{part}" for part in place)


def replaced(event: dict[str, Any], place: tuple[str | int, ...], value: Any) -> bytes:
    changed: Any = json.loads(json.dumps(event))
    inner = changed
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    return json.dumps(changed).encode()


def test_each_field_of_each_kind_with_wrong_values(tmp_path: Path, say: Callable[[str, str], None]) -> None:
    bad, wanted = [], []
    for event in WHOLE:
        for place in places(event):
            value: Any = event
            for part in place:
                value = value[part]
            for wrong in wrong_values(json_path(place), value):
                bad.append(replaced(event, place, wrong))
                reason = {"type": "type", "schema": "schema"}.get(str(place[-1]), "invalid")
                wanted.append((reason, json_path(place)))
    assert len(bad) > 200
    check_each_rejected(tmp_path, bad, wanted)
    say("end to end, wrong fields", f"{len(bad)} events rejected with the field's path")


def test_the_events_that_were_spoilt_are_good_themselves(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [encoded(*WHOLE)])
    assert run(tmp_path / "data", source, code=GOOD)["events_rejected"] == 0


def padded(number: int, size: int) -> bytes:
    """A good page whose line takes exactly so many bytes."""
    line = json.dumps(page(number, unknown="")).encode()
    return line[:-2] + b"x" * (size - len(line)) + b'"}'


@pytest.mark.parametrize("name", ["in.jsonl", "in.jsonl.zst"])
@pytest.mark.parametrize("end", [b"\n", b""], ids=["ended", "open"])
def test_lines_around_the_limit(name: str, end: bytes, tmp_path: Path) -> None:
    lines = [
        encoded(page(0)),
        padded(1, EVENT_LIMIT) + b"\n",
        encoded(page(2)),
        padded(3, EVENT_LIMIT + 1) + b"\n",
        encoded(page(4)),
        padded(5, 3 * EVENT_LIMIT) + b"\n",
        padded(6, EVENT_LIMIT + 1) + b"\n",
        padded(7, EVENT_LIMIT - 1) + b"\n",
        padded(8, EVENT_LIMIT + 1) + end,
    ]
    source = write_lines(tmp_path / name, lines)
    document = run(tmp_path / "data", source, code=REJECTED)
    assert (document["pages"], document["events_rejected"]) == (5, 4)
    found = rejects(tmp_path / "data")
    assert [(row["reason"], row["line"]) for row in found] == [("too_large", line) for line in (4, 6, 7, 9)]
    assert {row["file"] for row in found} == {str(source)}
    assert set(urls_of(tmp_path / "data")) == good_urls(0, 1, 2, 4, 7)
    again = run(tmp_path / "data", source, code=GOOD)
    assert (again["pages"], again["events_rejected"]) == (document["pages"], 4), "known, not read again"


def test_an_open_last_line_at_the_limit(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [encoded(page(0)), padded(1, EVENT_LIMIT)])
    run(tmp_path / "data", source, code=GOOD)
    assert set(urls_of(tmp_path / "data")) == good_urls(0, 1)


def test_as_many_links_as_allowed_and_one_more(tmp_path: Path) -> None:
    many = [f"/{number % 1000}" for number in range(ITEM_LIMIT)]
    lines = [page(0), page(1, links=many), page(2, links=[*many, "/last"]), page(3)]
    document = run(tmp_path / "data", write_lines(tmp_path / "in.jsonl", [encoded(*lines)]), code=REJECTED)
    assert (document["pages"], document["links"]) == (3, ITEM_LIMIT + 2)
    (row,) = rejects(tmp_path / "data")
    assert (row["reason"], row["line"]) == ("too_many_links", 3)


@pytest.mark.parametrize("where", ["base", "url"])
def test_short_links_under_a_long_base(where: str, tmp_path: Path) -> None:
    """Each link would grow to 8 kB, all of them to 400 MB."""
    base = "http://long.example/" + "b" * 7980 + "/"
    links = [f"{number:05}" for number in range(ITEM_LIMIT)]
    lines = [page(0), page(1, links=links, **{where: base}), page(2)]
    document = run(tmp_path / "data", write_lines(tmp_path / "in.jsonl", [encoded(*lines)]), code=GOOD)
    kept = TOO_MUCH // len(base + links[0])
    assert document["links_rejected"] == {"too_much": ITEM_LIMIT - kept}
    assert document["links_new"] == kept + 2
    assert good_urls(0, 2) <= set(urls_of(tmp_path / "data"))


def test_urls_of_100_kilobytes(tmp_path: Path) -> None:
    long = "http://x.example/" + "a" * 100_000
    tail = "b" * 100_000
    lines = [
        page(0, links=[long, "/link", tail, f"?{tail}", f"#{tail}", f"http://{tail}"]),
        page(1, base=long),
        page(2, status=301, redirect=long, canonical=long, etag=tail, charset=tail),
    ]
    document = run(tmp_path / "data", write_lines(tmp_path / "in.jsonl", [encoded(*lines)]), code=GOOD)
    assert document["links"] == 6 + 2
    # The fragment goes, so that link is fine; the long base counts as absent.
    assert document["links_rejected"] == {"too_long": 4}
    assert good_urls(0, 1, 2) <= set(urls_of(tmp_path / "data"))


def test_a_lone_surrogate_costs_its_string(tmp_path: Path) -> None:
    lines = [
        b'{"url": "http://good0.example/", "fetched_at": 1, "links": ["/a\\ud800", "/link", "/\\ud83d\\ude00"]}\n',
        b'{"url": "http://good1.example/", "fetched_at": 1, "links": ["/link"], "base": "\\udc00", "ip": "\\ud800"}\n',
        b'{"url": "http://good2.example/", "fetched_at": 1, "links": ["/link"], "etag": "\\ud800", "\\ud800": {}}\n',
        b'{"url": "http://good3.example/", "fetched_at": 1, "links": [{"href": "/\\ud800"}, {"href": "/link"}]}\n',
    ]
    document = run(tmp_path / "data", write_lines(tmp_path / "in.jsonl", lines), code=GOOD)
    assert (document["pages"], document["links"]) == (4, 5)
    assert set(urls_of(tmp_path / "data")) == good_urls(0, 1, 2, 3) | {"http://good0.example/%F0%9F%98%80"}


# -- files


def test_files_without_events(tmp_path: Path) -> None:
    """Nothing in them, and nothing wrong with them."""
    empty = write_lines(tmp_path / "empty.jsonl", [])
    packed = write_lines(tmp_path / "empty.jsonl.zst", [])
    named = tmp_path / "no-bytes.jsonl.zst"
    named.write_bytes(b"")
    lines = write_lines(tmp_path / "lines.jsonl", [b"\n" * 1_000_000])
    blanks = write_lines(tmp_path / "blanks.jsonl", [b" \t\r\n" * 1000])
    document = run(tmp_path / "data", empty, packed, named, lines, blanks, code=GOOD)
    assert document["pages"] == document["urls_total"] == document["events_rejected"] == 0
    assert not urls_of(tmp_path / "data")


def test_a_million_empty_lines_count_as_lines(tmp_path: Path) -> None:
    lines = [encoded(page(0)), b"\n" * 1_000_000, encoded(page(1)), b"broken\n"]
    run(tmp_path / "data", write_lines(tmp_path / "in.jsonl.zst", lines), code=REJECTED)
    (row,) = rejects(tmp_path / "data")
    assert row["line"] == 1_000_003
    assert set(urls_of(tmp_path / "data")) == good_urls(0, 1)


def test_line_ends(tmp_path: Path) -> None:
    crlf = encoded(page(0), page(1), b"broken").replace(b"\n", b"\r\n")
    open_end = encoded(page(2), page(3))[:-1]
    sources = write_lines(tmp_path / "crlf.jsonl", [crlf]), write_lines(tmp_path / "open.jsonl", [open_end])
    document = run(tmp_path / "data", *sources, code=REJECTED)
    assert (document["pages"], document["events_rejected"]) == (4, 1)
    assert [(row["file"], row["line"]) for row in rejects(tmp_path / "data")] == [(str(sources[0]), 3)]
    assert set(urls_of(tmp_path / "data")) == good_urls(0, 1, 2, 3)


def test_inputs_that_cannot_be_opened(tmp_path: Path) -> None:
    """Each is named; the others are processed."""
    good = write_lines(tmp_path / "good.jsonl", [encoded(page(0))])
    folder, missing = tmp_path / "folder.jsonl", tmp_path / "missing.jsonl.zst"
    folder.mkdir()
    document = run(tmp_path / "data", missing, folder, good, code=UNREADABLE)
    assert len(document["inputs_unreadable"]) == 2
    for path, problem in zip((missing, folder), document["inputs_unreadable"], strict=True):
        assert problem.startswith(f"{path}: ")
        assert problem in document["said"]
    assert set(urls_of(tmp_path / "data")) == good_urls(0)


@pytest.mark.parametrize(("suffix", "what"), [(".zst", "zstd"), (".gz", "gzip")])
def test_a_file_that_is_not_what_its_name_says(suffix: str, what: str, tmp_path: Path) -> None:
    liar = tmp_path / f"in.jsonl{suffix}"
    liar.write_bytes(encoded(page(0)))
    document = run(tmp_path / "data", liar, code=UNREADABLE)
    (problem,) = document["inputs_unreadable"]
    assert str(liar) in problem
    assert what in problem
    assert document["pages"] == 0


def compressed(content: bytes, kind: str) -> bytes:
    return gzip.compress(content, 1) if kind == "gz" else zstandard.ZstdCompressor(level=1).compress(content)


def readable(blob: bytes, kind: str) -> bytes:
    """What can be read of compressed bytes that break off, by the library's own lights."""
    if kind == "gz":
        import zlib  # noqa: PLC0415 - this case alone

        return zlib.decompressobj(wbits=31).decompress(blob)
    return zstandard.ZstdDecompressor().decompressobj().decompress(blob)


@pytest.mark.parametrize("kind", ["zst", "gz"])
@pytest.mark.parametrize("pages", [1000, 6000])
def test_a_file_that_was_cut_off(kind: str, pages: int, tmp_path: Path) -> None:
    """The whole lines before the cut are processed, the torn one isn't rejected; the rest follows with the file."""
    rng = random.Random(5)
    events = [page(number, links=[f"/{rng.randbytes(200).hex()}"]) for number in range(pages)]
    blob = compressed(encoded(*events), kind)
    source = tmp_path / f"in.jsonl.{kind}"
    source.write_bytes(blob[: len(blob) * 2 // 3])
    whole_lines = readable(source.read_bytes(), kind).count(b"\n")
    assert 0 < whole_lines < pages
    good = write_lines(tmp_path / "good.jsonl", [encoded(page(pages))])
    document = run(tmp_path / "data", source, good, code=UNREADABLE)
    (problem,) = document["inputs_unreadable"]
    assert str(source) in problem
    assert "cut off" in problem
    assert (document["pages"], document["events_rejected"]) == (whole_lines + 1, 0)
    source.write_bytes(blob)
    whole = run(tmp_path / "data", source, code=GOOD)
    assert (whole["pages"], whole["links"]) == (pages + 1, pages + 1)
    assert whole["this_run"]["pages"] == pages - whole_lines


def test_damage_inside_a_frame(tmp_path: Path) -> None:
    """A frame's checksum tells; the frames before it count."""
    first = zstandard.ZstdCompressor(write_checksum=True).compress(encoded(page(0)))
    second = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(encoded(page(1))))
    second[-1] ^= 1
    source = tmp_path / "in.jsonl.zst"
    source.write_bytes(first + bytes(second))
    document = run(tmp_path / "data", source, code=UNREADABLE)
    assert str(source) in document["inputs_unreadable"][0]
    assert good_urls(0) <= set(urls_of(tmp_path / "data"))


def test_standard_input(tmp_path: Path) -> None:
    document = run(tmp_path / "data", "-", code=REJECTED, stdin=encoded(page(0), b"broken", page(1)))
    assert document["pages"] == 2
    assert [(row["file"], row["line"]) for row in rejects(tmp_path / "data")] == [("-", 2)]
    packed = compressed(encoded(page(2)), "zst")
    assert run(tmp_path / "data", "-", code=GOOD, stdin=packed)["this_run"]["pages"] == 1


def test_some_bytes_of_a_crawl_changed(tmp_path: Path) -> None:
    """Lines with random damage: each is a page or a reject, none is lost, none stops the rest."""
    rng = random.Random(11)
    whole = [encoded(event)[:-1] for event in small_crawl()] * 12
    lines = []
    for line in whole:
        damaged = bytearray(line)
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(damaged))
            match rng.randrange(3):
                case 0:
                    damaged[at] = rng.randrange(256)
                case 1:
                    del damaged[at : at + rng.randrange(1, 20)]
                case 2:
                    damaged[at:at] = rng.randbytes(rng.randrange(1, 4))
            damaged = damaged or bytearray(b"x")
        lines.append(bytes(damaged).replace(b"\n", b" ") + b"\n")
    source = write_lines(tmp_path / "in.jsonl", lines)
    document = run(tmp_path / "data", source, code=REJECTED)
    found = rejects(tmp_path / "data")
    assert 20 < len(found) == document["events_rejected"] < len(lines)
    assert all(row["file"] == str(source) and 1 <= row["line"] <= len(lines) for row in found)
    assert len({row["line"] for row in found}) == len(found)


# -- options


@pytest.mark.parametrize(
    "options",
    [
        ["--partitions", "0"],
        ["--partitions", "5000"],
        ["--set", "nonsense"],
        ["--set", "prioritizer.base_budget=x"],
        ["--nonsense"],
    ],
)
def test_wrong_use(options: list[str], tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in.jsonl", [encoded(page(0))])
    done = here("run", source, "--data", tmp_path / "data", *options)
    assert done.code == WRONG_USE, done.err
    assert not (tmp_path / "data").exists()


def test_operators_options_that_cannot_be_used(tmp_path: Path) -> None:
    """They are events, so they are rejected as such."""
    done = here("run", "--seed", "mailto:x", "--vouch", "a/b", "--data", tmp_path / "data", "--json")
    assert done.code == REJECTED
    assert done.document["events_rejected"] == 2
    assert {(row["file"], row["line"]) for row in rejects(tmp_path / "data")} == {("(options)", 1), ("(options)", 2)}
