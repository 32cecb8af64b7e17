"""Whatever strikes a fleet while it works, it ends like the embedded run."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from kafka_chaos import FAULTS, Chaos
from kafka_cluster import Cluster, NoBroker, broker_jars
from kafka_crawl import Crawl, crawl_lines
from kafka_fleet import Fleet, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECONDS = float(os.environ.get("MEGURI_TEST_CHAOS_SECONDS", "0"))
SEED = int(os.environ.get("MEGURI_TEST_CHAOS_SEED", random.randrange(1 << 32)))
WITHOUT = [] if os.environ.get("MEGURI_TEST_WHOLE") == "1" else ["broker stalled"]
"""librdkafka may crash, or wait for minutes, when a group's coordinator stalls: long runs strike with it, too."""
LEAST = 2
PAGES = 1200

pytestmark = pytest.mark.skipif(SECONDS <= 0, reason="strikes a fleet for minutes: make test-chaos")


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Cluster]:
    try:
        jars = broker_jars()
    except NoBroker as problem:
        pytest.skip(str(problem))
    cluster = Cluster(tmp_path / "brokers", 3, jars=jars)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_faults_change_nothing(
    brokers: Cluster, tmp_path: Path, request: pytest.FixtureRequest, say: Callable[[str, str], None]
) -> None:
    print(f"MEGURI_TEST_CHAOS_SEED={SEED}")  # noqa: T201 - shown when it fails
    lines = crawl_lines(request)
    lines = lines[:: max(len(lines) // PAGES, 1)]
    wanted = Crawl(lines, tmp_path).outcome
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    with Fleet(brokers.bootstrap, tmp_path / "data") as fleet:
        fleet.start_all(2)
        struck = Chaos(fleet, brokers, lines, pieces, seed=SEED, without=WITHOUT).run(SECONDS)
        fleet.drain()
        fleet.stop_all()
        found = outcome_of(fleet.data)
    assert found.urls == wanted.urls
    assert found.visits == wanted.visits
    assert found.cash == wanted.cash
    assert set(struck.times) <= set(FAULTS)
    assert len(struck.times) >= LEAST, "too few faults: give it more time"
    say("chaos", str(struck))
