"""When to come back: from a URL's few counters to its change rate, the worth of a refresh, and its next hour.

Pure functions of numbers. The kernels compile this very source, so that one record and a column of them get the same
bits. Rates are per hour, intervals in hours, crawl delays in deciseconds.

Methods: the no-change ratio estimator of Cho and Garcia-Molina, "Estimating frequency of change" (2003), smoothed; the
allocation that maximises mean freshness under a budget of fetches, as in "Effective page refresh policies for web
crawlers" (2003), as water-filling: every page is refreshed at the rate where one more fetch buys it as much freshness
as it buys any other page.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

__all__ = [
    "COMPILED",
    "DECISECONDS_AN_HOUR",
    "MOST_HOURS",
    "ONE_SECOND",
    "Freshness",
    "estimate",
    "gap_gain",
    "host_share",
    "next_due",
    "refresh_rate",
    "target_interval",
    "value_density",
]

MOST_HOURS = 0xFFFFFFFF
"""The last hour that a record can hold."""

_SERIES_BELOW = 0.05
_SERIES_TERMS = 9
_HALVINGS = 40
_TAIL_FROM = 0.7
_SOLVER_STEPS = 6
_SOLVED = 1e-7
"""Relative step after which the next one, of a method that at least squares the error, changes nothing."""
DECISECONDS_AN_HOUR = 36_000.0
ONE_SECOND = 10.0


class Freshness(NamedTuple):
    """Parameters of estimates and schedules."""

    alpha: float = 0.5
    """Smoothing: changes, and unchanged fetches, that every URL is taken to have had."""
    min_rate: float = 1 / 8760
    """Least rate, of changes and of fetches."""
    max_rate: float = 4.0
    """Greatest rate, of changes and of fetches."""
    recency_half_life: float = 8.0
    """Fetches without a change after which the streak counts for more than the whole history; 0 = it never counts."""
    ref_rate: float = 1 / 24
    """Fetch rate at which the worth of refreshes is compared."""
    reprobe_rate: float = 1 / 336
    """Fetch rate of URLs that aren't worth a refresh."""
    min_reprobe_gap: int = 1
    """Hours until a fetch that should have been in the past."""
    host_spread_window: int = 24
    """Hours over which URLs with equal intervals are spread by their keys."""


def _clamped(rate: float, rules: Freshness) -> float:
    return min(max(rate, rules.min_rate), rules.max_rate)


def estimate(
    crawl_count: int, change_count: int, no_change_streak: int, first_seen: int, last_crawled: int, rules: Freshness
) -> float:
    """Changes an hour, from a record's counters; `min_rate` while there is nothing to compare."""
    if crawl_count < 2 or last_crawled <= first_seen:  # noqa: PLR2004 - a change shows between two fetches
        return rules.min_rate
    gaps = crawl_count - 1
    hours = (last_crawled - first_seen) / gaps
    unchanged = max(gaps - change_count, 0)
    rate = -math.log((unchanged + rules.alpha) / (gaps + 2 * rules.alpha)) / hours
    if no_change_streak > 0 and rules.recency_half_life > 0:
        streak = no_change_streak
        recent = -math.log((streak + rules.alpha) / (streak + 2 * rules.alpha)) / hours
        weight = math.exp(-streak / rules.recency_half_life)
        # What happened of late pulls a rate down, never up.
        rate = min(rate, weight * rate + (1 - weight) * recent)
    return _clamped(rate, rules)


def gap_gain(x: float) -> float:
    """g(x) = (1 - e^-x - x e^-x) / x^2, with g(0) = 1/2; `x` is changes per fetch."""
    if x >= _SERIES_BELOW:
        decay = math.exp(-x)
        return (1 - decay - x * decay) / (x * x)
    # The formula cancels here: sum over k of (-x)^k (k + 1) / (k + 2)!.
    gain = 0.0
    term = 0.5  # (-x)^k / (k + 2)!
    for k in range(_SERIES_TERMS):
        gain += term * (k + 1)
        term *= -x / (k + 3)
    return gain


def value_density(priority: float, rate: float, rules: Freshness) -> float:
    """Worth of a URL's refresh: gain in mean freshness for one more fetch at `ref_rate`, times its priority.

    Low for pages that hardly change and for hopeless ones. A priority of 0 or less counts as 1.
    """
    weight = priority if priority > 0 else 1.0
    rate = _clamped(rate, rules)
    return weight * gap_gain(rate / rules.ref_rate) * rate / (rules.ref_rate * rules.ref_rate)


def _changes_per_fetch(share: float) -> float:
    """The x with 1 - e^-x - x e^-x = share, for 0 < share < 1; to the last bits."""
    if share < _TAIL_FROM:
        root = math.sqrt(2 * share)
        x = root * (1 + root * (1 / 3 + root * (11 / 72)))  # the inverse of the left side's series
        for _ in range(_SOLVER_STEPS):
            error = gap_gain(x) * x * x - share
            step = error / (x * math.exp(-x) - error * (1 - x) / (2 * x))  # Halley's
            x -= step
            if abs(step) <= _SOLVED * x:
                break
        return x
    # In the tail the left side is flat; its logarithm isn't: ln(1 + x) - x = ln(1 - share).
    depth = -math.log(1 - share)
    x = depth + math.log(1 + depth)
    for _ in range(_SOLVER_STEPS):
        step = (math.log(1 + x) - x + depth) * (1 + x) / x  # Newton's
        x += step
        if abs(step) <= _SOLVED * x:
            break
    return x


def refresh_rate(weight: float, rate: float, tau: float, rules: Freshness) -> float:
    """Fetch rate at which `weight` times the gain of one more fetch has fallen to `tau`, within the band.

    The gain is M(l, f) = g(x) l / f^2 with x = l / f, that is g(x) x^2 / l: so the changes per fetch are solved for,
    and the rate rounded to the grid on which 40 halvings of the band end.
    """
    at_max, at_min = rate / rules.max_rate, rate / rules.min_rate
    if weight * gap_gain(at_max) * at_max * at_max / rate >= tau:
        return rules.max_rate
    if weight * gap_gain(at_min) * at_min * at_min / rate <= tau:
        return rules.min_rate
    share = tau * rate / weight
    if share >= 1:  # by a rounding: below 1 it is, since more than tau is to be had at min_rate
        return rules.min_rate
    exact = rate / _changes_per_fetch(share)
    cell = (rules.max_rate - rules.min_rate) / (1 << _HALVINGS)
    return rules.min_rate + (math.floor((exact - rules.min_rate) / cell) + 0.5) * cell


def host_share(crawl_delay: int, url_count: int) -> float:
    """Fetches an hour that politeness leaves each URL of a host; a delay of 0 counts as one second."""
    delay = crawl_delay if crawl_delay > 0 else ONE_SECOND
    return DECISECONDS_AN_HOUR / delay / max(url_count, 1)


def target_interval(priority: float, rate: float, tau: float, share: float, rules: Freshness) -> float:
    """Hours until the next fetch.

    Args:
        priority: of the URL; 0 or less counts as 1.
        rate: estimated changes an hour.
        tau: the price of a refresh.
        share: what the host leaves, see `host_share`; infinite where nothing is known of the host.
        rules: parameters.
    """
    rate = _clamped(rate, rules)
    if value_density(priority, rate, rules) <= tau:
        fetches = rules.reprobe_rate
    else:
        fetches = refresh_rate(priority if priority > 0 else 1.0, rate, tau, rules)
    return 1 / _clamped(min(fetches, share), rules)


def next_due(last_crawled: int, interval: float, path_key: int, now: int, rules: Freshness) -> int:
    """The hour of the next fetch: the interval in whole hours, and a spread by key; later than `now`, saturating."""
    hours = max(int(min(math.floor(interval + 0.5), float(MOST_HOURS))), 1)
    window = min(rules.host_spread_window, hours)
    spread = int(np.int64(np.uint64(path_key) % np.uint64(window))) if window > 1 else 0
    due = last_crawled + hours + spread
    if due <= now:
        due = now + rules.min_reprobe_gap
    return min(due, MOST_HOURS)


COMPILED = (
    _clamped,
    estimate,
    gap_gain,
    value_density,
    _changes_per_fetch,
    refresh_rate,
    target_interval,
    next_due,
)
"""What the kernels compile: they call nothing that isn't here."""
