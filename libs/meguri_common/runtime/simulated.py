"""A file system in memory with the failures of a real one: what was not fsynced is gone after a power failure.

Ships with the library for simulations. Every call first calls an injected hook, at which a test may switch to
another instance, end the caller, or raise an I/O error. Contents and folder entries have two images: as written (what
a killed process leaves) and as synced (what a power failure leaves).
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SimulatedFiles"]


class _Inode:
    """A file's content."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.synced = b""


class _Handle(io.RawIOBase):
    """A file open for writing."""

    def __init__(self, inode: _Inode, files: SimulatedFiles) -> None:
        super().__init__()
        self.inode = inode
        self._files = files

    def writable(self) -> bool:
        return True

    def write(self, chunk: object) -> int:
        self._files.before("file.write")
        view = memoryview(chunk).cast("B")  # type: ignore[arg-type]  # anything with a buffer
        self.inode.written += view
        return view.nbytes


class SimulatedFiles:
    """See `runtime.files.FileSystem`; folders exist as soon as they are made, only their entries can be lost."""

    def __init__(self, now: Callable[[], float], before: Callable[[str], None] = lambda _operation: None) -> None:
        """An empty tree.

        Args:
            now: clock for modification times, epoch seconds.
            before: called with the operation's name before each one.
        """
        self.before = before
        self._now = now
        self._entries: dict[str, _Inode | str] = {}
        self._synced_entries: dict[str, _Inode | str] = {}
        self._folders: set[str] = {""}
        self._times: dict[str, float] = {}
        self._unsynced_moves: list[tuple[str, str]] = []

    def power_failure(self) -> None:
        """Go back to what was synced."""
        self._unsynced_moves.clear()
        self._entries = dict(self._synced_entries)
        self._folders.update(path.rpartition("/")[0] for path in self._entries)
        for inode in self._entries.values():
            if isinstance(inode, _Inode):
                inode.written = bytearray(inode.synced)

    def create(self, path: str) -> BinaryIO:
        """See `FileSystem`."""
        self.before("file.create")
        if path in self._entries:
            raise FileExistsError(path)
        if path.rpartition("/")[0] not in self._folders:
            raise FileNotFoundError(path)
        inode = _Inode()
        self._entries[path] = inode
        self._times[path] = self._now()
        return cast("BinaryIO", _Handle(inode, self))

    def sync(self, file: BinaryIO) -> None:
        """See `FileSystem`."""
        self.before("file.sync")
        inode = cast("_Handle", file).inode
        inode.synced = bytes(inode.written)

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem`."""
        self.before("file.rename")
        if source in self._folders:
            if target in self._folders:
                raise FileExistsError(target)
            inside = f"{source}/"
            for path in [path for path in self._entries if path.startswith(inside)]:
                moved = f"{target}/{path.removeprefix(inside)}"
                self._entries[moved] = self._entries.pop(path)
                self._times[moved] = self._times[path]
            # What was synced keeps the folder's old name until the folder that holds the new name is synced.
            self._unsynced_moves.append((source, target))
            self._folders.discard(source)
            self._folders.add(target)
            self._times[target] = self._now()
            return
        if source not in self._entries:
            raise FileNotFoundError(source)
        self._entries[target] = self._entries.pop(source)
        self._times[target] = self._times[source]

    def link(self, source: str, target: str) -> None:
        """See `FileSystem`."""
        self.before("file.link")
        if target in self._entries:
            raise FileExistsError(target)
        if source not in self._entries:
            raise FileNotFoundError(source)
        self._entries[target] = self._entries[source]
        self._times[target] = self._times[source]

    def point(self, link: str, target: str) -> None:
        """See `FileSystem`."""
        self.before("file.point")
        self._entries[link] = target
        self._times[link] = self._now()

    def sync_folder(self, path: str) -> None:
        """See `FileSystem`."""
        self.before("file.sync_folder")
        for source, target in [move for move in self._unsynced_moves if move[1].rpartition("/")[0] == path]:
            self._unsynced_moves.remove((source, target))
            inside = f"{source}/"
            for name in [name for name in self._synced_entries if name.startswith(inside)]:
                self._synced_entries[f"{target}/{name.removeprefix(inside)}"] = self._synced_entries.pop(name)
        for entries in (self._synced_entries, self._entries):
            for name in [name for name in entries if name.rpartition("/")[0] == path]:
                if name in self._entries:
                    self._synced_entries[name] = self._entries[name]
                else:
                    del self._synced_entries[name]

    def make_folder(self, path: str) -> None:
        """See `FileSystem`."""
        self.before("file.make_folder")
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            folder = "/".join(parts[:end])
            if folder not in self._folders:
                self._folders.add(folder)
                self._times[folder] = self._now()

    def list(self, path: str) -> list[str]:
        """See `FileSystem`."""
        self.before("file.list")
        inside = f"{path}/" if path else ""
        names = {
            name.removeprefix(inside).split("/")[0]
            for name in (*self._entries, *self._folders)
            if name.startswith(inside) and name != path
        }
        return sorted(names - {""})

    def is_folder(self, path: str) -> bool:
        """See `FileSystem`."""
        return path in self._folders

    def size(self, path: str) -> int | None:
        """See `FileSystem`."""
        inode = self._entries.get(path)
        return len(inode.written) if isinstance(inode, _Inode) else None

    def modified(self, path: str) -> float:
        """See `FileSystem`."""
        if path not in self._entries and path not in self._folders:
            raise FileNotFoundError(path)
        return self._times[path]

    def read(self, path: str) -> bytes:
        """See `FileSystem`."""
        self.before("file.read")
        inode = self._entries.get(path)
        if not isinstance(inode, _Inode):
            raise FileNotFoundError(path)
        return bytes(inode.written)

    def open(self, path: str) -> pa.NativeFile:
        """See `FileSystem`."""
        return pa.BufferReader(self.read(path))

    def remove(self, path: str) -> None:
        """See `FileSystem`."""
        self.before("file.remove")
        self._entries.pop(path, None)
        if path in self._folders:
            inside = f"{path}/"
            for name in [name for name in self._entries if name.startswith(inside)]:
                del self._entries[name]
            for name in [name for name in self._folders if name == path or name.startswith(inside)]:
                self._folders.discard(name)
