"""The embedded bus: topics in one SQLite file, in this process, for one writer and any number of readers.

Commits are not synced one by one; `barrier` makes all before it durable. Not for use by several threads at once.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from meguri_common.bus.port import Assigned, Commit, Message, TopicPartition
from meguri_common.bus.sqlite_schema import (
    check_version,
    connect,
    create,
    lock,
    mapped_errors,
    message_id,
    slot_of,
    unlock,
)
from meguri_common.errors import BusError, Fenced

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from meguri_common.bus.port import Member, MembershipEvent

__all__ = ["EmbeddedBus", "EmbeddedMember", "EmbeddedProducer"]


class EmbeddedBus:
    """See `bus.port.RowBus`."""

    def __init__(
        self,
        path: Path,
        *,
        topics: Mapping[str, int],
        now: Callable[[], float],
        token: Callable[[], str] = lambda: secrets.token_hex(8),
        read_only: bool = False,
    ) -> None:
        """Open the file; a writer makes it and its topics if they aren't there.

        Args:
            path: the SQLite file; beside it stand `-wal`, `-shm` and `.lock`.
            topics: number of partitions by name; a topic that exists keeps the number it has.
            now: clock for append times, epoch seconds.
            token: gives the identity of a new topic.
            read_only: only look; works beside a living writer and after a killed one.

        Raises:
            DataFolderLocked: another living process writes.
            DataFolderError: not a bus file, damaged, or of another version.
            BusError: it can't be opened.
        """
        self.path = path
        self._now = now
        self._read_only = read_only
        self._lock = None if read_only else lock(path.with_name(f"{path.name}.lock"))
        self._epochs: dict[str, int] = {}
        self._generations: dict[str, int] = {}
        try:
            with mapped_errors(path):
                self._connection = connect(path, read_only=read_only)
                if read_only:
                    check_version(self._connection, path)
                else:
                    create(self._connection, path, {name: (token(), count) for name, count in topics.items()})
                rows = self._connection.execute("select name, number, id, partitions from topics").fetchall()
        except BaseException:
            if self._lock is not None:
                unlock(self._lock)
            raise
        self._topics: dict[str, tuple[int, str, int]] = {name: tuple(rest) for name, *rest in rows}
        self._in_transaction = False

    def partitions(self, topic: str) -> int:
        """See `Bus`."""
        return self._topic(topic)[2]

    def topic_id(self, topic: str) -> str:
        """See `Bus`."""
        return self._topic(topic)[1]

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        """See `Bus`."""
        with mapped_errors(self.path):
            row = self._connection.execute("select first, next from ends where slot = ?", (self._slot(source),))
            first, following = row.fetchone()
        return first, following

    def read(
        self, source: TopicPartition, start: int, *, end: int | None = None, max_bytes: int | None = None
    ) -> list[Message]:
        """See `Bus`."""
        first, following = self.watermarks(source)
        if start < first:
            msg = f"{source}: offset {start} is gone, the log begins at {first}"
            raise BusError(msg)
        slot, stop = self._slot(source), following if end is None else min(end, following)
        low = message_id(slot, 0)
        out: list[Message] = []
        size = 0
        with mapped_errors(self.path):
            rows = self._connection.execute(
                "select id, at, headers, payload from messages where id >= ? and id < ? order by id",
                (low | start, low | stop),
            )
            for number, at, headers, payload in rows:
                out.append(Message(number - low, payload, headers, at))
                size += len(payload)
                if max_bytes is not None and size >= max_bytes:
                    break
            rows.close()
        return out

    def committed(self, group: str, source: TopicPartition) -> Commit | None:
        """See `Bus`."""
        with mapped_errors(self.path):
            row = self._connection.execute(
                "select offset, metadata from commits where consumers = ? and slot = ?", (group, self._slot(source))
            ).fetchone()
        return None if row is None else Commit(*row)

    def producer(self, transactional_id: str) -> EmbeddedProducer:
        """See `RowBus`."""
        if self._read_only:
            msg = f"{self.path}: opened to look, not to write"
            raise BusError(msg)
        epoch = self._epochs[transactional_id] = self._epochs.get(transactional_id, 0) + 1
        if self._in_transaction and epoch > 1:
            self._rollback()
        return EmbeddedProducer(self, transactional_id, epoch)

    def join(self, group: str, topic: str) -> EmbeddedMember:
        """See `Bus`; the newest member owns all partitions."""
        generation = self._generations[group] = self._generations.get(group, 0) + 1
        return EmbeddedMember(self, group, topic, generation)

    def barrier(self) -> None:
        """See `Bus`: a row written under full synchronisation, since an empty transaction syncs nothing."""
        with mapped_errors(self.path):
            self._connection.execute("pragma synchronous = full")
            try:
                self._connection.execute("update barriers set count = count + 1")
            finally:
                self._connection.execute("pragma synchronous = normal")

    def trim(self, source: TopicPartition, before: int) -> None:
        """See `Bus`."""
        slot = self._slot(source)
        first, following = self.watermarks(source)
        before = min(before, following)
        if before <= first:
            return
        with mapped_errors(self.path):
            self._connection.execute("begin immediate")
            try:
                low = message_id(slot, 0)
                self._connection.execute("delete from messages where id >= ? and id < ?", (low, low | before))
                self._connection.execute("update ends set first = ? where slot = ?", (before, slot))
                self._connection.execute("commit")
            except BaseException:
                self._rollback()
                raise

    def get(self, key: str) -> bytes | None:
        """See `RowBus`."""
        with mapped_errors(self.path):
            row = self._connection.execute("select value from named_rows where key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """See `RowBus`."""
        with mapped_errors(self.path):
            return self._connection.execute(
                "select key, value from named_rows where key >= ? and key < ? order by key",
                (prefix, prefix + "\U0010ffff"),
            ).fetchall()

    def close(self) -> None:
        """See `Bus`."""
        if self._in_transaction:
            self._rollback()
        self._connection.close()
        if self._lock is not None:
            unlock(self._lock)
            self._lock = None

    def _topic(self, topic: str) -> tuple[int, str, int]:
        try:
            return self._topics[topic]
        except KeyError:
            msg = f"{self.path}: no topic {topic}; there are {', '.join(sorted(self._topics))}"
            raise BusError(msg) from None

    def _slot(self, source: TopicPartition) -> int:
        number, _, partitions = self._topic(source.topic)
        if not 0 <= source.partition < partitions:
            msg = f"{source.topic} has partitions 0 to {partitions - 1}, not {source.partition}"
            raise BusError(msg)
        return slot_of(number, source.partition)

    def _rollback(self) -> None:
        self._in_transaction = False
        if self._connection.in_transaction:
            self._connection.execute("rollback")


class EmbeddedMember:
    """See `bus.port.Member`: the one member that owns all partitions."""

    def __init__(self, bus: EmbeddedBus, group: str, topic: str, generation: int) -> None:
        self._bus = bus
        self.group = group
        self.topic = topic
        self.generation = generation
        self._told = False

    def poll(self) -> Sequence[MembershipEvent]:
        """See `Member`."""
        if self._told:
            return ()
        self._told = True
        return (Assigned(tuple(range(self._bus.partitions(self.topic)))),)

    def leave(self) -> None:
        """See `Member`: nobody else is there to take over."""


class EmbeddedProducer:
    """See `bus.port.RowProducer`."""

    def __init__(self, bus: EmbeddedBus, transactional_id: str, epoch: int) -> None:
        self._bus = bus
        self._transactional_id = transactional_id
        self._epoch = epoch
        self._next: dict[int, int] = {}

    def begin(self) -> None:
        """See `Producer`."""
        self._check()
        if self._bus._in_transaction:  # noqa: SLF001 - bus and producer are two faces of one connection
            msg = f"{self._transactional_id}: a transaction is open already"
            raise BusError(msg)
        with mapped_errors(self._bus.path):
            self._connection.execute("begin immediate")
        self._bus._in_transaction = True  # noqa: SLF001 - see above
        self._next.clear()

    def publish(self, target: TopicPartition, payload: Buffer, *, headers: bytes = b"", at: int | None = None) -> None:
        """See `Producer`."""
        self._check(inside=True)
        slot = self._bus._slot(target)  # noqa: SLF001 - see above
        offset = self._next.get(slot)
        if offset is None:
            offset = self._bus.watermarks(target)[1]
        self._next[slot] = offset + 1
        when = int(self._bus._now()) if at is None else at  # noqa: SLF001 - see above
        with mapped_errors(self._bus.path):
            self._connection.execute(
                "insert into messages values (?, ?, ?, ?)", (message_id(slot, offset), when, headers, payload)
            )

    def commit_offsets(self, member: Member, commits: Mapping[int, Commit]) -> None:
        """See `Producer`."""
        self._check(inside=True)
        generation = getattr(member, "generation", None)
        if generation != self._bus._generations.get(member.group):  # noqa: SLF001 - see above
            self.abort()
            msg = f"{member.group}: a newer member has taken over"
            raise Fenced(msg)
        with mapped_errors(self._bus.path):
            for partition, commit in commits.items():
                slot = self._bus._slot(TopicPartition(member.topic, partition))  # noqa: SLF001 - see above
                self._connection.execute(
                    "insert or replace into commits values (?, ?, ?, ?)",
                    (member.group, slot, commit.offset, commit.metadata),
                )

    def put(self, key: str, value: bytes) -> None:
        """See `RowProducer`."""
        self._check(inside=True)
        with mapped_errors(self._bus.path):
            self._connection.execute("insert or replace into named_rows values (?, ?)", (key, value))

    def delete(self, keys: Iterable[str]) -> None:
        """See `RowProducer`."""
        self._check(inside=True)
        with mapped_errors(self._bus.path):
            self._connection.executemany("delete from named_rows where key = ?", [(key,) for key in keys])

    def commit(self) -> None:
        """See `Producer`."""
        self._check(inside=True)
        try:
            with mapped_errors(self._bus.path):
                self._connection.executemany(
                    "update ends set next = ? where slot = ?", [(end, slot) for slot, end in self._next.items()]
                )
                self._connection.execute("commit")
        except BaseException:
            self.abort()
            raise
        self._bus._in_transaction = False  # noqa: SLF001 - see above

    def abort(self) -> None:
        """See `Producer`."""
        if self._epoch == self._bus._epochs[self._transactional_id]:  # noqa: SLF001 - see above
            self._bus._rollback()  # noqa: SLF001 - see above

    def close(self) -> None:
        """See `Producer`."""
        self.abort()

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._bus._connection  # noqa: SLF001 - see above

    def _check(self, *, inside: bool = False) -> None:
        if self._epoch != self._bus._epochs[self._transactional_id]:  # noqa: SLF001 - see above
            msg = f"{self._transactional_id}: a newer producer of this name has taken over"
            raise Fenced(msg)
        if inside and not self._bus._in_transaction:  # noqa: SLF001 - see above
            msg = f"{self._transactional_id}: no transaction is open"
            raise BusError(msg)
