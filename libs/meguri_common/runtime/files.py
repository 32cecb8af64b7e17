"""The file system, as a port: what snapshots and generations need to be durable, and the real thing.

Paths are relative to the data root, with `/`. Durable means: file fsynced, renamed into place, folder fsynced.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from typing import TYPE_CHECKING, BinaryIO, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

__all__ = ["FileSystem", "LocalFiles", "write_durably"]


class FileSystem(Protocol):
    """A tree of files below the data root."""

    def create(self, path: str) -> BinaryIO:
        """A new file, open for writing; an existing one is an error (FileExistsError)."""
        ...

    def sync(self, file: BinaryIO) -> None:
        """Flush a file opened by `create` to the disk."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or folder; replaces a file."""
        ...

    def link(self, source: str, target: str) -> None:
        """A second name (hard link) for a file."""
        ...

    def point(self, link: str, target: str) -> None:
        """Make `link` a symbolic link to `target` (relative to the link's folder), replacing an older one at once."""
        ...

    def sync_folder(self, path: str) -> None:
        """Flush a folder's entries to the disk."""
        ...

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents, durable; nothing happens if it is there."""
        ...

    def list(self, path: str) -> list[str]:
        """Sorted names in a folder; empty if there is no such folder."""
        ...

    def is_folder(self, path: str) -> bool:
        """Whether the path is a folder (a symbolic link is none)."""
        ...

    def size(self, path: str) -> int | None:
        """Bytes of a file; None if there is no such file."""
        ...

    def modified(self, path: str) -> float:
        """Time of the last change, epoch seconds."""
        ...

    def read(self, path: str) -> bytes:
        """All of a file."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """A file for random reads; goes on working after the name is removed."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; nothing happens if it is gone."""
        ...


def write_durably(files: FileSystem, path: str, *chunks: Buffer, token: str = "") -> None:
    """Write a small file whole: temporary name, fsync, rename, fsync of the folder.

    Args:
        files: the data root.
        path: the file.
        chunks: its content.
        token: a random part of the temporary name, where several may write the file at once.
    """
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.new-{token}{name}"
    files.remove(temporary)
    with files.create(temporary) as file:
        for chunk in chunks:
            file.write(chunk)
        files.sync(file)
    files.rename(temporary, path)
    files.sync_folder(folder)


class _NamedFile(io.FileIO):
    """A file whose errors name it: the system's own know of a descriptor alone when a write fails."""

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError as problem:
            problem.filename = self.name
            raise


class LocalFiles:
    """The local file system below a root folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def _at(self, path: str) -> Path:
        return self.root / path

    def create(self, path: str) -> BinaryIO:
        """See `FileSystem`."""
        return io.BufferedWriter(_NamedFile(self._at(path), "xb"))

    def sync(self, file: BinaryIO) -> None:
        """See `FileSystem`."""
        file.flush()
        try:
            os.fsync(file.fileno())
        except OSError as problem:
            problem.filename = file.name
            raise

    def rename(self, source: str, target: str) -> None:
        """See `FileSystem`."""
        self._at(source).rename(self._at(target))

    def link(self, source: str, target: str) -> None:
        """See `FileSystem`."""
        self._at(target).hardlink_to(self._at(source))

    def point(self, link: str, target: str) -> None:
        """See `FileSystem`."""
        folder, _, name = link.rpartition("/")
        temporary = self._at(f"{folder}/.new-{name}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        temporary.rename(self._at(link))

    def sync_folder(self, path: str) -> None:
        """See `FileSystem`."""
        descriptor = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, path: str) -> None:
        """See `FileSystem`."""
        here = self._at(path)
        missing = [folder for folder in (here, *here.parents) if not folder.is_dir()]
        here.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            descriptor = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def list(self, path: str) -> list[str]:
        """See `FileSystem`."""
        try:
            return sorted(entry.name for entry in self._at(path).iterdir())
        except FileNotFoundError:
            return []

    def is_folder(self, path: str) -> bool:
        """See `FileSystem`."""
        here = self._at(path)
        return here.is_dir() and not here.is_symlink()

    def size(self, path: str) -> int | None:
        """See `FileSystem`."""
        try:
            return self._at(path).stat().st_size
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> float:
        """See `FileSystem`."""
        return self._at(path).lstat().st_mtime

    def read(self, path: str) -> bytes:
        """See `FileSystem`."""
        return self._at(path).read_bytes()

    def open(self, path: str) -> pa.NativeFile:
        """See `FileSystem`."""
        here = self._at(path)
        if here.stat().st_size == 0:
            return pa.BufferReader(b"")
        return pa.memory_map(os.fspath(here), "r")

    def remove(self, path: str) -> None:
        """See `FileSystem`."""
        here = self._at(path)
        try:
            if here.is_dir() and not here.is_symlink():
                shutil.rmtree(here)
            else:
                here.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as problem:
            if problem.errno != errno.ENOENT:
                raise
