"""What a recrawl finds at due URLs: given outcomes, by key, or outcomes drawn from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from meguri_common.records import FetchError
from meguri_common.wire.columns import numbers
from meguri_store.fold import VISIT_FACTS
from meguri_store.ordering import order_by_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["DueRows", "Outcomes", "Visits", "drawn_outcomes", "drawn_rates", "given_outcomes"]

_HOUR = 3600
_OK, _MISSING, _GONE, _UNAVAILABLE = 200, 404, 410, 503
_SLOWEST, _FASTEST = 1 / 8760, 1.0


@dataclass(frozen=True)
class DueRows:
    """URLs of a shard that are due, in store order; all (n,)."""

    now: int
    """The hour."""
    host_key: NDArray[np.uint64]
    path_key: NDArray[np.uint64]
    records: dict[str, NDArray[Any]]
    """The columns `fold.FOLDED`, and the priority."""


@dataclass(frozen=True)
class Visits:
    """One visit each of some of the due rows."""

    row: NDArray[np.int64]
    """Which ones, ascending; (v,)."""
    facts: dict[str, NDArray[Any]]
    """The columns `fold.VISIT_FACTS`, dtypes of the wire's OUTCOME rows; (v,)."""
    etag: pa.BinaryArray | None = None
    """Entity tags, empty where none was given; (v,)."""
    redirect: pa.StringArray | None = None
    """Canonical URLs of redirect targets, empty where there is none; (v,)."""


class Outcomes(Protocol):
    """Where the outcomes of a recrawl come from."""

    def __call__(self, due: DueRows) -> Visits:
        """The visits of due rows; a row that isn't visited stays due."""
        ...


def given_outcomes(batch: pa.RecordBatch) -> Outcomes:
    """Outcomes by key: the last of those given for a URL counts.

    A visit from before the URL's last fetch, or of the same hour, is stale and doesn't count.

    Args:
        batch: rows of the wire's OUTCOME schema. What they say of hosts (crawl delay, latency) isn't used.
    """
    host, path = numbers(batch, "host_key"), numbers(batch, "path_key")
    order = order_by_keys(host, path)
    host, path = host[order], path[order]
    last = np.ones(len(order), np.bool_)
    last[:-1] = (host[1:] != host[:-1]) | (path[1:] != path[:-1])
    order, host, path = order[last], host[last], path[last]

    def outcomes(due: DueRows) -> Visits:
        begin = int(np.searchsorted(host, due.host_key[0]))
        end = int(np.searchsorted(host, due.host_key[-1], side="right"))
        theirs = order_by_keys(due.host_key, due.path_key)
        row, place = _matches(due.host_key[theirs], due.path_key[theirs], host[begin:end], path[begin:end])
        row, place = theirs[row], place + begin
        hour = numbers(batch, "fetched_at")[order[place]] // _HOUR
        fresh = (due.records["last_crawled"][row] == 0) | (hour > due.records["last_crawled"][row])
        row, place = row[fresh], place[fresh]
        by_row = np.argsort(row)
        visit = order[place[by_row]]
        given = batch.take(pa.array(visit))
        return Visits(
            row[by_row],
            {name: numbers(given, name) for name in VISIT_FACTS},
            given.column("etag"),
            given.column("redirect").cast(pa.string()),
        )

    return outcomes


def _matches(
    host: NDArray[np.uint64], path: NDArray[np.uint64], given_host: NDArray[np.uint64], given_path: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of equal keys in two lists of distinct keys, each ascending by (host, path)."""
    both_host, both_path = np.concatenate([host, given_host]), np.concatenate([path, given_path])
    order = order_by_keys(both_host, both_path)  # of two equal keys the first list's comes first
    left, right = order[:-1], order[1:]
    equal = (both_host[left] == both_host[right]) & (both_path[left] == both_path[right])
    return left[equal], right[equal] - len(host)


def drawn_rates(seed: int) -> Callable[[NDArray[np.uint64], NDArray[np.uint64]], NDArray[np.float64]]:
    """True change rates for benchmarks: from once a year to once an hour, evenly in the logarithm, by key and seed."""

    def rates(host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.float64]:
        even = _even(_mixed(host, path, seed, 0))
        found: NDArray[np.float64] = _SLOWEST * np.exp(even * math.log(_FASTEST / _SLOWEST))
        return found

    return rates


def drawn_outcomes(
    seed: int,
    true_rates: Callable[[NDArray[np.uint64], NDArray[np.uint64]], NDArray[np.float64]] | None = None,
    *,
    failing: float = 0.02,
    vanishing: float = 0.001,
) -> Outcomes:
    """Outcomes that follow from a seed, a URL's key and the hour alone, whatever the order of rows.

    A page changes as a Poisson process: since its last fetch it has with probability 1 - exp(-rate * hours).

    Args:
        seed: another seed is another world.
        true_rates: changes an hour by host and path keys; without, `drawn_rates(seed)`.
        failing: share of visits that fail (a timeout, 404 or 503).
        vanishing: share of visits that find the page gone (410).
    """
    rates = true_rates or drawn_rates(seed)

    def outcomes(due: DueRows) -> Visits:
        size = len(due.path_key)
        luck = _even(_mixed(due.host_key, due.path_key, seed, 2 * due.now + 1))
        draw = _mixed(due.host_key, due.path_key, seed, 2 * due.now + 2)
        known = due.records["content_fp"] != 0
        hours = due.now - due.records["last_crawled"].astype(np.int64)
        changes = _even(draw) < -np.expm1(-rates(due.host_key, due.path_key) * hours)
        replaced = ~known | changes
        status = np.full(size, _OK, np.uint16)
        failed = luck < failing
        # The share of failures is cut in three.
        status[failed] = np.array([0, _MISSING, _UNAVAILABLE], np.uint16)[(draw[failed] % np.uint64(3)).astype(int)]
        status[(luck >= failing) & (luck < failing + vanishing)] = _GONE
        error = np.where(status == 0, np.uint8(FetchError.TIMEOUT), np.uint8(FetchError.NONE))
        body = _scrambled(draw ^ due.path_key)
        none = np.zeros(size, np.uint32)
        facts: dict[str, NDArray[Any]] = {
            "fetched_at": np.full(size, due.now * _HOUR, np.uint32),
            "status": status,
            "error": error,
            "flags": np.zeros(size, np.uint8),
            "content_fp": np.where(replaced, body | np.uint64(1), due.records["content_fp"]),
            "simhash": np.where(replaced, _scrambled(body) | np.uint64(1), due.records["simhash"]),
            "last_modified": none,
            "retry_after": none,
        }
        return Visits(np.arange(size), facts)

    return outcomes


def _scrambled(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function (Steele, Lea and Flood, 2014)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _mixed(host: NDArray[np.uint64], path: NDArray[np.uint64], seed: int, turn: int) -> NDArray[np.uint64]:
    """Even 64-bit numbers from a key, a seed and a turn."""
    salt = np.uint64((seed * 0x9E3779B97F4A7C15 + turn * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF)
    return _scrambled(_scrambled(path + salt) ^ host)


def _even(number: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) from the upper bits."""
    return (number >> np.uint64(11)).astype(np.float64) * 2.0**-53
