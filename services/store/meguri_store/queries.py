"""Read-only questions to a shard: base and delta merged in memory, by the same fold that compaction uses.

A single record is found without the compiled kernels, so that a command about one URL needn't load them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from meguri_common.keys import PATH_KEY_PREFIX
from meguri_common.records import ParkReason, Status
from meguri_common.runtime.snapshots import SnapshotStore
from meguri_common.wire.schemas import RowKind
from meguri_store.delta import Patches, admitted_rows
from meguri_store.delta_file import read_deltas
from meguri_store.oplog import OpLog
from meguri_store.patching import patch_rows
from meguri_store.schema import DUE_STATUSES, URL_SCHEMA
from meguri_store.service import SERVICE, fold_rules, load_shard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem
    from meguri_store.fold import FoldRules
    from meguri_store.freshness_plan import Plan
    from meguri_store.generation import Generation
    from meguri_store.merge import Merge

__all__ = ["Counts", "Shard", "open_shard"]

_SLACK = 4
"""Due candidates are thinned out when there are this many times more than asked for."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What is in a shard."""

    rows: int
    hosts: int
    by_status: dict[Status, int]
    by_reason: dict[ParkReason, int]
    """Parked URLs."""


class Shard:
    """A shard as of one moment; see `open_shard`, or make one of a live `Store`'s base and log."""

    def __init__(self, base: Generation | None, log: OpLog, rules: FoldRules, group_by: str) -> None:
        self._base = base
        self._log = log
        self._rules = rules
        self._group_by = group_by
        self._planned: tuple[int, Plan | None] | None = None

    def _plan(self) -> Plan | None:
        """Hours of the next fetches, where they depend on worth: over the whole delta, whatever part is asked for."""
        if not self._rules.reschedule:
            return None
        from meguri_store.freshness_plan import plan_schedule  # noqa: PLC0415 - imports numba

        if self._planned is None or self._planned[0] != self._log.count:
            self._planned = self._log.count, plan_schedule(self._base, self._log, self._rules)
        return self._planned[1]

    def _merge(self, log: OpLog, base: Any, *, hours: bool = True) -> Merge:
        """A pass over the records; without their `hours` by worth, which need a look at the whole delta."""
        from meguri_store.merge import Merge  # noqa: PLC0415 - imports numba, which `get` does without

        if hours:
            return Merge(base, log, self._rules, plan=self._plan())
        return Merge(base, log, replace(self._rules, reschedule=False))

    def get(self, host_key: int, path_key: int) -> dict[str, Any] | None:
        """The record of a URL by column name, or None where it isn't known."""
        log = self._log.of_host(host_key)
        row, admitted = self._stored(host_key, path_key), -1
        if row is None:
            found = _admission(log, path_key)
            if found is None:
                return None
            row, admitted = found
        patches = Patches.of(log)
        key = np.flatnonzero(patches.path == np.uint64(path_key))
        plan = self._plan() if len(key) else None
        row = patch_rows(
            row,
            key if len(key) else np.array([-1]),
            np.array([admitted]),
            patches,
            self._rules,
            np.zeros(patches.outcomes.num_rows, np.uint8),
            plan.of(log.table(RowKind.OUTCOME)[0]) if plan else None,
        )
        record: dict[str, Any] = row.to_pylist()[0]
        return record

    def _stored(self, host_key: int, path_key: int) -> pa.Table | None:
        """The base's row of a key."""
        for group in _groups_of(self._base, host_key):
            assert self._base is not None
            keys = self._base.urls(group, ["host_key", "url"])
            rows = np.flatnonzero(keys.column("host_key").to_numpy() == np.uint64(host_key))
            for row, url in zip(rows.tolist(), keys.column("url").take(pa.array(rows)).to_pylist(), strict=True):
                if xxhash.xxh64_intdigest(PATH_KEY_PREFIX + url.encode()) == path_key:
                    return self._base.urls(group).slice(row, 1)
        return None

    def host(self, host_key: int) -> dict[str, Any] | None:
        """The record of a host by column name, or None where it isn't known.

        `first_row` is the row in the present generation; None for a host that isn't in it.
        """
        base = _OneHost(self._base, host_key)
        merge = self._merge(self._log.of_host(host_key), base, hours=False)
        for _ in merge.rows():
            pass
        records = [record for table in merge.hosts(self._group_by) for record in table.to_pylist()]
        if not records:
            return None
        record: dict[str, Any] = records[0]
        record["first_row"] = base.first_row
        return record

    def due(self, now: int, limit: int, *, by_priority: bool = False) -> pa.Table:
        """URLs due at hour `now`, by (next_due, host_key, path_key): at most `limit` records, with their path_key.

        With `by_priority` those of highest stored priority, best first, whatever hour they have been due since.

        Row groups of which the metadata says that nothing is due are not decoded, where the delta leaves them alone.
        """
        from meguri_store.publish import url_paths  # noqa: PLC0415 - imports numba

        def nothing_due(group: int) -> bool:
            assert self._base is not None
            first = self._base.meta.groups[group].first_due
            return first == 0 or first > now

        found = _with_path(URL_SCHEMA.empty_table(), np.zeros(0, np.uint64))
        for chunk in self._merge(self._log, self._base).rows(skip=nothing_due):
            at = chunk.column("next_due").to_numpy()
            rows = np.flatnonzero((at > 0) & (at <= now) & np.isin(chunk.column("status").to_numpy(), DUE_STATUSES))
            if len(rows):
                records = chunk.take(pa.array(rows)).combine_chunks()
                found = pa.concat_tables([found, _with_path(records, url_paths(records.column("url").chunk(0)))])
            if found.num_rows > _SLACK * limit:
                found = _first(found, limit, by_priority=by_priority)
        return _first(found, limit, by_priority=by_priority)

    def records(self) -> Iterator[pa.Table]:
        """All records in store order, every column, a chunk at a time."""
        yield from self._merge(self._log, self._base).rows()

    def hosts(self) -> Iterator[pa.Table]:
        """All host records in order, a chunk at a time; `first_row` is the row among `records`."""
        merge = self._merge(self._log, self._base, hours=False)
        for _ in merge.rows():
            pass
        yield from merge.hosts(self._group_by)

    def counts(self) -> Counts:
        """How many URLs and hosts there are, by status and reason; from the metadata alone where there is no delta."""
        if self._log.count == 0 and self._base is not None:
            meta = self._base.meta
            return _counts(meta.urls, meta.hosts, np.array(meta.by_status), np.array(meta.by_reason))
        status, reason = np.zeros(len(Status), np.int64), np.zeros(len(ParkReason), np.int64)
        merge = self._merge(self._log, self._base)
        for chunk in merge.rows():
            status += np.bincount(chunk.column("status").to_numpy(), minlength=len(Status))
            reason += np.bincount(chunk.column("reason").to_numpy(), minlength=len(ParkReason))
        hosts = sum(table.num_rows for table in merge.hosts(self._group_by))
        return _counts(merge.count, hosts, status, reason)


def open_shard(files: FileSystem, partition: int, identity: CampaignIdentity) -> Shard:
    """A shard as its newest whole snapshot has it; empty where there is none.

    Raises:
        CorruptGeneration, CorruptSnapshot: its files aren't what the snapshot says.
        CampaignMismatch: it belongs to another campaign.
    """
    # Only looks: names, times and grace are for those who write.
    store = SnapshotStore(files, SERVICE, partition, token=str, now=float, grace=0.0)
    snapshots = store.whole()
    if not snapshots:
        return Shard(None, OpLog(), fold_rules({}), identity.group_by)
    newest = snapshots[0]
    identity.check(newest.identity, f"the snapshot of shard {partition}")
    base, _ = load_shard(files, newest.files, identity)
    return Shard(base, read_deltas(store.reader(newest)), fold_rules(newest.parameters), identity.group_by)


class _OneHost:
    """The rows of one host of a generation, as a base of a merge."""

    def __init__(self, base: Generation | None, host_key: int) -> None:
        self._base = base
        self._host = host_key
        self._record = self._find()
        self._groups = _groups_of(base, host_key)
        self.first_row: int | None = self._record.column("first_row").to_pylist()[0] if self._record else None

    def _find(self) -> pa.Table | None:
        for table in self._base.hosts() if self._base else ():
            mask = table.column("host_key").to_numpy() == np.uint64(self._host)
            if mask.any():
                return table.filter(pa.array(mask))
        return None

    @property
    def groups(self) -> int:
        return len(self._groups)

    def host_range(self, _group: int) -> tuple[int, int]:
        return self._host, self._host

    def urls(self, group: int) -> pa.Table:
        assert self._base is not None
        table = self._base.urls(self._groups[group])
        return table.filter(pa.array(table.column("host_key").to_numpy() == np.uint64(self._host))).combine_chunks()

    def hosts(self) -> Iterator[pa.Table]:
        if self._record is not None:
            yield self._record


def _groups_of(base: Generation | None, host_key: int) -> list[int]:
    """Row groups that may hold URLs of a host."""
    ranges = [base.host_range(group) for group in range(base.groups)] if base else []
    return [group for group, (first, last) in enumerate(ranges) if first <= host_key <= last]


def _admission(log: OpLog, path_key: int) -> tuple[pa.Table, int] | None:
    """The first admission of a key among the operations on its host: the record, and its number."""
    number, batch = log.table(RowKind.ADMITTED)
    found = np.flatnonzero(batch.column("path_key").to_numpy() == np.uint64(path_key))
    if not len(found):
        return None
    return admitted_rows(batch.slice(int(found[0]), 1)), int(number[found[0]])


def _with_path(records: pa.Table, path: np.typing.NDArray[np.uint64]) -> pa.Table:
    return records.append_column("path_key", pa.array(path, pa.uint64()))


def _first(found: pa.Table, limit: int, *, by_priority: bool) -> pa.Table:
    keys = [found.column(name).to_numpy() for name in ("path_key", "host_key", "next_due")]
    if by_priority:
        keys[-1] = -found.column("priority").to_numpy()
    return found.take(pa.array(np.lexsort(keys)[:limit])).combine_chunks()


def _counts(rows: int, hosts: int, status: np.typing.NDArray[np.int64], reason: np.typing.NDArray[np.int64]) -> Counts:
    return Counts(
        rows,
        hosts,
        {code: int(status[code]) for code in Status},
        {code: int(reason[code]) for code in ParkReason if code},
    )
