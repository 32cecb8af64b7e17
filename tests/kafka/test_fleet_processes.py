"""The services as real processes over a real broker give what the embedded run gives, killed or not."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from kafka_crawl import Crawl, crawl_lines
from kafka_fleet import SERVICES, Fleet, Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WHOLE = os.environ.get("MEGURI_TEST_WHOLE") == "1"
"""Whether all of the crawl flows through the fleet, not just some of its pages."""
PAGES = 600
STOP_WITHIN = 20.0


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Crawl:
    lines = crawl_lines(request)
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
