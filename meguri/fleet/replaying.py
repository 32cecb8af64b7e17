"""Publishing events of the past anew: messages of a span of the pages, to the partitions that they came from.

A replay is a plan (where each partition begins and ends), written to the ledger before its first message, steps, and
an end. One that was killed is gone on with by the same command; after its end, the same command replays anew.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import xxhash

from meguri.fleet.ledger import TopicLedger, encode_row
from meguri.fleet.reading import span
from meguri_common.bus.port import TopicPartition
from meguri_common.topics import LEDGER, PAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meguri.fleet.reading import Placed
    from meguri_common.bus.port import Bus, Producer

__all__ = ["ReplayPlan", "Replayed", "Replayer"]

_TRANSACTION_BYTES = 16 << 20
_PLAN, _STEP, _END = "0-plan", "1-step", "2-end"


class ReplayPlan(msgspec.Struct, frozen=True):
    """Where each partition begins and ends: (partition, first offset, offset behind the last)."""

    spans: tuple[tuple[int, int, int], ...]


@dataclass
class Replayed:
    """What a replay did."""

    messages: int = 0
    lines: int = 0
    bytes: int = 0
    resumed: bool = False
    """It went on with one that had been killed."""
    stopped: bool = False


class Replayer:
    """Replays spans of the pages."""

    def __init__(
        self,
        bus: Bus,
        *,
        topic: Callable[[str], str] = lambda name: name,
        ledger_end: Callable[[], int] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take a bus.

        Args:
            bus: the fleet's.
            topic: name on the bus of a topic.
            ledger_end: see `TopicLedger`.
            stopping: asked between transactions; true stops in order.
            now: clock, epoch seconds.
        """
        self._bus = bus
        self._pages = topic(PAGES)
        self._ledger_source = TopicPartition(topic(LEDGER), 0)
        self._ledger = TopicLedger(bus, topic(LEDGER), end=ledger_end)
        self._stopping = stopping
        self._now = now

    def replay(self, asked: str, plan: Callable[[], ReplayPlan]) -> Replayed:
        """Publish a span anew.

        Args:
            asked: names what was asked for; a killed replay of the same name is gone on with.
            plan: makes the plan of a new one.

        Raises:
            BusError: the brokers don't take it; the same call goes on from there.
        """
        name = xxhash.xxh3_64(asked.encode()).hexdigest()
        producer = self._bus.producer(f"replay-{name}")
        self._ledger.refresh()
        done = Replayed()
        number, current = self._unfinished(name)
        if current is None:
            current = plan()
            number += 1
            self._write(producer, _key(name, number, _PLAN), msgspec.json.encode(current).decode())
        else:
            done.resumed = True
        reached = self._reached(name, number)
        for partition, start, end in current.spans:
            if not self._partition(producer, name, number, (partition, reached.get(partition, start), end), done):
                done.stopped = True
                producer.close()
                return done
        self._write(producer, _key(name, number, _END))
        producer.close()
        return done

    def _partition(
        self, producer: Producer, name: str, number: int, part: tuple[int, int, int], done: Replayed
    ) -> bool:
        """Publish what is left of a partition's span; False if stopped."""
        partition, start, end = part
        source = TopicPartition(self._pages, partition)
        held: list[Placed] = []
        size = 0
        for placed in span(self._bus, source, start, end):
            held.append(placed)
            size += memoryview(placed.message.payload).nbytes
            if size >= _TRANSACTION_BYTES:
                if self._stopping():
                    return False
                self._step(producer, name, number, held, done)
                held, size = [], 0
        if held:
            if self._stopping():
                return False
            self._step(producer, name, number, held, done)
        return True

    def _step(self, producer: Producer, name: str, number: int, held: Sequence[Placed], done: Replayed) -> None:
        source, last = held[-1].source, held[-1].message.offset
        row = _key(name, number, f"{_STEP}-{source.partition}-{last + 1:016x}")
        at = int(self._now())
        producer.begin()
        for placed in held:
            producer.publish(source, placed.message.payload, headers=placed.message.headers, at=at)
        producer.publish(self._ledger_source, encode_row(row), at=at)
        producer.commit()
        self._bus.barrier()
        self._ledger.add([row])
        for placed in held:
            payload = bytes(placed.message.payload)
            done.messages += 1
            done.lines += sum(1 for line in payload.split(b"\n") if line.strip())
            done.bytes += len(payload)

    def _write(self, producer: Producer, key: str, value: str = "") -> None:
        producer.begin()
        producer.publish(self._ledger_source, encode_row(key, value=value))
        producer.commit()
        self._ledger.add([key], value)

    def _unfinished(self, name: str) -> tuple[int, ReplayPlan | None]:
        """Number of the latest replay of this name (0: none), and its plan if it hasn't ended."""
        number = 0
        while self._ledger.scan(_key(name, number + 1, "")):
            number += 1
        rows = dict(self._ledger.scan(_key(name, number, "")))
        if not rows or _key(name, number, _END) in rows:
            return number, None
        return number, msgspec.json.decode(rows[_key(name, number, _PLAN)], type=ReplayPlan)

    def _reached(self, name: str, number: int) -> dict[int, int]:
        """How far each partition came."""
        reached: dict[int, int] = {}
        prefix = _key(name, number, f"{_STEP}-")
        for key, _ in self._ledger.scan(_key(name, number, "")):
            if key.startswith(prefix):
                partition, _, offset = key.removeprefix(prefix).partition("-")
                reached[int(partition)] = max(reached.get(int(partition), 0), int(offset, 16))
        return reached


def _key(name: str, number: int, what: str) -> str:
    return f"replay/{name}/{number:06d}/{what}"
