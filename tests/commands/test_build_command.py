"""`meguri build` and `meguri import`: folders like any other, of which every service knows the URLs."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from meguri.__main__ import main
from meguri.embedded import building, campaign
from meguri_common.records import NO_DEPTH, Source, Status

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOW = 472_222
AT = NOW * 3600
URLS = [f"https://www.site{at % 7}.example/page/{at}?a={at % 3}&b=2" for at in range(400)]
LINES = [
    *URLS,
    *URLS[::3],
    "HTTP://Site1.Example:80/a/../page#top",
    "mailto:someone@site1.example",
    "/relative",
    "https://site1.example/" + "x" * 9000,
    "",
    "http://site1.example/page",
]
REFUSED = {"scheme": 1, "no_base": 1, "too_long": 1}
KNOWN = len(URLS) + 1


def run_command(*arguments: Any, stdin: bytes = b"") -> SimpleNamespace:
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
    text = out.read()
    document = json.loads(text) if "--json" in arguments and text else None
    return SimpleNamespace(code=code, out=text, err=err.getvalue(), document=document)


def build(data: Path, *inputs: Any, stdin: bytes = b"", options: tuple[Any, ...] = ()) -> dict[str, Any]:
    done = run_command("build", *inputs, "--data", data, "--now", NOW, "--json", *options, stdin=stdin)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.document
    return found


def exported(data: Path, *arguments: str) -> list[str]:
    done = run_command("export", "--data", data, *arguments)
    assert done.code == 0, done.err
    lines: list[str] = done.out.splitlines()
    return lines


def whole(data: Path) -> dict[str, Any]:
    done = run_command("inspect", "--verify", "--json", "--data", data)
    assert done.code == 0, done.err
    found: dict[str, Any] = done.document
    assert not [path for path in data.rglob(".*") if path.name.startswith((".build", ".import", ".new"))]
    return found


def pages(folder: Path, *links: str) -> Path:
    path = folder / "pages.jsonl"
    page = {"url": "https://hub.example/", "fetched_at": AT + 5, "depth": 0, "links": links}
    path.write_text(json.dumps(page) + "\n")
    return path


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lists") / "urls.txt"
    path.write_text("\n".join(LINES))
    return path


@pytest.fixture(scope="module")
def built(listed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("built") / "data"
    build(data, listed, options=("--partitions", 4))
    return data


def test_a_list_becomes_a_frontier(listed: Path, tmp_path: Path) -> None:
    found = build(tmp_path / "data", listed, options=("--partitions", 4))
    expected = {"lines": len(LINES) - 1, "bad_lines": 0, "refused": REFUSED, "urls": KNOWN, "hosts": 7}
    assert {name: found[name] for name in expected} == expected
    assert found["repeats"] == len(LINES) - 1 - sum(REFUSED.values()) - KNOWN
    assert found["bytes"] > 0
    assert found["bytes_per_url"] == round(found["bytes"] / KNOWN, 2)
    assert found["peak_memory"] > 1 << 20
    rows = [json.loads(line) for line in exported(tmp_path / "data")]
    assert {row["url"] for row in rows} >= {"http://site1.example/page", URLS[5]}
    stamps = ("status", "priority", "depth", "source", "first_seen", "next_due")
    assert {tuple(row[name] for name in stamps) for row in rows} == {
        (Status.SCHEDULED, 0.5, NO_DEPTH, Source.MANUAL, NOW, NOW)
    }
    hosts = {row["host_group"]: row for row in map(json.loads, exported(tmp_path / "data", "--hosts"))}
    assert hosts["site1.example"]["url_count"] == sum("site1." in url for url in URLS) + 1
    assert hosts["site1.example"]["url_budget"] == 64
    assert whole(tmp_path / "data")["urls"] == KNOWN


def test_every_command_that_looks_reads_it(built: Path) -> None:
    assert run_command("stats", "--json", "--data", built).document["urls_total"] == KNOWN
    assert len(run_command("top", "-n", "5", "--json", "--data", built).document["urls"]) == 5
    due = run_command("due", "--now", NOW, "-n", KNOWN + 9, "--json", "--data", built).document
    assert len(due["urls"]) == KNOWN
    explained = run_command("explain", URLS[0], "--json", "--data", built)
    assert explained.code == 0, explained.err
    assert "listed" in run_command("explain", URLS[0], "--data", built).out


def test_a_run_goes_on_with_it_and_admits_no_url_twice(listed: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    build(data, listed)
    links = [*URLS, "http://site1.example/page", "https://new.example/", "https://www.site0.example/page/new"]
    done = run_command("run", pages(tmp_path, *links), "--data", data, "--json")
    assert done.code == 0, done.err
    totals = done.document
    # New are the page itself and two of its links.
    assert (totals["this_run"]["links_new"], totals["this_run"]["links_known"]) == (2, KNOWN)
    assert totals["urls_total"] == KNOWN + 3
    rows = {row["url"]: row for row in map(json.loads, exported(data))}
    assert len(rows) == KNOWN + 3
    assert rows[URLS[0]]["first_seen"] == NOW
    assert rows[URLS[0]]["source"] == Source.MANUAL
    assert whole(data)["urls"] >= KNOWN + 3
    again = run_command("run", tmp_path / "pages.jsonl", "--data", data, "--json").document
    assert again["this_run"]["urls_new"] == 0


def test_built_urls_count_against_their_hosts_budgets(tmp_path: Path) -> None:
    data = tmp_path / "data"
    source = tmp_path / "many.txt"
    source.write_text("".join(f"https://many.example/{at}\n" for at in range(100)))
    build(data, source)
    links = ["https://many.example/more", "https://few.example/"]
    assert run_command("run", pages(tmp_path, *links), "--data", data).code == 0
    rows = {row["url"]: row for row in map(json.loads, exported(data))}
    assert rows["https://many.example/more"]["status"] == Status.TRAPPED, "100 of 64 are used"
    assert rows["https://few.example/"]["status"] == Status.SCHEDULED
    assert sum(row["status"] == Status.SCHEDULED for url, row in rows.items() if "many" in url) == 100


def test_order_repeats_form_buffer_and_processes_make_no_difference(listed: Path, built: Path, tmp_path: Path) -> None:
    lines = [line for line in LINES * 2 if line]
    random.Random(3).shuffle(lines)
    text = "\r\n".join(lines).encode()
    (tmp_path / "a.zst").write_bytes(zstandard.compress(text))
    (tmp_path / "b.gz").write_bytes(gzip.compress(text))
    objects = "".join(json.dumps({"url": line}) + "\n" for line in lines)
    (tmp_path / "c.jsonl").write_text(objects)
    four = ("--partitions", 4)
    variants: dict[str, Callable[[Path], dict[str, Any]]] = {
        "zst": lambda data: build(data, tmp_path / "a.zst", options=(*four, "--memory", 4)),
        "gz": lambda data: build(data, tmp_path / "b.gz", options=four),
        "jsonl": lambda data: build(data, tmp_path / "c.jsonl", options=four),
        "stdin": lambda data: build(data, "-", stdin=text, options=four),
        "several": lambda data: build(data, listed, tmp_path / "b.gz", options=four),
        "jobs": lambda data: build(data, tmp_path / "b.gz", options=(*four, "--jobs", 2)),
    }
    expected = exported(built), exported(built, "--hosts")
    for name, variant in variants.items():
        data = tmp_path / name / "data"
        variant(data)
        assert (exported(data), exported(data, "--hosts")) == expected, name
        assert run_command("explain", URLS[1], "--data", data).code == 0


def test_json_lines_say_more_and_bad_ones_are_named(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    rows: list[Any] = [
        {"url": "https://a.example/1", "depth": 2, "source": "sitemap", "priority": 0.75, "next_due": NOW + 9},
        {"url": "https://a.example/2", "source": 0, "first_seen": 5},
        {"url": "https://a.example/3"},
        {"url": "https://a.example/4", "crawl_count": 3},
        {"url": "https://a.example/5", "depth": 65536},
        {"url": "https://a.example/6", "source": "rumour"},
        {"link": "https://a.example/7"},
        7,
    ]
    source.write_text("\n".join([*map(json.dumps, rows), "{", ""]))
    done = run_command("build", source, "--data", tmp_path / "data", "--now", NOW, "--json")
    assert done.code == 1
    assert (done.document["lines"], done.document["bad_lines"], done.document["urls"]) == (9, 6, 3)
    for text in (":4: ", "crawl_count", ":5: depth is 65536: 0 to 65535", ":6: source is 'rumour': one of seed, link"):
        assert text in done.err
    found = {row["url"][-1]: row for row in map(json.loads, exported(tmp_path / "data"))}
    assert (found["1"]["depth"], found["1"]["source"], found["1"]["priority"]) == (2, Source.SITEMAP, 0.75)
    assert (found["1"]["next_due"], found["1"]["first_seen"]) == (NOW + 9, NOW)
    assert (found["2"]["source"], found["2"]["first_seen"], found["2"]["depth"]) == (Source.SEED, 5, NO_DEPTH)
    assert (found["3"]["source"], found["3"]["priority"]) == (Source.MANUAL, 0.5)


def test_a_campaign_that_is_there_is_refused(built: Path, listed: Path) -> None:
    done = run_command("build", listed, "--data", built)
    assert done.code == 4
    assert "holds a campaign already" in done.err
    assert run_command("import", listed.with_name("urls.jsonl"), "--data", built).code in {3, 4}
    assert len(exported(built)) == KNOWN


def test_an_empty_list_is_a_campaign_without_urls(tmp_path: Path) -> None:
    source = tmp_path / "none.txt"
    source.write_text("\n\n")
    assert build(tmp_path / "data", source)["urls"] == 0
    assert exported(tmp_path / "data") == []
    assert run_command("run", pages(tmp_path, "/a"), "--data", tmp_path / "data").code == 0


def test_an_input_that_breaks_off_leaves_no_campaign(listed: Path, tmp_path: Path, built: Path) -> None:
    source = tmp_path / "torn.zst"
    source.write_bytes(zstandard.compress(listed.read_bytes())[:-20])
    data = tmp_path / "data"
    done = run_command("build", source, "--data", data, "--partitions", 4)
    assert done.code == 3
    assert "unfinished" in done.err
    for command in (["top"], ["stats"], ["run", listed], ["import", listed.with_suffix(".jsonl")]):
        refused = run_command(*command, "--data", data)
        assert refused.code in {3, 4}, command
    assert "a meguri build into it has not come to its end" in run_command("top", "--data", data).err
    build(data, listed, options=("--partitions", 4))
    assert exported(data) == exported(built)


def test_a_shard_that_fails_is_told_of_and_the_build_starts_over(
    listed: Path, tmp_path: Path, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = building.build_shard

    def failing(*arguments: Any, **options: Any) -> Any:
        if arguments[4] == 2:
            raise OSError(errno.ENOSPC, "No space left on device", "urls.parquet")
        return real(*arguments, **options)

    monkeypatch.setattr(building, "build_shard", failing)
    data = tmp_path / "data"
    done = run_command("build", listed, "--data", data, "--now", NOW, "--partitions", 4)
    assert done.code == 4
    assert "shard 2: urls.parquet: No space left on device" in done.err
    assert "1 of the shards failed" in done.err
    assert run_command("due", "--data", data).code == 4
    monkeypatch.setattr(building, "build_shard", real)
    build(data, listed)
    assert exported(data) == exported(built)
    assert whole(data)["urls"] == KNOWN


def test_killed_at_any_moment_it_starts_over(listed: Path, tmp_path: Path, built: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "meguri", "build", str(listed), "--data", str(data), "--partitions", "4"]
    for seconds in (1.2, 1.6, 2.2):
        process = subprocess.Popen([*command, "--now", str(NOW)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(seconds)
        process.kill()
        if process.wait() == 0:
            break
    else:
        process = subprocess.Popen([*command, "--now", str(NOW)], stdout=subprocess.DEVNULL)
        # Refused only if the one before was killed after its last word: all of it is compared below.
        assert process.wait() in {0, 4}
    assert exported(data) == exported(built)
    assert whole(data)["urls"] == KNOWN


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign with visits of all kinds, parked URLs and a host without URLs."""
    folder = tmp_path_factory.mktemp("crawled")
    events: list[dict[str, Any]] = [
        {
            "url": f"https://s{at}.example/",
            "fetched_at": AT + at * 4000,
            "depth": 0,
            "links": ["/a", "/b", "/c", f"https://s{(at + 1) % 9}.example/x", f"http://crowded.example/{at}"],
            "text": f"text {at}",
            "etag": f'"é{at}"',
        }
        for at in range(9)
    ]
    events += [
        {"url": "https://s1.example/a", "fetched_at": AT + 9, "status": 410},
        {"url": "https://s2.example/a", "fetched_at": AT + 9, "status": 0, "error": "robots"},
        {"url": "https://s3.example/a", "fetched_at": AT + 9, "status": 503},
        {"url": "https://s4.example/a", "fetched_at": AT + 9, "status": 301, "redirect": "/moved"},
        {"type": "control", "schema": 1, "at": 1, "action": "budget", "host": "crowded.example", "value": 3},
        {"type": "control", "schema": 1, "at": 1, "action": "crawl_delay", "host": "s5.example", "value": 30},
    ]
    source = folder / "events.jsonl"
    source.write_text("".join(json.dumps(event) + "\n" for event in events))
    done = run_command("run", source, "--data", folder / "data", "--partitions", 4)
    assert done.code == 0, done.err
    return folder / "data"


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("split", [False, True])
def test_export_and_import_are_the_identity(crawled: Path, tmp_path: Path, form: str, *, split: bool) -> None:
    urls, hosts = (tmp_path / (f"{name}/" if split else f"{name}.{form}") for name in ("urls", "hosts"))
    for path, more in ((urls, ()), (hosts, ("--hosts",))):
        if split:
            path.mkdir()
        done = run_command("export", "--data", crawled, "--format", form, "--output", path, *more)
        assert done.code == 0, done.err
    data = tmp_path / "data"
    done = run_command("import", urls, "--hosts", hosts, "--data", data, "--partitions", 4, "--json")
    assert done.code == 0, done.err
    lines = exported(crawled)
    assert {json.loads(line)["status"] for line in lines} >= {1, 4, 6, 7, 8}
    assert exported(data) == lines
    assert exported(data, "--hosts") == exported(crawled, "--hosts")
    assert done.document["urls"] == len(lines)
    assert whole(data)["urls"] == len(lines)


def test_what_was_imported_is_known_as_what_it_was(crawled: Path, tmp_path: Path) -> None:
    lines = "\n".join(exported(crawled)).encode()
    data = tmp_path / "data"
    done = run_command("import", "-", "--data", data, "--partitions", 3, "--json", stdin=lines)
    assert done.code == 0, done.err
    assert [json.loads(line)["url"] for line in exported(data)] == [
        json.loads(line)["url"] for line in exported(crawled)
    ]
    # A visit that was told of before the export is stale, one after it counts; links find their targets known.
    old = {"url": "https://s0.example/", "fetched_at": AT, "depth": 0, "links": ["/a", "/b", "/new"]}
    new = {"url": "https://s1.example/", "fetched_at": AT + 9 * 3600, "links": ["/a", "/b", "/new"]}
    source = tmp_path / "more.jsonl"
    source.write_text(json.dumps(old) + "\n" + json.dumps(new) + "\n")
    done = run_command("run", source, "--data", data, "--json")
    assert done.code == 0, done.err
    assert done.document["this_run"]["links_new"] == 2
    before = {row["url"]: row for row in map(json.loads, exported(crawled))}
    after = {row["url"]: row for row in map(json.loads, exported(data))}
    assert after["https://s0.example/"]["crawl_count"] == before["https://s0.example/"]["crawl_count"]
    assert after["https://s1.example/"]["crawl_count"] == before["https://s1.example/"]["crawl_count"] + 1
    parked = [url for url, row in before.items() if row["status"] == Status.TRAPPED]
    assert parked
    assert all(after[url]["status"] == Status.TRAPPED for url in parked)
    stats = run_command("stats", "--json", "--data", data).document
    assert stats["by_status"]["trapped"] == len(parked)


def test_records_of_another_policy_or_order_are_refused(crawled: Path, tmp_path: Path) -> None:
    lines = exported(crawled)
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"group_by": "host"}))
    source = tmp_path / "urls.jsonl"
    source.write_text("\n".join(line.replace("https://s3.example/", "https://www.s3.example/") for line in lines))
    done = run_command("import", source, "--data", tmp_path / "a", "--policy", policy)
    assert done.code == 3
    assert "under the URL policy that they were made with" in done.err
    assert f"{source}: row " in done.err
    source.write_text("\n".join([lines[1], lines[0], *lines[2:]]))
    done = run_command("import", source, "--data", tmp_path / "b")
    assert done.code == 3
    assert "row 1 (" in done.err
    assert "isn't above" in done.err
    source.write_text(lines[0].replace('"depth":', '"deep":'))
    done = run_command("import", source, "--data", tmp_path / "c")
    assert (done.code, f"{source}:1: lacks depth; has deep" in done.err) == (3, True)
    assert run_command("import", tmp_path / "none.jsonl", "--data", tmp_path / "d").code == 3
    assert run_command("import", tmp_path / "none.txt", "--data", tmp_path / "d").code == 3
    assert not (tmp_path / "d" / "store" / "shard-00000").exists()


def test_a_folder_left_unfinished_is_told_apart_by_its_command(tmp_path: Path) -> None:
    opened = campaign.open_campaign(tmp_path / "data", making="import")
    opened.close()
    done = run_command("build", os.devnull, "--data", tmp_path / "data")
    assert done.code == 4
    assert "a meguri import into it has not come to its end" in done.err


def test_ended_by_sigterm_it_leaves_nothing_temporary(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "meguri", "build", "-", "--data", str(data), "--memory", "4"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    for at in range(150_000):
        process.stdin.write(b"https://site.example/%d/a-longer-path-that-fills-buffers\n" % at)
    process.stdin.flush()
    for _ in range(600):
        if list(data.glob("store/.build-*/run-*")):
            break
        time.sleep(0.1)
    assert list(data.glob("store/.build-*/run-*")), "a run was on disk"
    process.terminate()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()  # a read that waits for more hears of the signal with its end
    assert process.wait(30) == 128 + signal.SIGTERM
    assert not list(data.glob("store/.*"))
    assert run_command("top", "--data", data).code == 4
