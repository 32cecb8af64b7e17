"""A small worker over the simulated bus under all faults at once: every message is handled exactly once.

This holds the simulation itself to the rule: a correct worker never fails in it, and one whose guards are taken out
is caught.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from greenlet import getcurrent, greenlet

from meguri_common.bus.port import Assigned, Commit, TopicPartition
from meguri_common.bus.simulated import Faults, InstanceDead, SimulatedBus, SimulatedProducer, View
from meguri_common.errors import BusError

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS, MESSAGES = 3, 25
OUT = TopicPartition("out", 0)
SEEDS = 60


@dataclass
class Guards:
    fencing: bool = True
    stable: bool = True
    drops_when_lost: bool = True
    reads_again_when_unknown: bool = True


class World:
    """Instances that take turns at every call to the bus, and what happens to them."""

    def __init__(self, seed: int, guards: Guards) -> None:
        self.rng = random.Random(seed)
        self.guards = guards
        self.bus = SimulatedBus({"in": PARTITIONS, "out": 1}, rng=self.rng, now=lambda: 0.0)
        self.inputs = [TopicPartition("in", part) for part in range(PARTITIONS)]
        self.outside = self.bus.view("outside")
        feeder = self.outside.producer("feeder")
        self.bus.faults.markers = self.rng.random() < 0.5
        for source in self.inputs:
            for number in range(MESSAGES):
                feeder.begin()
                feeder.publish(source, b"%d/%d" % (source.partition, number))
                feeder.commit()
        self.outside.barrier()
        self.bus.faults = Faults(
            abort=0.05,
            unknown=0.1,
            timeout=60,
            markers=self.bus.faults.markers,
            fencing=guards.fencing,
            stable=guards.stable,
        )
        self.main = getcurrent()
        self.running: dict[str, greenlet] = {}
        self.paused: dict[str, int] = {}
        self.calm = False
        self.bus.before = self.switch

    def switch(self, _operation: str, _instance: str) -> None:
        if getcurrent() is not self.main:
            self.main.switch()

    def start(self, name: str) -> None:
        view = self.bus.view(name)

        def body() -> None:
            try:
                Worker(self, view).run()
            except InstanceDead:
                return

        self.running[name] = greenlet(body)

    def kill(self, name: str) -> None:
        self.bus.kill(name)
        self.paused.pop(name, None)
        dying = self.running.pop(name)
        dying.switch()
        assert dying.dead or not dying

    def run(self) -> list[bytes]:
        names = ["a", "b", "c"]
        for name in names:
            self.start(name)
        for turn in range(2500):
            self.bus.tick()
            luck = self.rng.random()
            if luck < 0.004:
                name = self.rng.choice(names)
                self.kill(name)
                self.start(name)
            elif luck < 0.014:
                name = self.rng.choice(names)
                self.paused[name] = turn + self.rng.randint(10, 200)
                if self.rng.random() < 0.7:
                    self.bus.rebalance("g", without=[name])
            elif luck < 0.022:
                self.bus.rebalance("g", without=self.paused if self.rng.random() < 0.5 else ())
            elif luck < 0.024:
                for name in names:
                    self.kill(name)
                self.bus.power_failure()
                for name in names:
                    self.start(name)
            self.paused = {name: until for name, until in self.paused.items() if until > turn}
            awake = [name for name in names if name not in self.paused]
            if awake:
                self.running[self.rng.choice(awake)].switch()
        self.bus.faults = Faults(timeout=60, fencing=self.guards.fencing, stable=self.guards.stable)
        self.calm = True
        for turn in range(20_000):
            self.bus.tick()
            self.running[names[turn % len(names)]].switch()
            if turn % 50 == 0 and all(self.done(source) for source in self.inputs):
                break
        # Where it got stuck, messages are missing.
        out = [bytes(message.payload) for message in self.outside.read(OUT, 0)]
        for name in names:
            self.kill(name)
        return out

    def done(self, source: TopicPartition) -> bool:
        position = self.bus.commits.get(("g", source))
        return (
            position is not None and not self.bus.held("g", source) and not self.outside.read(source, position.offset)
        )


class Worker:
    def __init__(self, world: World, view: View) -> None:
        self.world = world
        self.view = view
        self.member = view.join("g", "in")
        self.assigned: dict[int, int] = {}
        self.positions: dict[int, int] = {}
        self.count = 0

    def run(self) -> None:
        producer: SimulatedProducer | None = None
        while True:
            self.follow()
            try:
                if producer is None:
                    producer = self.view.producer(f"worker-{self.view.instance}")
                for part in sorted(self.assigned.keys() - self.positions.keys()):
                    self.restore(part)
                if self.positions:
                    self.step(producer, self.world.rng.choice(sorted(self.positions)))
            except BusError:
                producer = None

    def follow(self) -> None:
        for event in self.member.poll():
            self.count += 1
            if isinstance(event, Assigned):
                self.assigned.update(dict.fromkeys(event.partitions, self.count))
            elif self.world.guards.drops_when_lost:
                for part in event.partitions:
                    self.assigned.pop(part, None)
                    self.positions.pop(part, None)

    def restore(self, part: int) -> None:
        tenure = self.assigned.get(part)
        commit = self.view.committed("g", TopicPartition("in", part))
        self.follow()
        if tenure is not None and self.assigned.get(part) == tenure:
            self.positions[part] = commit.offset if commit else 0

    def step(self, producer: SimulatedProducer, part: int) -> None:
        source = TopicPartition("in", part)
        position = self.positions[part]
        messages = self.view.read(source, position, max_bytes=self.world.rng.randint(1, 20))
        if not messages:
            return
        if self.world.guards.reads_again_when_unknown:
            del self.positions[part]
        producer.begin()
        for message in messages:
            producer.publish(OUT, message.payload)
        producer.commit_offsets(self.member, {part: Commit(messages[-1].offset + 1)})
        producer.commit()
        self.positions[part] = messages[-1].offset + 1
        if self.world.rng.random() < 0.2:
            self.view.barrier()


EXPECTED = sorted(b"%d/%d" % (part, number) for part in range(PARTITIONS) for number in range(MESSAGES))


def failing(guards: Guards, seeds: range) -> Iterator[int]:
    """Seeds for which messages were lost or doubled."""
    return (seed for seed in seeds if sorted(World(seed, guards).run()) != EXPECTED)


def test_every_message_is_handled_exactly_once_and_in_order() -> None:
    struck: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = World(seed, Guards())
        out = world.run()
        assert sorted(out) == EXPECTED, f"seed {seed}"
        for part in range(PARTITIONS):
            numbers = [int(entry.split(b"/")[1]) for entry in out if entry.startswith(b"%d/" % part)]
            assert numbers == sorted(numbers), f"seed {seed}: partition {part} out of order"
        struck += world.bus.struck
    assert set(struck) >= {
        "aborted",
        "unknown outcome",
        "unknown outcome: committed",
        "unknown outcome: aborted",
        "transaction timed out",
        "fenced by epoch",
        "fenced by generation",
        "waited for a stable offset",
        "killed",
        "power failure",
        "rebalance",
    }
    assert min(struck.values()) > 5, struck


@pytest.mark.parametrize(
    "guards",
    [
        Guards(fencing=False),
        Guards(stable=False),
        Guards(drops_when_lost=False),
        Guards(reads_again_when_unknown=False),
    ],
    ids=lambda guards: next(name for name, there in vars(guards).items() if not there),
)
def test_without_a_guard_messages_are_lost_or_doubled(guards: Guards) -> None:
    assert next(failing(guards, range(5 * SEEDS)), None) is not None
