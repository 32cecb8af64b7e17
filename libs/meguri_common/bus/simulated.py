"""A bus in memory with a real one's failures, for simulations: seeded, steppable, shipped with the library.

Each instance works through a view of its own (`SimulatedBus.view`). Every call of a view first calls an injected hook,
at which a test may switch to another instance or end the caller. Faults are drawn from an injected generator:
commits that abort, commits whose outcome is unknown and settles one way or the other, transactions that time out,
rebalances that take partitions from paused instances, and power failures that undo all since the last barrier.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meguri_common.bus.port import Assigned, Commit, Lost, Message, Revoked, TopicPartition
from meguri_common.errors import BusError, Fenced, OutcomeUnknown, TransactionAborted

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Buffer

    from meguri_common.bus.port import Member, MembershipEvent

__all__ = ["Faults", "SimulatedBus", "SimulatedMember", "SimulatedProducer", "View"]


@dataclass
class Faults:
    """How often what fails. All zero: a bus that never does."""

    abort: float = 0.0
    """Share of commits that abort."""
    unknown: float = 0.0
    """Share of commits whose outcome the producer isn't told."""
    timeout: int = 0
    """Ticks after which an open transaction is settled by the bus and its producer fenced; 0: never."""
    fencing: bool = True
    """Whether offsets of an old generation are refused; off in tests of the simulation itself."""


@dataclass
class _Log:
    messages: list[Message] = field(default_factory=list)
    first: int = 0
    next: int = 0


@dataclass
class _Transaction:
    born: int
    published: list[tuple[TopicPartition, bytes, bytes, int]] = field(default_factory=list)
    commits: dict[tuple[str, TopicPartition], Commit] = field(default_factory=dict)
    rows: list[tuple[str, bytes | None]] = field(default_factory=list)
    undecided: bool = False


@dataclass
class _Group:
    topic: str
    generation: int = 0
    owners: dict[int, SimulatedMember] = field(default_factory=dict)
    members: list[SimulatedMember] = field(default_factory=list)


class SimulatedBus:
    """The state that all views share, and the controls of the simulation."""

    def __init__(
        self,
        topics: Mapping[str, int],
        *,
        rng: random.Random,
        now: Callable[[], float],
        faults: Faults | None = None,
        before: Callable[[str, str], None] = lambda _operation, _instance: None,
    ) -> None:
        """An empty bus.

        Args:
            topics: number of partitions by name.
            rng: draws the faults.
            now: clock for append times, epoch seconds.
            faults: how often what fails.
            before: called with operation and instance before each call of a view.
        """
        self.faults = faults or Faults()
        self.before = before
        self.struck: Counter[str] = Counter()
        """How often each fault really happened."""
        self.rng = rng
        self.now = now
        self.topics = dict(topics)
        self.logs = {TopicPartition(name, part): _Log() for name, count in topics.items() for part in range(count)}
        self.commits: dict[tuple[str, TopicPartition], Commit] = {}
        self.rows: dict[str, bytes] = {}
        self.transactions: dict[str, _Transaction] = {}
        self.epochs: dict[str, int] = {}
        self.groups: dict[str, _Group] = {}
        self.ticks = 0
        self._durable: tuple[dict[TopicPartition, _Log], dict[tuple[str, TopicPartition], Commit], dict[str, bytes]]
        self.make_durable()

    def view(self, instance: str) -> View:
        """The bus as one instance sees it."""
        return View(self, instance)

    def tick(self) -> None:
        """Let time pass: transactions that have been open for too long are settled, their producers fenced."""
        self.ticks += 1
        for name, transaction in list(self.transactions.items()):
            if self.faults.timeout and self.ticks - transaction.born > self.faults.timeout:
                self.struck["transaction timed out"] += 1
                self.settle(name)
                self.epochs[name] += 1

    def settle(self, name: str, *, effect: bool | None = None) -> None:
        """End a transaction: an undecided one either way, an open one without effect."""
        transaction = self.transactions.pop(name, None)
        if transaction is None or not transaction.undecided:
            return
        takes_effect = self.rng.random() < 0.5 if effect is None else effect  # noqa: PLR2004 - either way
        self.struck["unknown outcome: committed" if takes_effect else "unknown outcome: aborted"] += 1
        if takes_effect:
            self.take_effect(transaction)

    def take_effect(self, transaction: _Transaction) -> None:
        """Make a transaction's messages, commits and rows visible."""
        for target, payload, headers, at in transaction.published:
            log = self.logs[target]
            log.messages.append(Message(log.next, payload, headers, at))
            log.next += 1
        self.commits.update(transaction.commits)
        for key, value in transaction.rows:
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value

    def held(self, group: str, source: TopicPartition) -> bool:
        """Whether a transaction that isn't settled holds an offset of the partition."""
        return any((group, source) in transaction.commits for transaction in self.transactions.values())

    def make_durable(self) -> None:
        """All committed so far survives a power failure."""
        logs = {source: _Log(list(log.messages), log.first, log.next) for source, log in self.logs.items()}
        self._durable = (logs, dict(self.commits), dict(self.rows))

    def power_failure(self) -> None:
        """Undo all since the last barrier. The caller ends every instance."""
        self.struck["power failure"] += 1
        logs, commits, rows = copy.copy(self._durable)
        self.logs = {source: _Log(list(log.messages), log.first, log.next) for source, log in logs.items()}
        self.commits, self.rows = dict(commits), dict(rows)
        self.transactions.clear()
        self.groups.clear()

    def rebalance(self, name: str, *, without: Iterable[str] = ()) -> None:
        """Share a group's partitions out anew, some staying where they are.

        Args:
            name: the group.
            without: instances that are taken for lost; they are told when they poll again.
        """
        group = self.groups.get(name)
        if group is None or not group.members:
            return
        group.generation += 1
        gone = set(without)
        live = [member for member in group.members if member.instance not in gone] or group.members
        for member in group.members:
            if member not in live:
                member.events.append(Lost(tuple(sorted(member.owned))))
                member.owned.clear()
        for partition in range(self.topics[group.topic]):
            owner = group.owners.get(partition)
            stays = owner in live and self.rng.random() < 0.6  # noqa: PLR2004 - most partitions stay
            heir = owner if stays and owner is not None else self.rng.choice(live)
            if heir is owner and partition in heir.owned:
                continue
            if owner is not None and owner is not heir and partition in owner.owned:
                owner.owned.discard(partition)
                asked = owner in live and self.rng.random() < 0.5  # noqa: PLR2004 - either way
                owner.events.append(Revoked((partition,)) if asked else Lost((partition,)))
            group.owners[partition] = heir
            heir.owned.add(partition)
            heir.events.append(Assigned((partition,)))
        for member in live:
            member.generation = group.generation


class View:
    """See `bus.port.RowBus`: the bus, called by one instance."""

    def __init__(self, bus: SimulatedBus, instance: str) -> None:
        self.bus = bus
        self.instance = instance

    def before(self, operation: str) -> None:
        """Call the hook."""
        self.bus.before(operation, self.instance)

    def partitions(self, topic: str) -> int:
        """See `Bus`."""
        return self.bus.topics[topic]

    def topic_id(self, topic: str) -> str:
        """See `Bus`."""
        return f"id-{topic}"

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        """See `Bus`."""
        self.before("bus.watermarks")
        log = self._log(source)
        return log.first, log.next

    def read(
        self, source: TopicPartition, start: int, *, end: int | None = None, max_bytes: int | None = None
    ) -> list[Message]:
        """See `Bus`."""
        self.before("bus.read")
        log = self._log(source)
        if start < log.first:
            msg = f"{source}: offset {start} is gone, the log begins at {log.first}"
            raise BusError(msg)
        out: list[Message] = []
        size = 0
        for message in log.messages[start - log.first :]:
            if end is not None and message.offset >= end:
                break
            out.append(message)
            size += len(memoryview(message.payload))
            if max_bytes is not None and size >= max_bytes:
                break
        return out

    def committed(self, group: str, source: TopicPartition) -> Commit | None:
        """See `Bus`: waits until no transaction holds an offset of the partition."""
        self.before("bus.committed")
        while self.bus.held(group, source):
            self.before("bus.committed.wait")
        return self.bus.commits.get((group, source))

    def producer(self, transactional_id: str) -> SimulatedProducer:
        """See `RowBus`: settles what an earlier producer of the id left open."""
        self.before("bus.producer")
        self.bus.settle(transactional_id)
        epoch = self.bus.epochs[transactional_id] = self.bus.epochs.get(transactional_id, 0) + 1
        return SimulatedProducer(self, transactional_id, epoch)

    def join(self, group: str, topic: str) -> SimulatedMember:
        """See `Bus`."""
        self.before("bus.join")
        shared = self.bus.groups.setdefault(group, _Group(topic))
        # An earlier life of this instance is gone: its partitions are free.
        for old in [member for member in shared.members if member.instance == self.instance]:
            shared.members.remove(old)
            for partition in [part for part, owner in shared.owners.items() if owner is old]:
                del shared.owners[partition]
            old.owned.clear()
        member = SimulatedMember(self, group, topic)
        shared.members.append(member)
        self.bus.rebalance(group)
        return member

    def barrier(self) -> None:
        """See `Bus`."""
        self.before("bus.barrier")
        self.bus.make_durable()

    def trim(self, source: TopicPartition, before: int) -> None:
        """See `Bus`."""
        self.before("bus.trim")
        log = self._log(source)
        if before > log.first:
            cut = min(before, log.next)
            log.messages = [message for message in log.messages if message.offset >= cut]
            log.first = cut

    def get(self, key: str) -> bytes | None:
        """See `RowBus`."""
        self.before("bus.get")
        return self.bus.rows.get(key)

    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """See `RowBus`."""
        self.before("bus.scan")
        return sorted((key, value) for key, value in self.bus.rows.items() if key.startswith(prefix))

    def close(self) -> None:
        """See `Bus`."""

    def _log(self, source: TopicPartition) -> _Log:
        try:
            return self.bus.logs[source]
        except KeyError:
            msg = f"no partition {source}"
            raise BusError(msg) from None


class SimulatedMember:
    """See `bus.port.Member`."""

    def __init__(self, view: View, group: str, topic: str) -> None:
        self._view = view
        self.instance = view.instance
        self.group = group
        self.topic = topic
        self.generation = 0
        self.owned: set[int] = set()
        self.events: list[MembershipEvent] = []

    def poll(self) -> Sequence[MembershipEvent]:
        """See `Member`."""
        self._view.before("member.poll")
        group = self._view.bus.groups.get(self.group)
        if group is not None and self in group.members and not self.owned and self.generation < group.generation:
            # Taken for lost, and back: it joins again as it is, without partitions until the next rebalance.
            self.generation = group.generation
        events, self.events = self.events, []
        return events

    def leave(self) -> None:
        """See `Member`."""
        self._view.before("member.leave")
        group = self._view.bus.groups.get(self.group)
        if group is not None and self in group.members:
            group.members.remove(self)
            group.owners = {part: owner for part, owner in group.owners.items() if owner is not self}
            self.owned.clear()
            self._view.bus.rebalance(self.group)


class SimulatedProducer:
    """See `bus.port.RowProducer`."""

    def __init__(self, view: View, transactional_id: str, epoch: int) -> None:
        self._view = view
        self._bus = view.bus
        self._id = transactional_id
        self._epoch = epoch

    def begin(self) -> None:
        """See `Producer`."""
        self._view.before("producer.begin")
        self._check()
        if self._id in self._bus.transactions:
            msg = f"{self._id}: a transaction is open already"
            raise BusError(msg)
        self._bus.transactions[self._id] = _Transaction(self._bus.ticks)

    def publish(self, target: TopicPartition, payload: Buffer, *, headers: bytes = b"", at: int | None = None) -> None:
        """See `Producer`."""
        self._view.before("producer.publish")
        if target not in self._bus.logs:
            msg = f"no partition {target}"
            raise BusError(msg)
        when = int(self._bus.now()) if at is None else at
        self._open().published.append((target, bytes(payload), headers, when))

    def commit_offsets(self, member: Member, commits: Mapping[int, Commit]) -> None:
        """See `Producer`."""
        self._view.before("producer.commit_offsets")
        transaction = self._open()
        group = self._bus.groups.get(member.group)
        current = (
            group is not None and getattr(member, "generation", None) == group.generation and member in group.members
        )
        if self._bus.faults.fencing and not current:
            self._bus.struck["fenced by generation"] += 1
            del self._bus.transactions[self._id]
            msg = f"{self._id}: generation of {member.group} has moved on"
            raise Fenced(msg)
        for partition, commit in commits.items():
            transaction.commits[member.group, TopicPartition(member.topic, partition)] = commit

    def put(self, key: str, value: bytes) -> None:
        """See `RowProducer`."""
        self._view.before("producer.put")
        self._open().rows.append((key, bytes(value)))

    def delete(self, keys: Iterable[str]) -> None:
        """See `RowProducer`."""
        self._view.before("producer.delete")
        self._open().rows.extend((key, None) for key in keys)

    def commit(self) -> None:
        """See `Producer`: may abort, or leave the caller without an answer."""
        self._view.before("producer.commit")
        transaction = self._open()
        draw, faults = self._bus.rng.random(), self._bus.faults
        if draw < faults.unknown:
            self._bus.struck["unknown outcome"] += 1
            transaction.undecided = True
            fate = self._bus.rng.choice([True, False, None])
            if fate is not None:
                self._bus.settle(self._id, effect=fate)
            msg = f"{self._id}: no answer to the commit"
            raise OutcomeUnknown(msg)
        del self._bus.transactions[self._id]
        if draw < faults.unknown + faults.abort:
            self._bus.struck["aborted"] += 1
            msg = f"{self._id}: the commit was refused"
            raise TransactionAborted(msg)
        self._bus.take_effect(transaction)
        self._view.before("producer.committed")

    def abort(self) -> None:
        """See `Producer`."""
        self._view.before("producer.abort")
        if self._bus.epochs.get(self._id) == self._epoch:
            self._bus.transactions.pop(self._id, None)

    def close(self) -> None:
        """See `Producer`."""
        self.abort()

    def _check(self) -> None:
        if self._bus.epochs.get(self._id) != self._epoch:
            self._bus.struck["fenced by epoch"] += 1
            msg = f"{self._id}: a newer producer of this name has taken over"
            raise Fenced(msg)

    def _open(self) -> _Transaction:
        self._check()
        try:
            return self._bus.transactions[self._id]
        except KeyError:
            msg = f"{self._id}: no transaction is open"
            raise BusError(msg) from None
