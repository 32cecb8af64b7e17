"""Publishing inputs to a fleet: split by partition, each piece of an input exactly once, whatever is killed when.

A transaction holds the messages of some MiB of consecutive content and the ledger's rows for it. Its transactional
id is a digest of the input's beginning: a second publisher of the same input fences the first, takes over what it has
committed, and goes on behind it; publishers of other inputs work beside it.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import xxhash

from meguri.embedded.bundles import Bundle, Ledger, bundles
from meguri.embedded.ingest import too_long_reject
from meguri.fleet.ledger import TopicLedger, encode_row
from meguri_common.bus.port import TopicPartition
from meguri_common.errors import BusError, Fenced, InputUnreadable
from meguri_common.sdk.batching import Batcher
from meguri_common.topics import LEDGER, PAGES, REJECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from meguri_common.bus.port import Bus, Producer
    from meguri_common.sdk.batching import Packed

__all__ = ["FleetPublisher", "Published"]

_log = logging.getLogger(__name__)

_TRANSACTION_BYTES = 16 << 20
_BEGINNING = 64 << 10
_SHORTEST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_FENCED_OFTEN = 4
"""Times in a row: less may be pauses, or a line so slow that a transaction takes longer than its timeout."""


@dataclass
class Published:
    """What has been published, and acknowledged."""

    messages: int = 0
    lines: int = 0
    bytes: int = 0
    rejected: int = 0
    """Lines that are too long to be an event."""
    already: int = 0
    """Bytes that the ledger knew."""

    def add(self, other: Published) -> None:
        """Count another's figures, too."""
        self.messages += other.messages
        self.lines += other.lines
        self.bytes += other.bytes
        self.rejected += other.rejected
        self.already += other.already


class FleetPublisher:
    """Publishes inputs, one after the other."""

    def __init__(
        self,
        bus: Bus,
        *,
        topic: Callable[[str], str] = lambda name: name,
        ledger_end: Callable[[], int] | None = None,
        now: Callable[[], float] = time.time,
        stopping: Callable[[], bool] = lambda: False,
        on_lines: Callable[[int], None] = lambda _lines: None,
        patience: float = 300.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a bus.

        Args:
            bus: the fleet's.
            topic: name on the bus of a topic.
            ledger_end: see `TopicLedger`.
            now: clock, epoch seconds.
            stopping: asked between transactions; true stops in order.
            on_lines: told how many lines have been acknowledged in all.
            patience: seconds that one transaction is tried for before it is given up.
            sleep: waits.
            clock: monotonic seconds.

        Raises:
            BusError: there are no such topics, or no broker answers.
        """
        self._bus = bus
        self._pages, self._rejects, self._ledger_topic = topic(PAGES), topic(REJECTS), topic(LEDGER)
        self._partitions = bus.partitions(self._pages)
        self._ledger = TopicLedger(bus, self._ledger_topic, end=ledger_end, sleep=sleep, clock=clock)
        self._now = now
        self._stopping = stopping
        self._on_lines = on_lines
        self._patience = patience
        self._sleep = sleep
        self._clock = clock
        self._name = ""
        self._producer: Producer | None = None
        self.total = Published()

    def publish(self, name: str, chunks: Iterator[bytes]) -> bool:
        """Publish what of an input has not been published yet.

        Args:
            name: of the input, for the rejects.
            chunks: its decompressed content.

        Returns:
            False if it was stopped.

        Raises:
            InputUnreadable: it broke off; all whole lines before have been published.
            BusError: the brokers don't take it, for longer than the patience; a later call goes on from there.
        """
        content = _Counted(chunks)
        beginning, chunks = _beginning(iter(content))
        self._take_over(f"publish-{xxhash.xxh3_128(beginning).hexdigest()}")
        held: list[Bundle] = []
        problem: InputUnreadable | None = None
        source = bundles(chunks, Ledger(self._ledger))
        first = True
        while True:
            try:
                bundle = next(source, None)
            except InputUnreadable as found:
                bundle, problem = None, found
            if bundle is None:
                break
            if first:
                self.total.already += Ledger.place(bundle.row[0])
                first = False
            held.append(bundle)
            if sum(len(each.data) for each in held) >= _TRANSACTION_BYTES:
                if not self._settle(name, held):
                    return False
                held = []
        if first:
            self.total.already += content.bytes
        done = self._settle(name, held)
        if problem is not None:
            raise problem
        return done

    def close(self) -> None:
        """Release the producer."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _take_over(self, name: str) -> None:
        """Become the publisher of this name, and know what the ones before it have published."""
        self.close()
        self._name = name
        deadline = self._clock() + self._patience
        pause = _SHORTEST_PAUSE
        while True:
            try:
                self._open()
            except BusError as problem:
                if self._clock() > deadline or self._stopping():
                    raise
                pause = self._pause(pause, problem)
            else:
                return

    def _open(self) -> Producer:
        # In this order: taking the name over settles what an earlier holder left open, then the ledger tells.
        self._producer = None
        producer = self._bus.producer(self._name)
        self._ledger.refresh()
        self._producer = producer
        return producer

    def _settle(self, name: str, held: Sequence[Bundle]) -> bool:
        """Publish bundles that the ledger doesn't know, however often it takes; False if stopped before.

        After a failure less is tried at once: it may be that so much doesn't get through within a transaction's time.
        """
        deadline, pause, fenced, share = self._clock() + self._patience, _SHORTEST_PAUSE, 0, len(held)
        while True:
            if self._stopping():
                return False
            try:
                producer = self._producer or self._open()
                wanted = [bundle for bundle in held if bundle.row[0] not in self._ledger]
                if not wanted:
                    return True
                self._transact(producer, name, wanted[:share])
            except BusError as problem:
                # The outcome may be unknown: the name is taken anew, which settles it, and the ledger is asked.
                self._producer = None
                fenced += isinstance(problem, Fenced)
                if fenced >= _FENCED_OFTEN:
                    msg = f"{name}: another publisher of the same input is at work: {problem}"
                    raise Fenced(msg) from problem
                if self._clock() > deadline:
                    raise
                pause, share = self._pause(pause, problem), max(share // 4, 1)
            else:
                deadline, pause, fenced = self._clock() + self._patience, _SHORTEST_PAUSE, 0

    def _pause(self, seconds: float, problem: BusError) -> float:
        _log.warning("trying again in %.1f s: %s", seconds, problem)
        self._sleep(seconds)
        return min(2 * seconds, _LONGEST_PAUSE)

    def _transact(self, producer: Producer, name: str, wanted: Sequence[Bundle]) -> None:
        made = Published()
        at = int(self._now())
        producer.begin()
        for packed in _packed(wanted, self._partitions):
            target = TopicPartition(self._pages, packed.partition)
            producer.publish(target, packed.payload, headers=_headers(packed, name), at=at)
            made.messages += 1
            made.lines += len(packed.lines)
            made.bytes += packed.size
        for bundle in wanted:
            if bundle.too_long:
                producer.publish(TopicPartition(self._rejects, 0), too_long_reject(bundle, name), at=at)
                made.rejected += 1
            row = encode_row(bundle.row[0], name=name, line=bundle.first_line)
            producer.publish(TopicPartition(self._ledger_topic, 0), row, at=at)
        producer.commit()
        self._bus.barrier()
        self._ledger.add(bundle.row[0] for bundle in wanted)
        self.total.add(made)
        self._on_lines(self.total.lines)


class _Counted:
    """Counts the bytes of some content as it goes by."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self.bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.bytes += len(chunk)
            yield chunk


def _beginning(chunks: Iterator[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes of some content, and the content with them."""
    taken: list[bytes] = []
    problem: InputUnreadable | None = None
    while sum(map(len, taken)) < _BEGINNING:
        try:
            chunk = next(chunks, None)
        except InputUnreadable as found:
            chunk, problem = None, found
        if chunk is None:
            break
        taken.append(chunk)

    def rest() -> Iterator[bytes]:
        yield from taken
        if problem is not None:
            raise problem
        yield from chunks

    return b"".join(taken)[:_BEGINNING], rest()


def _packed(wanted: Sequence[Bundle], partitions: int) -> Iterator[Packed]:
    """The lines of some bundles as messages."""
    batcher = Batcher(partitions)
    for bundle in wanted:
        if bundle.too_long:
            continue
        for number, line in enumerate(bundle.data.split(b"\n"), bundle.first_line):
            if line.strip():
                full = batcher.add(line, number)
                if full is not None:
                    yield full
    yield from batcher.drain()


def _headers(packed: Packed, name: str) -> bytes:
    """Where the lines of a message stand in their input."""
    where: dict[str, object] = {"line": packed.runs[0][0]} if len(packed.runs) == 1 else {"lines": packed.runs}
    return msgspec.json.encode({"file": name, **where})
