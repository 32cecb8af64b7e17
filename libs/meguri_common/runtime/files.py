"""The file system, as a port: what snapshots and generations need to be durable, and the real thing.

Paths are relative to the data root, with `/`. Durable means: file fsynced, renamed into place, folder fsynced.
"""

# ruff: noqa: PTH104, PTH108, PTH112, PTH114, PTH116, PTH123, PTH208, PTH211 - paths are text here, see LocalFiles
from __future__ import annotations

import errno
import io
import os
import shutil
from contextlib import suppress
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
        # A run asks for some thousand paths: making a `Path` of each cost more than most of the calls themselves.
        self._prefix = f"{os.fspath(root)}/"

    def _at(self, path: str) -> str:
        return self._prefix + path

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
        os.rename(self._at(source), self._at(target))

    def link(self, source: str, target: str) -> None:
        """See `FileSystem`."""
        os.link(self._at(source), self._at(target))

    def point(self, link: str, target: str) -> None:
        """See `FileSystem`."""
        folder, _, name = link.rpartition("/")
        temporary = self._at(f"{folder}/.new-{name}")
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        os.symlink(target, temporary)
        os.rename(temporary, self._at(link))

    def sync_folder(self, path: str) -> None:
        """See `FileSystem`."""
        _sync_folder(self._at(path))

    def make_folder(self, path: str) -> None:
        """See `FileSystem`."""
        if os.path.isdir(self._at(path)):
            return
        here = self.root / path
        missing = [folder for folder in (here, *here.parents) if not folder.is_dir()]
        here.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            _sync_folder(folder.parent)

    def list(self, path: str) -> list[str]:
        """See `FileSystem`."""
        try:
            return sorted(os.listdir(self._at(path)))
        except FileNotFoundError:
            return []

    def is_folder(self, path: str) -> bool:
        """See `FileSystem`."""
        return _is_folder(self._at(path))

    def size(self, path: str) -> int | None:
        """See `FileSystem`."""
        try:
            return os.stat(self._at(path)).st_size
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> float:
        """See `FileSystem`."""
        return os.lstat(self._at(path)).st_mtime

    def read(self, path: str) -> bytes:
        """See `FileSystem`."""
        with open(self._at(path), "rb") as file:
            return file.read()

    def open(self, path: str) -> pa.NativeFile:
        """See `FileSystem`."""
        here = self._at(path)
        if os.stat(here).st_size == 0:
            return pa.BufferReader(b"")
        return pa.memory_map(here, "r")

    def remove(self, path: str) -> None:
        """See `FileSystem`."""
        here = self._at(path)
        try:
            if _is_folder(here):
                shutil.rmtree(here)
            else:
                os.unlink(here)
        except FileNotFoundError:
            return
        except OSError as problem:
            if problem.errno != errno.ENOENT:
                raise


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _sync_folder(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
