"""From what the instances say to what the page shows: a made-up fleet, told over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monitor_scene import LINKS_A_PAGE, PAGES_A_MESSAGE, Scene

from meguri_common.telemetry.model import WorkFigures
from meguri_common.telemetry.sampling import InstanceName, PartitionView, instance_sample, partition_sample
from meguri_monitor import fleet as fleet_module
from meguri_monitor.fleet import FORGET_AFTER, SILENT_AFTER, Fleet
from meguri_monitor.report import fleet_state
from meguri_monitor.state import SuspectHost, Suspects
from meguri_monitor.windows import SPAN_SECONDS, Moment, Span, with_increase

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_common.telemetry.model import Sample
    from meguri_monitor.state import FleetState, ServiceState

BEGIN = 1_790_000_000.0


class Listener:
    """A fleet and the spans of its services, as the application keeps them."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.spans: dict[str, dict[float, Span]] = {}
        self.now = BEGIN
        self.offset = -1

    def hear(self, report: list[Sample]) -> None:
        self.offset += 1
        for service, increase in self.fleet.hear(report, self.now).items():
            spans = self.spans.setdefault(service, {})
            start = self.now // SPAN_SECONDS * SPAN_SECONDS
            spans[start] = with_increase(spans.get(start), increase, self.offset)

    def play(self, scene: Scene, seconds: int, passes: Callable[[], int] = lambda: 1) -> None:
        """Let time pass; each report is heard as often as `passes` says."""
        for _ in range(seconds):
            self.now += 1
            for report in scene.step(self.now).values():
                for _ in range(passes()):
                    self.hear(report)

    def state(self, suspects: Suspects | None = None) -> FleetState:
        history = {
            service: [Moment(start, span) for start, span in sorted(spans.items())]
            for service, spans in self.spans.items()
        }
        return fleet_state(self.fleet, history, self.now, suspects)

    def services(self) -> dict[str, ServiceState]:
        return {service.service: service for service in self.state().services}


def scene() -> Scene:
    return Scene(started_at=BEGIN, capacity=dict.fromkeys(("canonicalizer", "dedup", "prioritizer", "store"), 400.0))


def test_a_fleet_that_keeps_up() -> None:
    listener = Listener()
    listener.play(scene(), 300)
    state = listener.state(Suspects(count=1, hosts=[SuspectHost(host="trap.example", urls=9, url_budget=1)]))
    assert [service.service for service in state.services] == ["canonicalizer", "dedup", "prioritizer", "store"]
    for service in state.services:
        assert service.links_per_second == pytest.approx(100 * PAGES_A_MESSAGE * LINKS_A_PAGE, rel=0.05)
        assert (service.lag, service.lag_direction, service.drain_seconds) == (0, "drained", 0.0)
        assert service.messages_consumed == pytest.approx(100, rel=0.05)
        assert service.messages_arrived == pytest.approx(100, rel=0.05)
        assert service.busy == pytest.approx(100 / 400 / len(service.instances), rel=0.05)
        assert service.cpu == pytest.approx(0.8 * 100 / 400 / len(service.instances), rel=0.05)
        assert len(service.partitions) == 4
        assert 28 <= len(service.history) <= 30
        assert all(instance.state == "running" for instance in service.instances)
    assert [service.estimated for service in state.services] == [False, False, True, True]
    for shares in (state.links_lately, state.links_total):
        assert shares is not None
        assert (shares.new, shares.known, shares.rejected) == pytest.approx((0.08, 0.89, 0.03), rel=0.02)
        assert shares.new + shares.known + shares.rejected == pytest.approx(1)
    assert state.links_lately is not None
    assert state.links_lately.links == pytest.approx(300 * 100 * PAGES_A_MESSAGE * LINKS_A_PAGE, rel=0.05)
    assert state.links_total is not None
    assert state.links_total.links == pytest.approx(300 * 100 * PAGES_A_MESSAGE * LINKS_A_PAGE, rel=0.01)
    assert state.seen_set is not None
    assert state.seen_set.bits_per_url == pytest.approx(12.4)
    assert state.oldest_snapshot is not None
    assert (state.oldest_snapshot.partition, state.oldest_snapshot.age) == (3, 90.0)
    assert (state.suspects.count, [host.host for host in state.suspects.hosts]) == (3, ["trap.example"])
    assert state.campaign == "demo"
    assert [advice.action for advice in state.advice] == ["scale_down"], "dedup has two"
    assert state.hearing.lost_reports == 0


def test_the_slow_one_is_named() -> None:
    world = scene()
    world.capacity["prioritizer"] = 60.0
    listener = Listener()
    listener.play(world, 180)
    slow = listener.services()["prioritizer"]
    assert slow.lag == pytest.approx(180 * 40, rel=0.02)
    assert slow.lag_direction == "growing"
    assert slow.lag_slope == pytest.approx(40, rel=0.05)
    assert slow.busy == pytest.approx(1.0, abs=0.05)
    advice = listener.state().advice[0]
    assert (advice.action, advice.service, advice.instances) == ("scale_up", "prioritizer", 3)
    world.instances["prioritizer"] = advice.instances or 0
    world.rate = 90
    listener.play(world, 130)
    drained = listener.services()["prioritizer"]
    assert drained.lag_direction in {"shrinking", "drained"}
    assert drained.lag == 0 or drained.drain_seconds == pytest.approx(drained.lag / 90, rel=0.3)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.sampled_from([0, 0, 1, 1, 1, 1, 2, 3]), min_size=200, max_size=200))
def test_loss_and_repeats_change_no_total(passes: list[int]) -> None:
    """Each report comes 0 to 3 times; the figures of the state are exact as soon as one comes through."""
    turns = iter([*passes, *[1] * 1000])
    world, listener = scene(), Listener()
    listener.play(world, 1)
    listener.play(world, 60, passes=lambda: next(turns))
    listener.play(world, 60)
    heard = sum(span["counts"].get("links_known", 0.0) for span in listener.spans["dedup"].values())
    first = 25 * 4 * PAGES_A_MESSAGE * LINKS_A_PAGE
    links = (int(world._read["dedup"] / 4) * 4 * PAGES_A_MESSAGE * LINKS_A_PAGE) - first
    assert heard == pytest.approx(links * 0.89, rel=1e-6)
    assert listener.services()["dedup"].links_per_second == pytest.approx(80_000, rel=0.05)
    hearing = listener.fleet.hearing
    zeros = sum(1 for number in passes if number == 0)
    assert (hearing.lost_reports > 0) == (zeros > 0)
    assert (hearing.repeated > 0) == any(number > 1 for number in passes)


def test_an_instance_that_dies_and_one_that_leaves() -> None:
    world, listener = scene(), Listener()
    listener.play(world, 30)
    world.hush.add("dedup-2")
    listener.play(world, int(SILENT_AFTER) + 2)
    dedup = listener.services()["dedup"]
    assert [instance.state for instance in dedup.instances] == ["running", "silent"]
    assert ("restart", "dedup") in [(advice.action, advice.service) for advice in listener.state().advice]
    assert listener.fleet.lag("dedup") is not None
    name = InstanceName("dedup", "dedup-2", "demo", BEGIN)
    listener.hear([instance_sample(name, WorkFigures(), partitions=0, at=listener.now, sequence=10**6, left=True)])
    dedup = listener.services()["dedup"]
    assert [instance.state for instance in dedup.instances] == ["running", "left"]
    assert "restart" not in [advice.action for advice in listener.state().advice]
    listener.fleet.forget(listener.now + FORGET_AFTER + 1)
    assert listener.fleet.services() == []


def test_a_partition_that_stands_still_is_on_top() -> None:
    world, listener = scene(), Listener()
    world.stuck[("store", 2)] = "offset 9: rows of another kind"
    listener.play(world, 20)
    advice = listener.state().advice[0]
    assert (advice.action, advice.service, advice.why) == ("mend", "store", "offset 9: rows of another kind")
    (stuck,) = [partition for partition in listener.services()["store"].partitions if partition.state == "stopped"]
    assert stuck.partition == 2


def test_a_restarted_instance_is_followed() -> None:
    world, listener = scene(), Listener()
    listener.play(world, 20)
    world._sequence, world.started_at = 0, listener.now
    listener.play(world, 5)
    dedup = listener.services()["dedup"]
    assert all(instance.up_seconds <= 6 for instance in dedup.instances)
    late = [
        instance_sample(
            InstanceName("dedup", "dedup-1", "demo", BEGIN), WorkFigures(), partitions=9, at=BEGIN + 20, sequence=30
        )
    ]
    listener.hear(late)
    assert listener.services()["dedup"].instances[0].partitions == 2, "the life before is over"


def partition_at(at: float, position: int, instance: str = "dedup-1") -> Sample:
    name = InstanceName("dedup", instance, "demo", BEGIN)
    view = PartitionView(0, "running", position=position, end=position, loaded_at=BEGIN)
    return partition_sample(name, view, {"counters": {"links": position}}, at=at, sequence=0)


def test_clocks_that_are_wrong() -> None:
    fleet = Fleet()

    def position() -> int | None:
        return fleet.partitions("dedup")[0].latest.position

    fleet.hear([partition_at(BEGIN + 3600, 10)], BEGIN)
    fleet.hear([partition_at(BEGIN + 1, 11)], BEGIN + 1)
    assert position() == 11, "an hour ahead counts as now"
    fleet.hear([partition_at(BEGIN - 3600, 12, "dedup-2")], BEGIN + 2)
    assert position() == 11, "an hour behind: perhaps a late one"
    fleet.hear([partition_at(BEGIN - 3590, 13, "dedup-2")], BEGIN + 2 + SILENT_AFTER)
    assert position() == 13, "nobody else speaks"


def test_campaigns_are_kept_apart() -> None:
    def said(campaign: str, at: float) -> list[Sample]:
        name = InstanceName("dedup", f"dedup-{campaign}", campaign, BEGIN)
        return [instance_sample(name, WorkFigures(), partitions=0, at=at, sequence=int(at - BEGIN))]

    fleet = Fleet()
    fleet.hear([*said("a", BEGIN), *said("b", BEGIN)], BEGIN)
    assert (fleet.campaign, fleet.hearing.foreign) == ("a", 1)
    fleet.hear(said("b", BEGIN + 60), BEGIN + 60)
    assert fleet.campaign == "b", "a is silent, and none was asked for"
    assert [instance.latest.campaign for instance in fleet.instances("dedup")] == ["b"]
    asked = Fleet("a")
    asked.hear(said("b", BEGIN), BEGIN + 60)
    assert (asked.campaign, asked.services(), asked.hearing.foreign) == ("a", [], 1)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "_MOST_INSTANCES", 5)
    monkeypatch.setattr(fleet_module, "_MOST_PARTITIONS", 5)
    fleet = Fleet()
    for number in range(20):
        name = InstanceName("dedup", f"dedup-{number}", "demo", BEGIN)
        view = PartitionView(number, "running")
        fleet.hear(
            [
                instance_sample(name, WorkFigures(), partitions=1, at=BEGIN, sequence=0),
                partition_sample(name, view, {}, at=BEGIN, sequence=0),
            ],
            BEGIN,
        )
    assert len(fleet.instances("dedup")) == len(fleet.partitions("dedup")) == 5
    assert fleet.hearing.crowded_out == 30


def test_services_that_only_appear_later_are_shown_too() -> None:
    fleet = Fleet()
    name = InstanceName("identity", "identity-1", "demo", BEGIN)
    fleet.hear([instance_sample(name, WorkFigures(), partitions=0, at=BEGIN, sequence=0)], BEGIN)
    state = fleet_state(fleet, {}, BEGIN + 1)
    assert [service.service for service in state.services] == ["identity"]
    assert state.links_lately is None
