"""The fleet as `docker compose` starts it: scaled and its broker restarted while pages flow, then compared.

Builds images and needs a Docker engine, so that it runs on demand: `make test-compose`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meguri.embedded.totals import shard_of
from meguri.embedded.view import open_view
from meguri.fleet.view import open_fleet_view

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
EXAMPLE = "sqlite-docs.jsonl.zst"
PROJECT = "meguri-test"
PROMETHEUS_PORT = 29090
SERVICES = ("canonicalizer", "dedup", "prioritizer", "store", "monitor")

pytestmark = pytest.mark.skipif(
    os.environ.get("MEGURI_TEST_COMPOSE") != "1", reason="needs a Docker engine and builds images: make test-compose"
)


class Compose:
    """`docker compose` on the project of the test."""

    def __init__(self) -> None:
        plugin = shutil.which("docker") is not None and (
            subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0
        )
        self.command = ["docker", "compose"] if plugin else ["docker-compose"]
        self.command += ["--project-name", PROJECT, "--file", str(ROOT / "docker-compose.yml")]
        self.ready_after = 0.0
        """Seconds from `up` until all services were ready."""
        ports = {"KAFKA_PORT": "29094", "MONITOR_PORT": "26066", "PROMETHEUS_PORT": str(PROMETHEUS_PORT)}
        self.environment = {**os.environ, "MEGURI_TAG": "test", **ports}

    def __call__(self, *arguments: str, timeout: float = 900) -> str:
        done = subprocess.run(
            [*self.command, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def compose() -> Iterator[Compose]:
    compose = Compose()
    compose("build", "canonicalizer", timeout=3600)
    begun = time.monotonic()
    try:
        compose("up", "--detach", "--wait", "--wait-timeout", "240")
        compose.ready_after = time.monotonic() - begun
        yield compose
    finally:
        compose("--profile", "*", "down", "--volumes", "--timeout", "60")


def facts(partitions: dict[str, list[Any]]) -> dict[str, Any]:
    """URL set, visits of each URL and total cash."""
    rows: dict[str, int] = {}
    for loaded in partitions["store"]:
        for table in shard_of(loaded).records():
            urls, counts = table.column("url").to_pylist(), table.column("crawl_count").to_pylist()
            rows |= dict(zip(urls, counts, strict=True))
    totals = [loaded.service.totals() for loaded in partitions["prioritizer"]]
    balance = {name: sum(part[name] for part in totals) for name in totals[0]}
    kept = sum(balance[name] for name in ("held", "pool", "sent", "written_off")) - balance["received"]
    assert kept == balance["minted"] > 0
    return {"urls": rows, "minted": balance["minted"]}


def asked(expression: str) -> list[Any]:
    """What Prometheus answers: samples."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/query?{query}", timeout=10) as answer:
        document = json.load(answer)
    assert document["status"] == "success", document
    found: list[Any] = document["data"]["result"]
    return found


def test_a_fleet_that_is_scaled_and_loses_its_broker_ends_as_an_embedded_run(
    compose: Compose, tmp_path: Path, say
) -> None:
    publishing = compose.start("run", "--rm", "-T", "meguri", "publish", f"/examples/{EXAMPLE}")
    compose("up", "--detach", "--no-recreate", "--scale", "dedup=3")
    compose("restart", "kafka")
    publishing.communicate(timeout=300)
    if publishing.returncode:  # the broker went while it published: what was acknowledged isn't sent again
        compose("up", "--detach", "--wait", "--no-recreate", "--scale", "dedup=3")
        compose("run", "--rm", "-T", "meguri", "publish", f"/examples/{EXAMPLE}")
    say("compose", f"the fleet was ready after {compose.ready_after:.0f} s")
    compose("up", "--detach", "--no-recreate", "--scale", "dedup=1")
    compose("run", "--rm", "-T", "meguri", "lag", "--wait", "--timeout", "300", timeout=400)
    compose("stop", "--timeout", "60", *SERVICES)  # a clean stop leaves a snapshot at the committed offset
    compose("run", "--rm", "-T", "--entrypoint", "tar", "--volume", f"{tmp_path}:/out", "--user", "0", "meguri",
            "-C", "/data", "-cf", "/out/state.tar", ".")  # fmt: skip
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["tar", "-C", str(root), "-xf", str(tmp_path / "state.tar")], check=True)
    with open_fleet_view(root) as view:
        fleet = facts({name: view.partitions(name) for name in ("store", "prioritizer")})

    data = tmp_path / "embedded"
    command = [sys.executable, "-m", "meguri", "run", str(ROOT / "examples" / EXAMPLE), "--data", str(data), "--json"]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    with open_view(data) as view:
        alone = facts({name: view.partitions(name) for name in ("store", "prioritizer")})
    assert fleet["urls"] == alone["urls"]
    assert fleet["minted"] == alone["minted"] == document["cash_minted"]
    assert len(fleet["urls"]) == document["urls_total"]


def test_the_dashboard_finds_its_figures_in_prometheus(compose: Compose, say) -> None:
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "meguri.json").read_bytes())
    waiting = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    say("compose", f"{len(waiting)} expressions of the dashboard asked of Prometheus")
    compose("up", "--detach", "--wait", "--wait-timeout", "240", "--scale", "dedup=1")
    compose("run", "--rm", "-T", "meguri", "publish", f"/examples/{EXAMPLE}")
    compose("--profile", "metrics", "up", "--detach", "--no-recreate", "prometheus")
    deadline = time.monotonic() + 120
    while waiting:
        assert time.monotonic() < deadline, f"no samples for {sorted(waiting)}"
        time.sleep(2)
        try:
            waiting = {expression for expression in waiting if not asked(expression)}
        except (urllib.error.URLError, ConnectionError):
            continue  # not up yet
