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

from meguri.fleet.view import open_fleet_view

if TYPE_CHECKING:
    from collections.abc import Sequence
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
        return process

    def start_all(self, instances: int = 1) -> None:
        for service in SERVICES:
            for _ in range(instances):
                self.start(service)

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

    def outcome(self) -> Outcome:
        """What the stopped fleet has come to."""
        records = [json.loads(line) for line in self.command("export", "--data", self.data).splitlines()]
        hosts = [json.loads(line) for line in self.command("export", "--hosts", "--data", self.data).splitlines()]
        with open_fleet_view(self.data) as view:
            totals: Counter[str] = Counter()
            for loaded in view.partitions("prioritizer"):
                service: Any = loaded.service
                totals.update(service.totals())
        assert totals["sent"] == totals["received"], "no cash is in flight"
        assert totals["held"] + totals["pool"] == totals["minted"]
        return outcome_of(records, hosts, totals["minted"])


def outcome_of(records: Sequence[dict[str, Any]], hosts: Sequence[dict[str, Any]], cash: int) -> Outcome:
    """From exported records."""
    urls = [record["url"] for record in records]
    assert len(urls) == len(set(urls)), "each URL once"
    return Outcome(
        urls=set(urls),
        visits={record["url"]: record["crawl_count"] + record["error_count"] for record in records},
        cash=cash,
        in_degrees={host["host"]: host["in_degree"] for host in hosts} if hosts and "in_degree" in hosts[0] else {},
    )
