"""The delta as the merge wants it: new rows in store order, and what was said about each key, in inbox order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meguri_common.records import Status
from meguri_common.wire.columns import binary_parts, numbers
from meguri_common.wire.schemas import RowKind
from meguri_store.fold import VISIT_FACTS, first_hour
from meguri_store.ordering import order_by_keys
from meguri_store.schema import URL_SCHEMA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_store.oplog import OpLog

__all__ = ["Admissions", "Patches", "admitted_rows"]


@dataclass(frozen=True)
class Admissions:
    """New rows in the order (host_key, url, number); a URL admitted again stays in, after its first admission."""

    rows: pa.Table
    """Records as admitted, of the store's URL schema."""
    host: NDArray[np.uint64]
    number: NDArray[np.int64]
    """Number of each row's admission."""

    @classmethod
    def of(cls, log: OpLog) -> Admissions:
        """Sort the admissions of a log."""
        # A look at one record takes `admitted_rows`, and must not pay for compiled code.
        from meguri_store.kernels.sorting import STACK_ROWS, sort_rows  # noqa: PLC0415 - see above

        number, batch = log.table(RowKind.ADMITTED)
        order = np.arange(batch.num_rows, dtype=np.int32)
        offsets, data = binary_parts(batch.column("url"))
        stack = np.empty((STACK_ROWS, 3), np.int64)
        sort_rows(numbers(batch, "host_key"), offsets, data, order, np.empty(len(order), np.uint64), stack)
        batch = batch.take(pa.array(order))
        return cls(admitted_rows(batch), numbers(batch, "host_key"), number[order])


def admitted_rows(batch: pa.RecordBatch) -> pa.Table:
    """Records of URLs as ADMITTED rows state them: scheduled at their hour, or parked."""
    rows = batch.num_rows
    parked = numbers(batch, "reason") != 0
    at = numbers(batch, "at")
    stated: dict[str, Any] = {
        "url": batch.column("url").cast(pa.string()),
        "status": np.where(parked, Status.TRAPPED, Status.SCHEDULED).astype(np.uint8),
        "first_seen": (at // 3600).astype(np.uint32),
        "next_due": np.where(parked, 0, first_hour(at)).astype(np.uint32),
    }
    for name in ("host_key", "priority", "depth", "source", "reason"):
        stated[name] = batch.column(name)
    columns = []
    for field in URL_SCHEMA:
        if field.name in stated:
            columns.append(pa.array(stated[field.name]))
        elif field.nullable:
            columns.append(pa.nulls(rows, field.type))
        else:
            columns.append(pa.array(np.zeros(rows, field.type.to_pandas_dtype())))
    return pa.Table.from_arrays(columns, schema=URL_SCHEMA)


@dataclass(frozen=True)
class Patches:
    """Updates and visits, grouped by key; within a key in inbox order.

    `host` and `path` are the distinct keys (k,) in ascending order; key i's operations are `start[i]:start[i + 1]` of
    `number`, `kind` and `row`, where `row` is a row of `updates` or `outcomes`.
    """

    host: NDArray[np.uint64]
    path: NDArray[np.uint64]
    start: NDArray[np.int64]
    number: NDArray[np.int64]
    visit: NDArray[np.bool_]
    row: NDArray[np.int64]
    updates: pa.RecordBatch
    outcomes: pa.RecordBatch
    facts: dict[str, NDArray[Any]]
    """Numeric columns of the outcomes, by name."""
    has_etag: NDArray[np.bool_]
    has_redirect: NDArray[np.bool_]
    redirects: pa.StringArray
    """Redirect targets of the outcomes, as text."""

    @classmethod
    def of(cls, log: OpLog) -> Patches:
        """Group the updates and outcomes of a log."""
        update_number, updates = log.table(RowKind.UPDATE)
        outcome_number, outcomes = log.table(RowKind.OUTCOME)
        host = np.concatenate([numbers(batch, "host_key") for batch in (updates, outcomes)])
        path = np.concatenate([numbers(batch, "path_key") for batch in (updates, outcomes)])
        number = np.concatenate([update_number, outcome_number])
        row = np.concatenate([np.arange(updates.num_rows), np.arange(outcomes.num_rows)])
        # Two runs, each in inbox order: merged by number first, so that only the keys have to be sorted.
        order = np.argsort(number, kind="stable")
        order = order_by_keys(host, path, order)
        host, path = host[order], path[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (host[1:] != host[:-1]) | (path[1:] != path[:-1])
        start = np.append(np.flatnonzero(first), len(order))
        return cls(
            host[first],
            path[first],
            start,
            number[order],
            order >= updates.num_rows,
            row[order],
            updates,
            outcomes,
            {name: numbers(outcomes, name) for name in VISIT_FACTS},
            pc.greater(pc.binary_length(outcomes.column("etag")), 0).to_numpy(zero_copy_only=False),
            pc.greater(pc.binary_length(outcomes.column("redirect")), 0).to_numpy(zero_copy_only=False),
            outcomes.column("redirect").cast(pa.string()),
        )
