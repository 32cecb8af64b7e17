"""The embedded bus's open file: database transactions with a known outcome, the barrier, the bound of the log."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from meguri_common.bus.sqlite_schema import (
    BUSY_SECONDS,
    WAL_LIMIT,
    check_file,
    connect,
    create,
    error_kind,
    lock,
    mapped_errors,
    unlock,
)
from meguri_common.errors import BusError, MeguriError, OutcomeUnknown, TransactionAborted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["SqliteFile"]


class SqliteFile:
    """One connection, and for a writer the lock that keeps other writers out."""

    def __init__(self, path: Path, topics: Mapping[str, tuple[str, int]], *, read_only: bool) -> None:
        """Open the file, a writer's with its tables and these topics.

        Args:
            path: the file.
            topics: (id for a new one, partitions) by name.
            read_only: take no lock, make nothing.

        Raises:
            DataFolderLocked, DataFolderError, BusError: see `EmbeddedBus`.
        """
        self.path = path
        self._read_only = read_only
        self._unsynced = True
        self._broken = ""
        self._lock = None if read_only else lock(path.with_name(f"{path.name}.lock"))
        connection = None
        try:
            with mapped_errors(path):
                connection = connect(path, read_only=read_only)
                if read_only:
                    check_file(connection, path)
                else:
                    create(connection, path, topics)
        except BaseException:
            if connection is not None:
                connection.close()
            if self._lock is not None:
                unlock(self._lock)
            raise
        self.connection = connection

    def check_writable(self) -> None:
        """Refuse to write where that makes no sense.

        Raises:
            BusError: opened to look, or a write has failed in a way that leaves its outcome open.
        """
        if self._read_only:
            msg = f"{self.path}: opened to look, not to write"
            raise BusError(msg)
        if self._broken:
            msg = f"{self.path}: a write failed before, so that nothing more is written. Start again. ({self._broken})"
            raise BusError(msg)

    @contextmanager
    def view(self) -> Iterator[sqlite3.Connection]:
        """Several reads of the same state, whatever a writer does meanwhile."""
        self.connection.execute("begin")
        try:
            yield self.connection
        finally:
            self.connection.execute("rollback")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction that commits at the end of the block.

        Raises:
            TransactionAborted: nothing took effect.
            OutcomeUnknown: the commit itself failed on the disk; the next start tells. Nothing more is written.
        """
        try:
            with mapped_errors(self.path):
                self.connection.execute("begin immediate")
                yield self.connection
        except BusError as problem:
            self._roll_back()
            raise TransactionAborted(str(problem)) from problem.__cause__
        except BaseException:
            self._roll_back()
            raise
        try:
            with mapped_errors(self.path):
                self.connection.execute("commit")
        except MeguriError as problem:
            self._roll_back()
            if error_kind(problem.__cause__) in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY}:
                raise TransactionAborted(str(problem)) from problem.__cause__
            # Nor is it tried again: after a failed fsync the kernel may have dropped the pages, and say yes next time.
            self._broken = str(problem)
            raise OutcomeUnknown(self._broken) from problem.__cause__
        self._unsynced = True

    def barrier(self) -> None:
        """Sync all commits: a row written under full synchronisation, since an empty transaction syncs nothing."""
        self.check_writable()
        if not self._unsynced:
            return
        with mapped_errors(self.path):
            self.connection.execute("pragma synchronous = full")
        try:
            with self.transaction() as connection:
                connection.execute("update barriers set count = count + 1")
        finally:
            with mapped_errors(self.path):
                self.connection.execute("pragma synchronous = normal")
        self._unsynced = False
        self._bound_log()

    def close(self) -> None:
        """Close the connection and let another writer in."""
        with mapped_errors(self.path):
            self.connection.close()
        if self._lock is not None:
            unlock(self._lock)
            self._lock = None

    def _roll_back(self) -> None:
        if self.connection.in_transaction:
            try:
                self.connection.execute("rollback")
            except sqlite3.Error as problem:
                self._broken = str(problem)

    def _bound_log(self) -> None:
        """Start the write-ahead log anew if readers have kept it from that for too long."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if log.exists() and log.stat().st_size > 2 * WAL_LIMIT:
            # Waits for readers in the middle of a read; it gives up, and is tried again, if one stays there.
            with mapped_errors(self.path):
                self.connection.execute("pragma busy_timeout = 1000")
                self.connection.execute("pragma wal_checkpoint(truncate)").fetchall()
                self.connection.execute(f"pragma busy_timeout = {int(BUSY_SECONDS * 1000)}")
