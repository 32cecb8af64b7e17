"""Exact sets that say of each key whether it was seen before: this project's, and others that could be used instead.

Each gets keys in the form that suits it best, made before the clock starts, and answers for whole batches.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from seen_keys import as_bytes

from meguri_dedup.run_file import local_folder
from meguri_dedup.seen_set import SeenSet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from seen_keys import Keys

__all__ = ["SETS", "ExactSet"]

_FLOOR = 1
"""A bound of memory that is raised to 2 bytes a key."""


class ExactSet(Protocol):
    """What is measured."""

    def prepare(self, keys: Keys) -> Any:
        """Keys in the set's own form."""
        ...

    def merge(self, batch: Any) -> int:
        """Test and add a batch; how many were seen before."""
        ...

    def figures(self, keys: int) -> dict[str, tuple[float, str]]:
        """What holding so many keys takes: name, value, unit."""
        ...


class Resident:
    """The seen-set in memory."""

    def __init__(self, _folder: Path) -> None:
        self.set = SeenSet()

    def prepare(self, keys: Keys) -> Keys:
        """As they are."""
        return keys

    def merge(self, batch: Keys) -> int:
        """One pass."""
        return int(self.set.merge(*batch).sum())

    def figures(self, keys: int) -> dict[str, tuple[float, str]]:
        """By its own account."""
        stats = self.set.stats()
        return {
            "memory a key": (stats["memory_bytes"] / keys, "bytes"),
            "filter, bits a key": (stats["bits_per_url"], "bits"),
            "false positives of the filter": (100 * stats["measured_fpr"], "%"),
            "decisions past the filter": (100 * stats["base_share"], "%"),
        }


class OnDisk(Resident):
    """The seen-set with as little memory as it takes: 2 bytes a key."""

    def __init__(self, folder: Path) -> None:
        self.set = SeenSet(folder=local_folder(folder), memory_bytes=_FLOOR)
        self._folder = folder

    def figures(self, keys: int) -> dict[str, tuple[float, str]]:
        """By its own account, and what is on disk."""
        stats = self.set.stats()
        return {
            **super().figures(keys),
            "decisions past memory": (100 * stats["run_share"], "%"),
            "disk a key": (_bytes_below(self._folder) / keys, "bytes"),
            "merges: written a key": (stats["merge_bytes_written"] / keys, "bytes"),
            "merges: seconds": (stats["merge_seconds"], "s"),
        }


class PythonSet:
    """A set of bytes."""

    def __init__(self, _folder: Path) -> None:
        self.set: set[bytes] = set()

    def prepare(self, keys: Keys) -> list[bytes]:
        """16 bytes each."""
        return as_bytes(keys)

    def merge(self, batch: list[bytes]) -> int:
        """Look a key up, add it if it is new."""
        held = self.set
        seen = 0
        for key in batch:
            if key in held:
                seen += 1
            else:
                held.add(key)
        return seen

    def figures(self, keys: int) -> dict[str, tuple[float, str]]:
        """The set's table and its objects."""
        return {"memory a key": ((sys.getsizeof(self.set) + keys * sys.getsizeof(bytes(16))) / keys, "bytes")}


class Lmdb:
    """LMDB, keys alone, a transaction a batch, none of them synced."""

    def __init__(self, folder: Path) -> None:
        import lmdb  # noqa: PLC0415 - a peer that needn't be installed

        self._folder = folder
        self._environment = lmdb.open(
            str(folder), map_size=1 << 36, sync=False, metasync=False, writemap=True, map_async=True
        )

    def prepare(self, keys: Keys) -> list[bytes]:
        """16 bytes each, in order: what a B-tree likes best."""
        return sorted(as_bytes(keys))

    def merge(self, batch: list[bytes]) -> int:
        """Put without overwriting says whether it was there."""
        with self._environment.begin(write=True) as transaction:
            put = transaction.put
            return sum(not put(key, b"", overwrite=False) for key in batch)

    def figures(self, keys: int) -> dict[str, tuple[float, str]]:
        """Pages in use."""
        pages = self._environment.info()["last_pgno"] + 1
        return {"disk a key": (pages * self._environment.stat()["psize"] / keys, "bytes")}


class RocksDb:
    """RocksDB, keys alone, with its Bloom filters, a block cache of 20 MiB and no write-ahead log."""

    _CACHE = 20 << 20

    def __init__(self, folder: Path) -> None:
        from rocksdict import (  # noqa: PLC0415 - a peer that needn't be installed
            BlockBasedOptions,
            Cache,
            Options,
            Rdict,
            WriteBatch,
            WriteOptions,
        )

        table = BlockBasedOptions()
        table.set_bloom_filter(10, False)
        table.set_block_cache(Cache(self._CACHE))
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        self._folder = folder
        self._database = Rdict(str(folder), options)
        write = WriteOptions()
        write.disable_wal = True
        self._database.set_write_options(write)
        self._new_batch: Callable[[], Any] = lambda: WriteBatch(raw_mode=True)

    def prepare(self, keys: Keys) -> list[bytes]:
        """16 bytes each, in order."""
        return sorted(as_bytes(keys))

    def merge(self, batch: list[bytes]) -> int:
        """Many gets at once, then one write of what is new."""
        found = self._database.get(batch)
        new = {key for key, value in zip(batch, found, strict=True) if value is None}
        writes = self._new_batch()
        for key in new:
            writes.put(key, b"")
        self._database.write(writes)
        return len(batch) - len(new)

    def figures(self, keys: int) -> dict[str, tuple[float, str]]:
        """Files after a flush."""
        self._database.flush()
        return {"disk a key": (_bytes_below(self._folder) / keys, "bytes")}


SETS: dict[str, Callable[[Path], ExactSet]] = {
    "SeenSet in memory": Resident,
    "SeenSet on disk": OnDisk,
    "Python set": PythonSet,
    "LMDB": Lmdb,
    "RocksDB": RocksDb,
}


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
