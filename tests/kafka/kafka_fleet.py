"""A fleet of real processes over a broker, and what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meguri.looking import open_view
from meguri_common.keys import partition_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

__all__ = ["SERVICES", "Fleet", "Outcome", "outcome_of"]

SERVICES = ("canonicalizer", "dedup", "prioritizer", "store")
SHORT = {
    "MEGURI_FLEET_TRANSACTION_TIMEOUT": "5",
    "MEGURI_FLEET_SESSION_TIMEOUT": "2",
    "MEGURI_FLEET_GIVE_UP_TIMEOUT": "20",
    "MEGURI_FLEET_COMMIT_INTERVAL": "0.1",
}
PATIENCE = 240.0


@dataclass
class Outcome:
    """What of a campaign doesn't depend on how the partitions took turns."""

    urls: set[str]
    visits: dict[str, int]
    cash: int
    in_degrees: dict[str, int]


@dataclass
class Fleet:
    """Instances of all services; topics and groups of its own on a broker that others use, too."""

    bootstrap: str
    data: Path
    partitions: int = 8
    settings: dict[str, str] = field(default_factory=dict)
    prefix: str = field(default_factory=lambda: f"f{uuid.uuid4().hex[:8]}.")
    begun: Counter[str] = field(default_factory=Counter)
    """How many instances have ever been started."""
    running: dict[str, list[subprocess.Popen[bytes]]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "MEGURI_DATA": str(self.data),
            "MEGURI_KAFKA_BOOTSTRAP": self.bootstrap,
            "MEGURI_KAFKA_PREFIX": self.prefix,
            "MEGURI_TOPICS_PARTITIONS": str(self.partitions),
            "MEGURI_TOPICS_PAGES_PARTITIONS": "4",
            **SHORT,
            **self.settings,
        }

    def __enter__(self) -> Self:
        self.command("topics", "create")
        return self

    def __exit__(self, *_: object) -> None:
        for processes in self.running.values():
            for process in processes:
                process.kill()
                process.wait()

    def command(self, *arguments: str | Path, expect: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "meguri", *map(str, arguments)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == expect, (arguments, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def start(self, service: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self.log(service).open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "meguri", service, *arguments],
            env=self.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self.running.setdefault(service, []).append(process)
        self.begun[service] += 1
        return process

    def start_all(self, instances: int = 1) -> None:
        for service in SERVICES:
            for _ in range(instances):
                self.start(service)
        self.await_started()

    def await_started(self) -> None:
        """Wait until everybody has begun, and so hears signals."""
        deadline = time.monotonic() + PATIENCE
        for service, begun in self.begun.items():
            while self.log(service).read_text().count(": instance ") < begun:
                assert time.monotonic() < deadline, self.log(service).read_text()[-3000:]
                time.sleep(0.1)

    def kill(self, service: str) -> None:
        """Kill the oldest instance."""
        process = self.running[service].pop(0)
        process.kill()
        process.wait()

    def publish(self, *inputs: Path) -> None:
        self.command("publish", *inputs)

    def lag(self) -> dict[str, int]:
        services = json.loads(self.command("lag", "--json"))["services"]
        return {service["service"]: service["lag"] for service in services}

    def drain(self) -> None:
        self.command("lag", "--wait", "--interval", "0.2", "--timeout", str(PATIENCE / 2))

    def stop_all(self) -> float:
        """Stop everybody in order; the seconds that the slowest took."""
        self.await_started()
        began = time.monotonic()
        everybody = [(service, process) for service, found in self.running.items() for process in found]
        for _, process in everybody:
            process.send_signal(signal.SIGTERM)
        for service, process in everybody:
            assert process.wait(60) == 0, (service, self.log(service).read_text()[-3000:])
        self.running.clear()
        return time.monotonic() - began

    def log(self, service: str) -> Path:
        return self.data.parent / f"{self.data.name}.{service}.log"


def outcome_of(data: Path) -> Outcome:
    """What a stopped fleet, or an embedded run, has come to."""
    records, hosts = ([json.loads(line) for line in _export(data, *more).splitlines()] for more in ((), ("--hosts",)))
    urls = [record["url"] for record in records]
    assert len(urls) == len(set(urls)), "each URL once"
    totals: Counter[str] = Counter()
    degrees: dict[str, int] = {}
    with open_view(data) as view:
        services: list[Any] = [loaded.service for loaded in view.partitions("prioritizer")]
        for service in services:
            totals.update(service.totals())
        for host in hosts:
            key = int(host["host_key"], 16)
            degrees[host["host_group"]] = services[partition_of(key, len(services))].look(key, 0)["host"]["in_degree"]
    assert totals["sent"] == totals["received"], "no cash is in flight"
    assert totals["held"] + totals["pool"] == totals["minted"]
    visits = {record["url"]: record["crawl_count"] + record["error_count"] for record in records}
    return Outcome(set(urls), visits, totals["minted"], degrees)


def _export(data: Path, *more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "meguri", "export", *more, "--data", str(data)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
