"""What a step of the prioritizer sends, collected over its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.records import UpdateField
from meguri_common.topics import DELTAS, FRONTIER
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_prioritizer import layout
from meguri_prioritizer.kernels.index import deal_pairs
from meguri_prioritizer.tables import PairTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_common.runtime.outputs import Outputs
    from meguri_prioritizer.state import PartitionState

__all__ = ["Step", "batch_of"]


def batch_of(kind: RowKind, **columns: Any) -> pa.RecordBatch:
    """A batch of a row kind from numpy columns or Arrow arrays."""
    schema = SCHEMAS[kind]
    arrays = [
        column if isinstance(column := columns[field.name], pa.Array) else pa.array(column, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Step:
    """One step: credits and votes are summed over all its messages, deltas keep their order."""

    def __init__(self, partition: int, partitions: int) -> None:
        self._partition = partition
        self._partitions = partitions
        self._outputs: Outputs
        self._again: list[int] = []
        self._outcomes = False
        self.credits = PairTable()
        self.votes = PairTable()

    def begin(self, outputs: Outputs) -> None:
        """Start over, for a new step."""
        self._outputs = outputs
        self._again.clear()
        self._outcomes = False
        self.credits.clear()
        self.votes.clear()

    def delta(self, kind: RowKind, batch: pa.RecordBatch) -> None:
        """Tell the store."""
        if batch.num_rows:
            self._outcomes |= kind == RowKind.OUTCOME
            self._outputs.add(DELTAS, self._partition, kind, batch)

    def revive(self, state: PartitionState, rows: NDArray[np.int64], at: NDArray[np.uint32]) -> None:
        """Tell the store to bring URLs back, due at `at`; (n,) each."""
        if not len(rows):
            return
        if self._outcomes:
            # Updates go before outcomes: without a fence a failure told earlier would undo the revival.
            self._outputs.fence()
            self._outcomes = False
        urls = state.urls.records[rows]
        batch = batch_of(
            RowKind.UPDATE,
            host_key=state.hosts.records["key"][urls["host"]],
            path_key=urls["path_key"],
            fields=np.full(len(rows), int(UpdateField.REVIVE), np.uint8),
            priority=urls["sent"],
            depth=urls["depth"],
            at=at,
        )
        self.delta(RowKind.UPDATE, batch)

    def again(self, host_key: int) -> None:
        """A continuation row: look at what this host holds back."""
        self._again.append(host_key)

    def end(self, state: PartitionState) -> None:
        """Send credits, votes, continuations, and hosts that changed."""
        self._send(RowKind.CREDIT, self.credits)
        self._send(RowKind.VOTE, self.votes)
        if self._again:
            rows = batch_of(RowKind.RELEASE, host_key=np.array(self._again, np.uint64))
            self._outputs.add(FRONTIER, self._partition, RowKind.RELEASE, rows)
        stepped = state.queue[layout.STEPPED, : state.queued[layout.STEPPED]]
        state.queued[layout.STEPPED] = 0
        hosts = state.hosts.records
        hosts["marks"][stepped] &= 0xFF ^ layout.HOST_STEPPED
        rows = np.sort(stepped[(hosts["flags"][stepped] & layout.ANNOUNCED) != 0])
        if len(rows):
            self.delta(RowKind.HOST, _host_rows(hosts[rows]))

    def _send(self, kind: RowKind, table: PairTable) -> None:
        """Rows to the partitions of their hosts, in the order in which the step came upon them."""
        count = len(table)
        if not count:
            return
        ends = np.empty(self._partitions, np.int64)
        first, second, units = (np.empty(count, np.uint64) for _ in range(3))
        depth = np.empty(count, np.uint16)
        deal_pairs(table.records, count, ends, first, second, units, depth)
        if kind == RowKind.CREDIT:
            batch = batch_of(kind, host_key=first, path_key=second, units=units, depth=depth)
        else:
            batch = batch_of(kind, host_key=first, source_host=second)
        start = 0
        for partition, end in enumerate(ends.tolist()):
            self._outputs.add(FRONTIER, partition, kind, batch.slice(start, end - start))
            start = end


def _host_rows(hosts: NDArray[Any]) -> pa.RecordBatch:
    return batch_of(
        RowKind.HOST,
        host_key=hosts["key"],
        flags=hosts["flags"] & np.uint16(layout.RECORD_FLAGS),
        url_budget=hosts["budget"],
        url_count=hosts["count"],
        depth_cap=hosts["depth_cap"],
        host_score=hosts["score"],
        crawl_delay=hosts["crawl_delay"],
    )
