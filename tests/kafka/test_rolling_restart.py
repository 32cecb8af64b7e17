"""Every instance restarted in turn while pages flow: nothing is lost, state is handed on, nothing stands still long."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from kafka_crawl import Crawl, crawl_lines
from kafka_fleet import SERVICES, Fleet, outcome_of
from kafka_watch import Watch, standstills

from meguri.fleet.view import open_fleet_view
from meguri_common.config import KafkaSettings
from meguri_common.sdk.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kafka_watch import Look

WHOLE = os.environ.get("MEGURI_TEST_WHOLE") == "1"
pytestmark = pytest.mark.skipif(
    float(os.environ.get("MEGURI_TEST_CHAOS_SECONDS", "0")) <= 0, reason="takes minutes: make test-chaos"
)
RESTARTS = 3
GRACE = 20.0
"""A partition may stand still for so many times the slowest restart and so many seconds: loose, since the machine may
have much else to do."""
PAGES_A_SECOND = 20
LOOK_SECONDS = 0.1
STATEFUL = ("dedup", "prioritizer", "store")


class Flow:
    """Publishes pages at a steady pace and looks at the inboxes meanwhile, on two threads."""

    def __init__(self, fleet: Fleet, lines: list[bytes]) -> None:
        self.published: list[bytes] = []
        self.looks: list[Look] = []
        self._done = threading.Event()
        self._problems: list[BaseException] = []
        watch = Watch(fleet)
        publisher = Publisher.connect(KafkaSettings(bootstrap=fleet.bootstrap, prefix=fleet.prefix), linger=0)

        def publish() -> None:
            with publisher:
                for line in lines:
                    if self._done.wait(1 / PAGES_A_SECOND):
                        break
                    publisher.publish(line)
                    self.published.append(line)

        def look() -> None:
            while not self._done.wait(LOOK_SECONDS):
                self.looks.append(watch.look())

        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (publish, look)]
        for thread in self._threads:
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:  # noqa: BLE001 - raised again in the test's own thread
            self._problems.append(problem)

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)
        if self._problems:
            raise self._problems[0]


@pytest.mark.parametrize("instances", [1, 2] if WHOLE else [2])
def test_every_instance_in_turn(
    instances: int,
    kafka_bootstrap: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    say: Callable[[str, str], None],
) -> None:
    lines = crawl_lines(request)
    handed_on = 0
    restarts = []
    with Fleet(kafka_bootstrap, tmp_path / "data") as fleet:
        fleet.start_all(instances)
        watch = Watch(fleet)
        flow = Flow(fleet, lines)
        try:
            for service in SERVICES:
                for _ in range(instances):
                    process = fleet.running[service].pop(0)
                    began = time.monotonic()
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(60) == 0, fleet.log(service).read_text()[-3000:]
                    if instances == 1 and service in STATEFUL:
                        handed_on += snapshots_are_at(watch.look().committed[service], fleet.data, service)
                    fleet.start(service)
                    fleet.await_started()
                    restarts.append(time.monotonic() - began)
        finally:
            flow.end()
        fleet.drain()
        fleet.stop_all()
        found = outcome_of(fleet.data)
        for service in STATEFUL:
            handed_on += snapshots_are_at(watch.look().committed[service], fleet.data, service)
    wanted = Crawl(flow.published, tmp_path).outcome
    assert found.urls == wanted.urls
    assert found.visits == wanted.visits
    assert found.cash == wanted.cash
    still = standstills(flow.looks)
    longest = max(still, key=lambda each: still[each])
    assert still[longest] < RESTARTS * max(restarts) + GRACE, (longest, still[longest], restarts)
    assert handed_on
    say(
        f"rolling restart, {instances} a service",
        f"{len(flow.published)} pages; a partition stood still for {still[longest]:.1f} s at most "
        f"({longest[0]}; a restart took {max(restarts):.1f} s at most), "
        f"median {statistics.median(still.values()):.1f} s",
    )


def snapshots_are_at(committed: list[int], data: Path, service: str) -> int:
    """Nobody has a service's partitions: all that it committed is in their snapshots. How many have any."""
    with open_fleet_view(data) as view:
        spec = next(spec for spec in view.specs if spec.name == service)
        for number, position in enumerate(committed):
            if position:
                newest = view.snapshots(spec, number).whole()[0]
                assert newest.offset == position, (service, number, newest.offset, position)
    return sum(map(bool, committed))


def test_standstills_begin_with_something_to_read_and_end_with_progress() -> None:
    from kafka_watch import Look  # noqa: PLC0415 - the name is a type for all others here

    def look(at: float, end: int, committed: int) -> Look:
        return Look(at, {"store": [end]}, {"store": [committed]})

    assert standstills([look(0, 5, 5), look(9, 5, 5)]) == {("store", 0): 0.0}
    assert standstills([look(0, 5, 5), look(1, 6, 5), look(4, 7, 5), look(5, 7, 6)]) == {("store", 0): 4.0}
    assert standstills([look(0, 6, 5), look(1, 7, 6), look(2, 8, 7)]) == {("store", 0): 1.0}
