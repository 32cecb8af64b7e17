"""What a step of the prioritizer sends, collected over its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.keys import partitions_of
from meguri_common.records import UpdateField
from meguri_common.topics import DELTAS, FRONTIER
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_prioritizer.columns import PairTable
from meguri_prioritizer.kernels import flags as bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_common.runtime.outputs import Outputs
    from meguri_prioritizer.state import PartitionState

__all__ = ["Step", "batch_of"]

_RECORD_FLAGS = 0xFF
"""Host flags that the record knows; those above them are the prioritizer's own."""


def batch_of(kind: RowKind, **columns: Any) -> pa.RecordBatch:
    """A batch of a row kind from numpy columns or Arrow arrays."""
    schema = SCHEMAS[kind]
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


class Step:
    """One step: credits and votes are summed over all its messages, deltas keep their order."""

    def __init__(self, partition: int, partitions: int) -> None:
        self._partition = partition
        self._partitions = partitions
        self.credits = PairTable(("host_key", "path_key"), {"units": (np.uint64, 0), "depth": (np.uint16, 0)})
        self.votes = PairTable(("host_key", "source_host"), {})

    def begin(self, outputs: Outputs) -> None:
        """Start over, for a new step."""
        self.outputs = outputs
        self.credits.clear()
        self.votes.clear()

    def delta(self, kind: RowKind, batch: pa.RecordBatch) -> None:
        """Tell the store."""
        self.outputs.add(DELTAS, self._partition, kind, batch)

    def update(self, state: PartitionState, rows: NDArray[np.int64], fields: NDArray[np.uint8], at: int = 0) -> None:
        """Tell the store what changed of URLs."""
        if not len(rows):
            return
        urls = state.urls
        batch = batch_of(
            RowKind.UPDATE,
            host_key=urls["host_key"][rows],
            path_key=urls["path_key"][rows],
            fields=fields,
            priority=urls["sent"][rows],
            depth=urls["depth"][rows],
            at=np.full(len(rows), at, np.uint32),
        )
        self.delta(RowKind.UPDATE, batch)

    def revive(self, state: PartitionState, rows: NDArray[np.int64], at: int) -> None:
        """Tell the store to bring URLs back; between what it was told of them before and what it will be."""
        if len(rows):
            self.outputs.fence()
            self.update(state, rows, np.full(len(rows), int(UpdateField.REVIVE), np.uint8), at)
            self.outputs.fence()

    def again(self, host_keys: NDArray[np.uint64]) -> None:
        """Continuation rows: judge what these hosts hold back."""
        self.outputs.add(FRONTIER, self._partition, RowKind.RELEASE, batch_of(RowKind.RELEASE, host_key=host_keys))

    def end(self, state: PartitionState) -> None:
        """Send credits, votes, and hosts that changed."""
        self._send(RowKind.CREDIT, self.credits, ("host_key", "path_key", "units", "depth"))
        self._send(RowKind.VOTE, self.votes, ("host_key", "source_host"))
        marks, count = state.hosts["marks"], len(state.hosts)
        stepped = (marks[:count] & bits.HOST_STEPPED) != 0
        marks[:count] &= ~bits.HOST_STEPPED
        rows = np.flatnonzero(stepped & ((state.hosts["flags"][:count] & bits.ANNOUNCED) != 0))
        if not len(rows):
            return
        hosts = state.hosts
        batch = batch_of(
            RowKind.HOST,
            host_key=hosts["host_key"][rows],
            flags=hosts["flags"][rows] & np.uint16(_RECORD_FLAGS),
            url_budget=hosts["budget"][rows],
            url_count=hosts["count"][rows],
            depth_cap=hosts["depth_cap"][rows],
            host_score=hosts["score"][rows],
            crawl_delay=hosts["crawl_delay"][rows],
        )
        self.delta(RowKind.HOST, batch)

    def _send(self, kind: RowKind, table: PairTable, names: tuple[str, ...]) -> None:
        count = len(table)
        if not count:
            return
        columns = {name: table[name][:count].copy() for name in names}
        owners = partitions_of(columns["host_key"], self._partitions)
        for partition in np.unique(owners).tolist():
            mine = owners == partition
            batch = batch_of(kind, **{name: column[mine] for name, column in columns.items()})
            self.outputs.add(FRONTIER, partition, kind, batch)
