"""Commands that look at a data folder: explain, top, due, stats, inspect, alone and beside a living writer."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meguri.__main__ import main
from meguri.embedded.campaign import open_campaign
from meguri.embedded.run import RunOptions, run_inputs
from meguri.embedded.view import open_view
from meguri_canonicalizer.canonical import Canonical, canonicalize
from meguri_common.records import Source, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

AT = 1_700_000_000
HOUR = AT // 3600
EVENTS: list[dict[str, Any] | str] = [
    {"type": "control", "schema": 1, "at": AT, "action": "budget", "host": "small.example", "value": 2},
    {"type": "control", "schema": 1, "at": AT, "action": "depth_cap", "host": "deep.example", "value": 2},
    {
        "url": "https://www.example.org/",
        "fetched_at": AT,
        "depth": 0,
        "links": ["/a", "b?utm_source=x", "mailto:x@y.example", *(f"http://small.example/{n}" for n in range(5))],
        "etag": '"v1"',
    },
    {"url": "https://www.example.org/a", "fetched_at": AT + 60, "depth": 1, "links": ["/c", "http://other.example/"]},
    {"url": "https://www.example.org/c", "fetched_at": AT + 90, "depth": 2, "links": ["http://deep.example/"]},
    {"url": "https://www.example.org/b", "fetched_at": AT + 120, "status": 410},
    {"url": "https://www.example.org/old", "fetched_at": AT + 180, "status": 301, "redirect": "/new"},
    {"type": "seed", "schema": 1, "urls": ["http://seeded.example/"], "observed_at": AT},
    {"type": "sitemap", "schema": 1, "url": "http://m.example/s.xml", "observed_at": AT, "entries": [{"loc": "/m"}]},
    '{"url": "broken',
    {"url": 5, "fetched_at": AT},
]


def write_events(path: Path, events: list[dict[str, Any] | str]) -> None:
    path.write_text("".join(f"{event if isinstance(event, str) else json.dumps(event)}\n" for event in events))


def made(folder: Path, source: Path, data: str = "data") -> SimpleNamespace:
    campaign = open_campaign(folder / data, partitions=4, now=lambda: AT + 3600.0)
    try:
        result = run_inputs(campaign, [str(source)], RunOptions())
    finally:
        campaign.close()
    return SimpleNamespace(data=folder / data, source=source, document=result.document())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A campaign of a dozen events, two of them unusable."""
    folder = tmp_path_factory.mktemp("small")
    write_events(folder / "events.jsonl", EVENTS)
    return made(folder, folder / "events.jsonl")


@pytest.fixture
def copied(small: SimpleNamespace, tmp_path: Path) -> Path:
    """Its data folder, to be harmed."""
    shutil.copytree(small.data, tmp_path / "data", symlinks=True)
    return tmp_path / "data"


def run_command(*arguments: str) -> SimpleNamespace:
    """A command in this process: exit code, what it gave, what it said."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    out.seek(0)
    return SimpleNamespace(code=code, out=out.read(), err=err.getvalue())


def asked(data: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = run_command(*arguments, "--data", str(data), "--json")
    assert done.code == code, done.err
    document: dict[str, Any] = json.loads(done.out)
    return document


def exported(data: Path) -> dict[str, dict[str, Any]]:
    done = run_command("export", "--data", str(data))
    assert done.code == 0, done.err
    return {row["url"]: row for row in map(json.loads, done.out.splitlines())}


def keys_of(url: str) -> tuple[str, str]:
    found = canonicalize(url)
    assert isinstance(found, Canonical)
    return f"{found.host_key:016x}", f"{found.path_key:016x}"


# -- explain


def test_explain_a_known_url_however_it_is_spelled(small: SimpleNamespace) -> None:
    story = asked(small.data, "explain", "HTTPS://u@www.example.org:443/x/../a?utm_id=1#f")
    assert story["known"]
    assert story["canon"] == "https://www.example.org/a"
    assert (story["host_key"], story["path_key"]) == keys_of(story["canon"])
    assert story["seen"] == {"exact": True, "filter": True}
    assert [step["name"] for step in story["steps"] if step["changed"]] == ["resolve", "userinfo", "query", "fragment"]
    assert story["admitted"] == {"source": "link", "first_seen": HOUR}
    assert story["record"]["status"] == "crawled"
    assert story["parked"] is None
    assert story["visits"]["last_visit"] == AT + 60
    assert story["due"]["hour"] == story["record"]["next_due"] > HOUR
    assert story["priority"]["in_store"] == story["record"]["priority"]
    assert story["host"]["vouched_for"] is True
    assert story["host"]["host_group"] == "example.org"
    page = run_command("explain", "/a", "--base", "https://www.example.org/q", "--data", str(small.data))
    assert page.code == 0
    for said in (
        "https://www.example.org/a",
        "a page links to it",
        "in-degree",
        "level",
        "vouched for",
        story["path_key"],
    ):
        assert said in page.out, said


def test_explain_what_is_parked(small: SimpleNamespace) -> None:
    stories = [asked(small.data, "explain", f"http://small.example/{number}") for number in range(5)]
    reasons = [(story["parked"] or {}).get("reason") for story in stories]
    assert reasons.count("budget") == 3
    parked = stories[reasons.index("budget")]
    assert parked["known"]
    assert "budget" in parked["parked"]["would_release"]
    assert parked["record"]["status"] == "trapped"
    assert parked["due"] == {"hour": None, "why_not": "its status is trapped"}
    host = parked["host"]
    assert (host["url_count"], host["url_budget"], host["budget_set_by_operator"], host["in_degree"]) == (2, 2, True, 1)
    deep = asked(small.data, "explain", "http://deep.example/")
    assert deep["parked"]["reason"] == "depth"
    page = run_command("explain", parked["canon"], "--data", str(small.data)).out
    assert "2 used of 2 (set by an operator)" in page
    assert "never: its status is trapped" in page
    assert "higher budget" in page


@pytest.mark.parametrize(
    ("url", "source", "status"),
    [
        ("https://www.example.org/b", "link", "gone"),
        ("https://www.example.org/new", "redirect", "scheduled"),
        ("https://www.example.org/old", "manual", None),
        ("http://seeded.example/", "seed", "scheduled"),
        ("http://m.example/m", "sitemap", "scheduled"),
    ],
)
def test_explain_tells_where_a_url_came_from(small: SimpleNamespace, url: str, source: str, status: str | None) -> None:
    story = asked(small.data, "explain", url)
    assert story["admitted"]["source"] == source
    assert status in {None, story["record"]["status"]}
    if source == "redirect":
        assert asked(small.data, "explain", "https://www.example.org/old")["record"]["redirect"] == url


def test_explain_says_clearly_what_is_unknown_or_unusable(small: SimpleNamespace) -> None:
    story = asked(small.data, "explain", "https://www.example.org/nobody-links-here", code=1)
    assert (story["ok"], story["known"], story["record"], story["seen"]["exact"]) == (True, False, None, False)
    assert story["host"]["vouched_for"] is True
    done = run_command("explain", "http://nowhere.example/", "--data", str(small.data))
    assert done.code == 1
    assert "the frontier doesn't know this URL" in done.out
    story = asked(small.data, "explain", "mailto:\x1b[2J", code=1)
    assert (story["ok"], story["reject_reason"]) == (False, "scheme")
    done = run_command("explain", "mailto:\x1b[2J", "--data", str(small.data))
    assert "it is rejected: scheme" in done.out
    assert "\x1b" not in done.out
    assert asked(small.data, "explain", "http://h/" + "a" * 8192, code=1)["reject_reason"] == "too_long"


# -- top, due, stats


def test_top_is_in_order_and_marks_parked_ones(small: SimpleNamespace) -> None:
    rows = exported(small.data)
    found = asked(small.data, "top", "-n", "100", "--why")["urls"]
    assert {row["url"] for row in found} == set(rows)
    assert [row["priority"] for row in found] == sorted((row["priority"] for row in found), reverse=True)
    for row in found:
        assert (row["host_key"], row["path_key"]) == keys_of(row["url"])
        assert row["why"]["priority"]["priority"] == row["priority"]
    assert asked(small.data, "top", "-n", "3")["urls"] == [
        {name: value for name, value in row.items() if name != "why"} for row in found[:3]
    ]
    lines = run_command("top", "--data", str(small.data), "-n", "100", "--why").out.splitlines()
    assert [line.split()[1] for line in lines[::2]] == [row["url"] for row in found]
    assert [line.endswith("(parked: budget)") for line in lines[::2]] == [row["reason"] == "budget" for row in found]
    assert all("score" in line and "level" in line for line in lines[1::2])


@pytest.mark.parametrize("now", [None, HOUR - 1, HOUR, HOUR + 24 * 365])
@pytest.mark.parametrize("host", [None, "WWW.Example.ORG", "small.example"])
def test_due_agrees_with_the_records(small: SimpleNamespace, now: int | None, host: str | None) -> None:
    rows = exported(small.data).values()
    hour = HOUR if now is None else now
    group = None if host is None else keys_of(f"http://{host}/")[0]
    wanted = sorted(
        (row["next_due"], *keys_of(row["url"]), row["url"])
        for row in rows
        if 0 < row["next_due"] <= hour and group in {None, row["host_key"]}
    )
    arguments = (["--now", str(now)] if now is not None else []) + (["--host", host] if host else [])
    answer = asked(small.data, "due", "-n", "100", *arguments)
    assert answer["now"] == hour
    assert [(row["next_due"], row["host_key"], row["path_key"], row["url"]) for row in answer["urls"]] == wanted
    if wanted:
        shown = run_command("due", "--data", str(small.data), "-n", "1", *arguments).out.splitlines()
        assert [line.split()[-1] for line in shown] == [wanted[0][-1]]


def test_due_takes_dates(small: SimpleNamespace) -> None:
    moment = datetime.fromtimestamp((HOUR + 30) * 3600 + 59, UTC)
    for text in (f"{moment:%Y-%m-%dT%H:%M:%S}", f"{moment:%Y-%m-%dT%H:%M:%S}Z", f"{moment:%Y-%m-%d %H:%M}"):
        assert asked(small.data, "due", "--now", text)["now"] == HOUR + 30
    before = int(time.time()) // 3600
    assert before <= asked(small.data, "due", "--now", "now")["now"] <= int(time.time()) // 3600
    for text in ("tomorrow", "-1", "4294967296", "1969-12-31"):
        done = run_command("due", "--data", str(small.data), "--now", text)
        assert done.code == 2
        assert text in done.err


def test_explain_names_only_the_steps_that_did_something(small: SimpleNamespace) -> None:
    page = run_command("explain", "HTTP://example.org:80/a?utm_source=x", "--data", str(small.data)).out
    steps = page.split("canonical form\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in steps] == ["resolve", "query", "nothing"]


def test_due_refuses_what_is_no_host(small: SimpleNamespace) -> None:
    done = run_command("due", "--data", str(small.data), "--host", "http://x/")
    assert done.code == 2
    assert "is no host" in done.err


def test_stats_are_the_runs_totals(small: SimpleNamespace) -> None:
    found = asked(small.data, "stats")
    for name, value in small.document.items():
        if name not in {"this_run", "stopped", "inputs_unreadable"}:
            assert found[name] == value, name
    rows = list(exported(small.data).values())
    assert sum(found["by_status"].values()) == sum(found["by_source"].values()) == found["urls_total"] == len(rows)
    assert found["by_status"]["trapped"] == sum(found["by_park_reason"].values()) == 4
    assert found["by_park_reason"]["budget"] == 3
    sources = Counter(Source(row["source"]).name.lower() for row in rows)
    assert {name: count for name, count in found["by_source"].items() if count} == sources
    assert set(sources) == {"seed", "link", "sitemap", "redirect", "manual"}
    statuses = Counter(Status(row["status"]).name.lower() for row in rows)
    assert {name: count for name, count in found["by_status"].items() if count} == statuses
    assert found["at_one_moment"]
    assert found["topics"]["meguri.rejects"]["kept"] == found["events_rejected"] == 2
    assert all(row["lag"] == 0 for rows in found["services"].values() for row in rows)
    assert all(row["snapshot"] == row["committed"] for row in found["services"]["store"])
    page = run_command("stats", "--data", str(small.data)).out
    assert f"{found['urls_total']}" in page
    assert "budget 3" in page


def test_looking_writes_nothing(copied: Path) -> None:
    def state() -> dict[str, tuple[int, int, str]]:
        return {
            str(path): (
                path.lstat().st_mtime_ns,
                path.lstat().st_size,
                str(path.readlink()) if path.is_symlink() else "",
            )
            for folder in ("store", "state")
            for path in (copied / folder).rglob("*")
        }

    before = state()
    for arguments in (["top"], ["due"], ["stats"], ["explain", "https://www.example.org/"], ["inspect"]):
        asked(copied, *arguments)
    asked(copied, "inspect", "--verify")
    assert exported(copied)
    assert state() == before


@pytest.mark.parametrize(
    "arguments", [["top"], ["due"], ["stats"], ["explain", "http://h/"], ["inspect"], ["export"]], ids=" ".join
)
def test_a_folder_without_a_campaign_is_refused(arguments: list[str], tmp_path: Path) -> None:
    done = run_command(*arguments, "--data", str(tmp_path))
    assert (done.code, done.out) == (4, "")
    assert "no campaign there" in done.err
    assert list(tmp_path.iterdir()) == []


# -- inspect


def test_inspect_shows_what_the_folder_is_made_of(small: SimpleNamespace) -> None:
    found = asked(small.data, "inspect")
    assert found["identity"]["partitions"] == 4
    total = small.document["urls_total"]
    assert sum(row["urls"] for row in found["generations"]) == found["seen_set"]["keys"] == total
    assert all(row["current"] for row in found["generations"])
    for row in found["generations"]:
        assert (small.data / row["folder"] / "urls.parquet").is_file()
    assert all(len(row["snapshots"]) == 2 for row in found["services"]["dedup"])
    assert found["seen_set"]["bits_per_url"] > 0
    page = run_command("inspect", "--data", str(small.data)).out
    for said in (
        found["identity"]["campaign"],
        "service prioritizer",
        "meguri.deltas",
        found["generations"][0]["folder"],
    ):
        assert said in page


def test_inspect_lists_rejects(small: SimpleNamespace) -> None:
    found = asked(small.data, "inspect", "--rejects")
    assert found["rejected"] == 2
    broken, wrong = found["rejects"]
    assert (broken["file"], broken["line"]) == (str(small.source), len(EVENTS) - 1)
    assert broken["payload_start"] == '{"url": "broken'
    assert wrong["line"] == len(EVENTS)
    assert "url" in wrong["detail"]
    assert [row["line"] for row in asked(small.data, "inspect", "--rejects", "-n", "1")["rejects"]] == [len(EVENTS)]
    page = run_command("inspect", "--rejects", "--data", str(small.data))
    assert f"{small.source}:{len(EVENTS) - 1}: {broken['reason']}" in page.out
    assert "2 events rejected" in page.err


def test_verify_finds_a_whole_folder_whole(small: SimpleNamespace) -> None:
    found = asked(small.data, "inspect", "--verify")
    assert found["ok"]
    assert found["urls"] == small.document["urls_total"]
    done = run_command("inspect", "--verify", "--data", str(small.data))
    assert (done.code, done.err) == (0, "")
    assert "all whole" in done.out


def kept_files(data: Path) -> list[Path]:
    return sorted(
        path
        for pattern in ("store/store.json", "store/shard-*/g*/*", "state/*/*/*")
        for path in data.glob(pattern)
        if path.is_file()
    )


def test_verify_finds_every_altered_byte(small: SimpleNamespace, copied: Path) -> None:
    """One byte in the middle of each file of the folder but the bus, one after another."""
    files = kept_files(copied)
    assert {path.suffix for path in files} == {".json", ".parquet", ".filter", ".arrow"}
    for path in files:
        original = path.read_bytes()
        middle = len(original) // 2
        path.write_bytes(original[:middle] + bytes([original[middle] ^ 0x11]) + original[middle + 1 :])
        done = run_command("inspect", "--verify", "--data", str(copied))
        assert done.code == 4, path
        assert path.name in done.err or path.parent.name in done.err, (path, done.err)
        assert done.out == ""
        path.write_bytes(original)
    assert asked(copied, "inspect", "--verify")["urls"] == small.document["urls_total"]


def test_verify_finds_what_is_missing_or_cut(copied: Path) -> None:
    for path in kept_files(copied):
        if path.name.startswith("snapshot-"):
            continue  # its absence can't be told from a snapshot that was never taken
        original = path.read_bytes()
        path.write_bytes(original[:-1])
        assert run_command("inspect", "--verify", "--data", str(copied)).code == 4, path
        path.unlink()
        assert run_command("inspect", "--verify", "--data", str(copied)).code == 4, path
        path.write_bytes(original)
    assert asked(copied, "inspect", "--verify")["ok"]


def test_verify_reads_the_bus(copied: Path) -> None:
    bus = copied / "bus.db"
    content = bytearray(bus.read_bytes())
    for page in range(1, len(content) // 16384):
        content[page * 16384 : page * 16384 + 64] = b"\xff" * 64
    bus.write_bytes(content)
    done = run_command("inspect", "--verify", "--data", str(copied))
    assert done.code == 4
    assert "bus.db" in done.err


# -- beside a writer


@pytest.fixture
def writer(small: SimpleNamespace, tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """A `meguri run` that lives and reads from a pipe, as a function that feeds it and gives its data folder."""
    data = tmp_path / "live"
    shutil.copytree(small.data, data, symlinks=True)
    with subprocess.Popen(
        [sys.executable, "-m", "meguri", "run", "-", "--data", str(data), "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:

        def feed(lines: bytes) -> Path:
            assert process.stdin is not None
            process.stdin.write(lines)
            process.stdin.flush()
            return data

        deadline = time.monotonic() + 120
        while (data / "bus.db.lock").read_text().strip() != str(process.pid):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield feed
        assert process.stdin is not None
        process.stdin.close()
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read()
        assert process.wait(timeout=120) == 0, process.stderr.read()


def test_looking_beside_a_living_writer(writer: Callable[[bytes], Path]) -> None:
    data = writer(b"")
    page = "https://www.example.org/page-{}"
    filler = "word " * 2000
    lines = [
        {"url": page.format(n), "fetched_at": AT + n, "links": [page.format(n + 1)], "text": f"{filler}{n}"}
        for n in range(1000)
    ]
    writer("".join(json.dumps(line) + "\n" for line in lines).encode())  # two rounds and a part of a third
    second = run_command("run", "--seed", "http://x.example/", "--data", str(data))
    assert second.code == 4
    assert "another process" in second.err
    deadline = time.monotonic() + 120
    while True:
        stats = asked(data, "stats")
        assert asked(data, "explain", "https://www.example.org/")["known"]
        assert asked(data, "top", "-n", "5")["urls"]
        assert asked(data, "due", "-n", "5")["urls"]
        assert asked(data, "inspect", "--verify")["ok"]
        if stats["pages"] > 500:
            break
        assert time.monotonic() < deadline
    assert stats["urls_total"] > 500


def test_a_folder_that_moves_on_while_it_is_read(small: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that vanish are met again at once if nothing newer is there, and are looked for anew if there is."""
    with open_view(small.data) as view:
        tries: list[int] = []
        look, newest = type(view.campaign).look, type(view)._newest

        def vanishing(campaign: Any, service: str, partition: int) -> Any:
            tries.append(partition)
            if len(tries) < 4:
                raise FileNotFoundError(2, "No such file", "state/gone")
            return look(campaign, service, partition)

        monkeypatch.setattr(type(view.campaign), "look", vanishing)
        monkeypatch.setattr(
            type(view), "_newest", lambda self, service, number: (*newest(self, service, number), len(tries))
        )
        assert view.partition("store", 1).number == 1
        assert len(tries) == 4
        monkeypatch.setattr(type(view), "_newest", newest)
        tries.clear()
        done = run_command("stats", "--data", str(small.data))
        assert done.code == 4
        assert "state/gone" in done.err
        assert len(tries) == 1


def test_a_larger_campaign(test_data: Path, tmp_path: Path) -> None:
    source = test_data / "data" / "cc-pages.jsonl.zst"
    if not source.is_file():
        pytest.skip(f"no {source}")
    campaign = made(tmp_path, source)
    found = asked(campaign.data, "stats")
    rows = exported(campaign.data)
    assert found["urls_total"] == len(rows) == campaign.document["urls_total"] > 100
    for url in list(rows)[:: max(1, len(rows) // 20)]:
        story = asked(campaign.data, "explain", url)
        assert story["canon"] == url
        assert story["record"]["host_key"] == rows[url]["host_key"]
    assert asked(campaign.data, "inspect", "--verify")["urls"] == len(rows)


# -- a fleet's state root


@pytest.fixture
def state_root(small: SimpleNamespace, tmp_path: Path) -> Path:
    """The same state as a fleet would have it: snapshots and shards, and no bus beside them."""
    root = tmp_path / "root"
    for name in ("state", "store"):
        shutil.copytree(small.data / name, root / name, symlinks=True)
    with open_view(small.data) as view:
        identity = msgspec.to_builtins(view.campaign.identity)
    (root / "campaign.json").write_bytes(msgspec.json.encode({"version": 1, "identity": identity}))
    return root


def test_a_state_root_answers_as_a_data_folder_does(small: SimpleNamespace, state_root: Path) -> None:
    assert exported(state_root) == exported(small.data)
    for command in (["top", "-n", "5"], ["top", "--why"], ["due"], ["due", "--host", "small.example"]):
        assert asked(state_root, *command) == asked(small.data, *command)
    for url in ("https://www.example.org/a", "http://small.example/4"):
        assert asked(state_root, "explain", url) == asked(small.data, "explain", url)


def test_a_state_root_is_summed_up_and_inspected_as_a_data_folder_is(small: SimpleNamespace, state_root: Path) -> None:
    ours, theirs = asked(state_root, "stats"), asked(small.data, "stats")
    assert ours == {name: value for name, value in theirs.items() if name in ours}
    assert {"pages", "links_new", "by_status", "cash_total"} <= set(ours)
    assert not {"events_rejected", "services", "topics"} & set(ours), "these are the brokers' to tell"
    ours, theirs = asked(state_root, "inspect"), asked(small.data, "inspect")
    assert set(theirs) - set(ours) == {"topics"}
    for part in ("identity", "generations", "seen_set"):
        assert ours[part] == theirs[part]
    for service, partitions in ours["services"].items():
        assert [row["snapshots"] for row in partitions] == [row["snapshots"] for row in theirs["services"][service]]
    for command in ("stats", "inspect"):
        assert run_command(command, "--data", str(state_root)).code == 0


def test_a_state_root_is_verified(small: SimpleNamespace, state_root: Path) -> None:
    for command in (["verify"], ["inspect", "--verify"]):
        ours, theirs = asked(state_root, *command), asked(small.data, *command)
        for name in ("ok", "manifests", "files", "generations", "urls"):
            assert ours[name] == theirs[name]
        assert ours["without_snapshot"] == 0
    done = run_command("inspect", "--rejects", "--data", str(state_root))
    assert done.code == 2
    assert "meguri rejects list" in done.err
    damaged = next((state_root / "store").glob("shard-*/g*/hosts.parquet"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 255
    damaged.write_bytes(content)
    done = run_command("verify", "--data", str(state_root))
    assert done.code == 4
    assert "hosts.parquet" in done.err


def test_a_state_root_without_snapshots_is_an_empty_frontier(state_root: Path) -> None:
    shutil.rmtree(state_root / "state")
    assert exported(state_root) == {}


def test_a_state_root_with_damaged_files_is_refused(state_root: Path) -> None:
    for file in (state_root / "state" / "prioritizer").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:-1])
    done = run_command("top", "--data", str(state_root))
    assert done.code == 4, done.out
    assert str(state_root) in done.err


# -- files of one shard in the place of another's


@pytest.mark.parametrize("name", ["urls.parquet", "hosts.parquet", "seen.filter", "meta.json"])
def test_a_file_swapped_with_another_shards_is_named(small: SimpleNamespace, tmp_path: Path, name: str) -> None:
    """Each of them is whole by itself, and fits its own generation."""
    data = tmp_path / "data"
    shutil.copytree(small.data, data, symlinks=True)
    found = [path for path in sorted((data / "store").glob("shard-*/g*")) if not path.is_symlink()]
    largest, other = sorted(found, key=lambda folder: (folder / "urls.parquet").stat().st_size)[:-3:-1]
    content = (other / name).read_bytes()
    assert content != (largest / name).read_bytes()
    (largest / name).unlink()  # a carried generation's files have several names
    (largest / name).write_bytes(content)
    done = run_command("verify", "--data", str(data))
    assert done.code == 4, done.out
    assert largest.name in done.err, done.err
    assert name in done.err, done.err


def test_shards_swapped_as_a_whole_are_named(small: SimpleNamespace, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(small.data, data, symlinks=True)
    first, second, *_ = sorted((data / "store").glob("shard-*"))
    first.rename(data / "store" / "aside")
    second.rename(first)
    (data / "store" / "aside").rename(second)
    done = run_command("verify", "--data", str(data))
    assert done.code == 4, done.out
    assert "store/shard-0000" in done.err
    # A look doesn't trust them either: it reads the log again, which goes back to the beginning here.
    assert exported(data) == exported(small.data)
