"""A crawl's events for fleets, and what the embedded run makes of them."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard
from kafka_fleet import Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EXAMPLE", "Crawl", "crawl_lines", "lines_of"]

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "sqlite-docs.jsonl.zst"


def lines_of(path: Path) -> list[bytes]:
    """All lines of a compressed file."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        return list(io.BufferedReader(reader, 1 << 20))


def crawl_lines(request: pytest.FixtureRequest) -> list[bytes]:
    """Pages of documentation sites, or of the shipped example where the data isn't there."""
    try:
        return lines_of(request.getfixturevalue("test_data") / "data" / "docs-crawl.jsonl.zst")
    except pytest.skip.Exception:
        return lines_of(EXAMPLE)


def _meguri(*arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meguri", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


class Crawl:
    """Events in two halves, and what the embedded run makes of them."""

    outcome: Outcome

    def __init__(self, lines: Sequence[bytes], folder: Path) -> None:
        self.pages = len(lines)
        self.halves = [folder / "first.jsonl", folder / "second.jsonl"]
        middle = len(lines) // 2
        for path, part in zip(self.halves, (lines[:middle], lines[middle:]), strict=True):
            path.write_bytes(b"".join(part))
        data = folder / "embedded"
        _meguri("run", *self.halves, "--data", data, "--partitions", "8", "--json")
        self.outcome = outcome_of(data)
