"""Where the tests find the folder of right answers, how they read it, and what they say about it at the end."""

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

_said: dict[str, str] = {}


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of right answers; a test that needs it is skipped where there is none."""
    if not TEST_DATA.is_dir():
        pytest.skip(f"no folder of right answers at {TEST_DATA} (set MEGURI_TEST_DATA)")
    return TEST_DATA


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Put a line into the closing summary, under a name; works from the processes of pytest-xdist too."""

    def note(name: str, line: str) -> None:
        request.node.user_properties.append(("say", (name, line)))

    return note


@pytest.fixture
def golden_rows(test_data: Path, say: Callable[[str, str], None]) -> Callable[[str], list[dict[str, Any]]]:
    """Reader of a JSON Lines file below the folder: every row, counted for the closing summary."""

    def read(name: str) -> list[dict[str, Any]]:
        path = test_data / name
        if not path.is_file():
            pytest.skip(f"no {name} in {test_data}")
        with path.open("rb") as lines:
            rows = [json.loads(line) for line in lines if line.strip()]
        assert rows, f"{path} is empty"
        say(f"right answers in {name}", f"{len(rows)} rows read")
        return rows

    return read


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect what tests had to say, from whichever process they ran in."""
    for kind, value in report.user_properties:
        if kind == "say":
            name, line = value
            _said[name] = line


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say it."""
    for name, line in sorted(_said.items()):
        terminalreporter.write_line(f"{name}: {line}")
