"""`meguri export`: every record, every column, in order; read back by other tools."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
import zstandard

from meguri.__main__ import main
from meguri.commands import export as module
from meguri.embedded.campaign import open_campaign
from meguri.embedded.run import RunOptions, run_inputs
from meguri_canonicalizer.canonical import Canonical, canonicalize
from meguri_common.records import Status
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

AT = 1_700_000_000
HOUR = AT // 3600
HEX = ("host_key", "content_fp", "simhash")
SITES = [f"https://site{number}.example/" for number in range(12)]


def events() -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [
        {
            "url": site,
            "fetched_at": AT + 7200 * at,
            "depth": 0,
            "links": ["/a", "/b", SITES[(at + 1) % len(SITES)] + "c", "http://crowded.example/" + str(at)],
            "text": f"the text of page {at}",
            "etag": f'"é{at}"',
        }
        for at, site in enumerate(SITES)
    ]
    out.append({"url": SITES[0] + "b", "fetched_at": AT + 5, "status": 301, "redirect": "/moved"})
    out.append({"type": "control", "schema": 1, "at": 1, "action": "budget", "host": "crowded.example", "value": 3})
    return out


def made(folder: Path, name: str) -> Path:
    source = folder / "events.jsonl"
    source.write_text("".join(json.dumps(event) + "\n" for event in events()))
    campaign = open_campaign(folder / name, partitions=4, now=lambda: AT + 200_000.0)
    try:
        run_inputs(campaign, [str(source)], RunOptions())
    finally:
        campaign.close()
    return folder / name


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("export"), "data")


def run_command(*arguments: str) -> SimpleNamespace:
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["export", *arguments])
    return SimpleNamespace(code=code, out=out.buffer.getvalue(), err=err.getvalue())  # type: ignore[attr-defined] # BytesIO


def lines(data: Path, *arguments: str) -> list[dict[str, Any]]:
    done = run_command("--data", str(data), *arguments)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A record of Parquet as JSON Lines has it."""
    return {
        name: f"{value:016x}" if name in HEX else value.decode() if isinstance(value, bytes) else value
        for name, value in row.items()
    }


def test_every_column_of_every_record_in_store_order(data: Path) -> None:
    rows = lines(data)
    assert len(rows) > 40
    assert all(list(row) == URL_SCHEMA.names for row in rows)
    assert [(row["host_key"], row["url"]) for row in rows] == sorted((row["host_key"], row["url"]) for row in rows)
    for row in rows:
        found = canonicalize(row["url"])
        assert isinstance(found, Canonical)
        assert row["host_key"] == f"{found.host_key:016x}"
    by_url = {row["url"]: row for row in rows}
    start = by_url[SITES[3]]
    assert (start["etag"], start["status"], start["last_crawled"]) == ('"é3"', Status.CRAWLED, HOUR + 6)
    assert by_url[SITES[0] + "b"]["redirect"] == SITES[0] + "moved"


def test_equal_campaigns_give_equal_bytes(data: Path, tmp_path: Path) -> None:
    again = made(tmp_path, "other-name")
    for arguments in ([], ["--hosts"]):
        first, second = (run_command("--data", str(folder), *arguments).out for folder in (data, again))
        assert first == second
        assert first


def test_parquet_is_read_by_other_tools(data: Path, tmp_path: Path) -> None:
    rows = lines(data)
    file = tmp_path / "all.parquet"
    assert run_command("--data", str(data), "--format", "parquet", "--output", str(file)).code == 0
    table = pq.read_table(file)
    assert table.schema.equals(URL_SCHEMA)
    assert [plain(row) for row in table.to_pylist()] == rows
    assert [plain(row) for row in pl.read_parquet(file).to_dicts()] == rows
    relation = duckdb.sql(f"select * from '{file}'")
    assert [plain(dict(zip(relation.columns, row, strict=True))) for row in relation.fetchall()] == rows
    assert duckdb.sql(f"select typeof(host_key) from '{file}' limit 1").fetchall() == [("UBIGINT",)]


def test_the_stores_own_files_are_read_by_other_tools(data: Path) -> None:
    rows = lines(data)
    pattern = str(data / "store" / "*" / "current" / "urls.parquet")
    relation = duckdb.sql(f"select * from '{pattern}' order by host_key, url")
    assert [plain(dict(zip(relation.columns, row, strict=True))) for row in relation.fetchall()] == rows
    assert [plain(row) for row in pl.scan_parquet(pattern).sort("host_key", "url").collect().to_dicts()] == rows
    hosts = str(data / "store" / "*" / "current" / "hosts.parquet")
    wanted = {row["host_group"]: row["url_count"] for row in lines(data, "--hosts")}
    assert dict(duckdb.sql(f"select host_group, url_count from '{hosts}'").fetchall()) == wanted


def test_filters(data: Path) -> None:
    rows = lines(data)
    crowded = [row for row in rows if row["url"].startswith("http://crowded.example/")]
    assert lines(data, "--host", "www.crowded.example") == crowded
    trapped = [row for row in rows if row["status"] == Status.TRAPPED]
    assert len(trapped) == len(crowded) - 3
    assert lines(data, "--status", "trapped") == trapped
    gone_on = [row for row in rows if row["status"] in {Status.CRAWLED, Status.TRAPPED}]
    assert lines(data, "--status", "crawled", "--status", "trapped") == gone_on
    due = [row for row in rows if 0 < row["next_due"] < HOUR + 5]
    assert 0 < len(due) < len(rows)
    assert lines(data, "--due-before", str(HOUR + 5)) == due
    assert lines(data, "--due-before", str(HOUR + 5), "--host", "crowded.example") == [r for r in due if r in crowded]
    assert lines(data, "--host", "nowhere.example") == []


def test_hosts(data: Path) -> None:
    rows = lines(data, "--hosts")
    assert all(list(row) == HOST_SCHEMA.names for row in rows)
    assert [row["host_key"] for row in rows] == sorted({row["host_key"] for row in lines(data)})
    (crowded,) = lines(data, "--hosts", "--host", "crowded.example")
    assert (crowded["host_group"], crowded["url_budget"], crowded["url_count"]) == ("crowded.example", 3, 3)
    assert crowded in rows


def test_one_file_a_partition(data: Path, tmp_path: Path) -> None:
    rows = lines(data)
    for form, reader in (("parquet", None), ("jsonl", json.loads)):
        folder = tmp_path / form
        assert run_command("--data", str(data), "--format", form, "--output", f"{folder}/").code == 0
        files = sorted(folder.iterdir())
        assert [file.name for file in files] == [f"shard-{number:05d}.{form}" for number in range(4)]
        if reader is None:
            found = [plain(row) for file in files for row in pq.read_table(file).to_pylist()]
            assert duckdb.sql(f"select count(*) from '{folder}/*.parquet'").fetchall() == [(len(rows),)]
        else:
            found = [reader(line) for file in files for line in file.read_bytes().splitlines()]
        assert found == rows


def test_compressed_by_name(data: Path, tmp_path: Path) -> None:
    plainly = run_command("--data", str(data), "--output", "-").out
    for name, opened in (("a.jsonl", None), ("a.jsonl.gz", gzip.open), ("a.jsonl.zst", zstandard.open)):
        file = tmp_path / name
        assert run_command("--data", str(data), "--output", str(file)).code == 0
        if opened is None:
            assert file.read_bytes() == plainly
        else:
            with opened(file, "rb") as stream:
                assert stream.read() == plainly


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_what_is_there_is_kept_without_force(data: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("precious")
    arguments = ["--data", str(data), "--format", name.partition(".")[2], "--output", str(file)]
    done = run_command(*arguments)
    assert done.code == 2
    assert "--force" in done.err
    assert file.read_text() == "precious"
    assert run_command(*arguments, "--force").code == 0
    assert file.stat().st_size > 1000


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_failure_in_the_middle_leaves_the_old_file(
    data: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / name
    file.write_text("precious")
    whole = module.tables_of

    def failing(view: Any, number: int, wanted: Any) -> Any:
        yield from whole(view, number, wanted)
        if number == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "tables_of", failing)
    arguments = ["--data", str(data), "--format", name.partition(".")[2], "--output", str(file), "--force"]
    done = run_command(*arguments)
    assert done.code == 1
    assert "No space left" in done.err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert file.read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "parquet"], "--output"),
        (["--format", "parquet", "--output", "-"], "--output"),
        (["--format", "parquet", "--output", "a.jsonl"], ".parquet"),
        (["--output", "a.parquet"], ".jsonl"),
        (["--hosts", "--status", "gone"], "--hosts"),
        (["--hosts", "--due-before", "5"], "--hosts"),
        (["--host", "http://x/"], "no host"),
        (["--status", "dead"], "dead"),
    ],
)
def test_wrong_use(data: Path, arguments: list[str], said: str) -> None:
    done = run_command("--data", str(data), *arguments)
    assert (done.code, done.out) == (2, b"")
    assert said in done.err


def test_an_output_that_cannot_be_written(data: Path, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.parquet"):
        target = tmp_path / "nowhere" / name
        done = run_command("--data", str(data), "--format", name.partition(".")[2], "--output", str(target))
        assert done.code == 1
        assert "can't be written" in done.err


def test_it_sums_up_what_it_wrote(data: Path, tmp_path: Path) -> None:
    target = tmp_path / "all"
    target.mkdir()
    done = run_command("--data", str(data), "--format", "parquet", "--output", str(target), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    files = sorted(target.iterdir())
    assert found["rows"] == len(lines(data)) == sum(pq.read_metadata(file).num_rows for file in files)
    assert found["files"] == [str(file) for file in files]
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    assert found["rows_per_second"] > 0
    said = run_command("--data", str(data), "--output", str(tmp_path / "a.jsonl")).err
    assert f"{found['rows']} records" in said
    assert run_command("--data", str(data), "--json").code == 2
