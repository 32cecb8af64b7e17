"""A world of pages with known change rates: what estimates are worth, and what schedules make of a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from meguri_store.freshness import Freshness
from meguri_store.kernels.freshness import estimate_rates, schedule
from meguri_store.water_level import RATE_UNIT, START_TAU

START = 490_000
PULLING = Freshness()
NO_PULL = Freshness(recency_half_life=0.0)


def observed(rng: np.random.Generator, pages: int, changes_a_gap: float, crawls: int, gap: int, rules: Freshness):
    """Estimates of pages that change `changes_a_gap` times between two fetches on average; divided by the truth."""
    changed = rng.random((pages, crawls - 1)) < -math.expm1(-changes_a_gap)
    streak = np.where(changed.any(axis=1), np.argmax(changed[:, ::-1], axis=1), crawls - 1)
    out = np.empty(pages, np.float32)
    estimate_rates(
        np.full(pages, crawls, np.uint32),
        changed.sum(axis=1).astype(np.uint32),
        streak.astype(np.uint16),
        np.full(pages, START, np.uint32),
        np.full(pages, START + gap * (crawls - 1), np.uint32),
        rules,
        out,
    )
    return out * gap / changes_a_gap


@pytest.mark.parametrize("changes_a_gap", [0.1, 0.2, 0.5, 1.0, 1.5, 2.0])
def test_without_the_pull_estimates_are_right_on_average(changes_a_gap):
    rng = np.random.default_rng(4)
    estimates = observed(rng, 10_000, changes_a_gap, 200, 24, NO_PULL)
    assert estimates.mean() == pytest.approx(1, abs=0.05)


def test_spread_and_pull_of_estimates_are_the_known_ones(say):
    rng = np.random.default_rng(5)
    for changes_a_gap, spread, pull in ((0.1, 0.24, -0.26), (2.0, 0.09, -0.01)):
        free = observed(rng, 10_000, changes_a_gap, 200, 24, NO_PULL)
        pulled = observed(rng, 10_000, changes_a_gap, 200, 24, Freshness())
        assert free.std() == pytest.approx(spread, abs=0.03)
        assert pulled.mean() - 1 == pytest.approx(pull, abs=0.03)
    curve = []
    for crawls in (3, 5, 10, 20, 50, 200):
        estimates = observed(rng, 10_000, 0.5, crawls, 24, Freshness())
        curve.append(float(np.sqrt(np.mean((estimates - 1) ** 2))))
        say(f"error of change rates, {crawls:3} fetches", f"bias {estimates.mean() - 1:+.2f}, rms {curve[-1]:.2f}")
    assert curve == sorted(curve, reverse=True), "more fetches, less error"


@dataclass
class World:
    """Pages with Poisson changes, fetched in the hours at which they are due."""

    rates: np.ndarray
    budget: float
    rng: np.random.Generator
    rules: Freshness = PULLING
    every: int = 256

    def run(self, warm: int, measured: int) -> World:
        pages = len(self.rates)
        now = np.uint32(START)
        crawls, changes = np.zeros(pages, np.uint32), np.zeros(pages, np.uint32)
        streak = np.zeros(pages, np.uint16)
        first, last = np.full(pages, now, np.uint32), np.full(pages, now, np.uint32)
        due = (now + self.rng.integers(1, 25, pages)).astype(np.uint32)
        path = self.rng.integers(0, 2**64 - 1, pages, dtype=np.uint64)
        held = np.zeros(pages, np.int64)
        level = (START_TAU, 0, 0)
        fetched, fresh = 0, 0.0
        self.estimates = np.empty(pages, np.float32)
        for hour in range(START + 1, START + warm + measured + 1):
            rows = np.flatnonzero(due <= hour)
            gap = np.minimum(hour - last[rows].astype(np.int64), hour - START - warm)
            if hour > START + warm:
                fetched += len(rows)
                # Expected hours without a change, of those in the measured time.
                begin = np.maximum(last[rows].astype(np.int64), START + warm) - last[rows]
                decayed = np.exp(-self.rates[rows] * begin)
                fresh += float(np.sum(decayed * -np.expm1(-self.rates[rows] * gap) / self.rates[rows]))
            known = crawls[rows] > 0
            changed = known & (
                self.rng.random(len(rows)) < -np.expm1(-self.rates[rows] * (hour - last[rows].astype(np.int64)))
            )
            first[rows[~known]] = hour
            last[rows] = hour
            crawls[rows] += 1
            changes[rows] += changed
            streak[rows] = np.where(changed, 0, streak[rows] + known)
            estimate = np.empty(len(rows), np.float32)
            estimate_rates(crawls[rows], changes[rows], streak[rows], first[rows], last[rows], self.rules, estimate)
            self.estimates[rows] = estimate
            given = np.empty(len(rows), np.uint32)
            level = schedule(
                rows,
                np.ones(len(rows), np.bool_),
                np.zeros(len(rows), np.int64),
                last[rows],
                estimate,
                np.ones(len(rows), np.float32),
                np.full(len(rows), np.inf),
                path[rows],
                held,
                level,
                self.budget,
                self.every,
                self.rules,
                given,
            )
            assert (given > hour).all()
            due[rows] = given
        # What is left open at the end.
        end = START + warm + measured
        begin = np.maximum(last.astype(np.int64), START + warm) - last
        decayed = np.exp(-self.rates * begin)
        open_hours = end - np.maximum(last.astype(np.int64), START + warm)
        fresh += float(np.sum(decayed * -np.expm1(-self.rates * open_hours) / self.rates))
        self.freshness = fresh / (pages * measured)
        self.fetch_rate = fetched / measured
        self.scheduled = level[1] / RATE_UNIT
        return self


def mean_freshness(rates: np.ndarray, fetches: np.ndarray) -> float:
    """Time-averaged freshness of pages that are fetched at even gaps."""
    x = rates / fetches
    return float(np.mean(-np.expm1(-x) / x))


@pytest.mark.parametrize(
    ("gap", "rules"), [(4, PULLING), (60, Freshness(ref_rate=PULLING.reprobe_rate))], ids=["generous", "tight"]
)
def test_fresher_than_other_schedules_of_the_same_budget(say, gap, rules):
    """Against ideal rivals: even gaps to the fraction of an hour, and as many fetches as were really made.

    Where a budget is as tight as one fetch in days, worth has to be compared at a rate as low (`ref_rate`): at one
    fetch a day most pages would be worth less than the price, and only be probed.
    """
    margins: dict[str, list[float]] = {"uniform": [], "proportional": [], "change frequency": []}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rates = np.exp(rng.uniform(math.log(1 / 8760), 0, 400))
        world = World(rates, 400 / gap, rng, rules).run(1500, 1000)
        rivals = {
            "uniform": np.ones(400),
            "proportional": rates,
            "change frequency": world.estimates.astype(np.float64),
        }
        for name, share in rivals.items():
            fetches = world.fetch_rate * share / share.sum()
            margins[name].append(world.freshness - mean_freshness(rates, fetches))
    for name, found in margins.items():
        told = f"{np.mean(found):+.3f} on average, {min(found):+.3f} at least, over 20 worlds"
        say(f"freshness above {name}, a fetch in {gap} hours", told)
        assert min(found) > 0, name


@pytest.mark.parametrize(("pages", "gap"), [(200, 20), (2000, 100), (2000, 300)])
def test_what_is_scheduled_and_fetched_settles_at_the_budget(pages, gap):
    rng = np.random.default_rng(pages + gap)
    rates = np.exp(rng.uniform(math.log(1 / 4000), math.log(1 / 5), pages))
    budget = pages / gap
    world = World(rates, budget, rng).run(3000, 3000)
    assert world.scheduled == pytest.approx(budget, rel=0.05)
    assert world.fetch_rate == pytest.approx(budget, rel=0.05)
