"""The embedded bus's file: tables, connections, the writer's lock, and SQLite's errors in our words."""

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

__all__ = [
    "BUSY_SECONDS",
    "OFFSET_BITS",
    "WAL_LIMIT",
    "check_file",
    "connect",
    "create",
    "error_kind",
    "lock",
    "mapped_errors",
    "message_id",
    "slot_of",
    "unlock",
]

OFFSET_BITS = 40
_PARTITION_BITS = 16
_TOPIC_BITS = 63 - _PARTITION_BITS - OFFSET_BITS
_APPLICATION_ID = 0x6D67_7562
"""In the file's header, beside the version: SQLite files of other programs are told from ours."""
_SCHEMA_VERSION = 1
_PAGE_SIZE = 16 << 10
_CHECKPOINT_PAGES = 2048
"""Pages (32 MiB) of write-ahead log after which a commit carries them over to the file."""
_CACHE_KIB = 32 << 10
WAL_LIMIT = 64 << 20
"""Bytes to which the write-ahead log is cut back once it has been carried over."""
BUSY_SECONDS = 30.0
"""How long a locked file is waited for: a checkpoint or a recovery by another process is soon over."""

_TABLES = """
create table topics (number integer primary key, name text unique, id text not null, partitions integer not null);
create table ends (slot integer primary key, first integer not null, next integer not null);
create table messages (id integer primary key, at integer not null, headers blob not null, payload blob not null);
create table commits (consumers text, slot integer, offset integer not null, metadata text not null,
                      primary key (consumers, slot)) without rowid;
create table named_rows (key text primary key, value blob not null) without rowid;
create table barriers (id integer primary key check (id = 0), count integer not null);
insert into barriers values (0, 0)
"""
# Messages of a partition are one range of ids: topic number, partition, offset, from the highest bits down. A slot is
# the same without the offset. The payload comes last, so that what stands before it is read without it.


def message_id(slot: int, offset: int) -> int:
    """Row id of a message."""
    return slot << OFFSET_BITS | offset


def slot_of(topic_number: int, partition: int) -> int:
    """What all ids of a partition start with."""
    return topic_number << _PARTITION_BITS | partition


def error_kind(problem: BaseException | None) -> int:
    """SQLite's primary result code of an error of its own; 0 for any other."""
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def mapped_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into the bus's, with the file named and what can be done.

    Raises:
        DataFolderError: the file is damaged, or not SQLite's.
        BusError: anything else.
    """
    try:
        yield
    except sqlite3.ProgrammingError as problem:
        msg = f"{path}: the bus was closed, or used wrongly: {problem}"
        raise BusError(msg) from problem
    except sqlite3.Error as problem:
        match error_kind(problem):
            case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_FORMAT:
                msg = f"{path}: not a bus file, or damaged: {problem}. Put back a copy, or start a new data folder."
                raise DataFolderError(msg) from problem
            case sqlite3.SQLITE_FULL:
                msg = f"{path}: the disk is full. Free some space and start again: what was committed is kept."
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                msg = f"{path}: another program holds the file open for writing ({problem}). Close it and start again."
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM | sqlite3.SQLITE_READONLY:
                msg = (
                    f"{path}: can't be opened: {problem}. Check that the file is there, and that it and its folder may "
                    "be written (a reader needs that too, for the log's index beside the file)."
                )
            case sqlite3.SQLITE_IOERR:
                msg = f"{path}: reading or writing failed: {problem}. Check the disk, then start again."
            case _:
                msg = f"{path}: {problem}"
        raise BusError(msg) from problem


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open the file.

    A read-only connection changes nothing in the file and makes none; but beside a file that its writer has closed,
    or that a kill has left, SQLite puts the log's index (`-wal`, `-shm`), without which it can't share the file.
    """
    mode = "ro" if read_only else "rwc"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=BUSY_SECONDS,
        check_same_thread=False,
    )
    try:
        if not read_only:
            connection.execute(f"pragma page_size = {_PAGE_SIZE}")
            connection.execute("pragma auto_vacuum = none")
            connection.execute("pragma journal_mode = wal")
            connection.execute(f"pragma journal_size_limit = {WAL_LIMIT}")
            connection.execute(f"pragma wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            # Some builds overwrite what is deleted with zeros: trimming would write all messages once more.
            connection.execute("pragma secure_delete = off")
            # Commits are synced by `barrier` alone: a killed process loses nothing, a power failure what came after.
            connection.execute("pragma synchronous = normal")
        # SQLite turns these KiB into a number of pages once, by the page size it knows then: the default one until the
        # file has been read. Set before, the cache would take four times as much.
        connection.execute("pragma schema_version").fetchone()
        connection.execute(f"pragma cache_size = -{_CACHE_KIB}")
    except BaseException:
        connection.close()
        raise
    return connection


def create(connection: sqlite3.Connection, path: Path, topics: Mapping[str, tuple[str, int]]) -> None:
    """Make the tables if the file is new, and topics that aren't there yet, in one transaction.

    Args:
        connection: to the file.
        path: for messages.
        topics: (id for a new one, partitions) by name.

    Raises:
        DataFolderError: the file is of another program or version; too many topics or partitions.
    """
    connection.execute("begin immediate")
    if not connection.execute("select count(*) from sqlite_master").fetchone()[0]:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"pragma application_id = {_APPLICATION_ID}")
        connection.execute(f"pragma user_version = {_SCHEMA_VERSION}")
    check_file(connection, path)
    known = {name for (name,) in connection.execute("select name from topics").fetchall()}
    number = len(known)
    for name, (topic_id, partitions) in topics.items():
        if name in known:
            continue
        number += 1
        if number >= 1 << _TOPIC_BITS or not 0 < partitions <= 1 << _PARTITION_BITS:
            msg = (
                f"{path}: topic {name} (the {number}th) with {partitions} partitions: there can be "
                f"{(1 << _TOPIC_BITS) - 1} topics of 1 to {1 << _PARTITION_BITS} partitions"
            )
            raise DataFolderError(msg)
        connection.execute("insert into topics values (?, ?, ?, ?)", (number, name, topic_id, partitions))
        slots = [(slot_of(number, partition),) for partition in range(partitions)]
        connection.executemany("insert into ends values (?, 0, 0)", slots)
    connection.execute("commit")


def check_file(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another program, and one of another version.

    Raises:
        DataFolderError: it is one of those.
    """
    application = connection.execute("pragma application_id").fetchone()[0]
    version = connection.execute("pragma user_version").fetchone()[0]
    if application != _APPLICATION_ID:
        msg = f"{path}: not a bus file. Give another data folder, or move the file away."
        raise DataFolderError(msg)
    if version != _SCHEMA_VERSION:
        msg = (
            f"{path}: bus file of version {version}, this program reads {_SCHEMA_VERSION}: use the release that made it"
        )
        raise DataFolderError(msg)


def lock(path: Path) -> int:
    """Become the only writer; gives the descriptor that holds the lock until it is closed or the process ends.

    Raises:
        DataFolderLocked: another living process is the writer.
        DataFolderError: the lock can't be taken.
    """
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as problem:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() if descriptor >= 0 else ""
        if descriptor >= 0:
            os.close(descriptor)
        if problem.errno in {errno.EAGAIN, errno.EACCES} and descriptor >= 0:
            msg = (
                f"{path.parent}: another process (id {holder or 'unknown'}) is writing to this folder. "
                "Wait for it, or stop it."
            )
            raise DataFolderLocked(msg) from problem
        msg = f"{path}: can't be locked for writing: {problem.strerror or problem}"
        raise DataFolderError(msg) from problem
    return descriptor


def unlock(descriptor: int) -> None:
    """Let another process become the writer."""
    os.close(descriptor)
