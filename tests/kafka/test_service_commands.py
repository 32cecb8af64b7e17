"""Starting a service's command: what is refused at once, what is waited for, and how it says that it is ready."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("confluent_kafka")

from kafka_fleet import Fleet

from meguri.fleet.campaign import create_campaign

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY = "127.0.0.1:1"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Nobody listens at its address."""
    made = Fleet(NOBODY, tmp_path / "data", partitions=2)
    yield made
    made.__exit__()


def said(fleet: Fleet, service: str, pattern: str, seconds: float = 60.0) -> re.Match[str]:
    deadline = time.monotonic() + seconds
    while not (found := re.search(pattern, fleet.log(service).read_text())):
        assert time.monotonic() < deadline, fleet.log(service).read_text()
        time.sleep(0.05)
    return found


def test_without_a_campaign_it_says_how_to_start_one(fleet: Fleet) -> None:
    fleet.data.mkdir()
    process = fleet.start("dedup")
    assert process.wait(60) == 4
    assert "meguri topics create" in fleet.log("dedup").read_text()


def test_brokers_that_do_not_answer_are_waited_for(fleet: Fleet) -> None:
    create_campaign(fleet.data, partitions=2)
    process = fleet.start("dedup", "--instance", "mine")
    said(fleet, "dedup", "instance mine of campaign")
    other = fleet.start("dedup", "--instance", "mine")
    assert other.wait(60) == 4
    assert "another process is the dedup instance mine" in fleet.log("dedup").read_text()
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert process.wait(60) == 0
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("arguments", [["--health", "nonsense"], ["--health", "127.0.0.1:x"], ["--nonsense"]])
def test_wrong_use(fleet: Fleet, arguments: list[str]) -> None:
    create_campaign(fleet.data, partitions=2)
    assert fleet.start("store", *arguments).wait(60) == 2


def test_missing_topics_and_others_than_the_campaigns(kafka_bootstrap: str, tmp_path: Path) -> None:
    fleet = Fleet(kafka_bootstrap, tmp_path / "data", partitions=2)
    create_campaign(fleet.data, partitions=2)
    assert fleet.start("store").wait(60) == 4
    assert "meguri topics create" in fleet.log("store").read_text()
    with fleet:
        (tmp_path / "other").mkdir()
        other = Fleet(kafka_bootstrap, tmp_path / "other", prefix=fleet.prefix)
        create_campaign(other.data, partitions=3)
        assert other.start("store").wait(60) == 4
        assert f"{fleet.prefix}links has 2 partitions" in other.log("store").read_text()


def test_it_says_when_it_is_ready_and_what_stands_still(kafka_bootstrap: str, tmp_path: Path) -> None:
    with Fleet(kafka_bootstrap, tmp_path / "data", partitions=2) as fleet:
        process = fleet.start("store", "--health", "127.0.0.1:0")
        address = said(fleet, "store", r"health at (\S+)")[1]
        deadline = time.monotonic() + 60
        while not (state := ask(address, "ready"))["ok"] or state["loaded"] < 2:
            assert time.monotonic() < deadline, state
            time.sleep(0.1)
        assert ask(address, "live")["ok"]
        # What isn't an envelope can't be handled: its partition stands still, the other one doesn't.
        from confluent_kafka import Producer  # noqa: PLC0415 - see the top

        producer = Producer({"bootstrap.servers": kafka_bootstrap})
        producer.produce(f"{fleet.prefix}deltas", b"nonsense", partition=1)
        producer.flush(20)
        while "meguri.deltas[1]" not in (state := ask(address, "ready"))["stopped"]:
            assert time.monotonic() < deadline, state
            time.sleep(0.1)
        assert not state["ok"]
        assert ask(address, "live")["ok"]
        assert state["stopped"]["meguri.deltas[1]"]["offset"] == 0
        assert state["loaded"] == 1
        said(fleet, "store", r"meguri\.deltas\[1\] stands still at offset 0")
        with pytest.raises(urllib.error.HTTPError):
            ask(address, "nonsense")
        skip_and_go_on(fleet, address, deadline)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        # Without its snapshots it reads all again, and passes over the message once more.
        shutil.rmtree(fleet.data / "state" / "store")
        process = fleet.start("store", "--health", "127.0.0.1:0")
        deadline = time.monotonic() + 60
        while len(found := re.findall(r"health at (\S+)", fleet.log("store").read_text())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        while not (state := ask(found[-1], "ready"))["ok"] or state["loaded"] < 2:
            assert time.monotonic() < deadline, state
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def skip_and_go_on(fleet: Fleet, address: str, deadline: float) -> None:
    """Wrong requests are refused, the right one is taken up by the running instance."""
    fleet.command("skip", "deltas", "1", "7", expect=2)
    fleet.command("skip", "deltas", "9", "0", expect=2)
    fleet.command("skip", "deltas", "1", "0", "--line", "0", expect=2)
    fleet.command("skip", "due", "1", "0", expect=2)
    said = json.loads(fleet.command("skip", "deltas", "1", "0", "--why", "nonsense", "--json"))
    assert (said["skipped"], said["passed"], said["written_off"]) == (True, True, 0)
    while not (state := ask(address, "ready"))["ok"]:
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
    fleet.command("skip", "meguri.deltas", "1", "0", expect=2)
    rejects = json.loads(fleet.command("rejects", "list", "--json"))["rejects"]
    assert [(reject["reason"], reject["detail"]) for reject in rejects] == [("skipped", "nonsense")]


def ask(address: str, question: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}/{question}", timeout=10) as answer:
            document: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as problem:
        if problem.code != 503:
            raise
        document = json.load(problem)
    return document


def test_help_is_quick_and_needs_no_client(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules.update(confluent_kafka=None, numba=None, pyarrow=None)"
    run = f"{blocked}; from meguri.__main__ import main; sys.exit(main(['dedup', '--help']))"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the links" in done.stdout
