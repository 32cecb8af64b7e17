"""The page of the seen-set's benchmark shows what its results file holds."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "seen.md"
RESULTS = ROOT / "bench" / "results" / "seen.json"


@pytest.fixture(scope="module")
def seen_page():
    spec = importlib.util.spec_from_file_location("seen_page", ROOT / "bench" / "seen_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_and_chart_are_those_of_the_results(seen_page, tmp_path):
    rows = json.loads(RESULTS.read_text())
    page, chart = tmp_path / "seen.md", tmp_path / "seen.svg"
    shutil.copy(PAGE, page)
    seen_page.write_tables(rows, page)
    seen_page.write_chart(rows, chart)
    assert page.read_text() == PAGE.read_text(), "run bench/seen_page.py"
    assert chart.read_text() == PAGE.with_suffix(".svg").read_text()
    assert all(row.keys() >= {"name", "value", "unit"} for row in rows)
    assert all(row["ratio"] > 0 and row["peer"] >= 0 for row in rows if "peer" in row)


def test_a_figure_that_changes_changes_the_page(seen_page, tmp_path):
    rows = json.loads(RESULTS.read_text())
    changed = next(row for row in rows if row["name"].endswith(" keys: crawl"))
    changed["value"] = 123456
    page = tmp_path / "seen.md"
    shutil.copy(PAGE, page)
    seen_page.write_tables(rows, page)
    assert "123,456" in page.read_text()


def test_a_page_without_marks_is_refused(seen_page, tmp_path):
    page = tmp_path / "seen.md"
    page.write_text("nothing here")
    with pytest.raises(ValueError, match="substring"):
        seen_page.write_tables(json.loads(RESULTS.read_text()), page)
