"""Seeded faults against a fleet that works: what strikes, what heals it, and how long until everything is read again.

A round publishes some pages, strikes while they flow, publishes more, and waits until those have gone through all four
services. The time from the strike to there is the round's recovery. The faults come from a shuffled deck, so that each
strikes about as often as another; everything random comes from the seed, though not the moments at which processes act.
"""

from __future__ import annotations

import random
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafka_asking import Asking
from kafka_fleet import SERVICES

from meguri.fleet.positions import INBOXES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafka_cluster import Cluster
    from kafka_fleet import Fleet

__all__ = ["FAULTS", "Chaos", "Struck"]

MOST_INSTANCES = 3
SESSION, TRANSACTION = 2.0, 5.0
"""The timeouts of the tests' fleets (`kafka_fleet.SHORT`): faults are shorter or longer than these."""
RECOVERY_SECONDS = 240.0
LOOK_SECONDS = 0.2
TWO_AT_ONCE = 0.25
CRASHED = (-signal.SIGSEGV, -signal.SIGABRT)
"""How a process ends in which the client library breaks: librdkafka 2.16.0 does, now and then, when the broker that
coordinates a group stalls for longer than the session. A supervisor starts it again; here, the harness does, and counts
it. Any other end that nobody asked for is a failure."""


@dataclass
class Struck:
    """What came of a run."""

    seed: int
    times: Counter[str] = field(default_factory=Counter)
    """How often each fault struck."""
    recoveries: list[tuple[str, float]] = field(default_factory=list)
    """For each round what struck, and the seconds from the strike until pages published after it were through."""
    crashed: int = 0
    """Instances in which the client library broke, see `CRASHED`."""
    askers_crashed: int = 0
    """Processes of the run's own that only asked for positions, and in which the client library broke."""
    seconds: float = 0.0

    def by_fault(self) -> dict[str, list[float]]:
        """Recoveries by what struck; rounds of two faults under both names."""
        found: dict[str, list[float]] = defaultdict(list)
        for name, seconds in self.recoveries:
            found[name].append(seconds)
        return dict(found)

    def figures(self) -> list[tuple[str, float, str]]:
        """Names, values, units: for all together, and for each fault."""
        everything = [seconds for _, seconds in self.recoveries]
        found = [
            ("chaos: seed", float(self.seed), ""),
            ("chaos: time", self.seconds, "s"),
            ("chaos: faults", float(self.times.total()), ""),
            ("chaos: instances that crashed in the client library", float(self.crashed), ""),
            ("chaos: lookers-on that crashed in the client library", float(self.askers_crashed), ""),
            ("chaos: recovery, median", statistics.median(everything), "s"),
            ("chaos: recovery, max", max(everything), "s"),
        ]
        for name, seconds in sorted(self.by_fault().items()):
            found += [
                (f"chaos: {name}: times", float(self.times[name]), ""),
                (f"chaos: {name}: recovery, median", statistics.median(seconds), "s"),
                (f"chaos: {name}: recovery, max", max(seconds), "s"),
            ]
        return found

    def __str__(self) -> str:
        seconds = [each for _, each in self.recoveries]
        times = ", ".join(f"{name} {count}" for name, count in sorted(self.times.items()))
        return (
            f"seed {self.seed}: {times}; {self.crashed} crashed in the client library; "
            f"recovery median {statistics.median(seconds):.1f} s, "
            f"max {max(seconds):.1f} s ({max(self.recoveries, key=lambda each: each[1])[0]})"
        )


class Chaos:
    """One run of it. The fleet has to be started, at least one instance of each service."""

    def __init__(
        self,
        fleet: Fleet,
        brokers: Cluster,
        lines: Sequence[bytes],
        folder: Path,
        *,
        seed: int,
        without: Sequence[str] = (),
    ) -> None:
        self.fleet = fleet
        self.brokers = brokers
        self.struck = Struck(seed)
        self._lines = lines
        self._at = 0
        self._folder = folder
        self._random = random.Random(seed)
        self._questions = Asking(fleet)
        self._faults = sorted(set(FAULTS) - set(without))
        self._deck: list[str] = []
        self._lists = threading.Lock()
        """Held to take an instance from the fleet's lists: what heals does so on threads of its own."""
        self._healing: list[threading.Thread] = []
        self._hurt: list[BaseException] = []

    def run(self, seconds: float) -> Struck:
        """Disturb the fleet for about so long; all lines are published when it returns, not yet all read."""
        began = time.monotonic()
        rounds = 0
        try:
            while (spent := time.monotonic() - began) < seconds:
                each = spent / rounds if rounds else seconds / len(FAULTS)
                left = max((seconds - spent) / each, 1)
                self._round(max(int((len(self._lines) - self._at) / (2 * left + 1)), 1))
                rounds += 1
        finally:
            # Whatever happened, what was struck is healed before the fleet and the brokers are taken away.
            for thread in self._healing:
                thread.join()
            self._questions.close()
        self.struck.askers_crashed = self._questions.crashed
        self._finished(self._publish(len(self._lines)))
        self.struck.seconds = time.monotonic() - began
        return self.struck

    def _round(self, size: int) -> None:
        first = self._publish(size)
        time.sleep(self._random.uniform(0.2, 1.5))
        struck = time.monotonic()
        names = [self._strike(lambda _: True)]
        if self._random.random() < TWO_AT_ONCE:
            # One of the instances', one of the brokers'.
            of_brokers = names[0].startswith("broker")
            if any(name.startswith("broker") != of_brokers for name in self._deck):
                names.append(self._strike(lambda name: name.startswith("broker") != of_brokers))
        self._finished(first)
        self._finished(self._publish(size))
        self._await_read(struck, names)
        recovery = time.monotonic() - struck
        self.struck.recoveries += [(name, recovery) for name in names]
        for thread in self._healing:
            thread.join()
        self._healing.clear()
        if self._hurt:
            raise self._hurt[0]
        self._supervise(names)
        self.fleet.await_started()

    def _strike(self, fits: Callable[[str], bool]) -> str:
        if not self._deck:
            self._deck = list(self._faults)
            self._random.shuffle(self._deck)
        name = next(name for name in self._deck if fits(name))
        self._deck.remove(name)
        seconds, heal = FAULTS[name](self, self._random.choice(SERVICES))
        self.struck.times[name] += 1
        thread = threading.Thread(target=self._heal, args=(seconds, heal))
        thread.start()
        self._healing.append(thread)
        return name

    def _heal(self, seconds: float, heal: Callable[[], object]) -> None:
        try:
            time.sleep(seconds)
            heal()
        except BaseException as problem:  # noqa: BLE001 - raised again by the round, in the test's own thread
            self._hurt.append(problem)

    def _publish(self, size: int) -> subprocess.Popen[bytes]:
        """Begin to publish the next lines."""
        path = self._folder / f"piece-{self._at:06}.jsonl"
        path.write_bytes(b"".join(self._lines[self._at : self._at + size]))
        self._at = min(self._at + size, len(self._lines))
        with (self._folder / "publish.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "meguri", "publish", str(path)],
                env=self.fleet.environment,
                stdout=log,
                stderr=log,
            )

    def _finished(self, publishing: subprocess.Popen[bytes]) -> None:
        try:
            assert publishing.wait(RECOVERY_SECONDS) == 0, (self._folder / "publish.log").read_text()[-3000:]
        finally:
            publishing.kill()

    def _await_read(self, struck: float, names: list[str]) -> None:
        """Wait until what stands in the pages has been read, and then what came of it, service by service."""
        for service, topic in INBOXES.items():
            marks: list[int] = []
            while True:
                marks = marks or self._questions.ends(topic)
                found = self._questions.committed(service, topic, len(marks)) if marks else []
                if found and all(at >= mark for at, mark in zip(found, marks, strict=True)):
                    break
                self._supervise(names)
                late = time.monotonic() - struck > RECOVERY_SECONDS
                assert not late, (names, service, found, marks, self._tail(service))
                time.sleep(LOOK_SECONDS)

    def _supervise(self, names: list[str]) -> None:
        """Start again what has crashed.

        Raises:
            AssertionError: an instance ended by itself otherwise.
        """
        for service in SERVICES:
            with self._lists:
                ended = [process for process in self.fleet.running[service] if process.poll() is not None]
                for process in ended:
                    self.fleet.running[service].remove(process)
            for process in ended:
                assert process.returncode in CRASHED, (names, service, process.returncode, self._tail(service))
                self.fleet.start(service)
                self.struck.crashed += 1

    def _tail(self, service: str) -> str:
        return self.fleet.log(service).read_text()[-3000:]

    def _one(self, service: str) -> subprocess.Popen[bytes]:
        return self._random.choice(self.fleet.running[service])

    # The faults: each strikes and returns after how many seconds what heals it.

    def kill(self, service: str) -> tuple[float, Callable[[], object]]:
        process = self._one(service)
        with self._lists:
            self.fleet.running[service].remove(process)
        process.kill()
        process.wait(60)
        return self._random.uniform(0, 3), lambda: self.fleet.start(service)

    def stop(self, service: str) -> tuple[float, Callable[[], object]]:
        return 0.0, lambda: (self._stopped(service), self.fleet.start(service))

    def scale_up(self, service: str) -> tuple[float, Callable[[], object]]:
        if len(self.fleet.running[service]) >= MOST_INSTANCES:
            service = min(SERVICES, key=lambda each: len(self.fleet.running[each]))
        self.fleet.start(service)
        return 0.0, _nothing

    def scale_down(self, service: str) -> tuple[float, Callable[[], object]]:
        if len(self.fleet.running[service]) == 1:
            service = max(SERVICES, key=lambda each: len(self.fleet.running[each]))
        return 0.0, lambda: self._stopped(service)

    def _stopped(self, service: str, process: subprocess.Popen[bytes] | None = None) -> None:
        """Stop an instance in order, this one or any; should the client library break meanwhile, that is counted."""
        running = self.fleet.running[service]
        if process is None:
            process = self._one(service)
        # Taken from the list first: whoever looks for instances that ended by themselves must not find it.
        with self._lists:
            if process not in running:
                return
            running.remove(process)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        if process.returncode in CRASHED:
            self.struck.crashed += 1
        else:
            assert process.returncode == 0, (service, process.returncode, self._tail(service))

    def pause(self, service: str) -> tuple[float, Callable[[], object]]:
        """Longer than the session's timeout, shorter than the transaction's: a zombie wakes up."""
        return self._frozen(service, SESSION + self._random.uniform(0.5, 2))

    def stall(self, service: str) -> tuple[float, Callable[[], object]]:
        """Longer than the transaction's and so the delivery's timeout."""
        return self._frozen(service, TRANSACTION + self._random.uniform(1, 3))

    def full_disk(self, service: str) -> tuple[float, Callable[[], object]]:
        """No file may be written by an instance while its partitions are asked for by another one."""
        process = self._one(service)
        unlimited = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, unlimited[1]))
        other = self.fleet.start(service)

        def heal() -> None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, unlimited)
            self.fleet.await_started()
            self._stopped(service, other)

        return self._random.uniform(4, 6), heal

    def broker_restart(self, _: str) -> tuple[float, Callable[[], object]]:
        node = self._random.randrange(self.brokers.count)
        self.brokers.stop(node)
        return 0.0, lambda: self.brokers.start(node)

    def broker_lost(self, _: str) -> tuple[float, Callable[[], object]]:
        node = self._random.randrange(self.brokers.count)
        self.brokers.signal(node, signal.SIGKILL)
        return self._random.uniform(4, 8), lambda: self.brokers.start(node)

    def broker_stall(self, _: str) -> tuple[float, Callable[[], object]]:
        node = self._random.randrange(self.brokers.count)
        self.brokers.signal(node, signal.SIGSTOP)
        return self._random.uniform(3, 6), lambda: self.brokers.signal(node, signal.SIGCONT)

    def _frozen(self, service: str, seconds: float) -> tuple[float, Callable[[], object]]:
        process = self._one(service)
        process.send_signal(signal.SIGSTOP)
        return seconds, lambda: process.send_signal(signal.SIGCONT)


def _nothing() -> None:
    """A fault that needs no healing."""


FAULTS: dict[str, Callable[[Chaos, str], tuple[float, Callable[[], object]]]] = {
    "instance killed": Chaos.kill,
    "instance stopped": Chaos.stop,
    "scaled up": Chaos.scale_up,
    "scaled down": Chaos.scale_down,
    "instance paused": Chaos.pause,
    "instance stalled": Chaos.stall,
    "disk full": Chaos.full_disk,
    "broker restarted": Chaos.broker_restart,
    "broker lost": Chaos.broker_lost,
    "broker stalled": Chaos.broker_stall,
}
