"""A simulated bus with the topics that commands use, processes that die at any call, and what is on it in the end."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from meguri_common.bus.port import TopicPartition
from meguri_common.bus.simulated import Faults, InstanceDead, SimulatedBus
from meguri_common.topics import LEDGER, PAGES, REJECTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_common.bus.port import Message
    from meguri_common.bus.simulated import View

__all__ = ["PARTITIONS", "FleetWorld", "page_line"]

PARTITIONS = 4


def page_line(host: str, number: int, padding: int = 0) -> bytes:
    """An event of a page."""
    return b'{"url":"https://%s/%d","fetched_at":%d,"text":"%s"}' % (host.encode(), number, number, b"x" * padding)


class FleetWorld:
    """The bus, and processes that run one after the other on it, each until it ends or dies."""

    def __init__(self, seed: int, *, deadly: float = 0.0, faults: Faults | None = None) -> None:
        self.rng = random.Random(seed)
        self.deadly = deadly
        self.seconds = 0.0
        self.deaths = 0
        self.bus = SimulatedBus(
            {PAGES: PARTITIONS, REJECTS: 1, LEDGER: 1},
            rng=self.rng,
            now=lambda: 1_767_571_200 + self.seconds,
            faults=faults,
            before=self._before,
        )
        self.outside = self.bus.view("outside")

    def sleep(self, seconds: float) -> None:
        """Let time pass on the bus."""
        self.seconds += seconds
        for _ in range(20):
            self.bus.tick()

    def run(self, work: Callable[[View], bool]) -> bool:
        """A process's life; False if it died."""
        name = f"process {self.deaths}"
        try:
            return work(self.bus.view(name))
        except InstanceDead:
            self.deaths += 1
            if self.rng.random() < 0.2:
                self.bus.power_failure()
            return False

    def calm(self) -> None:
        """From now on nothing fails."""
        self.deadly = 0.0
        self.bus.faults = Faults(markers=self.bus.faults.markers)

    def put(self, target: TopicPartition, *payloads: bytes, headers: bytes = b"") -> list[int]:
        """Publish messages; their offsets."""
        producer = self.outside.producer("outside")
        producer.begin()
        for payload in payloads:
            producer.publish(target, payload, headers=headers)
        producer.commit()
        self.outside.barrier()
        return [message.offset for message in self.messages(target)][-len(payloads) :]

    def messages(self, source: TopicPartition) -> list[Message]:
        """All of a partition."""
        return self.outside.read(source, self.outside.watermarks(source)[0])

    def pages(self) -> list[list[bytes]]:
        """Lines of the pages, by partition, in order."""
        out = []
        for number in range(PARTITIONS):
            payloads = [bytes(message.payload) for message in self.messages(TopicPartition(PAGES, number))]
            assert all(payload.endswith(b"\n") for payload in payloads)
            out.append(b"".join(payloads).split(b"\n")[:-1])
        return out

    def _before(self, _operation: str, instance: str) -> None:
        if instance == "outside":
            return
        self.seconds += 0.01
        self.bus.tick()
        if self.rng.random() < self.deadly:
            self.bus.kill(instance)
