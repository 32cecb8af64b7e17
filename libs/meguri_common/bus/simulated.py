"""A bus in memory with a real one's failures, for simulations: seeded, steppable, shipped with the library.

Each instance works through a view of its own (`SimulatedBus.view`). Every call of a view first calls an injected hook,
at which a test may switch to another instance or end the caller. Faults are drawn from an injected generator:
commits that abort, commits whose outcome is unknown and settles one way or the other, now or later, transactions
that time out, rebalances that take partitions from paused instances, and power failures that undo all since the
last barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_common.bus.port import Commit, Message, TopicPartition
from meguri_common.bus.simulated_groups import Group, Membership
from meguri_common.bus.simulated_state import Faults, SimulatedState, Transaction
from meguri_common.errors import BusError, Fenced, OutcomeUnknown, TransactionAborted

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Buffer

    from meguri_common.bus.port import Member, MembershipEvent

__all__ = ["Faults", "InstanceDead", "SimulatedBus", "SimulatedMember", "SimulatedProducer", "View"]

_WAITS = 100_000
"""Times that `committed` asks again before it gives up, as a client's own timeout would."""


class InstanceDead(BaseException):
    """The caller belongs to an instance that has been killed: nothing of it may run on."""


class SimulatedBus(SimulatedState):
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
            faults: how often what fails; may be changed at any time.
            before: called with operation and instance before each call of a view. It may switch to other instances,
                or raise.
        """
        super().__init__(topics, rng, faults or Faults())
        self.before = before
        self.now = now
        self.groups: dict[str, Group] = {}
        self._views: list[View] = []

    def view(self, instance: str) -> View:
        """The bus as one instance sees it; a new view is a new life of the instance."""
        made = View(self, instance)
        self._views.append(made)
        return made

    def kill(self, instance: str) -> None:
        """End an instance: its views raise `InstanceDead` from now on, its open transactions stay as they are.

        Its partitions go to others at the group's next rebalance.
        """
        self.struck["killed"] += 1
        for view in [view for view in self._views if view.instance == instance]:
            view.dead = True
            self._views.remove(view)
        for group in self.groups.values():
            for member in group.members:
                if member.instance == instance:
                    member.dead = True

    def power_failure(self) -> None:
        """Undo all since the last barrier. The caller ends every instance."""
        self.struck["power failure"] += 1
        self.lose_power()
        for group in self.groups.values():
            group.clear()

    def rebalance(self, name: str, *, without: Iterable[str] = ()) -> None:
        """Share a group's partitions out anew, some staying where they are.

        Args:
            name: the group; nothing happens if nobody has joined it yet.
            without: instances that are taken for lost (paused ones): others get what they had at once.
        """
        if name in self.groups:
            self.struck["rebalance"] += 1
            self.groups[name].rebalance(frozenset(without))

    def recreate(self, topic: str) -> None:
        """Delete a topic and make it anew: another identity, offsets from 0, no positions."""
        self.make_anew(topic)


class View:
    """See `bus.port.RowBus`: the bus, called by one instance."""

    def __init__(self, bus: SimulatedBus, instance: str) -> None:
        self.bus = bus
        self.instance = instance
        self.dead = False

    def before(self, operation: str) -> None:
        """Call the hook.

        Raises:
            InstanceDead: the instance has been killed, maybe while others ran.
        """
        if not self.dead:
            self.bus.before(operation, self.instance)
        if self.dead:
            raise InstanceDead(self.instance)

    def partitions(self, topic: str) -> int:
        """See `Bus`."""
        self.before("bus.partitions")
        self.bus.log(TopicPartition(topic, 0))
        return self.bus.topics[topic]

    def topic_id(self, topic: str) -> str:
        """See `Bus`."""
        self.before("bus.topic_id")
        self.bus.log(TopicPartition(topic, 0))
        return self.bus.topic_ids[topic]

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        """See `Bus`."""
        self.before("bus.watermarks")
        log = self.bus.log(source)
        return log.first, log.next

    def read(
        self, source: TopicPartition, start: int, *, end: int | None = None, max_bytes: int | None = None
    ) -> list[Message]:
        """See `Bus`."""
        self.before("bus.read")
        log = self.bus.log(source)
        if start < log.first:
            msg = f"{source}: offset {start} is gone, the log begins at {log.first}"
            raise BusError(msg)
        out: list[Message] = []
        size = 0
        for at in range(log.index(start), len(log.messages)):
            message = log.messages[at]
            if end is not None and message.offset >= end:
                break
            out.append(message)
            size += memoryview(message.payload).nbytes
            if max_bytes is not None and size >= max_bytes:
                break
        return out

    def committed(self, group: str, source: TopicPartition) -> Commit | None:
        """See `Bus`: waits until no transaction holds an offset of the partition; each turn is a tick.

        Raises:
            BusError: nobody settles it.
        """
        self.before("bus.committed")
        self.bus.log(source)
        waits = 0
        while self.bus.faults.stable and self.bus.held(group, source):
            if not waits:
                self.bus.struck["waited for a stable offset"] += 1
            waits += 1
            if waits > _WAITS:
                msg = f"{source}: a transaction holds an offset of group {group}, and nobody settles it"
                raise BusError(msg)
            self.before("bus.committed.wait")
            self.bus.tick()
        return self.bus.commits.get((group, source))

    def producer(self, transactional_id: str) -> SimulatedProducer:
        """See `RowBus`: settles what an earlier producer of the id left open."""
        self.before("bus.producer")
        self.bus.settle(transactional_id)
        epoch = self.bus.epochs[transactional_id] = self.bus.epochs.get(transactional_id, 0) + 1
        return SimulatedProducer(self, transactional_id, epoch)

    def join(self, group: str, topic: str) -> SimulatedMember:
        """See `Bus`; an earlier life of this instance is over."""
        self.before("bus.join")
        self.bus.log(TopicPartition(topic, 0))
        shared = self.bus.groups.get(group)
        if shared is None:
            shared = self.bus.groups[group] = Group(topic, self.bus.topics[topic], self.bus.rng)
        member = SimulatedMember(self, group, topic)
        shared.join(member.membership)
        return member

    def barrier(self) -> None:
        """See `Bus`."""
        self.before("bus.barrier")
        self.bus.make_durable()

    def trim(self, source: TopicPartition, before: int) -> None:
        """See `Bus`."""
        self.before("bus.trim")
        log = self.bus.log(source)
        log.first = max(log.first, min(before, log.next))

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


class SimulatedMember:
    """See `bus.port.Member`."""

    def __init__(self, view: View, group: str, topic: str) -> None:
        self._view = view
        self.group = group
        self.topic = topic
        self.membership = Membership(view.instance)

    def poll(self) -> Sequence[MembershipEvent]:
        """See `Member`; partitions it was asked to give up are given up when it polls again."""
        self._view.before("member.poll")
        return self._view.bus.groups[self.group].poll(self.membership)

    def leave(self) -> None:
        """See `Member`."""
        self._view.before("member.leave")
        self._view.bus.groups[self.group].leave(self.membership)


class SimulatedProducer:
    """See `bus.port.RowProducer`."""

    def __init__(self, view: View, transactional_id: str, epoch: int) -> None:
        self._view = view
        self._bus = view.bus
        self._id = transactional_id
        self._epoch = epoch
        self._unknown = False

    def begin(self) -> None:
        """See `Producer`."""
        self._view.before("producer.begin")
        self._check()
        if self._id in self._bus.transactions:
            msg = f"{self._id}: a transaction is open already"
            raise BusError(msg)
        self._bus.transactions[self._id] = Transaction(born=self._bus.ticks)

    def publish(self, target: TopicPartition, payload: Buffer, *, headers: bytes = b"", at: int | None = None) -> None:
        """See `Producer`."""
        self._view.before("producer.publish")
        transaction = self._open()
        self._bus.log(target)
        transaction.publish(target, payload, headers, int(self._bus.now()) if at is None else at)

    def commit_offsets(self, member: Member, commits: Mapping[int, Commit]) -> None:
        """See `Producer`; a fenced member's transaction is given up."""
        self._view.before("producer.commit_offsets")
        transaction = self._open()
        assert isinstance(member, SimulatedMember), "members and producers are of one bus"
        if self._bus.faults.fencing and not self._bus.groups[member.group].current(member.membership):
            self._bus.struck["fenced by generation"] += 1
            self._bus.settle(self._id)
            msg = f"{self._id}: the generation of {member.group} has moved on"
            raise Fenced(msg)
        for partition in commits:
            self._bus.log(TopicPartition(member.topic, partition))
        transaction.commit_offsets(member.group, member.topic, commits)

    def put(self, key: str, value: bytes) -> None:
        """See `RowProducer`."""
        self._view.before("producer.put")
        self._open().put(key, value)

    def delete(self, keys: Iterable[str]) -> None:
        """See `RowProducer`."""
        self._view.before("producer.delete")
        self._open().delete(keys)

    def commit(self) -> None:
        """See `Producer`: may abort, or leave the caller without an answer."""
        self._view.before("producer.commit")
        transaction = self._open()
        draw, faults, rng = self._bus.rng.random(), self._bus.faults, self._bus.rng
        if draw < faults.unknown:
            self._bus.struck["unknown outcome"] += 1
            transaction.undecided = self._unknown = True
            fate = rng.choice(["committed", "aborted", "later", "left"])
            if fate in {"committed", "aborted"}:
                self._bus.settle(self._id, effect=fate == "committed")
            elif fate == "later":
                transaction.settles_at = self._bus.ticks + rng.randint(1, faults.settle_within)
            msg = f"{self._id}: no answer to the commit"
            raise OutcomeUnknown(msg)
        if draw < faults.unknown + faults.abort:
            self._bus.struck["aborted"] += 1
            self._bus.settle(self._id)
            msg = f"{self._id}: the commit was refused"
            raise TransactionAborted(msg)
        del self._bus.transactions[self._id]
        self._bus.take_effect(transaction)
        self._view.before("producer.committed")

    def abort(self) -> None:
        """See `Producer`; it can't take back a commit whose outcome is unknown."""
        self._view.before("producer.abort")
        transaction = self._bus.transactions.get(self._id)
        if self._bus.epochs[self._id] == self._epoch and transaction is not None and not transaction.undecided:
            self._bus.settle(self._id)

    def close(self) -> None:
        """See `Producer`."""
        self.abort()

    def _check(self) -> None:
        if self._bus.epochs[self._id] != self._epoch:
            self._bus.struck["fenced by epoch"] += 1
            msg = f"{self._id}: a newer producer of this name has taken over, or the transaction timed out"
            raise Fenced(msg)
        if self._unknown:
            msg = f"{self._id}: the outcome of the last commit is unknown: take a new producer"
            raise BusError(msg)

    def _open(self) -> Transaction:
        self._check()
        try:
            return self._bus.transactions[self._id]
        except KeyError:
            msg = f"{self._id}: no transaction is open"
            raise BusError(msg) from None
