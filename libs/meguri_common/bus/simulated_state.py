"""What the simulated bus holds: logs, positions, rows, transactions; what of them is durable; how they settle."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meguri_common.bus.draft import Draft
from meguri_common.bus.port import Commit, Message, TopicPartition
from meguri_common.errors import BusError

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

__all__ = ["Faults", "SimulatedState", "Transaction"]


@dataclass
class Faults:
    """How often what fails. As it stands: a bus that never does."""

    abort: float = 0.0
    """Share of commits that abort."""
    unknown: float = 0.0
    """Share of commits whose outcome the producer isn't told."""
    settle_within: int = 50
    """Ticks within which half of the transactions left undecided settle by themselves; the others wait for the next
    producer of their id, or the timeout."""
    timeout: int = 0
    """Ticks after which a transaction is settled by the bus and its producer fenced; 0: never."""
    markers: bool = False
    """Whether the end of a transaction, and what an aborted one had published, take offsets that hold no message."""
    fencing: bool = True
    """Whether offsets of an old generation are refused; off in tests of the simulation itself."""
    stable: bool = True
    """Whether `committed` waits for transactions that hold an offset; off in tests of the simulation itself."""


@dataclass
class Transaction(Draft):
    """A producer's open or undecided transaction."""

    born: int = 0
    undecided: bool = False
    settles_at: int | None = None


@dataclass
class _Log:
    """A partition. Messages below `first` stay until a barrier has made the trim durable."""

    messages: list[Message] = field(default_factory=list)
    first: int = 0
    next: int = 0
    durable: tuple[int, int] = (0, 0)

    def index(self, offset: int) -> int:
        return bisect_left(self.messages, offset, key=lambda message: message.offset)


class SimulatedState:
    """Topics in memory."""

    def __init__(self, topics: Mapping[str, int], rng: random.Random, faults: Faults) -> None:
        self.faults = faults
        self.rng = rng
        self.struck: Counter[str] = Counter()
        """How often each fault really happened."""
        self.topics = dict(topics)
        self.topic_ids = {name: self._new_id() for name in topics}
        self.logs = {TopicPartition(name, part): _Log() for name, count in topics.items() for part in range(count)}
        self.commits: dict[tuple[str, TopicPartition], Commit] = {}
        self.rows: dict[str, bytes] = {}
        self.transactions: dict[str, Transaction] = {}
        self.epochs: dict[str, int] = {}
        self.ticks = 0
        self._durable_commits: dict[tuple[str, TopicPartition], Commit] = {}
        self._durable_rows: dict[str, bytes] = {}

    def tick(self) -> None:
        """Let time pass: undecided transactions settle, open ones time out."""
        self.ticks += 1
        for name, transaction in list(self.transactions.items()):
            if self.faults.timeout and self.ticks - transaction.born > self.faults.timeout:
                self.struck["transaction timed out"] += 1
                self.settle(name)
                self.epochs[name] += 1
            elif transaction.settles_at is not None and self.ticks >= transaction.settles_at:
                self.settle(name)

    def settle(self, name: str, *, effect: bool | None = None) -> None:
        """End a transaction: an undecided one either way (or as told), an open one without effect."""
        transaction = self.transactions.pop(name, None)
        if transaction is None:
            return
        takes_effect = False
        if transaction.undecided:
            takes_effect = self.rng.random() < 0.5 if effect is None else effect  # noqa: PLR2004 - either way
            self.struck["unknown outcome: committed" if takes_effect else "unknown outcome: aborted"] += 1
        if takes_effect:
            self.take_effect(transaction)
        else:
            self.leave_holes(transaction)

    def take_effect(self, transaction: Transaction) -> None:
        """Make a transaction's messages, positions and rows visible."""
        for target, payload, headers, at in transaction.messages:
            log = self.log(target)
            log.messages.append(Message(log.next, payload, headers, at))
            log.next += 1
        if self.faults.markers:
            for target in {target for target, *_ in transaction.messages}:
                self.logs[target].next += 1
        self.commits.update(transaction.commits)
        for key, value in transaction.rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def leave_holes(self, transaction: Transaction) -> None:
        """Give a transaction up; its messages may have used offsets."""
        if self.faults.markers:
            for target, *_ in transaction.messages:
                self.logs[target].next += 1
            for target in {target for target, *_ in transaction.messages}:
                self.logs[target].next += 1

    def held(self, group: str, source: TopicPartition) -> bool:
        """Whether a transaction that isn't settled holds an offset of the partition."""
        return any((group, source) in transaction.commits for transaction in self.transactions.values())

    def log(self, source: TopicPartition) -> _Log:
        """A partition's log.

        Raises:
            BusError: there is no such partition.
        """
        try:
            return self.logs[source]
        except KeyError:
            msg = f"no partition {source}"
            raise BusError(msg) from None

    def make_durable(self) -> None:
        """All that has taken effect so far survives a power failure."""
        for log in self.logs.values():
            log.durable = (log.first, log.next)
            del log.messages[: log.index(log.first)]
        self._durable_commits, self._durable_rows = dict(self.commits), dict(self.rows)

    def lose_power(self) -> None:
        """Undo all since `make_durable`; no transaction and no producer outlives it."""
        for log in self.logs.values():
            log.first, log.next = log.durable
            del log.messages[log.index(log.next) :]
        self.commits, self.rows = dict(self._durable_commits), dict(self._durable_rows)
        self.transactions.clear()
        for name in self.epochs:
            self.epochs[name] += 1

    def make_anew(self, topic: str) -> None:
        """Delete a topic, with the positions in it, and make it anew: durable at once."""
        self.topic_ids[topic] = self._new_id()
        for part in range(self.topics[topic]):
            self.logs[TopicPartition(topic, part)] = _Log()
        for commits in (self.commits, self._durable_commits):
            for group, source in [key for key in commits if key[1].topic == topic]:
                del commits[group, source]

    def _new_id(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"
