"""Priorities of URLs and when the store must hear of them; `importance` has the method, and the order of f32 steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.kernels.jit import kernel
from meguri_common.kernels.memory import prefetch
from meguri_prioritizer.importance import level_bounds
from meguri_prioritizer.kernels.index import find_keys
from meguri_prioritizer.layout import (
    ADMITTED,
    CHANGED,
    DECAY,
    DEPTH_CHANGED,
    HELD_CASH,
    KNOWN_URLS,
    NORM,
    POOL,
    RANKED,
    RELEASED,
    SUSPECT,
    SUSPECT_FACTOR,
    TOUCHED,
    W_HOST,
    W_HOST_ONLY,
    W_OPIC_WITH_HOST,
    W_OPIC_WITH_PAGE,
    W_PAGERANK,
    integer,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Weights", "judge_rows", "priorities_of", "shared_floor"]

Weights = tuple[float, float, float, float, float, float, float, float]
"""Positions are in `layout`."""

_ZERO = np.uint64(0)
_MOST = np.uint64(0xFFFFFFFFFFFFFFFF)
_UNIT = 4294967296.0
_NO_DEPTH = 0xFFFF
_LEVELS = 64
_BOUNDS = level_bounds()
_ONE_BITS = 0x3F800000
_PER_BIT = np.float32(1 / (1 << 23))
_AHEAD = 12
"""Rows between asking for a record's cache line and using it."""
_DONE = ~(TOUCHED | DEPTH_CHANGED | RELEASED) & 0xFFFF
_PRIORITY, _DEPTH, _RELEASE = 1, 2, 4


@kernel
def _scale(totals: NDArray[np.uint64]) -> float:
    """What priorities are relative to; 0 where there is no cash yet."""
    cash = totals[HELD_CASH] + totals[POOL]
    if totals[KNOWN_URLS] == _ZERO or cash == _ZERO:
        return 0.0
    return 256.0 * math.log(1.0 + np.float64(cash) / _UNIT / np.float64(totals[KNOWN_URLS]))


@kernel
def _level(priority: np.float32, scale: float) -> int:
    """`importance.relative_level`: a guess by the float's bits, which are nearly its logarithm, set right by bounds."""
    if scale == 0.0:
        return 0
    relative = np.float32(np.float64(priority) / scale)
    if not relative >= _BOUNDS[1]:
        return 0
    if relative >= np.float32(1.0):
        return _LEVELS - 1
    halvings = np.float32(_ONE_BITS - relative.view(np.int32)) * _PER_BIT
    guess = max(_LEVELS - 1 - integer(halvings * np.float32((_LEVELS - 1) / 16)), 1)
    while relative < _BOUNDS[guess]:
        guess -= 1
    while guess < _LEVELS - 1 and relative >= _BOUNDS[guess + 1]:
        guess += 1
    return guess


@kernel
def shared_floor(totals: NDArray[np.uint64]) -> np.uint64:
    """What every known URL has of the pool, units."""
    if totals[KNOWN_URLS] == _ZERO:
        return _ZERO
    floor: np.uint64 = totals[POOL] // totals[KNOWN_URLS]
    return floor


@kernel
def _compress(score: np.float32) -> np.float32:
    if score > 0:
        return np.float32(math.log(1.0 + np.float64(score)))
    return np.float32(0.0)


@kernel
def _priority(
    own: np.uint64,
    cash: np.uint64,
    floor: np.uint64,
    host_score: np.float32,
    rank: np.float32,
    ranked: bool,
    suspect: bool,
    power: np.float32,
    weights: Weights,
) -> np.float32:
    """Score, blended, penalised. Scalars alone: an array argument would be counted, at each URL."""
    raw = own + cash
    raw = _MOST if raw < own or raw + floor < raw else raw + floor
    opic = np.float32(math.log(1.0 + np.float64(raw) / _UNIT) / weights[NORM])
    score = _compress(host_score)
    if ranked:
        page = _compress(rank)
        value = np.float32(weights[W_PAGERANK]) * page + np.float32(weights[W_OPIC_WITH_PAGE]) * opic
        value = value + np.float32(weights[W_HOST]) * score
    elif score != 0:
        value = np.float32(weights[W_OPIC_WITH_HOST]) * opic + np.float32(weights[W_HOST_ONLY]) * score
    else:
        value = opic
    if suspect:
        value = value * np.float32(weights[SUSPECT_FACTOR])
    return value * power


@kernel
def _power(depth: int, decay: float) -> np.float32:
    """Penalty of a depth that the table of powers doesn't hold."""
    if depth == _NO_DEPTH:
        return np.float32(1.0)
    return np.float32(math.pow(decay, np.float64(depth)))


@kernel
def priorities_of(
    rows: NDArray[np.int64],
    urls: NDArray[Any],
    hosts: NDArray[Any],
    extra_slots: NDArray[np.uint32],
    extras: NDArray[Any],
    extra_count: NDArray[np.int64],
    totals: NDArray[np.uint64],
    weights: Weights,
    powers: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """out[i] = priority of rows[i], (n,) f32. `powers[d]` is the depth penalty of the first depths."""
    floor = shared_floor(totals)
    for i in range(rows.size):
        row = rows[i]
        host = integer(urls[row].host)
        depth = integer(urls[row].depth)
        power = powers[depth] if depth < powers.size else _power(depth, weights[DECAY])
        rank = np.float32(0.0)
        ranked = (urls[row].flags & RANKED) != 0
        if ranked:
            rank = extras[find_keys(extra_slots, extras, extra_count, np.uint64(row))].rank
        suspect = (hosts[host].flags & SUSPECT) != 0
        score = hosts[host].score
        out[i] = _priority(urls[row].history, urls[row].cash, floor, score, rank, ranked, suspect, power, weights)


@kernel
def judge_rows(
    rows: NDArray[np.int64],
    urls: NDArray[Any],
    hosts: NDArray[Any],
    extra_slots: NDArray[np.uint32],
    extras: NDArray[Any],
    extra_count: NDArray[np.int64],
    totals: NDArray[np.uint64],
    weights: Weights,
    powers: NDArray[np.float32],
    out_host: NDArray[np.uint64],
    out_path: NDArray[np.uint64],
    out_fields: NDArray[np.uint8],
    out_priority: NDArray[np.float32],
    out_depth: NDArray[np.uint16],
) -> int:
    """What the store must be told of the rows that a message touched, each row once, as columns; gives their number.

    Fields are those of `records.UpdateField`: priority where the level moved, depth and release where they did.
    """
    scale = _scale(totals)
    floor = shared_floor(totals)
    found = 0
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            prefetch(urls, rows[i + _AHEAD])
        row = rows[i]
        flags = integer(urls[row].flags)
        if not flags & TOUCHED:
            continue
        urls[row].flags = flags & _DONE
        if not flags & ADMITTED:
            continue
        fields = 0
        host = integer(urls[row].host)
        depth = integer(urls[row].depth)
        power = powers[depth] if depth < powers.size else _power(depth, weights[DECAY])
        rank = np.float32(0.0)
        ranked = (flags & RANKED) != 0
        if ranked:
            rank = extras[find_keys(extra_slots, extras, extra_count, np.uint64(row))].rank
        suspect = (hosts[host].flags & SUSPECT) != 0
        score = hosts[host].score
        now = _priority(urls[row].history, urls[row].cash, floor, score, rank, ranked, suspect, power, weights)
        sent = urls[row].sent
        if flags & RELEASED or (now != sent and _level(now, scale) != _level(sent, scale)):
            fields |= _PRIORITY
            urls[row].sent = now
            urls[row].flags |= CHANGED
        if flags & DEPTH_CHANGED:
            fields |= _DEPTH
        if flags & RELEASED:
            fields |= _RELEASE
        if fields:
            out_host[found] = hosts[host].key
            out_path[found] = urls[row].path_key
            out_fields[found] = fields
            out_priority[found] = urls[row].sent
            out_depth[found] = depth
            found += 1
    return found
