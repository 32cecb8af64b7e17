"""`meguri compact`, `recrawl`, `resize`, `verify`: what changes, what stays, what is refused."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import shutil
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from meguri.__main__ import main
from meguri.embedded import resizing
from meguri.embedded.campaign import open_campaign
from meguri.embedded.run import RunOptions, run_inputs
from meguri.embedded.view import open_view
from meguri_common.keys import path_key
from meguri_common.records import Status

if TYPE_CHECKING:
    from pathlib import Path

AT = 1_700_000_000
HOUR = AT // 3600
SITES = 40


def run_command(*arguments: Any) -> SimpleNamespace:
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(argument) for argument in arguments])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    out.seek(0)
    text = out.read()
    document = json.loads(text) if "--json" in arguments and text else None
    return SimpleNamespace(code=code, out=text, err=err.getvalue(), document=document)


def done(*arguments: Any) -> Any:
    found = run_command(*arguments)
    assert found.code == 0, found.err
    return found


def events(folder: Path, first: int = 0) -> Path:
    """Visits that spread cash and votes, a crowded host, an operator's words, a reject."""
    found: list[dict[str, Any]] = [
        {
            "url": f"https://s{at}.example/",
            "fetched_at": AT + at * 60,
            "depth": 0 if at % 3 == 0 else 1,
            "links": [f"https://s{(at * 7 + more) % SITES}.example/p{more}" for more in range(6)]
            + [f"https://crowded.example/{at}-{more}" for more in range(3)],
            "text": f"the text of page {at}",
        }
        for at in range(first, first + SITES)
    ]
    found += [
        {"type": "control", "schema": 1, "at": 5, "action": "depth_cap", "host": "s4.example", "value": 3},
        {"type": "control", "schema": 1, "at": 5, "action": "budget", "host": "crowded.example", "value": 50},
        {"type": "signal", "schema": 1, "epoch": 4, "hosts": [{"host": "s6.example", "score": 0.75}]},
        {"url": "nowhere", "fetched_at": AT},
    ]
    path = folder / f"events-{first}.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in found))
    return path


def campaign(data: Path, *inputs: Path, stop_after: str = "", partitions: int = 5) -> None:
    """Run inputs; stop in order after the last step of a service that came in a row, which leaves the rest undone."""
    last = ""

    def stopping() -> bool:
        return last == stop_after != ""

    def count(service: str, number: int, _messages: Any) -> None:
        nonlocal last
        last = service if service != "store" or number >= partitions // 2 else ""

    opened = open_campaign(data, partitions=partitions, now=lambda: AT + 200_000.0)
    try:
        run_inputs(opened, [str(path) for path in inputs], RunOptions(stopping=stopping, on_step=count))
    finally:
        opened.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    campaign(folder / "data", events(folder))
    return folder / "data"


def copy_of(data: Path, folder: Path) -> Path:
    shutil.copytree(data, folder / "data", symlinks=True)
    return folder / "data"


def exported(data: Path, *more: str) -> list[str]:
    lines: list[str] = done("export", "--data", data, *more).out.splitlines()
    return lines


def inodes(data: Path) -> dict[str, int]:
    return {
        str(path.relative_to(data)): path.stat().st_ino
        for path in data.glob("store/shard-*/g*/*")
        if path.name == "urls.parquet"
    }


def operations(view: Any, number: int) -> int:
    """Operations in the delta of a shard."""
    count: int = view.partition("store", number).service.log.count
    return count


# -- compact ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
def test_compact_merges_deltas_and_leaves_other_shards_alone(whole: Path, tmp_path: Path, jobs: int) -> None:
    data = copy_of(whole, tmp_path)
    one = tmp_path / "one.jsonl"
    one.write_text(json.dumps({"url": "https://s3.example/", "fetched_at": AT + 90_000, "links": ["/new"]}) + "\n")
    campaign(data, one, stop_after="store")
    before, rows, hosts = inodes(data), exported(data), exported(data, "--hosts")
    found = done("compact", "--data", data, "--jobs", jobs, "--json").document
    assert found["compacted"] in range(1, 5)
    changed = {shard["partition"] for shard in found["shards"] if shard["changed"]}
    assert len(changed) == found["compacted"]
    assert found["inserted"] + found["updated"] > 0
    assert exported(data) == rows
    assert without_rows(exported(data, "--hosts")) == without_rows(hosts)
    after = inodes(data)
    for path, inode in before.items():
        if int(path.split("/")[1].removeprefix("shard-")) not in changed:
            assert after[path] == inode, "a shard without delta isn't rewritten"
    assert len(after.keys() - before.keys()) == len(changed)
    again = done("compact", "--data", data, "--json").document
    assert (again["compacted"], again["urls"]) == (0, len(rows))
    done("verify", "--data", data)
    campaign(data, one)
    assert done("stats", "--data", data, "--json").document["pages"] == SITES + 1, "and the run goes on"


def test_compact_names_the_shard_that_fails_and_does_the_others(whole: Path, tmp_path: Path) -> None:
    data = copy_of(whole, tmp_path)
    campaign(data, events(tmp_path, first=7), stop_after="store")
    with open_view(data) as view:
        dirty = [number for number in range(5) if operations(view, number)]
    assert len(dirty) > 1
    victim = next(path for path in (data / "store" / f"shard-{dirty[0]:05d}").glob("g*/urls.parquet"))
    blob = bytearray(victim.read_bytes())
    blob[len(blob) // 3] ^= 0xFF
    victim.write_bytes(blob)
    found = run_command("compact", "--data", data)
    assert found.code == 4
    assert f"shard {dirty[0]}: " in found.err
    assert "urls.parquet" in found.err
    assert "the others are done" in found.err
    with open_view(data) as view:
        for number in dirty[1:]:
            assert operations(view, number) == 0


# -- recrawl ------------------------------------------------------------------------------------------------------


def test_recrawl_folds_a_drawn_outcome_into_what_is_due(whole: Path, tmp_path: Path) -> None:
    data = copy_of(whole, tmp_path)
    before = {row["url"]: row for row in map(json.loads, exported(data))}
    due = [url for url, row in before.items() if 0 < row["next_due"] <= HOUR + 5]
    found = done("recrawl", "--data", data, "--now", HOUR + 5, "--seed", 3, "--json").document
    assert found["due"] == found["visited"] == len(due) > 50
    assert found["changed"] + found["unchanged"] + found["failed"] == found["visited"]
    after = {row["url"]: row for row in map(json.loads, exported(data))}
    assert after.keys() == before.keys()
    for url, row in after.items():
        if url in due:
            moved = row["crawl_count"] + row["error_count"] - before[url]["crawl_count"] - before[url]["error_count"]
            assert moved == 1
            assert row["next_due"] > HOUR + 5 or row["status"] == Status.GONE
        else:
            assert row == before[url]
    assert done("recrawl", "--data", data, "--now", HOUR + 5, "--json").document["due"] == 0
    done("verify", "--data", data)
    other = copy_of(whole, tmp_path / "other")
    done("recrawl", "--data", other, "--now", HOUR + 5, "--seed", 3, "--jobs", 2)
    assert exported(other) == exported(data), "the same seed, whatever the processes"
    worth = copy_of(whole, tmp_path / "worth")
    assert done("recrawl", "--data", worth, "--now", HOUR + 5, "--seed", 3, "--budget", 10, "--json").document["due"]
    assert exported(worth) != exported(data)


# -- resize -------------------------------------------------------------------------------------------------------


TERMS = ("cash", "history", "page_rank", "host_score", "last_sent")


def looks(data: Path) -> dict[str, Any]:
    """Everything that dedup and prioritizers know of each URL."""
    found = {}
    with open_view(data) as view:
        owners = {name: view.partitions(name) for name in ("dedup", "prioritizer")}
        for line in exported(data):
            row = json.loads(line)
            host = int(row["host_key"], 16)
            at = (host * view.count("dedup")) >> 64
            key = host, path_key(row["url"].encode())
            dedup: Any = owners["dedup"][at].service
            prioritizer: Any = owners["prioritizer"][at].service
            look = prioritizer.look(*key)
            terms = {
                name: look["priority"][name] for name in ("cash", "history", "page_rank", "host_score", "last_sent")
            }
            del look["priority"]
            found[row["url"]] = dedup.look(*key)["seen"], look, terms
    return found


def totals(data: Path) -> dict[str, Any]:
    document: dict[str, Any] = done("stats", "--data", data, "--json").document
    for name in ("services", "topics", "bus_bytes", "store_bytes", "bytes_per_url", "shards", "at_one_moment"):
        del document[name]
    return document


def without_rows(lines: list[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for row in rows:
        del row["first_row"]
    return rows


def test_resize_moves_every_state_exactly(whole: Path, tmp_path: Path) -> None:
    known, counted = looks(whole), totals(whole)
    assert counted["events_rejected"] == 1
    assert counted["urls_trapped"] > 10
    assert any(look["host"]["in_degree"] > 1 for _, look, _ in known.values())
    for partitions in (1, 3, 16):
        out = tmp_path / str(partitions)
        found = done("resize", "--data", whole, "--out", out, "--partitions", partitions, "--json").document
        assert (found["before"], found["partitions"], found["urls"]) == (5, partitions, counted["urls_total"])
        assert exported(out) == exported(whole)
        assert without_rows(exported(out, "--hosts")) == without_rows(exported(whole, "--hosts"))
        assert looks(out) == known
        assert totals(out) == counted
        done("verify", "--data", out)


def test_a_resized_campaign_goes_on_as_the_old_one_does(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done("resize", "--data", whole, "--out", out, "--partitions", 5)
    old, more = copy_of(whole, tmp_path), events(tmp_path, first=20)
    for data in (old, out):
        campaign(data, more)
    assert exported(out) == exported(old), "the same partitions: the same records, to the last bit"
    assert totals(out) == {**totals(old), "seconds": totals(out)["seconds"], "cpu_seconds": totals(out)["cpu_seconds"]}
    back = tmp_path / "back"
    done("resize", "--data", out, "--out", tmp_path / "two", "--partitions", 2)
    done("resize", "--data", tmp_path / "two", "--out", back, "--partitions", 5)
    assert looks(back) == looks(out)
    again = done("run", more, "--data", back, "--json").document
    assert again["this_run"]["pages"] == 0, "what was published is known as such"


def test_resize_refuses_what_is_not_at_rest(whole: Path, tmp_path: Path) -> None:
    data = copy_of(whole, tmp_path)
    campaign(data, events(tmp_path, first=11), stop_after="dedup")
    found = run_command("resize", "--data", data, "--out", tmp_path / "out", "--partitions", 2)
    assert found.code == 4
    assert "messages to read" in found.err
    assert "meguri run --data" in found.err
    assert not (tmp_path / "out").exists()
    done("run", "--data", data)
    done("resize", "--data", data, "--out", tmp_path / "out", "--partitions", 2)
    assert run_command("resize", "--data", data, "--out", tmp_path / "out", "--partitions", 2).code == 4
    assert run_command("resize", "--data", tmp_path / "none", "--out", tmp_path / "o2", "--partitions", 2).code == 4


def test_a_resize_that_failed_starts_over(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = resizing.import_shard, [0]

    def failing(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == 2:
            raise OSError(errno.ENOSPC, "No space left on device", "urls.parquet")
        return real(*arguments, **options)

    monkeypatch.setattr(resizing, "import_shard", failing)
    out = tmp_path / "out"
    found = run_command("resize", "--data", whole, "--out", out, "--partitions", 3)
    assert found.code == 4
    assert "No space left" in found.err
    assert "a meguri resize into it has not come to its end" in run_command("top", "--data", out).err
    done("resize", "--data", whole, "--out", out, "--partitions", 3)
    assert looks(out) == looks(whole)
    assert totals(out) == totals(whole)


# -- verify -------------------------------------------------------------------------------------------------------


def test_verify_says_what_it_read(whole: Path) -> None:
    found = done("verify", "--data", whole, "--json").document
    assert found["ok"] is True
    assert found["urls"] > 0
    assert found["generations"] >= 5
    assert "all whole" in done("verify", "--data", whole).out


@pytest.mark.parametrize("service", ["dedup", "prioritizer", "store"])
def test_verify_misses_a_services_snapshots(whole: Path, tmp_path: Path, service: str) -> None:
    data = copy_of(whole, tmp_path)
    shutil.rmtree(data / "state" / service)
    found = run_command("verify", "--data", data)
    assert found.code == 4
    assert f"state/{service}/p00000: holds no snapshot" in found.err


@pytest.mark.parametrize("service", ["dedup", "prioritizer", "store"])
def test_a_built_folder_without_its_first_snapshots_is_refused_by_all(tmp_path: Path, service: str) -> None:
    source = tmp_path / "urls.txt"
    source.write_text("https://a.example/\nhttps://b.example/\n")
    data = tmp_path / "data"
    done("build", source, "--data", data, "--partitions", 2)
    shutil.rmtree(data / "state" / service / "p00001")
    for command in (["verify"], ["top"], ["run", events(tmp_path)]):
        found = run_command(*command, "--data", data)
        assert found.code == 4
        assert f"partition 1 of {service} has no whole snapshot" in found.err


def test_verify_finds_a_link_that_leads_nowhere(whole: Path, tmp_path: Path) -> None:
    data = copy_of(whole, tmp_path)
    link = data / "store" / "shard-00002" / "current"
    link.unlink()
    link.symlink_to("g000000000001-0-gone")
    found = run_command("verify", "--data", data)
    assert found.code == 4
    assert "store/shard-00002/current: points at g000000000001-0-gone" in found.err


def test_verify_finds_every_flipped_byte_it_is_shown(whole: Path, tmp_path: Path) -> None:
    data = copy_of(whole, tmp_path)
    files = sorted(path for path in [*data.glob("store/*/g*/*"), *data.glob("state/*/*/*")] if path.is_file())
    assert len(files) > 20
    for at, path in enumerate(files):
        blob = path.read_bytes()
        changed = bytearray(blob)
        changed[(at * 7919) % len(changed)] ^= 0x10
        path.write_bytes(changed)
        found = run_command("verify", "--data", data)
        assert found.code == 4, path
        assert str(path.relative_to(data)).rsplit("/", 1)[0] in found.err, (path, found.err)
        path.write_bytes(blob)
    done("verify", "--data", data)
