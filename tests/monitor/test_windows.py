"""Spans of ten seconds: what comes to them, the rates and the lag's trend that follow."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meguri_monitor.windows import SPAN_SECONDS, Increase, Moment, Span, from_table, lag_trend, rates, with_increase

if TYPE_CHECKING:
    from random import Random

increases = st.lists(
    st.builds(
        Increase,
        at=st.floats(0, 2000),
        counts=st.dictionaries(st.sampled_from(["links", "pages"]), st.integers(0, 1000)),
        lag=st.none() | st.integers(0, 10**6),
        instances=st.integers(0, 5),
    ),
    min_size=1,
    max_size=20,
)


def spans_of(lags: list[int | None], *, links: float = 0.0) -> list[Moment]:
    """A span every ten seconds from 0 on, heard of at its end."""
    return [
        Moment(
            number * SPAN_SECONDS,
            Span(counts={"links": links}, lag=lag, at=(number + 1) * SPAN_SECONDS - 1, instances=1, offset=number),
        )
        for number, lag in enumerate(lags)
    ]


@given(increases, st.randoms())
def test_a_span_sums_up_in_any_order_and_keeps_the_latest_word(found: list[Increase], random: Random) -> None:
    shuffled = list(found)
    random.shuffle(shuffled)
    sums = []
    for order in (found, shuffled):
        span: Span | None = None
        for offset, increase in enumerate(order):
            before = json.dumps(span)
            after = with_increase(span, increase, offset)
            assert json.dumps(span) == before, "the table's value isn't changed in place"
            span = after
            again = random.randint(0, offset)
            assert with_increase(span, order[again], again) == span, "read again after a restart"
        assert span is not None
        assert from_table(json.loads(json.dumps(span))) == span, "it survives the table's changelog"
        assert span["at"] == max(increase.at for increase in found)
        assert span["lag"] in {increase.lag for increase in found if increase.at == span["at"]}
        sums.append(span["counts"])
    assert sums[0] == sums[1]
    for name in ("links", "pages"):
        assert sums[0].get(name, 0) == sum(increase.counts.get(name, 0) for increase in found)


@pytest.mark.parametrize(
    "value", [{}, None, [], {"counts": {}, "lag": None}, {"counts": {"a": "b"}, "lag": 1, "at": 2, "instances": 3}]
)
def test_what_is_no_span_is_none(value: object) -> None:
    assert from_table(value) is None


@given(st.floats(0.1, 1e6), st.integers(1, 20), st.floats(0, 9.9))
def test_a_steady_flow_has_its_rate(rate: float, spans: int, into: float) -> None:
    history = spans_of([0] * spans, links=rate * SPAN_SECONDS)
    history.append(
        Moment(spans * SPAN_SECONDS, Span(counts={"links": rate * into}, lag=0, at=0, instances=1, offset=0))
    )
    now = spans * SPAN_SECONDS + into
    assert rates(history, now)["links"] == pytest.approx(rate)


def test_a_flow_that_stops_fades_and_is_then_unknown() -> None:
    history = spans_of([0] * 6, links=100 * SPAN_SECONDS)
    found = [rates(history, 60 + silent).get("links") for silent in (0, 10, 20, 35)]
    assert found[0] == pytest.approx(100)
    assert found[0] > found[1] > found[2] > 0  # type: ignore[operator] # they are known until the spans are old
    assert found[3] is None
    assert rates([], 100.0) == {}
    assert rates(history, -5.0) == {}, "spans to come don't count"


def test_a_gap_counts_as_nothing_done() -> None:
    history = spans_of([0] * 3, links=100 * SPAN_SECONDS)
    del history[1]
    assert rates(history, 30.0)["links"] == pytest.approx(200 / 3)


@given(st.integers(1, 10**6), st.integers(1, 1000), st.integers(3, 12))
def test_a_lag_that_shrinks_says_when_it_is_drained(begin: int, a_span: int, spans: int) -> None:
    lags: list[int | None] = [begin + a_span * (spans - number) for number in range(spans)]
    trend = lag_trend(spans_of(lags), spans * SPAN_SECONDS)
    assert trend.lag == lags[-1]
    assert trend.slope == pytest.approx(-a_span / SPAN_SECONDS)
    if trend.direction == "shrinking":
        assert trend.drain_seconds == pytest.approx(lags[-1] / (a_span / SPAN_SECONDS))  # type: ignore[operator]
    else:
        assert trend.direction == "steady", "less than a fiftieth of it in a minute"
        assert trend.drain_seconds is None


@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=12))
def test_directions_agree_with_the_slope(lags: list[int]) -> None:
    trend = lag_trend(spans_of(list(lags)), len(lags) * SPAN_SECONDS)
    slopes = [(b - a) for a, b in itertools.pairwise(lags)]
    match trend.direction:
        case "growing":
            assert trend.slope is not None
            assert trend.slope > 0
            assert any(slope > 0 for slope in slopes)
        case "shrinking":
            assert trend.slope is not None
            assert trend.slope < 0
            assert trend.drain_seconds is not None
            assert trend.drain_seconds > 0
        case "drained":
            assert lags[-1] == 0
        case _:
            assert trend.direction == "steady"
            assert trend.drain_seconds is None


def test_a_few_odd_samples_bend_nothing() -> None:
    lags: list[int | None] = [1000 * number for number in range(10)]
    lags[4] = 0
    trend = lag_trend(spans_of(lags), 100.0)
    assert trend.direction == "growing"
    assert trend.slope == pytest.approx(100, rel=0.05)


def test_too_little_to_say() -> None:
    assert lag_trend([], 0.0).direction == "unknown"
    assert lag_trend(spans_of([None, None]), 20.0).lag is None
    assert lag_trend(spans_of([7]), 10.0).direction == "unknown"
    assert lag_trend(spans_of([0]), 10.0).direction == "drained"
    assert lag_trend(spans_of([7, 6]), 10_000.0).lag is None, "that was long ago"
