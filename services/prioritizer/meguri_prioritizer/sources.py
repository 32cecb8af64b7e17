"""In-degrees of hosts: how many distinct other hosts link to one.

Exact up to 64 sources; the 65th turns a host's set into a HyperLogLog of 1,024 registers (Flajolet, Fusy, Gandouet,
Meunier, AofA 2007), standard error 3.25 %. A reported number never falls.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from meguri_common.runtime.chain import TableSource, load_tables
from meguri_prioritizer.columns import PairTable
from meguri_prioritizer.kernels.votes import add_to_sketch, count_exact

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_common.runtime.snapshots import SnapshotReader

__all__ = ["EXACT_LIMIT", "REGISTERS", "Sources"]

EXACT_LIMIT = 64
REGISTERS = 1024
_ALPHA = 0.7213 / (1 + 1.079 / REGISTERS)
_PAIRS = pa.schema([("host_key", pa.uint64()), ("source_host", pa.uint64())])
_SKETCHES = pa.schema([("host_key", pa.uint64()), ("registers", pa.binary(REGISTERS))])


class Sources:
    """Who links to the hosts of a partition."""

    def __init__(self) -> None:
        self._pairs = PairTable(("host_key", "source_host"), {})
        self._saved_pairs = 0
        self._sketches: dict[int, NDArray[np.uint8]] = {}
        self._changed_sketches: set[int] = set()

    def add(
        self,
        host_keys: NDArray[np.uint64],
        host_rows: NDArray[np.int64],
        sources: NDArray[np.uint64],
        in_degree: NDArray[np.uint32],
    ) -> NDArray[np.int64]:
        """Count votes.

        Args:
            host_keys: hosts that are linked to, shape (n,) u64.
            host_rows: their rows, shape (n,) i64.
            sources: hosts that link, shape (n,) u64.
            in_degree: column of the host table, updated in place.

        Returns:
            Rows of hosts whose in-degree has grown, each once, in order of their first vote.
        """
        sketched = np.fromiter(self._sketches, np.uint64, len(self._sketches))
        exact = ~np.isin(host_keys, sketched)
        before = len(self._pairs)
        rows = self._pairs.locate(host_keys[exact], sources[exact])
        grown = count_exact(rows, before, host_rows[exact], in_degree)
        changed = list(dict.fromkeys(host_rows[exact][grown].tolist()))
        by_key = dict(zip(host_rows.tolist(), host_keys.tolist(), strict=True))
        for row in changed:
            if in_degree[row] > EXACT_LIMIT:
                self._sketch(by_key[row], in_degree, row)
        for key in dict.fromkeys(host_keys[~exact].tolist()):
            row = next(row for row, other in by_key.items() if other == key)
            if self._add_to_sketch(key, sources[host_keys == np.uint64(key)], in_degree, row):
                changed.append(row)
        return np.array(changed, np.int64)

    def tables(self) -> list[TableSource]:
        """For snapshots."""
        changed = sorted(self._changed_sketches)
        return [
            TableSource("sources", len(self._pairs), len(self._pairs) - self._saved_pairs, self._export_pairs),
            TableSource("sketches", len(self._sketches), len(changed), self._export_sketches),
        ]

    def saved(self) -> None:
        """What was exported is durable."""
        self._saved_pairs = len(self._pairs)
        self._changed_sketches.clear()

    def load(self, reader: SnapshotReader) -> None:
        """Take over a snapshot."""
        for batch in load_tables(reader, "sources"):
            hosts, sources = (batch.column(name).to_numpy() for name in _PAIRS.names)
            self._pairs.locate(hosts, sources)
        for batch in load_tables(reader, "sketches"):
            for key, registers in zip(*(batch.column(name).to_pylist() for name in _SKETCHES.names), strict=True):
                self._sketches[key] = np.frombuffer(registers, np.uint8).copy()
        self.saved()

    def _sketch(self, key: int, in_degree: NDArray[np.uint32], row: int) -> None:
        """Go over from the exact set to a sketch of the same sources; the pairs stay, and speak no more."""
        count = len(self._pairs)
        mine = self._pairs["source_host"][:count][self._pairs["host_key"][:count] == np.uint64(key)]
        self._sketches[key] = np.zeros(REGISTERS, np.uint8)
        self._add_to_sketch(key, mine, in_degree, row)

    def _add_to_sketch(self, key: int, sources: NDArray[np.uint64], in_degree: NDArray[np.uint32], row: int) -> bool:
        registers = self._sketches[key]
        if not add_to_sketch(registers, sources):
            return False
        self._changed_sketches.add(key)
        estimate = min(round(_estimate(registers)), (1 << 32) - 1)
        if estimate <= in_degree[row]:
            return False
        in_degree[row] = estimate
        return True

    def _export_pairs(self, changed_only: bool) -> pa.RecordBatch:
        start = self._saved_pairs if changed_only else 0
        columns = [self._pairs[name][start : len(self._pairs)] for name in _PAIRS.names]
        return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=_PAIRS)

    def _export_sketches(self, changed_only: bool) -> pa.RecordBatch:
        keys = sorted(self._changed_sketches if changed_only else self._sketches)
        registers = [self._sketches[key].tobytes() for key in keys]
        return pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.uint64()), pa.array(registers, pa.binary(REGISTERS))], schema=_SKETCHES
        )


def _estimate(registers: NDArray[np.uint8]) -> float:
    """Cardinality: harmonic mean, and linear counting where many registers are still empty."""
    raw = _ALPHA * REGISTERS * REGISTERS / float(np.sum(np.exp2(-registers.astype(np.float64))))
    empty = int(np.count_nonzero(registers == 0))
    if raw <= 2.5 * REGISTERS and empty:
        return REGISTERS * math.log(REGISTERS / empty)
    return raw
