"""The documented queries run on real data folders, and say what another reading of the files says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import UTC, date, datetime
from math import floor, log2
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from meguri.embedded.building import BuildOptions, build_folder
from meguri.embedded.campaign import open_campaign
from meguri.embedded.recrawling import recrawl_folder
from meguri.embedded.run import RunOptions, run_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
VIEWS, *QUERIES = re.findall(r"```sql\n(.*?)```", (ROOT / "docs/recipes/duckdb.md").read_text(), re.DOTALL)
LARGE = int(os.environ.get("MEGURI_RECIPE_URLS", "20000"))
"""URLs of the larger folder; a million of them take a minute."""
NOW = 490_000
NAMES = ["host_key", "url", "status", "depth", "reason", "next_due", "priority", "lambda", "first_seen"]
NAMES += ["last_crawled", "crawl_count", "change_count"]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("recipes") / "data"
    # A small budget, so that something is parked.
    small = {"base_budget": 1, "per_in_link": 0, "min_budget": 1}
    campaign = open_campaign(data, partitions=3, parameters={"prioritizer": small})
    try:
        run_inputs(campaign, [str(ROOT / "examples/sqlite-docs.jsonl.zst")], RunOptions())
    finally:
        campaign.close()
    return data


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many URLs on hosts of all sizes, crawled a few times by drawn outcomes."""
    folder = tmp_path_factory.mktemp("large")
    source = folder / "urls.jsonl"
    with source.open("w") as out:
        for at in range(LARGE):
            host = int((at * 2654435761 % LARGE) ** 0.5)
            due = 0 if at % 5 == 0 else NOW
            out.write(f'{{"url":"https://host{host}.example/{at}","depth":{at % 9},"next_due":{due}}}\n')
    build_folder(folder / "data", [str(source)], BuildOptions(now=NOW, partitions=4))
    for hour in (NOW + 3, NOW + 180, NOW + 400):
        recrawl_folder(folder / "data", hour)
    return folder / "data"


def records(data: Path) -> list[dict[str, Any]]:
    """All URL records, each with its host group."""
    rows: list[dict[str, Any]] = []
    for shard in sorted(data.glob("store/shard-*/current")):
        stated = pq.read_table(shard / "hosts.parquet", columns=["host_group"]).column("host_group").to_pylist()
        groups = {xxhash.xxh64_intdigest(group.encode()): group for group in stated}
        names = ["host_key", "url", "status", "depth", "reason", "next_due", "priority", "lambda", "first_seen"]
        table: pa.Table = pq.read_table(
            shard / "urls.parquet", columns=[*names, "last_crawled", "crawl_count", "change_count"]
        )
        rows += [row | {"group": groups[row["host_key"]]} for row in table.to_pylist()]
    return rows


def answers(rows: list[dict[str, Any]]) -> list[list[tuple[Any, ...]]]:
    """What each query of the page has to say, in its order."""
    urls, crawled = Counter(row["group"] for row in rows), Counter(row["group"] for row in rows if row["crawl_count"])
    by_depth, done = Counter(row["depth"] for row in rows), Counter(row["depth"] for row in rows if row["crawl_count"])
    now = max(max(row["last_crawled"], row["first_seen"]) for row in rows)
    due = [row for row in rows if row["status"] in {1, 2, 4, 5} and 0 < row["next_due"] <= now + 24]
    due.sort(key=lambda row: (row["next_due"], -row["priority"], row["url"]))
    days = Counter(row["next_due"] // 24 for row in rows if row["next_due"])
    rates = [(2.0 ** floor(log2(1 / row["lambda"] / 24)), row["change_count"]) for row in rows if row["lambda"] > 0]
    changes: Counter[float] = Counter()
    for days_from, seen in rates:
        changes[days_from] += seen
    parked = Counter((row["group"], row["reason"]) for row in rows if row["status"] == 8)
    first = date(1970, 1, 1).toordinal()
    return [
        [(group, count, crawled[group]) for group, count in sorted(urls.items(), key=lambda item: (-item[1], item[0]))][
            :10
        ],
        [(depth, count, round(100 * done[depth] / count, 1)) for depth, count in sorted(by_depth.items())],
        [(row["url"], row["priority"], datetime.fromtimestamp(row["next_due"] * 3600, UTC)) for row in due[:20]],
        [(date.fromordinal(first + day), count) for day, count in sorted(days.items())][:14],
        [
            (days_from, count, changes[days_from])
            for days_from, count in sorted(Counter(key for key, _ in rates).items())
        ],
        [(*key, count) for key, count in sorted(parked.items(), key=lambda item: (-item[1], item[0][0]))][:10],
    ]


def asked(query: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    monkeypatch.chdir(data)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(VIEWS)
        return connection.sql(query).fetchall()


def test_the_views_give_the_records_of_hosts(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "meguri", "export", "--hosts", "--data", str(example)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    expected = {int(row["host_key"], 16): (row["host_group"], row["registrable_domain"]) for row in rows}
    query = "SELECT host_key, host_group, registrable_domain FROM hosts"
    found = {key: (group, domain) for key, group, domain in asked(query, example, monkeypatch)}
    assert found == expected
    assert len(found) > 30


def test_the_queries_on_the_example(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers(records(example))
    assert len(QUERIES) == len(expected)
    for query, answer in zip(QUERIES, expected, strict=True):
        assert asked(query, example, monkeypatch) == answer, query
        assert answer or '"lambda"' in query, "one visit each shows no rate"


def test_the_queries_on_a_larger_folder(
    large: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[[str, str], None]
) -> None:
    rows = records(large)
    say("recipes", f"{len(rows):,} URLs (MEGURI_RECIPE_URLS)")
    assert len(rows) == LARGE
    for query, answer in zip(QUERIES, answers(rows), strict=True):
        assert asked(query, large, monkeypatch) == answer, query
        assert answer or "parked" in query, "nothing is parked there"
