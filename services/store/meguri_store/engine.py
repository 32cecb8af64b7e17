"""A generation opened for reading: is a URL known, its record, what is due, which rows are a host's.

A question about a key goes to the filter first, and to the file only if the filter says "maybe". Of the file, row
groups are read in which the key's host has rows. What a question looked up is kept for a while, in bounded memory,
since a URL that was asked for once is soon asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.filters.layer import key_columns
from meguri_common.wire.columns import binary_parts
from meguri_store.generation import Generation
from meguri_store.kernels.merge import match_rows
from meguri_store.ordering import order_by_keys
from meguri_store.picking import Picker
from meguri_store.publish import url_paths
from meguri_store.schema import DUE_STATUSES, URL_SCHEMA
from meguri_store.seen_filter import open_filters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from numpy.typing import NDArray

    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem

__all__ = ["DUE_COLUMNS", "Engine", "Found"]

DUE_COLUMNS = ("host_key", "path_key", "url", "next_due", "priority")
"""Columns of the due cursor's batches."""
_KEPT_ROWS = 65_536
_KEPT_LOOKUPS = 32


@dataclass(frozen=True)
class Found:
    """Answers about n keys."""

    records: pa.Table
    """Records of keys that are known, each once, in no particular order."""
    row: NDArray[np.int64]
    """The record of each key, or -1 where it isn't known, (n,)."""

    def record(self, key: int) -> dict[str, Any] | None:
        """The record of the i-th key by column name."""
        row = int(self.row[key])
        return None if row < 0 else self.records.slice(row, 1).to_pylist()[0]


@dataclass
class _Kept:
    """Records that were looked up, in the order of their path keys."""

    host: NDArray[np.uint64]
    path: NDArray[np.uint64]
    found: pa.Table

    def places(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The row of each key, or -1; -1 too where another host's key with the same path key stands before it."""
        if not len(self.path):
            return np.full(len(path), -1, np.int64)
        place = np.minimum(np.searchsorted(self.path, path), len(self.path) - 1)
        return np.where((self.path[place] == path) & (self.host[place] == host), place, -1)


@dataclass(frozen=True)
class _Located:
    """Where keys are that a row group has."""

    group: int
    rows: NDArray[np.int64]
    """Ascending; of a key that was asked for more than once, more than once, (k,)."""
    keys: NDArray[np.int64]
    """Which keys these are, (k,)."""
    hosts_urls: pa.StringArray
    """URLs of all hosts that were asked about."""
    places: NDArray[np.int64]
    """Which of these are the keys', (k,)."""

    def urls(self) -> pa.StringArray:
        """The keys' URLs, (k,)."""
        return self.hosts_urls.take(pa.array(self.places))


class Engine:
    """One shard's generation, read-only. `close` it, or use it as a context."""

    def __init__(self, generation: Generation, *, trust_filter: bool = False) -> None:
        """Read from an open generation.

        Args:
            generation: which; closed with the engine.
            trust_filter: take the filter's "maybe" for an answer: `seen` then never touches the file, and is wrong
                about one unknown key in a hundred.

        Raises:
            CorruptGeneration: its filter can't be read.
        """
        self.generation = generation
        self.base_probes = 0
        """Keys about which the file had to be asked."""
        self._trust = trust_filter
        self._filters = open_filters(generation)
        self._picker = Picker(generation)
        self._kept: list[_Kept] = []

    @classmethod
    def open(cls, files: FileSystem, folder: str, identity: CampaignIdentity, *, trust_filter: bool = False) -> Self:
        """Open a generation's folder; see `Engine` and `Generation.open`."""
        generation = Generation.open(files, folder, identity)
        try:
            return cls(generation, trust_filter=trust_filter)
        except BaseException:
            generation.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the files go."""
        self._kept.clear()
        self.generation.close()

    @property
    def rows(self) -> int:
        """URLs."""
        return self.generation.meta.urls

    @property
    def bits_per_url(self) -> float:
        """Bits of all files for each URL."""
        return self.generation.bits_per_url

    def seen(self, host: int, path: int) -> bool:
        """Whether a URL is known."""
        return bool(self.seen_batch(np.array([host], np.uint64), np.array([path], np.uint64))[0])

    def seen_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Of n keys whether they are known, (n,).

        Raises:
            CorruptGeneration: the file can't be read.
        """
        host, path = key_columns(host, path)
        maybe = self._maybe(host, path)
        if self._trust:
            return maybe
        asked = np.flatnonzero(maybe)
        known = np.zeros(len(host), np.bool_)
        for part in self._located(host[asked], path[asked]):
            known[asked[part.keys]] = True
        return known

    def get(self, host: int, path: int) -> dict[str, Any] | None:
        """The record of a URL by column name, or None where it isn't known."""
        return self.get_many(np.array([host], np.uint64), np.array([path], np.uint64)).record(0)

    def get_many(
        self, host: NDArray[np.uint64], path: NDArray[np.uint64], columns: Sequence[str] | None = None
    ) -> Found:
        """The records of n keys; a row group is read once, however many of them it has.

        Args:
            host: host keys, (n,).
            path: path keys, (n,).
            columns: columns of the records; all by default.

        Raises:
            CorruptGeneration: the file can't be read.
        """
        host, path = key_columns(host, path)
        names = list(columns) if columns is not None else URL_SCHEMA.names
        rows = np.full(len(host), -1, np.int64)
        tables: list[pa.Table] = []
        count = 0
        for kept in self._kept:
            place = kept.places(host, path)
            hits = np.flatnonzero((place >= 0) & (rows < 0))
            if len(hits):
                rows[hits] = count + np.arange(len(hits))
                tables.append(kept.found.select(names).take(pa.array(place[hits])))
                count += len(hits)
        open_keys = np.flatnonzero(rows < 0)
        asked = open_keys[self._maybe(host[open_keys], path[open_keys])]
        for part in self._located(host[asked], path[asked]):
            rows[asked[part.keys]] = count + np.arange(len(part.keys))
            tables.append(self._picker.rows(part.group, part.rows, names, {"url": part.urls()}))
            count += len(part.keys)
        records = pa.concat_tables([URL_SCHEMA.empty_table().select(names), *tables])
        if columns is None and len(asked):
            self._keep(host[asked], path[asked], records, rows[asked])
        return Found(records, rows)

    def due_batches(self, now: int, batch_size: int) -> Iterator[pa.Table]:
        """URLs due at hour `now`, in store order, as tables of `DUE_COLUMNS` of at most `batch_size` rows.

        A row group of which the metadata says that nothing in it is due isn't touched; in the others, due rows are told
        by the codes of two columns, and only they are put together.

        Raises:
            CorruptGeneration: the file can't be read.
            ValueError: batches of less than a row.
        """
        if batch_size < 1:
            msg = f"batches of {batch_size} rows: at least 1"
            raise ValueError(msg)
        waiting: list[pa.Table] = []
        count = 0
        for number, group in enumerate(self.generation.meta.groups):
            if group.first_due == 0 or group.first_due > now:
                continue
            found = self._due(number, now)
            if found is None:
                continue
            waiting.append(found)
            count += found.num_rows
            if count >= batch_size:
                whole = pa.concat_tables(waiting).combine_chunks()
                end = count - count % batch_size
                for start in range(0, end, batch_size):
                    yield whole.slice(start, batch_size)
                waiting, count = [whole.slice(end)], count - end
        if count:
            yield pa.concat_tables(waiting).combine_chunks()

    def host_range(self, host: int) -> tuple[int, int]:
        """First row of a host's URLs, and the first one after them; equal where it has none."""
        hosts, first = self._layout
        at = int(np.searchsorted(hosts, np.uint64(host)))
        if at == len(hosts) or hosts[at] != np.uint64(host):
            return 0, 0
        return int(first[at]), int(first[at + 1])

    def of_host(self, host: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The records of a host's URLs, in order.

        Raises:
            CorruptGeneration: the file can't be read.
        """
        names = list(columns) if columns is not None else URL_SCHEMA.names
        begin, end = self.host_range(host)
        found = [URL_SCHEMA.empty_table().select(names)]
        start = 0
        for number, group in enumerate(self.generation.meta.groups):
            low, high = max(begin - start, 0), min(end - start, group.rows)
            if low < high:
                found.append(self.generation.urls(number, names).select(names).slice(low, high - low))
            start += group.rows
        return pa.concat_tables(found)

    def _maybe(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        maybe = np.zeros(len(host), np.bool_)
        for held in self._filters:
            maybe |= held.maybe_contains_batch(host, path)
        return maybe

    @cached_property
    def _layout(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Hosts in order, and the row at which each one's URLs begin, with the number of rows as the last."""
        tables = list(self.generation.hosts(["host_key", "first_row"]))
        host = np.concatenate([np.zeros(0, np.uint64), *(table.column("host_key").to_numpy() for table in tables)])
        first = np.concatenate([np.zeros(0, np.uint64), *(table.column("first_row").to_numpy() for table in tables)])
        return host, np.append(first.astype(np.int64), self.rows)

    def _located(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> Iterator[_Located]:
        """Where keys (n,) are, a row group at a time; unknown ones don't come out."""
        self.base_probes += len(host)
        order = order_by_keys(host, path)
        host, path = host[order], path[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (host[1:] != host[:-1]) | (path[1:] != path[:-1])
        start = np.append(np.flatnonzero(first), len(order))
        keys = _fixed(host[first]), _fixed(path[first])
        for number, group in enumerate(self.generation.meta.groups):
            low = int(np.searchsorted(keys[0], np.uint64(group.first_host)))
            high = int(np.searchsorted(keys[0], np.uint64(group.last_host), side="right"))
            if low == high:
                continue
            stored = self._picker.column(number, "host_key").to_numpy()
            hosts = np.unique(keys[0][low:high])
            rows = _ranges(np.searchsorted(stored, hosts), np.searchsorted(stored, hosts, side="right"))
            if not len(rows):
                continue
            urls = self._picker.column(number, "url", rows)
            offsets, data = binary_parts(urls)
            match = np.empty(len(rows), np.int64)
            match_rows(_fixed(stored[rows]), _fixed(offsets), _fixed(data), keys[0][low:high], keys[1][low:high], match)
            found = np.flatnonzero(match >= 0)
            if not len(found):
                continue
            # A key may have been asked for more than once.
            key = match[found] + low
            times = start[key + 1] - start[key]
            ends = np.cumsum(times)
            place = np.arange(int(ends[-1])) - np.repeat(ends - times, times) + np.repeat(start[key], times)
            found = np.repeat(found, times)
            yield _Located(number, rows[found], order[place], urls, found)

    def _keep(
        self, host: NDArray[np.uint64], path: NDArray[np.uint64], records: pa.Table, rows: NDArray[np.int64]
    ) -> None:
        """Remember records that were looked up in the file, the latest ones first."""
        known = np.flatnonzero(rows >= 0)[-_KEPT_ROWS:]
        order = known[np.argsort(path[known], kind="stable")]
        kept = _Kept(host[order], path[order], records.take(pa.array(rows[order])).combine_chunks())
        self._kept.insert(0, kept)
        total = 0
        for at, entry in enumerate(self._kept):
            total += entry.found.num_rows
            if total > _KEPT_ROWS or at == _KEPT_LOOKUPS:
                del self._kept[at:]
                break

    def _due(self, group: int, now: int) -> pa.Table | None:
        rows = self._picker.matching(
            group,
            {
                "next_due": lambda at: (at > 0) & (at <= now),
                "status": lambda status: np.isin(status, DUE_STATUSES),
            },
        )
        if not len(rows):
            return None
        found = self._picker.rows(group, rows, [name for name in DUE_COLUMNS if name != "path_key"])
        paths = pa.array(url_paths(found.column("url").chunk(0)), pa.uint64())
        return found.append_column("path_key", paths).select(list(DUE_COLUMNS))


def _ranges(begin: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers from each beginning to before its end, one range after another."""
    sizes = end - begin
    shifts: NDArray[np.int64] = np.repeat(begin - (np.cumsum(sizes) - sizes), sizes)
    shifts += np.arange(len(shifts))
    return shifts


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: one type for the kernels, wherever the array comes from."""
    view = values.view()
    view.flags.writeable = False
    return view
