"""The embedded bus's tables, its connections and its lock file."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meguri_common.errors import BusError, DataFolderError, DataFolderLocked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["OFFSET_BITS", "connect", "create", "lock", "mapped_errors", "message_id", "unlock"]

OFFSET_BITS = 40
_PARTITION_BITS = 16
_SCHEMA_VERSION = 1
_PAGE_SIZE = 16 << 10
_WAL_LIMIT = 64 << 20
"""Bytes to which the write-ahead log is cut back after a checkpoint."""

_TABLES = """
create table topics (number integer primary key, name text unique, id text not null, partitions integer not null);
create table ends (slot integer primary key, first integer not null, next integer not null);
create table messages (id integer primary key, at integer not null, headers blob not null, payload blob not null);
create table commits (consumers text, slot integer, offset integer not null, metadata text not null,
                      primary key (consumers, slot)) without rowid;
create table named_rows (key text primary key, value blob not null) without rowid;
create table barriers (id integer primary key check (id = 0), count integer not null);
insert into barriers values (0, 0);
"""
# Messages of a partition are one range of ids: topic number, partition, offset, from the highest bits down. A slot is
# the same without the offset.


def message_id(slot: int, offset: int) -> int:
    """Row id of a message."""
    return slot << OFFSET_BITS | offset


def slot_of(topic_number: int, partition: int) -> int:
    """What all ids of a partition start with."""
    return topic_number << _PARTITION_BITS | partition


@contextmanager
def mapped_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into the bus's, with the file named and what can be done."""
    try:
        yield
    except sqlite3.OperationalError as problem:
        code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            msg = f"{path}: the disk is full. Free some space and start again: what was committed is kept."
        elif code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            msg = f"{path}: another program holds the file open for writing: {problem}"
        elif code == sqlite3.SQLITE_CANTOPEN:
            msg = f"{path}: can't be opened: {problem}. Check that the folder is there and may be written."
        else:
            msg = f"{path}: {problem}"
        raise BusError(msg) from problem
    except sqlite3.DatabaseError as problem:
        msg = f"{path}: not a bus file, or damaged: {problem}. Put back a copy, or start a new data folder."
        raise DataFolderError(msg) from problem


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the file. A read-only connection writes nothing, but may need to make the log's index after a kill."""
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30, check_same_thread=False
    )
    if not read_only:
        connection.execute(f"pragma page_size = {_PAGE_SIZE}")
        connection.execute("pragma journal_mode = wal")
        connection.execute(f"pragma journal_size_limit = {_WAL_LIMIT}")
        connection.execute("pragma cache_size = -65536")
    # Commits are synced by `barrier` alone: a killed process loses nothing, a power failure what came after it.
    connection.execute("pragma synchronous = normal")
    return connection


def create(connection: sqlite3.Connection, path: Path, topics: Mapping[str, tuple[str, int]]) -> None:
    """Make the tables if the file is new, and topics that aren't there yet.

    Args:
        connection: to the file.
        path: for messages.
        topics: (id for a new one, partitions) by name.

    Raises:
        DataFolderError: the file is of another version of the schema.
    """
    connection.execute("begin immediate")
    version = connection.execute("pragma user_version").fetchone()[0]
    if version == 0 and not connection.execute("select count(*) from sqlite_master").fetchone()[0]:
        for statement in _TABLES.strip().split(";"):
            connection.execute(statement)
        connection.execute(f"pragma user_version = {_SCHEMA_VERSION}")
    check_version(connection, path)
    for name, (topic_id, partitions) in topics.items():
        if connection.execute("select 1 from topics where name = ?", (name,)).fetchone():
            continue
        number = connection.execute("select count(*) + 1 from topics").fetchone()[0]
        connection.execute("insert into topics values (?, ?, ?, ?)", (number, name, topic_id, partitions))
        slots = [(slot_of(number, partition),) for partition in range(partitions)]
        connection.executemany("insert into ends values (?, 0, 0)", slots)
    connection.execute("commit")


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another version."""
    version = connection.execute("pragma user_version").fetchone()[0]
    if version != _SCHEMA_VERSION:
        msg = (
            f"{path}: bus file of version {version}, this program reads {_SCHEMA_VERSION}: use the release that made it"
        )
        raise DataFolderError(msg)


def lock(path: Path) -> int:
    """Become the only writer; gives the descriptor that holds the lock until it is closed or the process ends.

    Raises:
        DataFolderLocked: another living process is the writer.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as problem:
        msg = f"{path}: can't be opened: {problem.strerror}"
        raise DataFolderError(msg) from problem
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        if problem.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        msg = f"{path.parent}: another process (id {holder}) is writing to this folder. Wait for it, or stop it."
        raise DataFolderLocked(msg) from problem
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def unlock(descriptor: int) -> None:
    """Let another process become the writer."""
    os.close(descriptor)
