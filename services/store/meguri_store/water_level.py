"""The water level: the price of a refresh, regulated so that a partition's scheduled fetches meet its budget.

The rate that is scheduled is a sum over records, of one fetch in `next_due - last_crawled` hours for each that was
crawled and will be again. It is kept as a whole number of small parts, so that it can be kept up to date by adding and
taking away, in any order, and is what a look at all records would find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meguri_common.records import Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "COMPILED",
    "RATE_UNIT",
    "START_TAU",
    "TICK_EVERY",
    "LevelState",
    "WaterLevel",
    "moved_tau",
    "scheduled_parts",
    "scheduled_rates",
]

RATE_UNIT = 1 << 32
"""Parts of one fetch an hour in which scheduled rates are kept."""

TICK_EVERY = 4096
"""Reschedules from one tick of the water level to the next."""

START_TAU = 1e-6
_FLOOR = 1e-12
_UP, _DOWN = 1.05, 0.95
_HIGH, _LOW = 1.02, 0.98


class LevelState(NamedTuple):
    """The water level of a partition, after some part of its inbox."""

    tau: float = START_TAU
    """Price of a refresh."""
    scheduled: int = 0
    """Scheduled fetches an hour, in parts (`RATE_UNIT`)."""
    reschedules: int = 0
    """How often a URL was scheduled anew."""


def moved_tau(tau: float, rate: float, budget: float) -> float:
    """The price of a refresh after a tick: up while more is scheduled than the budget, down while less is.

    Args:
        tau: the price before.
        rate: scheduled fetches an hour.
        budget: fetches an hour; 0 or less: the price never moves.
    """
    if budget <= 0:
        return tau
    if rate > _HIGH * budget:
        tau *= _UP
    elif rate < _LOW * budget:
        tau *= _DOWN
    return max(tau, _FLOOR)


def scheduled_parts(last_crawled: int, next_due: int) -> int:
    """The rate at which one record is scheduled to be fetched, in parts (`RATE_UNIT`) of one fetch an hour."""
    return RATE_UNIT // max(next_due - last_crawled, 1)


def scheduled_rates(status: NDArray[np.uint8], last_crawled: NDArray[Any], next_due: NDArray[Any]) -> NDArray[np.int64]:
    """The rate of each record, in parts; 0 for those that were never crawled, or won't be again. All (n,)."""
    again = ((status == Status.CRAWLED) | (status == Status.DUE_RECRAWL)) & (next_due > 0)
    gaps = np.maximum(next_due.astype(np.float64) - last_crawled, 1.0)
    # Whole numbers below 2^32 on either side: a quotient that isn't whole is too far from one to be rounded to it.
    rates: NDArray[np.int64] = (RATE_UNIT / gaps).astype(np.int64)
    rates[~again] = 0
    return rates


class WaterLevel:
    """A budget and the price of a refresh under it."""

    def __init__(self, budget: float, tau: float = START_TAU) -> None:
        """With a budget in fetches an hour; 0 or less: the price stays."""
        self.budget = budget
        self.tau = tau

    def tick(self, rate: float) -> float:
        """Regulate by the rate (fetches an hour) scheduled at present; gives the new price."""
        self.tau = moved_tau(self.tau, rate, self.budget)
        return self.tau


COMPILED = (moved_tau, scheduled_parts)
"""What the kernels compile: they call nothing that isn't here."""
