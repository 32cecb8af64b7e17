"""The services as real processes over a real broker give what the embedded run gives, killed or not."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

pytest.importorskip("confluent_kafka")

from kafka_fleet import SERVICES, Fleet, Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "sqlite-docs.jsonl.zst"
WHOLE = os.environ.get("MEGURI_TEST_WHOLE") == "1"
"""Whether all of the crawl flows through the fleet, not just some of its pages."""
PAGES = 600
STOP_WITHIN = 20.0


def _lines(path: Path) -> list[bytes]:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as reader:
        return list(io.BufferedReader(reader, 1 << 20))


def _meguri(*arguments: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meguri", *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


class Crawl:
    """Events in two halves, and what the embedded run makes of them."""

    def __init__(self, lines: Sequence[bytes], folder: Path) -> None:
        self.pages = len(lines)
        self.halves = [folder / "first.jsonl", folder / "second.jsonl"]
        middle = len(lines) // 2
        for path, part in zip(self.halves, (lines[:middle], lines[middle:]), strict=True):
            path.write_bytes(b"".join(part))
        data = folder / "embedded"
        _meguri("run", *self.halves, "--data", data, "--partitions", "8", "--json")
        self.outcome = outcome_of(data)


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Crawl:
    try:
        lines = _lines(request.getfixturevalue("test_data") / "data" / "docs-crawl.jsonl.zst")
    except pytest.skip.Exception:
        lines = _lines(EXAMPLE)
    step = 1 if WHOLE else max(len(lines) // PAGES, 1)
    return Crawl(lines[::step], tmp_path_factory.mktemp("crawl"))


def same(found: Outcome, wanted: Outcome) -> None:
    assert found.urls == wanted.urls
    assert found.visits == wanted.visits
    assert found.cash == wanted.cash
    assert found.in_degrees == wanted.in_degrees
    assert found.in_degrees


@pytest.mark.parametrize("instances", [1, 2, 4] if WHOLE else [1])
def test_a_fleet_ends_like_the_embedded_run(
    crawl: Crawl, instances: int, kafka_bootstrap: str, tmp_path: Path, say: Callable[[str, str], None]
) -> None:
    with Fleet(kafka_bootstrap, tmp_path / "data") as fleet:
        fleet.start_all(instances)
        fleet.publish(*crawl.halves)
        fleet.drain()
        stopping = fleet.stop_all()
        same(outcome_of(fleet.data), crawl.outcome)
        assert set(fleet.lag().values()) == {0}
    assert stopping < STOP_WITHIN
    say(f"fleet, {instances} a service", f"{crawl.pages} pages as embedded, stopped within {stopping:.1f} s")


def test_kills_and_restarts_in_the_middle_change_nothing(
    crawl: Crawl, kafka_bootstrap: str, tmp_path: Path, say: Callable[[str, str], None]
) -> None:
    with Fleet(kafka_bootstrap, tmp_path / "data") as fleet:
        fleet.start_all(2)
        fleet.publish(crawl.halves[0])
        for service in SERVICES:
            fleet.kill(service)
        began = time.monotonic()
        fleet.publish(crawl.halves[1])
        for service in SERVICES:
            fleet.start(service)
        fleet.drain()
        drained = time.monotonic() - began
        fleet.stop_all()
        same(outcome_of(fleet.data), crawl.outcome)
    say("fleet, one of two killed of each service", f"drained {drained:.0f} s later, as embedded")
