"""A whole store opened for reading: store.json, and one engine a shard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.errors import CorruptGeneration
from meguri_common.filters.layer import key_columns
from meguri_common.runtime.snapshots import SnapshotStore
from meguri_store.engine import Engine
from meguri_store.generation import FILES
from meguri_store.manifest import read_manifest
from meguri_store.service import SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    import pyarrow as pa
    from numpy.typing import NDArray

    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem
    from meguri_store.manifest import Manifest

__all__ = ["OpenStore"]

_log = logging.getLogger(__name__)


class OpenStore:
    """The generations in force of all shards. What delta files hold beside them isn't in it: see `queries.Shard`."""

    def __init__(self, manifest: Manifest, engines: tuple[Engine | None, ...]) -> None:
        """One engine a shard of the manifest, in its order; None for a shard without a generation."""
        self.manifest = manifest
        self.engines = engines
        self._starts = np.array([shard.host_lo for shard in manifest.shards], np.uint64)

    @classmethod
    def open(cls, files: FileSystem, identity: CampaignIdentity | None = None, *, trust_filter: bool = False) -> Self:
        """Open every shard's generation in force; those opened are closed where one of them fails.

        A generation that can't be opened is passed over, with a warning, for the one of the snapshot before.

        Raises:
            ManifestError: store.json is unusable.
            CampaignMismatch: it, or a shard, is of another campaign than `identity`.
            CorruptGeneration: a shard has no generation that can be opened.
        """
        manifest = read_manifest(files, identity)
        engines: list[Engine | None] = []
        try:
            engines.extend(
                _open_shard(files, shard.index, manifest.identity, trust_filter) for shard in manifest.shards
            )
        except BaseException:
            for engine in engines:
                if engine is not None:
                    engine.close()
            raise
        return cls(manifest, tuple(engines))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all shards."""
        for engine in self.engines:
            if engine is not None:
                engine.close()

    @property
    def rows(self) -> int:
        """URLs of all shards."""
        return sum(engine.rows for engine in self.engines if engine is not None)

    def route(self, host: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The shard of each host key, (n,)."""
        return np.searchsorted(self._starts, host, side="right") - 1

    def seen_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Of n keys whether they are known, (n,)."""
        host, path = key_columns(host, path)
        known = np.zeros(len(host), np.bool_)
        for engine, keys in self._parts(host):
            known[keys] = engine.seen_batch(host[keys], path[keys])
        return known

    def get(self, host: int, path: int) -> dict[str, Any] | None:
        """The record of a URL by column name, or None where it isn't known."""
        engine = self.engines[self.manifest.shard_of(host).index]
        return None if engine is None else engine.get(host, path)

    def due_batches(self, now: int, batch_size: int) -> Iterator[pa.Table]:
        """URLs due at hour `now`, shard by shard; see `Engine.due_batches`."""
        for engine in self.engines:
            if engine is not None:
                yield from engine.due_batches(now, batch_size)

    def _parts(self, host: NDArray[np.uint64]) -> Iterator[tuple[Engine, NDArray[np.int64]]]:
        shards = self.route(host)
        for shard in np.unique(shards).tolist():
            engine = self.engines[shard]
            if engine is not None:
                yield engine, np.flatnonzero(shards == shard)


def _open_shard(files: FileSystem, shard: int, identity: CampaignIdentity, trust_filter: bool) -> Engine | None:
    """The engine of the newest snapshot's generation that can be opened; None where no snapshot names one."""
    # Only looks: names, times and grace are for those who write.
    snapshots = SnapshotStore(files, SERVICE, shard, token=str, now=float, grace=0.0).whole()
    folders = [
        next((ref.path.rpartition("/")[0] for ref in snapshot.files if ref.role in FILES), None)
        for snapshot in snapshots
    ]
    problem: CorruptGeneration | None = None
    for folder in dict.fromkeys(folders):
        if folder is None:
            break
        try:
            return Engine.open(files, folder, identity, trust_filter=trust_filter)
        except CorruptGeneration as bad:
            _log.warning("%s is passed over: %s", folder, bad)
            problem = problem or bad
    if problem is not None:
        raise problem
    return None
