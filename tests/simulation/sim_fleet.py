"""A fleet of real workers over the simulated bus and files, one stepped at a time between any two of their calls.

Each worker runs in a greenlet; every call of its bus or files may hand over to the scheduler, which resumes another,
pauses one (and lets the group take it for lost), kills one, cuts the power, or lets time pass.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import greenlet
from sim_world import host_of, lines

from meguri_common.bus.port import TopicPartition
from meguri_common.bus.simulated import Faults, InstanceDead
from meguri_common.bus.simulated_state import Transaction
from meguri_common.keys import host_key, partition_of
from meguri_common.runtime.worker import Worker, WorkerLimits
from meguri_common.topics import PAGES

if TYPE_CHECKING:
    from sim_setup import Simulation

    from meguri_common.runtime.service import ServiceSpec

SERVICES = ("canonicalizer", "dedup", "prioritizer", "store")


@dataclass
class Mischief:
    """How often the scheduler does what, a step."""

    kill: float = 0.0008
    pause: float = 0.0024
    pause_steps: int = 1500
    lost_when_paused: float = 0.7
    rebalance: float = 0.0012
    power: float = 0.0003
    snapshot: float = 0.25
    publish: float = 0.01
    instances: int = 2
    steps: int = 9000
    faults: Faults = field(default_factory=lambda: Faults(abort=0.05, unknown=0.08, timeout=800))


class Fleet:
    """All workers of a campaign, and what befalls them."""

    def __init__(self, seed: int, sim: Simulation, mischief: Mischief) -> None:
        self.rng = random.Random(seed * 104_729 + 5)
        self.sim = sim
        self.mischief = mischief
        self.calm = False
        self.happened: Counter[str] = Counter()
        self.stopped: list[str] = []
        self._instances: dict[str, greenlet.greenlet] = {}
        self._paused: dict[str, int] = {}
        self._running = ""
        self._main = greenlet.getcurrent()
        sim.bus.before = lambda _operation, _instance: self._hand_over()
        sim.files.before = self._before_file
        for service in SERVICES:
            for number in range(mischief.instances):
                self._start(f"{service}-{number}")

    # -- what runs in a greenlet -----------------------------------------------------------------------------------

    def _life(self, instance: str) -> None:
        spec: ServiceSpec = self.sim.specs[instance.rpartition("-")[0]]
        around = self.sim.around(instance)
        worker = Worker(
            spec,
            around,
            instance,
            limits=WorkerLimits(step_bytes=self.rng.choice([1, 2000, 20_000])),
            wants_snapshot=lambda _loaded: self.rng.random() < self.mischief.snapshot,
        )
        while True:
            worker.run_once()
            self.stopped.extend(f"{stop.source}: {stop.problem!r}" for stop in worker.stopped.values())
            self._hand_over()

    def _hand_over(self) -> None:
        if greenlet.getcurrent() is not self._main:
            self._main.switch()

    def _before_file(self, operation: str) -> None:
        # Most file calls don't hand over: it is enough that any of them can.
        if operation in {"file.rename", "file.remove", "file.sync_folder"} or self.rng.random() < 0.1:
            self._hand_over()

    # -- what befalls it -------------------------------------------------------------------------------------------

    def _start(self, instance: str) -> None:
        self._instances[instance] = greenlet.greenlet(lambda: self._guarded(instance), self._main)

    def _guarded(self, instance: str) -> None:
        try:
            self._life(instance)
        except InstanceDead:
            return

    def _kill(self, instance: str) -> None:
        self.sim.bus.kill(instance)
        old = self._instances[instance]
        self._paused.pop(instance, None)
        self._start(instance)
        # The old life ends where it stands: nothing of it runs on, and nothing it holds is cleaned up.
        if old and not old.dead:
            old.throw(InstanceDead, InstanceDead(instance))

    def _power_failure(self) -> None:
        for instance in self._instances:
            self._kill(instance)
        self.sim.bus.power_failure()
        self.sim.files.power_failure()

    def _advance(self, instance: str) -> None:
        life = self._instances[instance]
        if life.dead:
            self._start(instance)
            life = self._instances[instance]
        life.switch()

    def _befall(self, step: int) -> None:
        m, rng, names = self.mischief, self.rng, list(self._instances)
        if rng.random() < m.kill:
            self.happened["kill"] += 1
            self._kill(rng.choice(names))
        if rng.random() < m.pause:
            instance = rng.choice(names)
            self.happened["pause"] += 1
            self._paused[instance] = step + rng.randint(10, m.pause_steps)
            if rng.random() < m.lost_when_paused:
                self.happened["lost while paused"] += 1
                self.sim.bus.rebalance(instance.rpartition("-")[0], without={instance})
        if rng.random() < m.rebalance:
            self.happened["rebalance"] += 1
            self.sim.bus.rebalance(rng.choice(SERVICES), without=set(self._paused))
        if rng.random() < m.power:
            self.happened["power"] += 1
            self._power_failure()
        for instance in [name for name, until in self._paused.items() if until <= step]:
            del self._paused[instance]

    # -- the campaign ----------------------------------------------------------------------------------------------

    def run(self, events: list[dict[str, Any]]) -> bool:
        """Publish the events while all this goes on, then let the fleet settle; False if it doesn't."""
        publisher = _Publisher(self.sim, events)
        self.sim.bus.faults = self.mischief.faults
        for step in range(self.mischief.steps):
            self.sim.bus.tick()
            self.sim.clock += 0.05
            if self.rng.random() < self.mischief.publish:
                publisher.publish_some(self.rng)
            self._befall(step)
            instance = self.rng.choice(list(self._instances))
            if instance not in self._paused:
                self._advance(instance)
        self.mischief.snapshot = 0.02
        self.sim.bus.faults = Faults(timeout=self.mischief.faults.timeout, fencing=self.mischief.faults.fencing)
        self._paused.clear()
        publisher.publish_rest()
        return self._settle()

    def _settle(self) -> bool:
        quiet = 0
        for step in range(60_000):
            self.sim.bus.tick()
            self._advance(list(self._instances)[step % len(self._instances)])
            if step % 100 == 0:
                quiet = quiet + 1 if self._drained() else 0
                if quiet > 2:
                    return True
        return False

    def _drained(self) -> bool:
        for spec in self.sim.specs.values():
            for part in range(self.sim.bus.topics[spec.input_topic]):
                source = TopicPartition(spec.input_topic, part)
                commit = self.sim.bus.commits.get((spec.name, source))
                if (commit.offset if commit else 0) < self.sim.bus.log(source).next:
                    return False
        return True


class _Publisher:
    """Publishes each host's events in order, some lines a message, and again what a power failure took."""

    def __init__(self, sim: Simulation, events: list[dict[str, Any]]) -> None:
        self._sim = sim
        self._queues: dict[int, list[bytes]] = {}
        parts = sim.bus.topics[PAGES]
        for event in events:
            address = event.get("url") or (event.get("urls") or [f"https://{event.get('host')}/"])[0]
            part = partition_of(host_key(host_of(address).encode()), parts)
            self._queues.setdefault(part, []).append(lines([event]))
        self._ends = {part: [(0, 0)] for part in self._queues}

    def publish_some(self, rng: random.Random) -> None:
        part = rng.choice(list(self._queues))
        self._publish(part, rng.randint(1, 3))

    def publish_rest(self) -> None:
        for part, queue in self._queues.items():
            while self._done(part) < len(queue):
                self._publish(part, 5)

    def _done(self, part: int) -> int:
        """Events in the log: a power failure may have taken some since they were published."""
        kept = self._sim.bus.log(TopicPartition(PAGES, part)).next
        self._ends[part] = [(end, done) for end, done in self._ends[part] if end <= kept]
        return self._ends[part][-1][1]

    def _publish(self, part: int, count: int) -> None:
        done = self._done(part)
        batch = self._queues[part][done : done + count]
        if batch:
            target = TopicPartition(PAGES, part)
            transaction = Transaction()
            transaction.messages.append((target, b"".join(batch), b"", int(self._sim.clock)))
            self._sim.bus.take_effect(transaction)
            self._ends[part].append((self._sim.bus.log(target).next, done + len(batch)))
