"""The Faust application against a real broker: what it hears, what it bears, what it keeps over a kill."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("faust", reason="no faust-streaming (the extra `monitor`)")
pytest.importorskip("confluent_kafka", reason="no confluent-kafka (the extra `kafka`)")

from headless_browser import browser_path, open_page, running_browser
from monitor_program import Speaker, make_topic, monitor_program
from monitor_scene import Scene, message
from test_prometheus import parse

from meguri_common.errors import BusError
from meguri_common.telemetry.kafka import KafkaEmitter
from meguri_common.telemetry.model import WorkFigures
from meguri_common.telemetry.sampling import InstanceName, instance_sample
from meguri_monitor import broker
from meguri_monitor.broker import TopicShape
from meguri_monitor.monitor import CHANGELOG_SETTINGS, changelog_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SERVICES = ["canonicalizer", "dedup", "prioritizer", "store"]


def fresh_prefix() -> str:
    return f"t{uuid.uuid4().hex[:10]}."


def by_name(state: dict[str, Any]) -> dict[str, Any]:
    return {service["service"]: service for service in state["services"]}


def links_of(state: dict[str, Any], service: str) -> float:
    """Links of all whole spans that are shown."""
    return sum(10 * rate for _, rate, _ in by_name(state)[service]["history"])


def heard(samples: int) -> Callable[[dict[str, Any]], bool]:
    return lambda state: state["hearing"]["samples"] >= samples


def test_a_topic_that_is_not_there_is_refused(kafka_bootstrap: str, tmp_path: Path) -> None:
    prefix = fresh_prefix()
    done = subprocess.run(
        [sys.executable, "-m", "meguri", "monitor", "--bootstrap", kafka_bootstrap, "--data", str(tmp_path)],
        env={**os.environ, "MEGURI_KAFKA_PREFIX": prefix},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4
    assert done.stdout == ""
    assert f"no topic {prefix}telemetry" in done.stderr
    assert "meguri topics create" in done.stderr


def test_the_topic_of_the_table_is_whole_once_it_is_made(kafka_bootstrap: str) -> None:
    name = changelog_topic(fresh_prefix() + "monitor", 3)
    shape = TopicShape(3, 1)
    for _ in range(2):  # by a monitor that starts again, too
        asyncio.run(broker.make_topic(kafka_bootstrap, name, shape, CHANGELOG_SETTINGS, {}))
        assert asyncio.run(broker.shape_of(kafka_bootstrap, name, {})) == shape
    with pytest.raises(BusError, match="replication"):
        asyncio.run(broker.make_topic(kafka_bootstrap, name + "2", TopicShape(1, 9), CHANGELOG_SETTINGS, {}))


def test_a_fleet_is_heard_through_loss_repeats_garbage_and_a_kill(kafka_bootstrap: str, tmp_path: Path) -> None:
    prefix = fresh_prefix()
    topic = f"{prefix}telemetry"
    make_topic(kafka_bootstrap, topic, partitions=2)
    begin = time.time() - 300
    scene = Scene(started_at=begin, suspects=2)
    speaker = Speaker(kafka_bootstrap, topic, scene, begin)
    luck = random.Random(5)
    log = tmp_path / "log"
    speaker.speak(begin + 10)  # a fleet may be there first
    with monitor_program(kafka_bootstrap, prefix, tmp_path, log) as program:
        speaker.say("dedup", b"garbage\n\n{}")
        # A fifth is lost and a fifth comes twice; what a report is missing the next ones make good.
        speaker.speak(begin + 130, passes=lambda: luck.choice([0, 1, 1, 1, 2]))
        speaker.speak(begin + 150)
        said = instance_sample(
            InstanceName("dedup", "other", "another", 1.0), WorkFigures(), partitions=0, at=begin + 150, sequence=0
        )
        speaker.say("dedup", message([said]))
        last = scene._sequence - 1
        state = program.await_state(lambda state: state["hearing"]["foreign"] == 1 and all_heard(state, scene))
        assert list(by_name(state)) == SERVICES
        hearing = state["hearing"]
        assert hearing["unreadable"] == 2
        assert hearing["lost_reports"] > 60
        assert hearing["repeated"] > 150
        assert 5 * (last + 1) > hearing["lost_reports"]
        for service in ("dedup", "store"):
            known = links_of(state, service)
            read = int(scene._read[service] / 4) * 4 * 20 * 40
            # The last span isn't whole yet, and neither is the first sample counted.
            assert read * 0.9 <= known <= read, service
        assert program.end(signal.SIGKILL) == -signal.SIGKILL
    speaker.speak(begin + 200)
    before = links_of(state, "dedup")
    with monitor_program(kafka_bootstrap, prefix, tmp_path, log) as program:
        # It goes on where it was, or somewhat before; what is heard twice counts once.
        speaker.speak(begin + 295)
        state = program.await_state(lambda state: all_heard(state, scene))
        known = links_of(state, "dedup")
        assert known > before
        read = int(scene._read["dedup"] / 4) * 4 * 20 * 40
        assert read * 0.9 <= known <= read
        status, headers, body = program.get("/metrics")
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        found = parse(body.decode())
        assert sum(found["meguri_store_urls_total"].values()) > 0
        status, headers, body = program.get("/")
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b""), "nothing comes from elsewhere"
        assert program.get("/", "HEAD")[0] == 200
        assert program.get("/nowhere")[0] == 404
        assert json.loads(program.get("/health")[2])["listening"]
        assert program.end(signal.SIGTERM) == 143
    assert "Traceback" not in log.read_text()


def all_heard(state: dict[str, Any], scene: Scene) -> bool:
    """Whether the last word of each partition was heard."""
    found = by_name(state)
    return all(
        service in found
        and [partition["position"] for partition in found[service]["partitions"]] == [int(scene._read[service] / 4)] * 4
        for service in SERVICES
    )


def test_a_reporter_reaches_the_monitor(kafka_bootstrap: str, tmp_path: Path) -> None:
    """The library's own way: reports keyed by service, zstd, handed over without waiting."""
    prefix = fresh_prefix()
    make_topic(kafka_bootstrap, f"{prefix}telemetry")
    with monitor_program(kafka_bootstrap, prefix, tmp_path, tmp_path / "log") as program:
        emitter = KafkaEmitter({"bootstrap.servers": kafka_bootstrap}, f"{prefix}telemetry")
        scene = Scene(started_at=time.time())
        sent = itertools.count(1)

        def send_one(state: dict[str, Any]) -> bool:
            number = next(sent)
            for report in scene.step(time.time()).values():
                assert emitter.send(report[0].service, message(report))
            return number > 5 and heard(21)(state)

        state = program.await_state(send_one)
        emitter.close()
        assert {service["service"] for service in state["services"]} == set(SERVICES)
        assert state["hearing"]["lost_reports"] == 0
        assert [advice["action"] for advice in state["advice"]] != []


def test_the_page(kafka_bootstrap: str, tmp_path: Path) -> None:
    browser = browser_path()
    if browser is None:
        pytest.skip("no Chromium (install one, or name one with MEGURI_TEST_CHROMIUM)")
    prefix = fresh_prefix()
    topic = f"{prefix}telemetry"
    make_topic(kafka_bootstrap, topic)
    begin = time.time() - 120
    scene = Scene(started_at=begin, capacity={"canonicalizer": 400, "dedup": 400, "prioritizer": 80, "store": 400})
    scene.stuck[("store", 1)] = "offset 7: <img src=x onerror=alert(1)>"
    with monitor_program(kafka_bootstrap, prefix, tmp_path, tmp_path / "log") as program:
        speaker = Speaker(kafka_bootstrap, topic, scene, begin)
        with speaking(speaker), running_browser(browser, tmp_path / "browser") as port:
            asyncio.run(look_at_the_page(port, program.address))


@contextlib.contextmanager
def speaking(speaker: Speaker) -> Iterator[None]:
    """Let the scene catch up with the present and go on."""
    over = threading.Event()

    def speak() -> None:
        while not over.wait(0.25):
            speaker.speak(time.time())

    speaker.speak(time.time())
    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


async def look_at_the_page(port: int, address: str) -> None:
    async with open_page(port, f"{address}/", width=1180, height=1500) as page:
        await page.wait_for("document.getElementById('heard')?.textContent === 'live'")
        text = await page.value("document.body.innerText")
        assert "≈" in text
        for service in SERVICES:
            card = await page.value(f"document.querySelector('[data-service={service}]').innerText")
            assert "links/s" in card
        prioritizer = await page.value("document.querySelector('[data-service=prioritizer]').innerText")
        assert "growing" in prioritizer
        advice = await page.value("[...document.querySelectorAll('#advice li b')].map((one) => one.textContent)")
        assert advice == [
            "Mend or skip the message at which store partition 1 stands still.",
            "Scale prioritizer from 1 to 2 instances.",
        ]
        assert await page.value("document.querySelectorAll('img').length") == 0, "foreign text stays text"
        assert "<img src=x" in text
        assert await page.value("document.querySelectorAll('#flow-chart path').length") == 4
        assert "89 % known" in text
        assert "12.4 bits a URL" in text.replace("\n", " ")
        assert await page.value("document.querySelectorAll('#instances tr').length") == 5
        was = await page.value("document.getElementById('hearing').textContent")
        await page.wait_for(f"document.getElementById('hearing').textContent !== {json.dumps(was)}")
        await page.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        assert await page.value("document.documentElement.scrollWidth <= 390"), "it fits a telephone"
        assert page.complaints == []
