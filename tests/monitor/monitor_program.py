"""The monitor as a process, its topic, and those who speak on it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from monitor_scene import Scene, message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Program", "Speaker", "make_topic", "monitor_program"]

PATIENCE = 120.0


def make_topic(bootstrap: str, name: str, partitions: int = 1) -> None:
    """A topic as `meguri topics create` makes it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, partitions, 1, config={"compression.type": "zstd"})
    admin.create_topics([topic])[name].result(30)


class Speaker:
    """Publishes what a scene says, at the times of the scene's own clock."""

    def __init__(self, bootstrap: str, topic: str, scene: Scene, begin: float) -> None:
        self.scene, self.now = scene, begin
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "zstd"})

    def speak(self, until: float, passes: Callable[[], int] = lambda: 1) -> None:
        """Let the scene's time pass; each report is sent as often as `passes` says."""
        while self.now < until:
            self.now += 1
            for report in self.scene.step(self.now).values():
                for _ in range(passes()):
                    self.say(report[0].service, message(report))
        assert self._producer.flush(30) == 0

    def say(self, service: str, text: bytes) -> None:
        """Publish a message as it is."""
        self._producer.produce(self._topic, key=service.encode(), value=text, timestamp=int(self.now * 1000))
        self._producer.poll(0)


class Program:
    """A running `meguri monitor`."""

    def __init__(self, process: subprocess.Popen[str], address: str, log: Path) -> None:
        self.process, self.address, self._log = process, address, log

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        """Status, headers in small letters, body."""
        request = urllib.request.Request(self.address + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read()
        except urllib.error.HTTPError as problem:
            return problem.code, {name.lower(): value for name, value in problem.headers.items()}, problem.read()

    def state(self) -> dict[str, Any]:
        """What /api/state says."""
        status, _, body = self.get("/api/state")
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def await_state(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first state that fits."""
        ends = time.monotonic() + PATIENCE
        while True:
            state = self.state()
            if fits(state):
                return state
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < ends, f"{json.dumps(state)[:3000]}\n{self.said()}"
            time.sleep(0.5)

    def said(self) -> str:
        """What it said on its outputs."""
        return self._log.read_text(errors="replace")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; gives the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def monitor_program(bootstrap: str, prefix: str, data: Path, log: Path) -> Iterator[Program]:
    """A monitor that listens to the topic of a prefix, once it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "meguri", "monitor", "--bootstrap", bootstrap, "--data", str(data)]
    with log.open("a") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env={**os.environ, "MEGURI_KAFKA_PREFIX": prefix, "TMPDIR": str(data)},
            stdout=output,
            stderr=output,
            text=True,
        )
    program = Program(process, f"http://127.0.0.1:{port}", log)
    try:
        ends = time.monotonic() + PATIENCE
        while not _listens(program):
            assert process.poll() is None, program.said()
            assert time.monotonic() < ends, program.said()
            time.sleep(0.1)
        yield program
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _listens(program: Program) -> bool:
    try:
        return program.get("/health")[0] == 200
    except OSError:
        return False
