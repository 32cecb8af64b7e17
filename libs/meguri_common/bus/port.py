"""The port that every bus implements: partitions to read, transactions, a barrier, group membership.

Rules that hold for all adapters (the conformance suite checks them):

- Offsets of a partition start at 0, grow, and are never used twice, trimmed ones included. They may have holes.
- Readers see committed messages only, in offset order. A transaction's messages and offset commits take effect
  together or not at all. `commit` may return a moment before its messages can be read; they also stay unseen while an
  older transaction of the partition is open.
- `Producer.commit` raising `TransactionAborted` or `Fenced` means: nothing took effect. `OutcomeUnknown` means:
  take a new producer of the same transactional id (which settles it), then read the committed offset.
- What was committed may be lost in a power failure until a `barrier` has returned.
- `Bus.committed` is the stable offset: it waits for transactions that hold one for the partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Buffer

__all__ = [
    "Assigned",
    "Batch",
    "Bus",
    "Commit",
    "FollowingBus",
    "Lost",
    "Member",
    "MembershipEvent",
    "Message",
    "Producer",
    "Revoked",
    "RowBus",
    "RowProducer",
    "TopicPartition",
]


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Message:
    """A message as read. `appended_at` is epoch seconds, set by the bus or the publisher when it was written."""

    offset: int
    payload: Buffer
    headers: bytes
    appended_at: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive messages of a partition, maybe none, and the position behind them to commit.

    The position may lie beyond the last message's successor: behind what holds no message, as a transaction's end.
    """

    source: TopicPartition
    messages: Sequence[Message]
    position: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed position: the next offset to read, and the committer's mark."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Assigned:
    """The member now owns these partitions; it restores them before it reads on."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """The member is asked to give these partitions up; it may still finish and snapshot them."""

    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """The member no longer owns these partitions; others may already have gone on. Memory of them is dropped."""

    partitions: tuple[int, ...]


MembershipEvent = Assigned | Revoked | Lost


class Member(Protocol):
    """One instance's membership in a group that shares a topic's partitions."""

    @property
    def group(self) -> str:
        """Name of the group, under which offsets are committed."""
        ...

    @property
    def topic(self) -> str:
        """The topic whose partitions the group shares."""
        ...

    def poll(self) -> Sequence[MembershipEvent]:
        """Take part in the group: heartbeat, and what has changed since the last call."""
        ...

    def leave(self) -> None:
        """Leave in order; partitions still owned go to others."""
        ...


class Producer(Protocol):
    """A transactional writer. At most one transaction is open; taking a new producer of the id fences this one."""

    def begin(self) -> None:
        """Open a transaction."""
        ...

    def publish(self, target: TopicPartition, payload: Buffer, *, headers: bytes = b"", at: int | None = None) -> None:
        """Add a message; `at` is its append time in epoch seconds (default: the bus's clock)."""
        ...

    def commit_offsets(self, member: Member, commits: Mapping[int, Commit]) -> None:
        """Add the consumed positions of partitions of the member's topic.

        Raises:
            Fenced: the member's generation is no longer the group's.
        """
        ...

    def commit(self) -> None:
        """Make the transaction take effect.

        Raises:
            TransactionAborted, Fenced: nothing took effect.
            OutcomeUnknown: it may have.
        """
        ...

    def abort(self) -> None:
        """Give the transaction up; does nothing if none is open."""
        ...

    def close(self) -> None:
        """Release the producer; an open transaction is given up."""
        ...


class Bus(Protocol):
    """Where the services' inboxes are kept."""

    def partitions(self, topic: str) -> int:
        """Number of partitions of a topic."""
        ...

    def topic_id(self, topic: str) -> str:
        """Identity of the topic; another one after it was deleted and made anew."""
        ...

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        """First offset still kept, and the offset that the next committed message gets at the earliest."""
        ...

    def read(
        self, source: TopicPartition, start: int, *, end: int | None = None, max_bytes: int | None = None
    ) -> list[Message]:
        """Committed messages with start <= offset < end, in order.

        Stops after `max_bytes` of payload, but gives at least one message where there is one.

        Raises:
            BusError: `start` is below the first offset kept.
        """
        ...

    def committed(self, group: str, source: TopicPartition) -> Commit | None:
        """The group's stable committed position; None where it never committed."""
        ...

    def producer(self, transactional_id: str) -> Producer:
        """A producer of this id; earlier ones are fenced and their open transaction is settled."""
        ...

    def join(self, group: str, topic: str) -> Member:
        """Become a member of a group that shares the topic."""
        ...

    def barrier(self) -> None:
        """Return when everything committed so far survives a power failure."""
        ...

    def trim(self, source: TopicPartition, before: int) -> None:
        """Allow messages below an offset to be dropped. Their offsets stay used."""
        ...

    def close(self) -> None:
        """Release resources. What was committed stays."""
        ...


@runtime_checkable
class FollowingBus(Bus, Protocol):
    """A bus that reads many partitions at once, ahead of time, and waits for what comes."""

    def follow(self, positions: Mapping[TopicPartition, int], *, max_bytes: int, wait: float) -> list[Batch]:
        """What comes behind these positions, as it comes.

        Unlike `read` it may miss what was committed a moment ago. The partitions are followed from one call to the
        next: each call names all of them, with the positions at which the batches before ended.

        Args:
            positions: where to go on, by partition.
            max_bytes: payload in all at which it stops, with at least one message where there is one.
            wait: seconds to wait for something.

        Returns:
            At most one batch a partition.

        Raises:
            PositionGone: a position isn't in the log.
        """
        ...


@runtime_checkable
class RowProducer(Producer, Protocol):
    """A producer whose transactions can also write small named rows: the embedded driver's place, cuts, ledger."""

    def put(self, key: str, value: bytes) -> None:
        """Add or replace a row, in the open transaction."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove rows, in the open transaction."""
        ...


@runtime_checkable
class RowBus(Bus, Protocol):
    """A bus that one process drives alone, with rows beside its messages."""

    def producer(self, transactional_id: str) -> RowProducer:
        """A producer that can write rows too."""
        ...

    def get(self, key: str) -> bytes | None:
        """A committed row's value."""
        ...

    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """Committed rows whose key starts with the prefix, in key order."""
        ...
