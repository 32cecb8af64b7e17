"""The embedded bus: topics in one SQLite file, in this process, for one writer and any number of readers.

A transaction is kept in memory until it commits and is then one SQLite transaction: nobody, not even this process,
sees a part of it, several producers may have one open, and none is ever undecided. Commits are not synced one by
one; `barrier` makes all before it durable. One thread at a time.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from meguri_common.bus.draft import Draft
from meguri_common.bus.port import Assigned, Commit, Lost, Message, TopicPartition
from meguri_common.bus.sqlite_file import SqliteFile
from meguri_common.bus.sqlite_schema import OFFSET_BITS, mapped_errors, message_id, slot_of
from meguri_common.errors import BusError, Fenced

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Buffer

    from meguri_common.bus.port import Member, MembershipEvent

__all__ = ["EmbeddedBus", "EmbeddedMember", "EmbeddedProducer"]

_TRIM_BYTES = 128 << 20
"""Bytes of payload that one `trim` deletes at most; the rest goes at the next ones."""


class EmbeddedBus:
    """See `bus.port.RowBus`. Use it from one thread at a time."""

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
        self._epochs: dict[str, int] = {}
        self._generations: dict[str, int] = {}
        made = {} if read_only else {name: (token(), count) for name, count in topics.items()}
        self._file = SqliteFile(path, made, read_only=read_only)
        with mapped_errors(path):
            rows = self._connection.execute("select name, number, id, partitions from topics").fetchall()
        self._topics: dict[str, tuple[int, str, int]] = {name: tuple(rest) for name, *rest in rows}

    def partitions(self, topic: str) -> int:
        """See `Bus`."""
        return self._topic(topic)[2]

    def topic_id(self, topic: str) -> str:
        """See `Bus`."""
        return self._topic(topic)[1]

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        """See `Bus`."""
        slot = self._slot(source)
        with mapped_errors(self.path):
            return self._ends(slot)

    def read(
        self, source: TopicPartition, start: int, *, end: int | None = None, max_bytes: int | None = None
    ) -> list[Message]:
        """See `Bus`; no payload is fetched that isn't returned."""
        slot = self._slot(source)
        low = message_id(slot, 0)
        with mapped_errors(self.path), self._file.view() as connection:
            first, following = self._ends(slot)
            if start < first:
                msg = f"{source}: offset {start} is gone, the log begins at {first}"
                raise BusError(msg)
            bounds = (low | start, low | (following if end is None else max(start, min(end, following))))
            if start >= following:
                return []
            if max_bytes is not None:
                bounds = (bounds[0], self._end_of_bytes(*bounds, max_bytes))
            rows = connection.execute(
                "select id, at, headers, payload from messages where id >= ? and id < ? order by id", bounds
            ).fetchall()
        return [Message(number - low, payload, headers, at) for number, at, headers, payload in rows]

    def committed(self, group: str, source: TopicPartition) -> Commit | None:
        """See `Bus`; there is nothing to wait for, since no transaction is ever undecided."""
        slot = self._slot(source)
        with mapped_errors(self.path):
            row = self._connection.execute(
                "select offset, metadata from commits where consumers = ? and slot = ?", (group, slot)
            ).fetchone()
        return None if row is None else Commit(*row)

    def producer(self, transactional_id: str) -> EmbeddedProducer:
        """See `RowBus`."""
        self._file.check_writable()
        epoch = self._epochs[transactional_id] = self._epochs.get(transactional_id, 0) + 1
        return EmbeddedProducer(self, transactional_id, epoch)

    def join(self, group: str, topic: str) -> EmbeddedMember:
        """See `Bus`; the newest member owns all partitions."""
        self._file.check_writable()
        partitions = self.partitions(topic)
        generation = self._generations[group] = self._generations.get(group, 0) + 1
        return EmbeddedMember(self, group, topic, generation, tuple(range(partitions)))

    def barrier(self) -> None:
        """See `Bus`: a row written under full synchronisation, since an empty transaction syncs nothing."""
        self._file.barrier()

    def trim(self, source: TopicPartition, before: int) -> None:
        """See `Bus`; deletes a bounded part at once and the rest at later calls. The space is used again."""
        self._file.check_writable()
        slot = self._slot(source)
        low = message_id(slot, 0)
        with self._file.transaction() as connection:
            first, following = self._ends(slot)
            first = max(first, min(before, following))
            connection.execute("update ends set first = ? where slot = ? and first < ?", (first, slot, first))
            end = self._end_of_bytes(low, low | first, _TRIM_BYTES)
            connection.execute("delete from messages where id >= ? and id < ?", (low, end))

    def get(self, key: str) -> bytes | None:
        """See `RowBus`."""
        with mapped_errors(self.path):
            row = self._connection.execute("select value from named_rows where key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """See `RowBus`."""
        found: list[tuple[str, bytes]] = []
        with mapped_errors(self.path):
            rows = self._connection.execute("select key, value from named_rows where key >= ? order by key", (prefix,))
            for key, value in rows:
                if not key.startswith(prefix):
                    break
                found.append((key, value))
            rows.close()
        return found

    def close(self) -> None:
        """See `Bus`."""
        self._file.close()

    @property
    def _connection(self) -> sqlite3.Connection:
        return self._file.connection

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

    def _ends(self, slot: int) -> tuple[int, int]:
        first, following = self._connection.execute("select first, next from ends where slot = ?", (slot,)).fetchone()
        return first, following

    def _end_of_bytes(self, low: int, high: int, limit: int) -> int:
        """Where to end a range of ids so that it stops with the message that reaches `limit` bytes of payload."""
        size = 0
        rows = self._connection.execute(
            "select id, length(payload) from messages where id >= ? and id < ? order by id", (low, high)
        )
        for number, length in rows:
            size += length
            if size >= limit:
                rows.close()
                return int(number) + 1
        return high

    def _commit(self, draft: Draft) -> None:
        """Make a transaction take effect."""
        self._file.check_writable()
        ends: dict[int, int] = {}
        messages: list[tuple[int, int, bytes, bytes]] = []
        with self._file.transaction() as connection:
            for target, payload, headers, at in draft.messages:
                slot = self._slot(target)
                offset = ends[slot] if slot in ends else self._ends(slot)[1]
                if offset >> OFFSET_BITS:
                    msg = f"{target}: all {1 << OFFSET_BITS} offsets are used. Start a new data folder."
                    raise BusError(msg)
                messages.append((message_id(slot, offset), at, headers, payload))
                ends[slot] = offset + 1
            connection.executemany("insert into messages values (?, ?, ?, ?)", messages)
            connection.executemany(
                "update ends set next = ? where slot = ?", [(end, slot) for slot, end in ends.items()]
            )
            connection.executemany(
                "insert or replace into commits values (?, ?, ?, ?)",
                [
                    (group, self._slot(at), commit.offset, commit.metadata)
                    for (group, at), commit in draft.commits.items()
                ],
            )
            connection.executemany(
                "insert or replace into named_rows values (?, ?)",
                [(key, value) for key, value in draft.rows.items() if value is not None],
            )
            connection.executemany(
                "delete from named_rows where key = ?", [(key,) for key, value in draft.rows.items() if value is None]
            )


class EmbeddedMember:
    """See `bus.port.Member`: the one member that owns all partitions, until a newer one joins."""

    def __init__(self, bus: EmbeddedBus, group: str, topic: str, generation: int, partitions: tuple[int, ...]) -> None:
        self._bus = bus
        self.group = group
        self.topic = topic
        self._generation = generation
        self._waiting = partitions
        self._owned: tuple[int, ...] = ()

    @property
    def current(self) -> bool:
        """Whether no newer member has joined and this one hasn't left."""
        return self._bus._generations.get(self.group) == self._generation  # noqa: SLF001 - bus and member are one module

    def poll(self) -> Sequence[MembershipEvent]:
        """See `Member`."""
        if not self.current:
            lost, self._owned, self._waiting = self._owned, (), ()
            return (Lost(lost),) if lost else ()
        if not self._waiting:
            return ()
        self._owned, self._waiting = self._waiting, ()
        return (Assigned(self._owned),)

    def leave(self) -> None:
        """See `Member`."""
        if self.current:
            self._bus._generations[self.group] += 1  # noqa: SLF001 - see above
        self._owned = self._waiting = ()


class EmbeddedProducer:
    """See `bus.port.RowProducer`."""

    def __init__(self, bus: EmbeddedBus, transactional_id: str, epoch: int) -> None:
        self._bus = bus
        self._transactional_id = transactional_id
        self._epoch = epoch
        self._draft: Draft | None = None

    def begin(self) -> None:
        """See `Producer`."""
        self._check_epoch()
        self._bus._file.check_writable()  # noqa: SLF001 - bus and producer are one module
        if self._draft is not None:
            msg = f"{self._transactional_id}: a transaction is open already"
            raise BusError(msg)
        self._draft = Draft()

    def publish(self, target: TopicPartition, payload: Buffer, *, headers: bytes = b"", at: int | None = None) -> None:
        """See `Producer`."""
        draft = self._open()
        self._bus._slot(target)  # noqa: SLF001 - see above
        draft.publish(target, payload, headers, int(self._bus._now()) if at is None else at)  # noqa: SLF001 - see above

    def commit_offsets(self, member: Member, commits: Mapping[int, Commit]) -> None:
        """See `Producer`; a fenced member's transaction is given up."""
        draft = self._open()
        if not isinstance(member, EmbeddedMember) or not member.current:
            self._draft = None
            msg = f"{member.group}: a newer member has taken over, or this one has left"
            raise Fenced(msg)
        for partition in commits:
            self._bus._slot(TopicPartition(member.topic, partition))  # noqa: SLF001 - see above
        draft.commit_offsets(member.group, member.topic, commits)

    def put(self, key: str, value: bytes) -> None:
        """See `RowProducer`."""
        self._open().put(key, value)

    def delete(self, keys: Iterable[str]) -> None:
        """See `RowProducer`."""
        self._open().delete(keys)

    def commit(self) -> None:
        """See `Producer`; the transaction is closed, whatever its outcome."""
        draft = self._open()
        self._draft = None
        self._bus._commit(draft)  # noqa: SLF001 - see above

    def abort(self) -> None:
        """See `Producer`."""
        self._draft = None

    def close(self) -> None:
        """See `Producer`."""
        self.abort()

    def _check_epoch(self) -> None:
        if self._epoch != self._bus._epochs[self._transactional_id]:  # noqa: SLF001 - see above
            self._draft = None
            msg = f"{self._transactional_id}: a newer producer of this name has taken over"
            raise Fenced(msg)

    def _open(self) -> Draft:
        self._check_epoch()
        if self._draft is None:
            msg = f"{self._transactional_id}: no transaction is open"
            raise BusError(msg)
        return self._draft
