"""Brokers that are killed, and that stall for longer than a transaction may take: nothing stops for good."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from kafka_cluster import Cluster, NoBroker
from kafka_stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafka_stage import Life

TRANSACTION = 3.0
NODES = [1, 3] if os.environ.get("MEGURI_TEST_WHOLE") == "1" else [1]


@pytest.fixture(params=NODES)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    try:
        made = Cluster(tmp_path / "brokers", request.param)
    except NoBroker as problem:
        pytest.skip(str(problem))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@contextmanager
def at_work(life: Life) -> Iterator[None]:
    """The instance works in a thread of its own meanwhile."""
    ending = threading.Event()

    def work() -> None:
        while not ending.is_set():
            life.worker.run_once()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def await_all(stage: Stage, sent: list[bytes]) -> float:
    """Seconds until all has come out."""
    began = time.monotonic()
    while len(stage.out()) < len(sent):
        assert time.monotonic() - began < 90
        time.sleep(0.1)
    return time.monotonic() - began


def test_brokers_killed_and_stalled(cluster: Cluster, tmp_path: Path) -> None:
    stage = Stage(
        cluster.bootstrap,
        tmp_path / "data",
        copies=cluster.count,
        transaction_timeout=TRANSACTION,
        request_timeout=5.0,
        session_timeout=4.0,
        give_up_timeout=4.0,
    )
    life = stage.life()
    sent = stage.send(10)
    # Slow enough for an outage to fall into a step.
    stage.before_message = lambda _payload: time.sleep(0.05)
    try:
        with at_work(life):
            await_all(stage, sent)
            for number in (signal.SIGKILL, signal.SIGSTOP):
                sent += stage.send(30)
                time.sleep(0.3)
                cluster.signal(0, number)
                time.sleep(TRANSACTION + 2)
                if number == signal.SIGKILL:
                    cluster.start(0)
                else:
                    cluster.signal(0, signal.SIGCONT)
                await_all(stage, sent)
                sent += stage.send(5)
                await_all(stage, sent)
        stage.check(sent)
    finally:
        stage.close()
