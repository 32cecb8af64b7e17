"""Where the tests find the folder of right answers, and how they read it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
TEST_DATA = Path(os.environ.get("MEGURI_TEST_DATA", ROOT.parent / "shared"))

_rows_read: dict[str, int] = {}


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of right answers; a test that needs it is skipped where there is none."""
    if not TEST_DATA.is_dir():
        pytest.skip(f"no folder of right answers at {TEST_DATA} (set MEGURI_TEST_DATA)")
    return TEST_DATA


@pytest.fixture(scope="session")
def golden_rows(test_data: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Reader of a JSON Lines file below the folder: every row, counted for the closing summary."""

    def read(name: str) -> list[dict[str, Any]]:
        path = test_data / name
        if not path.is_file():
            pytest.skip(f"no {name} in {test_data}")
        with path.open("rb") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
        assert rows, f"{path} is empty"
        _rows_read[name] = len(rows)
        return rows

    return read


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many rows of which files were read."""
    for name, count in sorted(_rows_read.items()):
        terminalreporter.write_line(f"right answers: {count} rows of {name}")
