"""Counting distinct sources of hosts: exact blocks, and the registers of a HyperLogLog."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.kernels.jit import kernel
from meguri_prioritizer.kernels.admission import ask, note
from meguri_prioritizer.layout import BUDGET_SET, HOST_DIRTY, SKETCH_BITS, SKETCHED, VOUCHED, integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BLOCKS", "FIRST_ROOM", "USED", "apply_votes", "earned_budget"]

_EXACT = 64
FIRST_ROOM = 4
"""Sources that a host's first block takes; each next one takes twice as many, up to 64."""
USED = 0
"""Position in `meta`: words of the arena in use. Then the first free block of each of five sizes, or -1."""
SKETCHES, PENDING, PAIRS = 6, 7, 8
"""Positions in `meta`: sketches in use, pairs that no snapshot has, pairs in blocks."""
BLOCKS = 9
_REGISTERS = 1 << SKETCH_BITS
_ALPHA = 0.7213 / (1 + 1.079 / _REGISTERS)
_U32 = np.uint64(0xFFFFFFFF)


@kernel
def earned_budget(in_degree: int, rule: NDArray[np.uint64]) -> int:
    """See `budget.update_budget`; `rule` is base, per in-link, least, most, each below 2^32."""
    earned = min(rule[0] + rule[1] * np.uint64(in_degree), _U32)
    return integer(min(max(earned, rule[2]), rule[3]))


@kernel
def _fold(source: np.uint64, registers: NDArray[np.uint8]) -> bool:
    """Take a source into a sketch; whether a register has grown. Keys are mixed by splitmix64's finaliser."""
    h = source + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    index = integer(h >> np.uint64(64 - SKETCH_BITS))
    rest = h << np.uint64(SKETCH_BITS)
    rank = 1
    while rank <= 64 - SKETCH_BITS and rest >> np.uint64(63) == np.uint64(0):
        rest <<= np.uint64(1)
        rank += 1
    if registers[index] >= rank:
        return False
    registers[index] = rank
    return True


@kernel
def _estimate(registers: NDArray[np.uint8]) -> int:
    """Cardinality: harmonic mean, and linear counting where many registers are still empty."""
    total = 0.0
    empty = 0
    for i in range(_REGISTERS):
        total += 1.0 / np.float64(np.uint64(1) << np.uint64(registers[i]))
        if registers[i] == 0:
            empty += 1
    raw = _ALPHA * _REGISTERS * _REGISTERS / total
    if raw <= 2.5 * _REGISTERS and empty:
        raw = _REGISTERS * math.log(_REGISTERS / empty)
    return min(int(raw + 0.5), 0xFFFFFFFF)


@kernel
def _size_class(room: int) -> int:
    """Position of the free list of blocks of this size."""
    position = 1
    while room > FIRST_ROOM:
        room >>= 1
        position += 1
    return position


@kernel
def _grow_block(host: int, hosts: NDArray[Any], arena: NDArray[np.uint64], meta: NDArray[np.int64]) -> bool:
    """Move a host's sources to a block of twice the size; False if the arena has no room."""
    room = integer(hosts[host].room)
    wanted = room * 2 if room else FIRST_ROOM
    size = _size_class(wanted)
    at = meta[size]
    if at >= 0:
        meta[size] = integer(arena[at]) - 1
    elif meta[USED] + wanted <= arena.size:
        at = meta[USED]
        meta[USED] = at + wanted
    else:
        return False
    old = integer(hosts[host].sources)
    for i in range(room):
        arena[at + i] = arena[old + i]
    _free_block(host, hosts, arena, meta)
    hosts[host].sources = at
    hosts[host].room = wanted
    return True


@kernel
def _free_block(host: int, hosts: NDArray[Any], arena: NDArray[np.uint64], meta: NDArray[np.int64]) -> None:
    """Give a host's block back; its first word links it to the next free one."""
    room = integer(hosts[host].room)
    if room:
        old = integer(hosts[host].sources)
        size = _size_class(room)
        arena[old] = np.uint64(meta[size] + 1)
        meta[size] = old


@kernel
def _start_sketch(
    host: int,
    source: np.uint64,
    hosts: NDArray[Any],
    arena: NDArray[np.uint64],
    meta: NDArray[np.int64],
    registers: NDArray[np.uint8],
    sketch_host: NDArray[np.int64],
    sketch_changed: NDArray[np.uint8],
) -> int:
    """Go over from a full block to a sketch, with one source more; gives the in-degree, or -1 if there is no room."""
    sketch = meta[SKETCHES]
    if sketch == registers.shape[0]:
        return -1
    meta[SKETCHES] = sketch + 1
    at = integer(hosts[host].sources)
    for i in range(_EXACT):
        _fold(arena[at + i], registers[sketch])
    _fold(source, registers[sketch])
    _free_block(host, hosts, arena, meta)
    meta[PAIRS] -= _EXACT
    hosts[host].flags |= SKETCHED
    hosts[host].sources = sketch
    hosts[host].room = 0
    sketch_host[sketch] = host
    sketch_changed[sketch] = 1
    return max(_EXACT + 1, _estimate(registers[sketch]))


@kernel
def _count_source(
    host: int,
    source: np.uint64,
    hosts: NDArray[Any],
    arena: NDArray[np.uint64],
    meta: NDArray[np.int64],
    registers: NDArray[np.uint8],
    sketch_host: NDArray[np.int64],
    sketch_changed: NDArray[np.uint8],
    pending_host: NDArray[np.int64],
    pending_source: NDArray[np.uint64],
) -> int:
    """New in-degree of a host, the old one if nothing grew, or -1 if there is no room for what it takes."""
    before = integer(hosts[host].in_degree)
    at = integer(hosts[host].sources)
    if hosts[host].flags & SKETCHED:
        if not _fold(source, registers[at]):
            return before
        sketch_changed[at] = 1
        return max(before, _estimate(registers[at]))
    for i in range(before):
        if arena[at + i] == source:
            return before
    if before == _EXACT:
        return _start_sketch(host, source, hosts, arena, meta, registers, sketch_host, sketch_changed)
    if before == integer(hosts[host].room) and not _grow_block(host, hosts, arena, meta):
        return -1
    arena[integer(hosts[host].sources) + before] = source
    pending_host[meta[PENDING]] = host
    pending_source[meta[PENDING]] = source
    meta[PENDING] += 1
    meta[PAIRS] += 1
    return before + 1


@kernel
def apply_votes(
    start: int,
    rows: NDArray[np.int64],
    sources: NDArray[np.uint64],
    hosts: NDArray[Any],
    arena: NDArray[np.uint64],
    meta: NDArray[np.int64],
    registers: NDArray[np.uint8],
    sketch_host: NDArray[np.int64],
    sketch_changed: NDArray[np.uint8],
    pending_host: NDArray[np.int64],
    pending_source: NDArray[np.uint64],
    rule: NDArray[np.uint64],
    queue: NDArray[np.int32],
    queued: NDArray[np.int64],
) -> int:
    """Votes in order from `start` on: in-degrees and the budgets that they earn. Gives where it stopped for room.

    Args:
        start: the first vote that counts.
        rows: hosts that are linked to, (n,).
        sources: hosts that link, (n,).
        hosts: the table.
        arena: words of the blocks of exact sources.
        meta: positions are above.
        registers: sketches, (room, 1024).
        sketch_host: their hosts.
        sketch_changed: whether they differ from the last snapshot.
        pending_host: pairs that no snapshot has; room for n more.
        pending_source: their sources.
        rule: see `earned_budget`.
        queue: hosts that changed.
        queued: their numbers.
    """
    for i in range(start, rows.size):
        host = rows[i]
        if hosts[host].key == sources[i]:
            continue
        before = integer(hosts[host].in_degree)
        now = _count_source(
            host, sources[i], hosts, arena, meta, registers, sketch_host, sketch_changed, pending_host, pending_source
        )
        if now < 0:
            return i
        if now == before:
            continue
        hosts[host].in_degree = now
        hosts[host].marks |= HOST_DIRTY
        if not hosts[host].flags & (VOUCHED | BUDGET_SET):
            budget = earned_budget(now, rule)
            if budget != integer(hosts[host].budget):
                hosts[host].budget = budget
                note(host, hosts, queue, queued)
                ask(host, hosts, queue, queued)
    return rows.size
