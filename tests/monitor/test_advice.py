"""What to scale next, and why: tables of situations, and what must hold for any."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meguri_monitor.advice import PATH, Advice, Condition, advise
from meguri_monitor.windows import Trend

DRAINED = Trend(0, 0.0, "drained", 0.0)
STEADY = Trend(40, 0.0, "steady", None)


def growing(lag: int, slope: float) -> Trend:
    return Trend(lag, slope, "growing", None)


def shrinking(lag: int, seconds: float) -> Trend:
    return Trend(lag, -lag / seconds, "shrinking", seconds)


def well(service: str, **changes: Any) -> Condition:
    """A service that keeps up."""
    values: dict[str, Any] = {
        "service": service, "instances": 2, "partitions": 8, "trend": DRAINED, "consumed": 50.0, "arrived": 50.0,
        "busy": 0.4, "largest_lag": (0, 0),
    }  # fmt: skip
    return Condition(**{**values, **changes})


def fleet(**changes: dict[str, Any]) -> list[Advice]:
    return advise([well(service, **changes.get(service, {})) for service in PATH])


def test_nothing_to_do() -> None:
    (advice,) = fleet()
    assert (advice.severity, advice.action, advice.service) == ("fine", "nothing", "")


def test_nothing_heard_at_all() -> None:
    (advice,) = advise([])
    assert (advice.severity, advice.action) == ("act", "start")


@pytest.mark.parametrize("service", PATH)
def test_a_service_without_instances_is_started(service: str) -> None:
    for found in (
        fleet(**{service: {"instances": 0, "trend": growing(500, 10), "busy": None}}),
        advise([well(other) for other in PATH if other != service]),
    ):
        assert (found[0].severity, found[0].action, found[0].service) == ("act", "start", service)
        assert len(found) == 1
    assert "500 messages wait" in fleet(**{service: {"instances": 0, "trend": growing(500, 10)}})[0].why


@pytest.mark.parametrize("service", PATH)
def test_the_busy_one_whose_lag_grows_is_scaled(service: str) -> None:
    found = fleet(**{service: {"trend": growing(3000, 25.0), "busy": 0.98, "consumed": 50.0, "arrived": 75.0}})
    (advice,) = found
    assert (advice.severity, advice.action, advice.service) == ("act", "scale_up", service)
    assert advice.instances == 4, "2 * 0.98 * 75 / 50, at four fifths"
    assert f"Scale {service} from 2 to 4 instances" in advice.text
    assert "25.0 more a second" in advice.why
    assert "98%" in advice.why


def test_one_at_a_time_the_worst_first() -> None:
    slow = {"trend": shrinking(10_000, 900), "busy": 0.99}
    slower = {"trend": shrinking(10_000, 4000), "busy": 0.9}
    never = {"trend": growing(10, 1), "busy": 0.8}
    scaled = [
        [advice.service for advice in fleet(**changes) if advice.action == "scale_up"]
        for changes in (
            {"dedup": slow, "store": slower},
            {"dedup": slow, "store": slower, "prioritizer": never},
            {"dedup": slow},
        )
    ]
    assert scaled == [["store"], ["prioritizer"], ["dedup"]]


def test_what_is_read_within_a_minute_is_left_alone() -> None:
    assert fleet(dedup={"trend": shrinking(500, 30), "busy": 1.0})[0].action == "nothing"
    assert fleet(dedup={"trend": STEADY, "busy": 1.0})[0].action == "nothing", "what is on its way"
    assert fleet(dedup={"trend": Trend(10_000, 0.0, "steady", None), "busy": 1.0})[0].action == "scale_up"
    assert fleet(dedup={"trend": shrinking(500, 61), "busy": 1.0})[0].action == "scale_up"


def test_an_idle_one_that_falls_behind_waits_for_something_else() -> None:
    (advice,) = fleet(store={"trend": growing(800, 5), "busy": 0.2})
    assert (advice.severity, advice.action, advice.instances) == ("watch", "unblock", None)
    assert "20%" in advice.why


def test_one_long_partition_is_not_helped_by_instances() -> None:
    (advice,) = fleet(dedup={"trend": growing(1000, 5), "busy": 0.9, "largest_lag": (5, 900)})
    assert (advice.action, advice.instances) == ("spread", None)
    assert "partition 5" in advice.text
    assert "90%" in advice.why
    (alone,) = fleet(dedup={"trend": growing(1000, 5), "busy": 0.9, "largest_lag": (5, 900), "instances": 1})
    assert alone.action == "scale_up", "another instance takes the other partitions off its hands"


def test_no_more_instances_than_partitions() -> None:
    (advice,) = fleet(dedup={"trend": growing(1000, 5), "busy": 1.0, "instances": 8})
    assert (advice.action, advice.instances) == ("spread", None)
    (advice,) = fleet(dedup={"trend": growing(1000, 5), "busy": 1.0, "instances": 7, "arrived": 5000.0})
    assert advice.instances == 8


def test_troubles_come_first_and_are_all_told() -> None:
    found = fleet(
        dedup={"stopped": ((3, "offset 17: an envelope of another campaign"),), "trend": growing(9, 1), "busy": 0.9},
        store={"silent": ("store-1", "store-2", "store-3", "store-4")},
        prioritizer={"restoring": 2, "reread_bytes": 1 << 30},
    )
    assert [advice.action for advice in found] == ["mend", "restart", "scale_up", "wait", "snapshot"]
    assert "partition 3" in found[0].text
    assert found[0].why == "offset 17: an envelope of another campaign"
    assert found[1].text == "Look after store: store-1, store-2, store-3 and others."
    assert "1,024 MiB" in found[4].why


def test_when_nobody_speaks_any_more_it_is_the_brokers() -> None:
    quiet = {"instances": 0, "silent": ("x-1",), "busy": None}
    (advice,) = fleet(**dict.fromkeys(PATH, quiet))
    assert (advice.severity, advice.action, advice.service) == ("act", "unblock", "")
    one_speaks = fleet(**dict.fromkeys(PATH[1:], quiet))
    assert [advice.action for advice in one_speaks] == ["restart"] * 3


def test_instances_that_idle_could_be_fewer() -> None:
    (advice,) = fleet(dedup={"instances": 6, "busy": 0.1})
    assert (advice.severity, advice.action, advice.instances) == ("fine", "scale_down", 2)
    assert fleet(dedup={"instances": 1, "busy": 0.0})[0].action == "nothing"
    behind = fleet(dedup={"instances": 6, "busy": 0.1}, store={"trend": growing(9, 1), "busy": 0.9})
    assert [advice.action for advice in behind] == ["scale_up"], "while another is behind nothing is taken away"


trends = st.one_of(
    st.just(DRAINED),
    st.just(Trend(None, None, "unknown", None)),
    st.builds(growing, st.integers(1, 10**7), st.floats(0.01, 1e5)),
    st.builds(shrinking, st.integers(1, 10**7), st.floats(0.1, 1e6)),
    st.builds(Trend, st.integers(0, 10**7), st.just(0.0), st.just("steady"), st.none()),
)
conditions = st.builds(
    Condition,
    service=st.sampled_from(PATH),
    instances=st.integers(0, 20),
    partitions=st.integers(0, 20),
    trend=trends,
    consumed=st.floats(0, 1e5),
    arrived=st.floats(0, 1e5),
    busy=st.none() | st.floats(0, 1),
    largest_lag=st.none() | st.tuples(st.integers(0, 20), st.integers(0, 10**7)),
    silent=st.lists(st.just("x"), max_size=4).map(tuple),
    stopped=st.lists(st.just((1, "why")), max_size=2).map(tuple),
    restoring=st.integers(0, 3),
    reread_bytes=st.integers(0, 1 << 31),
)


@given(st.lists(conditions, max_size=4, unique_by=lambda condition: condition.service))
def test_advice_makes_sense_whatever_the_situation(situation: list[Condition]) -> None:
    found = advise(situation)
    assert found
    assert [advice.severity for advice in found] == sorted(
        (advice.severity for advice in found), key=["act", "watch", "fine"].index
    )
    by_service = {condition.service: condition for condition in situation}
    scaled = [advice for advice in found if advice.action == "scale_up"]
    assert len(scaled) <= 1
    for advice in found:
        assert advice.text
        assert advice.why
        if advice.instances is not None:
            condition = by_service[advice.service]
            if advice.action == "scale_up":
                assert condition.instances < advice.instances <= condition.partitions
                assert condition.trend.lag
            else:
                assert advice.action == "scale_down"
                assert 1 <= advice.instances < condition.instances
    if any(condition.stopped and condition.instances for condition in situation):
        assert any(advice.action == "mend" for advice in found)
    assert [advice.action for advice in found].count("unblock") <= 1
