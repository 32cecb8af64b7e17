"""In-degrees of hosts: how many distinct other hosts link to one.

Exact up to 64 sources; the 65th turns a host's set into a HyperLogLog of 1,024 registers (Flajolet, Fusy, Gandouet,
Meunier, AofA 2007), standard error 3.25 %. A reported number never falls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.runtime.chain import TableSource, load_tables
from meguri_prioritizer.kernels.votes import (
    BLOCKS,
    FIRST_ROOM,
    PAIRS,
    PENDING,
    SKETCHES,
    USED,
    apply_votes,
)
from meguri_prioritizer.layout import SKETCH_BITS, SKETCHED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_common.runtime.snapshots import SnapshotReader
    from meguri_prioritizer.tables import KeyTable

__all__ = ["Sources"]

_REGISTERS = 1 << SKETCH_BITS
_LARGEST_BLOCK = 64
_PAIR_SCHEMA = pa.schema([("host", pa.uint32()), ("source", pa.uint64())])
_SKETCH_SCHEMA = pa.schema([("host", pa.uint32()), ("registers", pa.binary(_REGISTERS))])


class Sources:
    """Who links to the hosts of a partition."""

    def __init__(self) -> None:
        self._arena = np.zeros(FIRST_ROOM * 16, np.uint64)
        self._meta = np.full(BLOCKS, -1, np.int64)
        self._meta[[USED, SKETCHES, PENDING, PAIRS]] = 0
        self._registers = np.zeros((1, _REGISTERS), np.uint8)
        self._sketch_host = np.zeros(1, np.int64)
        self._sketch_changed = np.zeros(1, np.uint8)
        self._pending_host = np.zeros(16, np.int64)
        self._pending_source = np.zeros(16, np.uint64)

    def add(
        self,
        rows: NDArray[np.int64],
        sources: NDArray[np.uint64],
        hosts: NDArray[Any],
        rule: NDArray[np.uint64],
        queue: NDArray[np.int32],
        queued: NDArray[np.int64],
    ) -> None:
        """Count votes in order: hosts that are linked to (rows of the table), and those that link (keys); both (n,)."""
        need = int(self._meta[PENDING]) + len(rows)
        if need > len(self._pending_host):
            self._pending_host = _longer(self._pending_host, need)
            self._pending_source = _longer(self._pending_source, need)
        done = 0
        while True:
            done = apply_votes(
                done, rows, sources, hosts, self._arena, self._meta, self._registers, self._sketch_host,
                self._sketch_changed, self._pending_host, self._pending_source, rule, queue, queued,
            )  # fmt: skip
            if done == len(rows):
                return
            if self._meta[USED] + _LARGEST_BLOCK > len(self._arena):
                self._arena = _longer(self._arena, len(self._arena) + _LARGEST_BLOCK)
            sketches = int(self._meta[SKETCHES])
            if sketches == len(self._registers):
                self._registers = _longer(self._registers, sketches + 1)
                self._sketch_host = _longer(self._sketch_host, len(self._registers))
                self._sketch_changed = _longer(self._sketch_changed, len(self._registers))

    def take_over(
        self,
        other: Sources,
        their_hosts: KeyTable,
        hosts: KeyTable,
        new_host: NDArray[np.int64],
        rule: NDArray[np.uint64],
    ) -> None:
        """Add the sources of some hosts of another partition's table.

        Args:
            other: their sources.
            their_hosts: the table that they refer to.
            hosts: the table of these sources; in-degrees and budgets of the hosts are the caller's to set afterwards.
            new_host: of each of their rows the row here, or -1; (rows,).
            rule: of the budget.
        """
        pairs, sketches = (table.export(False) for table in other.tables(their_hosts))
        rows = new_host[pairs.column("host").to_numpy().astype(np.int64)]
        mine = rows >= 0
        queue, queued = np.zeros((2, len(hosts) + 1), np.int32), np.zeros(2, np.int64)
        self.add(rows[mine], pairs.column("source").to_numpy()[mine], hosts.records, rule, queue, queued)
        for row, registers in zip(*(column.to_pylist() for column in sketches.columns), strict=True):
            if new_host[row] >= 0:
                self._put_sketch(int(new_host[row]), np.frombuffer(registers, np.uint8), hosts)

    def nbytes(self) -> int:
        """Bytes in use."""
        return int(self._meta[USED]) * 8 + int(self._meta[SKETCHES]) * _REGISTERS + int(self._meta[PENDING]) * 16

    def sketches(self) -> int:
        """Hosts counted by a sketch."""
        return int(self._meta[SKETCHES])

    # -- snapshots ---------------------------------------------------------------------------------------------

    def tables(self, hosts: KeyTable) -> list[TableSource]:
        """For `save_tables`."""
        sketches = int(self._meta[SKETCHES])
        changed = int(np.count_nonzero(self._sketch_changed[:sketches]))
        pairs, pending = int(self._meta[PAIRS]), int(self._meta[PENDING])
        return [
            TableSource("sources", pairs, pending, lambda only: self._export_pairs(hosts, changed_only=only)),
            TableSource("sketches", sketches, changed, lambda only: self._export_sketches(changed_only=only)),
        ]

    def saved(self) -> None:
        """What was exported is durable."""
        self._meta[PENDING] = 0
        self._sketch_changed.fill(0)

    def load(self, reader: SnapshotReader, hosts: KeyTable, rule: NDArray[np.uint64]) -> None:
        """Take over a snapshot, after the hosts: their in-degrees stand, their sources are filed anew."""
        degree, budget, flags = (hosts[name].copy() for name in ("in_degree", "budget", "flags"))
        hosts["in_degree"][:] = 0
        queue, queued = np.zeros((2, len(hosts) + 1), np.int32), np.zeros(2, np.int64)
        for batch in load_tables(reader, "sources"):
            rows = batch.column("host").to_numpy().astype(np.int64)
            exact = (flags[rows] & SKETCHED) == 0
            self.add(rows[exact], batch.column("source").to_numpy()[exact], hosts.records, rule, queue, queued)
        for batch in load_tables(reader, "sketches"):
            for row, registers in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                self._put_sketch(row, np.frombuffer(registers, np.uint8), hosts)
        hosts["in_degree"][:], hosts["budget"][:] = degree, budget
        hosts["marks"][:] = 0
        self.saved()

    def _put_sketch(self, row: int, registers: NDArray[np.uint8], hosts: KeyTable) -> None:
        sketch = int(hosts.records["sources"][row])
        if sketch < 0:
            sketch = int(self._meta[SKETCHES])
            self._meta[SKETCHES] += 1
            if sketch == len(self._registers):
                self._registers = _longer(self._registers, sketch + 1)
                self._sketch_host = _longer(self._sketch_host, len(self._registers))
                self._sketch_changed = _longer(self._sketch_changed, len(self._registers))
            hosts.records["sources"][row] = sketch
            self._sketch_host[sketch] = row
        self._registers[sketch] = registers

    def _export_pairs(self, hosts: KeyTable, *, changed_only: bool) -> pa.RecordBatch:
        if changed_only:
            pending = int(self._meta[PENDING])
            rows, sources = self._pending_host[:pending], self._pending_source[:pending]
        else:
            exact = np.flatnonzero((hosts["flags"] & SKETCHED == 0) & (hosts["in_degree"] > 0))
            counts = hosts["in_degree"][exact].astype(np.int64)
            rows = np.repeat(exact, counts)
            firsts = np.repeat(np.cumsum(counts) - counts, counts)
            places = np.repeat(hosts["sources"][exact].astype(np.int64), counts) + np.arange(len(rows)) - firsts
            sources = self._arena[places]
        return pa.RecordBatch.from_arrays(
            [pa.array(rows.astype(np.uint32)), pa.array(sources.copy())], schema=_PAIR_SCHEMA
        )

    def _export_sketches(self, *, changed_only: bool) -> pa.RecordBatch:
        sketches = int(self._meta[SKETCHES])
        rows = np.flatnonzero(self._sketch_changed[:sketches]) if changed_only else np.arange(sketches)
        chosen = np.ascontiguousarray(self._registers[rows])
        registers = pa.Array.from_buffers(pa.binary(_REGISTERS), len(rows), [None, pa.py_buffer(chosen)])
        return pa.RecordBatch.from_arrays(
            [pa.array(self._sketch_host[rows].astype(np.uint32)), registers], schema=_SKETCH_SCHEMA
        )


def _longer(array: NDArray[Any], need: int) -> NDArray[Any]:
    """A copy with room for `need` rows and half as many again; the new ones are 0."""
    grown = np.zeros((need + need // 2, *array.shape[1:]), array.dtype)
    grown[: len(array)] = array
    return grown
