"""Real brokers for the tests: fetched by Maven, on loopback and free ports, in a folder of their own.

A process that only needs *a* broker shares one with the others of its test run (see `shared_broker`): a guardian,
this module as a program, runs it for as long as anybody holds the folder's lock, so that it ends with the tests
however they end.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Cluster", "NoBroker", "broker_jars", "shared_broker"]

_POM = Path(__file__).with_name("pom.xml")
_CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
_START_SECONDS = 60.0
_FETCH_SECONDS = 300.0
_OFFERED = "MEGURI_TEST_BOOTSTRAP"


class NoBroker(Exception):
    """There is neither a broker to use nor what it takes to start one."""


def broker_jars() -> str:
    """Class path of the broker; fetched once into a cache folder.

    Raises:
        NoBroker: no Java or no Maven, or Maven couldn't fetch it.
    """
    missing = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if missing:
        raise NoBroker(f"no {' and no '.join(missing)} to start a broker with, and no {_OFFERED} to use one")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "meguri-tests"
    version = _POM.read_text().partition("<artifactId>kafka_2.13</artifactId>")[2]
    version = version.partition("<version>")[2].partition("</version>")[0]
    jars = cache / f"kafka-{version}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            fetched = cache / f".new-{version}"
            shutil.rmtree(fetched, ignore_errors=True)
            command = ["mvn", "-q", "-B", "-f", str(_POM), "dependency:copy-dependencies"]
            done = subprocess.run(
                [*command, f"-DoutputDirectory={fetched}"],
                capture_output=True,
                text=True,
                timeout=_FETCH_SECONDS,
                check=False,
            )
            if done.returncode:
                raise NoBroker(f"Maven couldn't fetch the broker: {(done.stdout + done.stderr)[-500:]}")
            fetched.rename(jars)
    return f"{jars}/*"


class Cluster:
    """Combined brokers and controllers, 1 or 3; each can be killed, paused and started again."""

    def __init__(self, folder: Path, nodes: int = 1, *, jars: str | None = None) -> None:
        self.folder = folder
        self.count = nodes
        self._jars = jars or broker_jars()
        self._ports = _free_ports(2 * nodes)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._formatted: set[int] = set()

    @property
    def bootstrap(self) -> str:
        """Where clients begin."""
        return ",".join(f"127.0.0.1:{self._port(node)}" for node in range(self.count))

    def start(self, *nodes: int) -> None:
        """Start nodes (default: all) and wait until they answer."""
        wanted = nodes or tuple(range(self.count))
        for node in wanted:
            self._format(node)
            log = (self.folder / f"broker-{node}.log").open("ab")
            self._processes[node] = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties(node))), stdout=log, stderr=log, start_new_session=True
            )
            log.close()
        for node in wanted:
            self._await(node)

    def signal(self, node: int, number: int) -> None:
        """Send a signal: SIGSTOP and SIGCONT pause, SIGKILL kills."""
        self._processes[node].send_signal(number)
        if number == signal.SIGKILL:
            self._processes.pop(node).wait()

    def pids(self) -> list[int]:
        """Process ids of those that run."""
        return [process.pid for process in self._processes.values()]

    def stop(self, *nodes: int) -> None:
        """Stop nodes (default: all) in order."""
        stopping = [self._processes.pop(node) for node in (nodes or tuple(self._processes)) if node in self._processes]
        for process in stopping:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in stopping:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _port(self, node: int) -> int:
        return self._ports[2 * node]

    def _properties(self, node: int) -> Path:
        return self.folder / f"node-{node}.properties"

    def _java(self, *arguments: str) -> list[str]:
        return ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", self._jars, *arguments]

    def _format(self, node: int) -> None:
        if node in self._formatted:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        voters = ",".join(f"{at + 1}@127.0.0.1:{self._ports[2 * at + 1]}" for at in range(self.count))
        copies = min(self.count, 3)
        settings = {
            "process.roles": "broker,controller",
            "node.id": node + 1,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port(node)},CONTROLLER://127.0.0.1:{self._ports[2 * node + 1]}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / f"log-{node}",
            "default.replication.factor": copies,
            "min.insync.replicas": max(copies - 1, 1),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": max(copies - 1, 1),
            "transaction.state.log.num.partitions": 4,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "group.consumer.min.session.timeout.ms": 1000,
            "group.consumer.session.timeout.ms": 6000,
            "group.consumer.min.heartbeat.interval.ms": 200,
            "group.consumer.heartbeat.interval.ms": 1000,
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "auto.create.topics.enable": "false",
            "log.retention.check.interval.ms": 1000,
            "num.network.threads": 2,
            "num.io.threads": 4,
        }
        self._properties(node).write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-g", "-t", _CLUSTER_ID, "-c", str(self._properties(node))),
            check=True,
            capture_output=True,
        )
        self._formatted.add(node)

    def _await(self, node: int) -> None:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - without the client, there is nothing to wait for
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - see above

        silent = logging.getLogger("meguri.tests.kafka")
        silent.addHandler(logging.NullHandler())
        silent.propagate = False
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self._port(node)}"}, logger=silent)
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            process = self._processes[node]
            if process.poll() is not None:
                break
            try:
                if len(admin.list_topics(timeout=1).brokers) >= min(self.count, len(self._processes)):
                    return
            except KafkaException:
                time.sleep(0.1)
        tail = (self.folder / f"broker-{node}.log").read_text(errors="replace")[-2000:]
        raise AssertionError(f"the broker {node} doesn't answer:\n{tail}")


@contextmanager
def shared_broker(folder: Path) -> Iterator[str]:
    """Bootstrap address of a broker that all processes which name this folder share.

    Raises:
        NoBroker: there is none to be had.
    """
    offered = os.environ.get(_OFFERED)
    if offered:
        yield offered
        return
    jars = broker_jars()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        address = folder / "bootstrap"
        with (folder / "start.lock").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if not address.exists():
                log = (folder / "guardian.log").open("ab")
                guardian = subprocess.Popen(
                    [sys.executable, __file__, str(folder), jars],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                log.close()
                deadline = time.monotonic() + _START_SECONDS
                while not address.exists():
                    if guardian.poll() is not None or time.monotonic() > deadline:
                        raise AssertionError(f"no broker: {(folder / 'guardian.log').read_text()[-2000:]}")
                    time.sleep(0.05)
        yield address.read_text()


def _guard(folder: Path, jars: str) -> None:
    """Run a broker until nobody holds the lock."""
    cluster = Cluster(folder, jars=jars)
    try:
        cluster.start()
        written = folder / "bootstrap.new"
        written.write_text(cluster.bootstrap)
        written.rename(folder / "bootstrap")
        with (folder / "lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.5)
            (folder / "bootstrap").unlink()
            cluster.stop()
    finally:
        cluster.stop()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


if __name__ == "__main__":
    _guard(Path(sys.argv[1]), sys.argv[2])
