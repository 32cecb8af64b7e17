"""ImportRecords: full records in store order become one generation of a shard, losslessly.

Nothing is corrected on the way. Records that step backwards, or contradict themselves, are refused with their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from meguri_common.errors import OrderViolation, RecordError
from meguri_common.keys import partitions_of
from meguri_common.records import ParkReason, Source, Status
from meguri_common.wire.columns import binary_parts
from meguri_store.compact import Changes, publish_generation
from meguri_store.host_rows import HostRows
from meguri_store.hosts import GROUPINGS
from meguri_store.kernels.sorting import unordered_row
from meguri_store.merge import CHUNK_ROWS
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem
    from meguri_store.compact import Compacted
    from meguri_store.spill import SpillFile
    from meguri_store.water_level import LevelState

__all__ = ["GROUP_COLUMNS", "GivenHosts", "HostStream", "MadeHosts", "Place", "RecordStream", "import_shard"]

GROUP_COLUMNS = ("group_at", "group_len")
"""Columns beside those of `URL_SCHEMA` that `MadeHosts` needs: place of the host group in the URL, u16."""


@dataclass
class Place:
    """Where in which file a table begins."""

    file: str = "records"
    row: int = 0

    def of(self, row: int) -> str:
        """A row of the table, in words."""
        return f"{self.file}: row {self.row + row}"


class _Stream:
    """Tables in store order, checked, and dealt out by partition in ascending order."""

    def __init__(self, tables: Iterable[pa.Table], partitions: int, place: Place | None = None) -> None:
        """Begin.

        Args:
            tables: of any size.
            partitions: the campaign's.
            place: kept by whoever makes the tables: where the last one that was given begins.
        """
        self._tables = iter(tables)
        self._partitions = partitions
        self._pending: pa.Table | None = None
        self.place = place or Place()

    def of(self, partition: int) -> Iterator[pa.Table]:
        """The rows of the next partition that is asked for.

        Raises:
            OrderViolation: a row isn't above the one before it; names both.
            RecordError: a row contradicts itself, or has a code that nobody knows.
        """
        while (table := self._next()) is not None:
            owner = partitions_of(table.column("host_key").to_numpy(), self._partitions)
            end = int(np.searchsorted(owner, partition, side="right"))
            self._pending = table.slice(end) if end < table.num_rows else None
            if end:
                yield table.slice(0, end)
            if self._pending is not None:
                return

    def _next(self) -> pa.Table | None:
        while self._pending is None:
            table = next(self._tables, None)
            if table is None:
                return None
            if table.num_rows:
                self._pending = table.combine_chunks()
                self._check(self._pending)
        return self._pending

    def _check(self, table: pa.Table) -> None:
        raise NotImplementedError

    def _violation(self, row: int, before: str, after: str) -> OrderViolation:
        other = self.place.of(row - 1) if row else "the last row before it"
        return OrderViolation(
            f"{self.place.of(row)} ({after}) isn't above {other} ({before}): records must be in store order, "
            "by host key, then URL, each of them once"
        )


class RecordStream(_Stream):
    """URL records, in tables of `URL_SCHEMA`, with or without `GROUP_COLUMNS` behind."""

    _last: tuple[int, str] | None = None

    def _check(self, table: pa.Table) -> None:
        host = _fixed(table.column("host_key").to_numpy())
        url = table.column("url").chunk(0)
        offsets, data = (_fixed(part) for part in binary_parts(url))

        def key(row: int) -> tuple[int, str]:
            return int(host[row]), url[row].as_py()

        if self._last is not None and key(0) <= self._last:
            raise self._violation(0, _text(self._last), _text(key(0)))
        row = unordered_row(host, offsets, data)
        if row < len(host):
            raise self._violation(row, _text(key(row - 1)), _text(key(row)))
        self._last = key(len(host) - 1)
        for field, what, bad in _contradictions(table):
            if bad.any():
                at = int(np.argmax(bad))
                value = table.column(field)[at].as_py()
                msg = f"{self.place.of(at)} ({url[at].as_py()}): {field} {value} {what}"
                raise RecordError(msg)


class HostStream(_Stream):
    """Host records, in tables of `HOST_SCHEMA`."""

    _last = -1

    def _check(self, table: pa.Table) -> None:
        host = table.column("host_key").to_numpy()
        bad = np.append(int(host[0]) <= self._last, host[1:] <= host[:-1])
        if bad.any():
            at = int(np.argmax(bad))
            before = self._last if at == 0 else int(host[at - 1])
            raise self._violation(at, f"{before:016x}", f"{host[at]:016x}")
        self._last = int(host[-1])
        unknown = table.column("grouping").to_numpy() >= len(GROUPINGS)
        if unknown.any():
            msg = f"{self.place.of(int(np.argmax(unknown)))}: has a grouping that nobody knows"
            raise RecordError(msg)


class Hosts(Protocol):
    """Where the host records of a shard come from."""

    def add(self, table: pa.Table) -> None:
        """Pass URL records, in order."""
        ...

    def records(self) -> Iterator[pa.Table]:
        """Host records in order, when all URLs have passed."""
        ...


class GivenHosts:
    """Host records as given; only the row at which a host's URLs begin is told anew."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        """Of `HOST_SCHEMA`, in order."""
        self._tables = tables
        self._host: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        self._row: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        self._last: int | None = None
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """See `Hosts`."""
        host = table.column("host_key").to_numpy()
        begins = np.flatnonzero(np.append(int(host[0]) != self._last, host[1:] != host[:-1]))
        self._host.append(host[begins])
        self._row.append(begins + self._rows)
        self._last = int(host[-1])
        self._rows += len(host)

    def records(self) -> Iterator[pa.Table]:
        """See `Hosts`.

        Raises:
            RecordError: a host of URLs has no record.
        """
        host = np.concatenate(self._host)
        row = np.append(np.concatenate(self._row), self._rows)
        met = np.zeros(len(host), np.bool_)
        for table in self._tables:
            given = table.column("host_key").to_numpy()
            at = np.searchsorted(host, given)
            met[at[at < len(host)][host[at[at < len(host)]] == given[at < len(host)]]] = True
            place = HOST_SCHEMA.get_field_index("first_row")
            yield table.set_column(place, HOST_SCHEMA.field(place), pa.array(row[at].astype(np.uint64)))
        if not met.all():
            missing = int(host[int(np.argmin(met))])
            msg = f"there is no host record of {missing:016x}, which has URLs: give all host records, or none"
            raise RecordError(msg)


class MadeHosts:
    """Host records made of the URLs: what else was known of the hosts isn't."""

    def __init__(self, files: FileSystem, spill: SpillFile, group_by: str, facts: dict[str, int]) -> None:
        """Empty.

        Args:
            files: where the temporary file is.
            spill: a temporary file.
            group_by: the campaign's host grouping.
            facts: values of columns that all hosts have, such as their budget.
        """
        self._files = files
        self._rows = HostRows(spill)
        self._group_by = group_by
        self._facts = facts

    def add(self, table: pa.Table) -> None:
        """See `Hosts`; the table has `GROUP_COLUMNS`, too."""
        batch = table.select(["host_key", "url", *GROUP_COLUMNS]).to_batches()[0]
        counts = {
            "url_count": table.column("reason").to_numpy() == 0,
            "crawl_total": table.column("crawl_count").to_numpy(),
            "error_total": table.column("error_count").to_numpy(),
        }
        self._rows.add(batch, counts)

    def records(self) -> Iterator[pa.Table]:
        """See `Hosts`."""
        return self._rows.records(self._files, self._group_by, self._facts)


def import_shard(
    files: FileSystem,
    identity: CampaignIdentity,
    partition: int,
    records: Iterable[pa.Table],
    hosts: Hosts,
    *,
    token: Callable[[], str],
    expected: int = 0,
    group_rows: int = CHUNK_ROWS,
    level: LevelState | None = None,
) -> Compacted:
    """Write a shard's records as its first generation, at offset 0 of its inbox.

    Args:
        files: where the store is.
        identity: the campaign.
        partition: the shard.
        records: of the shard, as `RecordStream.of` gives them.
        hosts: its host records.
        token: a random part of a name.
        expected: about how many URLs there are, for the filter's first size.
        group_rows: rows of a row group.
        level: where the shard's water stands, where that is known.

    Raises:
        OrderViolation, RecordError: the records are no shard's.
        OSError: the generation can't be written. Nothing of it stays.
    """
    count = 0

    def passing() -> Iterator[pa.Table]:
        nonlocal count
        for table in records:
            hosts.add(table)
            count += table.num_rows
            yield table.select(URL_SCHEMA.names).cast(URL_SCHEMA)

    return publish_generation(
        files,
        partition,
        passing(),
        hosts.records,
        lambda: Changes(count, 0, 0),
        expected=expected,
        offset=0,
        identity=identity,
        token=token,
        group_rows=group_rows,
        level=None if level is None else lambda: level,
    )


def _contradictions(table: pa.Table) -> Iterator[tuple[str, str, NDArray[np.bool_]]]:
    """Field, what is wrong with it, and in which rows."""
    column = {name: table.column(name).to_numpy() for name in ("status", "source", "reason", "next_due")}
    yield "status", "is none that is known", column["status"] >= len(Status)
    yield "source", "is none that is known", column["source"] >= len(Source)
    yield "reason", "is none that is known", column["reason"] >= len(ParkReason)
    parked = column["status"] == Status.TRAPPED
    yield "status", "contradicts its reason", parked != (column["reason"] != 0)
    terminal = parked | np.isin(column["status"], (Status.GONE, Status.EXCLUDED_ROBOTS))
    yield "next_due", "is an hour, though the status is one that is never due", terminal & (column["next_due"] != 0)


def _text(key: tuple[int, str]) -> str:
    return f"{key[0]:016x} {key[1]}"


def _fixed(values: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: one type for the kernels, wherever the array comes from."""
    view = values.view()
    view.flags.writeable = False
    return view
