"""The documented queries run on a real data folder and say something."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from meguri.embedded.campaign import open_campaign
from meguri.embedded.run import RunOptions, run_inputs

ROOT = Path(__file__).resolve().parents[2]
QUERIES = re.findall(r"```sql\n(.*?)```", (ROOT / "docs/recipes/duckdb.md").read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("recipes") / "data"
    # A small budget, so that something is parked.
    small = {"base_budget": 1, "per_in_link": 0, "min_budget": 1}
    campaign = open_campaign(data, partitions=3, parameters={"prioritizer": small})
    try:
        run_inputs(campaign, [str(ROOT / "examples/sqlite-docs.jsonl.zst")], RunOptions())
    finally:
        campaign.close()
    return data


def test_there_are_queries() -> None:
    assert len(QUERIES) >= 4


@pytest.mark.parametrize("query", QUERIES)
def test_query(query: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with duckdb.connect() as connection:
        assert connection.sql(query).fetchall()
