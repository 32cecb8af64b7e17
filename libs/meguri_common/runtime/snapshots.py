"""Snapshots: a partition's whole state at an offset, as a manifest that names immutable files.

A snapshot is created, never overwritten. Its name holds offset, sequence and a random part; its manifest names the
files that it is made of with sizes and checksums, and it is whole only if they are there and fit. Writing is
incremental: a service keeps files of the snapshot before and adds what changed. Two whole snapshots are kept; a file
goes when no kept one names it and a grace time has passed, since a paused instance may still be writing it.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from meguri_common.errors import CorruptSnapshot
from meguri_common.identity import CampaignIdentity  # noqa: TC001 - msgspec resolves the field's type at run time
from meguri_common.runtime.files import write_durably
from meguri_common.runtime.hashing import HashingFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from meguri_common.runtime.files import FileSystem

__all__ = ["FileRef", "Snapshot", "SnapshotReader", "SnapshotStore", "SnapshotWriter"]

_VERSION = 1
_KEPT = 2
_NAME = re.compile(r"snapshot-o(\d{12})-s(\d{8})-([0-9a-f]+)\.json")


class FileRef(msgspec.Struct, frozen=True):
    """An immutable file of a snapshot."""

    role: str
    """What the service keeps in it."""
    path: str
    """Below the data root."""
    size: int
    checksum: str
    """xxh64 of the content, hex."""
    rows: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest."""

    service: str
    partition: int
    offset: int
    """Next offset of the inbox to read."""
    sequence: int
    """Orders snapshots of one offset."""
    topic_id: str
    identity: CampaignIdentity
    parameters: dict[str, Any]
    logic_version: int
    files: tuple[FileRef, ...] = ()
    scalars: dict[str, Any] = {}
    clean: bool = False
    """Written by a clean stop: it stands for the commit too, should the group have been forgotten."""
    version: int = _VERSION


@dataclass
class SnapshotWriter:
    """What `Service.save` writes through."""

    files: FileSystem
    folder: str
    """The partition's own folder below the data root."""
    offset: int
    previous: tuple[FileRef, ...]
    """Files of the snapshot that the memory continues; empty at first."""
    quick: bool
    """Stopping: write what changed, never a full rewrite."""
    token: Callable[[], str]
    """A random name part."""
    kept: list[FileRef] = field(default_factory=list)
    scalars: dict[str, Any] = field(default_factory=dict)
    written: int = 0
    """Bytes of the files that were written, not kept; generations apart."""
    generation_bytes: int = 0
    """Bytes of a generation that the service made for this snapshot, beside those files."""
    changed_bytes: int = 0
    """Bytes of the rows that changed since the snapshot before, each once: what `written` is measured by."""

    @contextmanager
    def create(
        self, role: str, suffix: str, *, rows: int = 0, folder: str | None = None, stem: str | None = None
    ) -> Iterator[Any]:
        """A new durable file of the snapshot: a context that gives a writable binary file (also fit for pyarrow).

        It takes its name `<stem or role>-<random>.<suffix>` in `folder` (default: the partition's own) once whole.
        """
        folder = folder or self.folder
        name = f"{stem or role}-{self.token()}.{suffix}"
        temporary = f"{folder}/.new-{name}"
        path = f"{folder}/{name}"
        try:
            with self.files.create(temporary) as file:
                hashing = HashingFile(file)
                yield hashing
                self.files.sync(file)
            self.files.rename(temporary, path)
        except OSError:
            self.files.remove(temporary)
            raise
        self.files.sync_folder(folder)
        self.written += hashing.size
        self.kept.append(FileRef(role, path, hashing.size, hashing.checksum, rows))

    def keep(self, reference: FileRef) -> None:
        """Go on using a file of the previous snapshot, or one that the service itself made durable."""
        self.kept.append(reference)


@dataclass(frozen=True)
class SnapshotReader:
    """What `Service.load` reads through."""

    fs: FileSystem
    snapshot: Snapshot

    @property
    def files(self) -> tuple[FileRef, ...]:
        """The files, in the order they were kept or created."""
        return self.snapshot.files

    @property
    def scalars(self) -> dict[str, Any]:
        """The small values."""
        return self.snapshot.scalars

    def read(self, reference: FileRef) -> bytes:
        """All of a file, checked.

        Raises:
            CorruptSnapshot: missing, cut short or altered.
        """
        try:
            blob = self.fs.read(reference.path)
        except OSError as problem:
            msg = f"{reference.path}: can't be read: {problem}"
            raise CorruptSnapshot(msg) from problem
        if len(blob) != reference.size or xxhash.xxh64_hexdigest(blob) != reference.checksum:
            wrong = "checksum" if len(blob) == reference.size else f"size of {len(blob)} bytes"
            msg = (
                f"{reference.path}: its {wrong} isn't what the snapshot states. Remove the file (keep a copy): the "
                "next start takes an older snapshot, if one is whole and the log reaches back to it, or says why not."
            )
            raise CorruptSnapshot(msg)
        return blob

    def open(self, reference: FileRef) -> pa.NativeFile:
        """A file for random reads; its size is checked, its content isn't."""
        if self.fs.size(reference.path) != reference.size:
            msg = f"{reference.path}: size {self.fs.size(reference.path)} isn't the snapshot's {reference.size}"
            raise CorruptSnapshot(msg)
        return self.fs.open(reference.path)


class SnapshotStore:
    """The snapshots of one partition of a service."""

    def __init__(
        self,
        files: FileSystem,
        service: str,
        partition: int,
        *,
        token: Callable[[], str],
        now: Callable[[], float],
        grace: float,
        folders: tuple[str, ...] = (),
    ) -> None:
        self.files = files
        self.service = service
        self.partition = partition
        self.folder = f"state/{service}/p{partition:05d}"
        self._token = token
        self._now = now
        self._grace = grace
        self._folders = folders
        self.bytes_written = 0
        """Bytes of all files and manifests written through this store; generations apart."""
        self.generation_bytes = 0
        """Bytes of the generations made for its snapshots."""
        self.changed_bytes = 0
        """Bytes of the rows that changed from one snapshot to the next, each once a snapshot."""

    def whole(self) -> list[Snapshot]:
        """Whole snapshots, highest (offset, sequence) first. Damaged or incomplete ones are passed over."""
        found = [snapshot for _, snapshot in self._entries() if snapshot is not None]
        found.sort(key=lambda snapshot: (snapshot.offset, snapshot.sequence), reverse=True)
        return found

    def damaged(self) -> list[str]:
        """Why snapshots were passed over: paths of altered manifests, and of files that are missing or cut short."""
        found = []
        for name, whole in self._entries():
            if whole is None:
                manifest = self._manifest(name)
                found.append((self._misfit(manifest) if manifest else None) or f"{self.folder}/{name}")
        return found

    def written_at(self, snapshot: Snapshot) -> float | None:
        """When a snapshot's manifest was written, epoch seconds; None if it is gone."""
        wanted = (snapshot.offset, snapshot.sequence)
        times = []
        for name in self.files.list(self.folder):
            if _NAME.fullmatch(name) and self._number(name) == wanted:
                try:
                    times.append(self.files.modified(f"{self.folder}/{name}"))
                except FileNotFoundError:  # swept in between
                    continue
        return max(times, default=None)

    def reader(self, snapshot: Snapshot) -> SnapshotReader:
        """Access to a snapshot's files."""
        return SnapshotReader(self.files, snapshot)

    def writer(self, offset: int, previous: Snapshot | None, *, quick: bool) -> SnapshotWriter:
        """Start a snapshot at `offset` that continues `previous`."""
        for folder in (self.folder, *self._folders):
            self.files.make_folder(folder)
        kept = previous.files if previous else ()
        return SnapshotWriter(self.files, self.folder, offset, kept, quick, self._token)

    def commit(
        self,
        writer: SnapshotWriter,
        *,
        topic_id: str,
        identity: CampaignIdentity,
        parameters: dict[str, Any],
        logic_version: int,
        clean: bool = False,
    ) -> Snapshot:
        """Write the manifest: from here on the snapshot is whole.

        Raises:
            FileNotFoundError: this instance has been paused for longer than the grace time, and the files are gone.
        """
        for reference in writer.kept:
            if self.files.size(reference.path) != reference.size:
                raise FileNotFoundError(reference.path)
        same = [entry.sequence for entry in self.whole() if entry.offset == writer.offset]
        snapshot = Snapshot(
            service=self.service,
            partition=self.partition,
            offset=writer.offset,
            sequence=max(same, default=0) + 1,
            topic_id=topic_id,
            identity=identity,
            parameters=parameters,
            logic_version=logic_version,
            files=tuple(writer.kept),
            scalars=writer.scalars,
            clean=clean,
        )
        body = msgspec.json.encode(snapshot)
        name = f"snapshot-o{snapshot.offset:012d}-s{snapshot.sequence:08d}-{self._token()}.json"
        line = xxhash.xxh64_hexdigest(body).encode() + b"\n"
        write_durably(self.files, f"{self.folder}/{name}", line, body)
        self.bytes_written += writer.written + len(line) + len(body)
        self.generation_bytes += writer.generation_bytes
        self.changed_bytes += writer.changed_bytes
        return snapshot

    def sweep(self) -> list[Snapshot]:
        """Remove snapshots but the two highest, and unnamed files older than the grace time; gives those kept."""
        entries = self._entries()
        whole = sorted(
            ((snapshot.offset, snapshot.sequence, name) for name, snapshot in entries if snapshot is not None),
            reverse=True,
        )
        keep = {name for *_, name in whole[:_KEPT]}
        kept = [snapshot for name, snapshot in entries if name in keep and snapshot is not None]
        named = {reference.path for snapshot in kept for reference in snapshot.files}
        oldest = min((snapshot.offset for snapshot in kept), default=0)
        for name, snapshot in entries:
            # One that isn't whole may be a late writer's, whose files are on their way: it gets the grace time too.
            outdated = snapshot is not None or self._number(name)[0] < oldest
            if name not in keep and (outdated or self._expired(f"{self.folder}/{name}")):
                self.files.remove(f"{self.folder}/{name}")
        for folder in (self.folder, *self._folders):
            for name in self.files.list(folder):
                path = f"{folder}/{name}"
                if _NAME.fullmatch(name) or name == "current":
                    continue
                inside = [f"{path}/{inner}" for inner in self.files.list(path)] if self.files.is_folder(path) else []
                # A folder is as old as what was last written in it: a generation may be in the making for long.
                if not named.intersection([path, *inside]) and all(map(self._expired, [path, *inside])):
                    self.files.remove(path)
        kept.sort(key=lambda snapshot: (snapshot.offset, snapshot.sequence), reverse=True)
        return kept

    def _expired(self, path: str) -> bool:
        try:
            return self.files.modified(path) <= self._now() - self._grace
        except FileNotFoundError:
            return False

    @staticmethod
    def _number(name: str) -> tuple[int, int]:
        match = _NAME.fullmatch(name)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def _entries(self) -> list[tuple[str, Snapshot | None]]:
        names = [name for name in self.files.list(self.folder) if _NAME.fullmatch(name)]
        return [(name, self._whole(name)) for name in names]

    def _whole(self, name: str) -> Snapshot | None:
        snapshot = self._manifest(name)
        return None if snapshot is None or self._misfit(snapshot) else snapshot

    def _misfit(self, snapshot: Snapshot) -> str | None:
        """A file that is missing or hasn't its size."""
        return next((ref.path for ref in snapshot.files if self.files.size(ref.path) != ref.size), None)

    def _manifest(self, name: str) -> Snapshot | None:
        try:
            line, _, body = self.files.read(f"{self.folder}/{name}").partition(b"\n")
        except FileNotFoundError:
            return None
        if xxhash.xxh64_hexdigest(body).encode() != line:
            return None
        try:
            version = msgspec.json.decode(body, type=dict)["version"]
        except (msgspec.DecodeError, KeyError) as problem:
            msg = f"{self.folder}/{name}: no version in it: {problem}"
            raise CorruptSnapshot(msg) from problem
        if version != _VERSION:
            msg = f"{self.folder}/{name}: snapshot version {version}, this program reads {_VERSION}: use its release"
            raise CorruptSnapshot(msg)
        return msgspec.json.decode(body, type=Snapshot)
