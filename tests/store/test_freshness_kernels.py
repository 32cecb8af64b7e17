"""The compiled estimates and schedules against their own source run as plain Python, and what must always hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meguri_store.fold import FoldRules
from meguri_store.freshness import (
    MOST_HOURS,
    Freshness,
    estimate,
    gap_gain,
    host_share,
    next_due,
    refresh_rate,
    target_interval,
)
from meguri_store.freshness_plan import host_shares
from meguri_store.kernels.freshness import estimate_rates, schedule
from meguri_store.water_level import RATE_UNIT, LevelState, moved_tau, scheduled_parts, scheduled_rates

RULES = Freshness()
u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
small = st.integers(0, 60)
hours = st.integers(480_000, 490_000) | u32
counters = st.tuples(small | u32, small | u32, small | u16, hours, hours)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(counters, min_size=1, max_size=20))
def test_estimates(rows):
    widths = (np.uint32, np.uint32, np.uint16, np.uint32, np.uint32)
    columns = [np.array(column, width) for column, width in zip(zip(*rows, strict=True), widths, strict=True)]
    out = np.empty(len(rows), np.float32)
    estimate_rates(*columns, RULES, out)
    assert out.tolist() == [float(np.float32(estimate(*row, RULES))) for row in rows]
    assert all(np.float32(RULES.min_rate) <= rate <= RULES.max_rate for rate in out)


rates = st.floats(-9.1, 1.4).map(math.exp).map(np.float32)
priorities = st.floats(-14, 14).map(math.exp).map(np.float32) | st.sampled_from([0.0, -1.0]).map(np.float32)
shares = st.just(math.inf) | st.floats(-9, 2).map(math.exp)
visits = st.tuples(
    st.integers(0, 3), st.booleans(), st.integers(0, 9), st.integers(0, MOST_HOURS), rates, priorities, shares, u64
)


@settings(max_examples=200, deadline=None)
@given(events=st.lists(visits, min_size=1, max_size=20), power=st.floats(-27, 7), budget=st.sampled_from([0.0, 1.0]))
def test_schedule(events, power, budget):
    row, again, parts, hour, rate, priority, share, path = (
        np.array(column, dtype)
        for column, dtype in zip(
            zip(*events, strict=True),
            (np.int64, np.bool_, np.int64, np.uint32, np.float32, np.float32, np.float64, np.uint64),
            strict=True,
        )
    )
    held, due = np.zeros(4, np.int64), np.zeros(len(events), np.uint32)
    level = schedule(
        row, again, parts, hour, rate, priority, share, path, held, (math.exp(power), 0, 0), budget, 3, RULES, due
    )
    tau, count, plain = math.exp(power), 0, [0] * 4
    for at, (url, rescheduled, after, now, event_rate, weight, left, key) in enumerate(events):
        if not rescheduled:
            plain[url] = after
            assert due[at] == 0
            continue
        interval = target_interval(float(weight), float(event_rate), tau, left, RULES)
        expected = next_due(now, interval, key, now, RULES)
        assert due[at] == expected
        assert expected > now or expected == MOST_HOURS
        plain[url] = scheduled_parts(now, expected)
        count += 1
        if count % 3 == 0:
            tau = moved_tau(tau, sum(plain) / RATE_UNIT, budget)
    assert LevelState(*level) == (tau, sum(plain), count)
    assert held.tolist() == plain


@given(rows=st.lists(st.tuples(st.integers(0, 8), u32, u32), min_size=1, max_size=20))
def test_scheduled_rates(rows):
    status, last, due = zip(*rows, strict=True)
    found = scheduled_rates(np.array(status, np.uint8), np.array(last, np.uint32), np.array(due, np.uint32))
    assert found.tolist() == [
        RATE_UNIT // max(due - last, 1) if status in (4, 5) and due else 0 for status, last, due in rows
    ]


@given(st.lists(st.tuples(u16, u32), min_size=1, max_size=9))
def test_host_shares(rows):
    delay, urls = zip(*rows, strict=True)
    found = host_shares(np.array(delay, np.uint16), np.array(urls, np.uint32))
    assert found.tolist() == [host_share(*row) for row in rows]


@settings(max_examples=200)
@given(
    interval=st.floats(0.25, 1e12),
    last=u32,
    now=u32,
    path=u64,
    rules=st.builds(Freshness, host_spread_window=st.integers(1, 10**6), min_reprobe_gap=st.integers(1, 10**6)),
)
def test_the_next_hour_is_never_in_the_past(interval, last, now, path, rules):
    due = next_due(last, interval, path, now, rules)
    assert due > now or due == MOST_HOURS
    assert due >= min(last + max(math.floor(interval), 1), MOST_HOURS)
    assert due == next_due(last, interval, path, now, rules)


def halved(weight: float, rate: float, tau: float) -> float:
    """The rate as it is told: 40 halvings of the band."""

    def gain(fetches: float) -> float:
        return weight * gap_gain(rate / fetches) * rate / fetches**2

    low, high = RULES.min_rate, RULES.max_rate
    if gain(high) >= tau:
        return high
    if gain(low) <= tau:
        return low
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if gain(middle) > tau else (low, middle)
    return (low + high) / 2


@settings(max_examples=500, deadline=None)
@given(weight=st.floats(-8, 8).map(math.exp), rate=st.floats(-9.05, 1.38).map(math.exp), depth=st.floats(-30, 9))
def test_the_solved_rate_is_the_halved_one(weight, rate, depth):
    """Up to a cell of the grid, of which there are 2^40: where a rate is cut off between two, either may come out."""
    rate, tau = min(max(rate, RULES.min_rate), RULES.max_rate), math.exp(depth)
    # Nearer to 1 the gain is flat, and its own rounding decides where the halving ends.
    assume(abs(tau * rate / weight - 1) > 1e-6)
    cell = (RULES.max_rate - RULES.min_rate) / 2**40
    assert refresh_rate(weight, rate, tau, RULES) == pytest.approx(halved(weight, rate, tau), rel=1e-9, abs=1.5 * cell)


@given(st.floats(1e-9, 0.1))
def test_the_gain_of_a_short_gap_has_no_cancellation(x):
    exact = sum((-x) ** k * (k + 1) / math.factorial(k + 2) for k in range(20))
    assert gap_gain(x) == pytest.approx(exact, rel=1e-12)


def test_rules_have_the_parameters_that_are_told():
    rules = FoldRules()
    assert (rules.flat_gap, rules.max_retries, rules.reschedule, rules.tick_every) == (168, 5, False, 4096)
    assert rules.freshness == (0.5, 1 / 8760, 4, 8, 1 / 24, 1 / 336, 1, 24)
