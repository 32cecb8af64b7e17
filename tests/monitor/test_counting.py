"""Counts out of samples that are lost, doubled, late, rolled back and begun anew."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from meguri_common.telemetry.model import PartitionSample, WorkFigures
from meguri_common.telemetry.sampling import InstanceName, PartitionView, instance_sample, partition_sample
from meguri_monitor.counting import REBASE_AFTER, LifeCounts, Sequences, StateCounts
from meguri_monitor.fleet import Fleet

if TYPE_CHECKING:
    from meguri_common.telemetry.model import Sample

steps = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=30)


@given(steps, st.data())
def test_a_state_is_counted_once_however_it_is_heard(work: list[tuple[int, int]], data: st.DataObject) -> None:
    """True totals grow; samples of them are dropped, doubled and shuffled: never more, and all of it in the end."""
    totals = [
        {"links": links, "pages": pages}
        for links, pages in itertools.accumulate(work, lambda a, b: (a[0] + b[0], a[1] + b[1]))
    ]
    heard = [0, *data.draw(st.lists(st.integers(0, len(totals) - 1), max_size=40)), len(totals) - 1]
    counts = StateCounts()
    counted: Counter[str] = Counter()
    for second, number in enumerate(heard):
        increases = counts.advance(second, totals[number])
        assert all(increase > 0 for increase in increases.values())
        counted.update(increases)
        assert all(counted[name] <= totals[-1][name] - totals[0][name] for name in totals[0])
    assert all(counted[name] == totals[-1][name] - totals[0][name] for name in totals[0])


def test_a_state_that_is_rolled_back_counts_again_only_beyond_where_it_was() -> None:
    counts = StateCounts()
    assert counts.advance(0, {"links": 100}) == {}
    assert counts.advance(1, {"links": 150}) == {"links": 50}
    assert counts.advance(2, {"links": 120}) == {}
    assert counts.advance(3, {"links": 150}) == {}
    assert counts.advance(4, {"links": 160}) == {"links": 10}


def test_a_state_that_was_rebuilt_is_believed_after_a_while() -> None:
    counts = StateCounts()
    counts.advance(0, {"links": 100, "pages": 7})
    assert counts.advance(1, {"links": 0, "pages": 0}) == {}
    assert counts.advance(REBASE_AFTER, {"links": 10, "pages": 1}) == {}
    assert counts.advance(1 + REBASE_AFTER, {"links": 20, "pages": 2}) == {}
    assert counts.advance(2 + REBASE_AFTER, {"links": 25, "pages": 2}) == {"links": 5}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=60))
def test_counts_of_lives_never_exceed_what_they_lived(moments: list[tuple[str, int]]) -> None:
    """Each life counts from 0 on; lives follow and overlap in any order."""
    lived: Counter[str] = Counter()
    counts, counted = LifeCounts(), 0
    for life, more in moments:
        lived[life] += more
        increases = counts.advance(life, {"steps": lived[life]})
        assert all(increase > 0 for increase in increases.values())
        counted += int(increases.get("steps", 0))
    assert counted <= lived.total()


def test_counts_of_one_life_are_all_counted() -> None:
    counts = LifeCounts()
    assert counts.advance(1.0, {"steps": 5}) == {}
    assert counts.advance(1.0, {"steps": 9, "failed": 1}) == {"steps": 4}
    assert counts.advance(2.0, {"steps": 3}) == {}, "what a new life has done before it was first heard isn't known"
    assert counts.advance(2.0, {"steps": 4}) == {"steps": 1}


@given(st.lists(st.integers(0, 30), min_size=1, max_size=80))
def test_heard_and_lost_are_the_span(numbers: list[int]) -> None:
    sequences = Sequences()
    first_times = [sequences.hear(number) for number in numbers]
    later = [number for number in set(numbers) if number >= numbers[0]]
    assert sequences.heard == len(later) == sum(first_times)
    assert sequences.lost == max(numbers) - numbers[0] + 1 - len(later)
    assert sequences.heard + sequences.repeated == len(numbers)


def test_what_is_remembered_of_the_missing_is_bounded() -> None:
    sequences = Sequences(remembered=4)
    sequences.hear(0)
    sequences.hear(10**9)
    assert sequences.lost == 10**9 - 1
    assert len(sequences._missing) == 4
    assert sequences.hear(10**9 - 1)
    assert not sequences.hear(5), "too long ago to be told from a repeat"
    assert sequences.lost == 10**9 - 2


# -- the same through a whole fleet ---------------------------------------------------------------------------------


def reports_of(service: str, totals: list[int], *, owner_changes: set[int]) -> list[list[Sample]]:
    """One report a second of a partition whose total is known; its owner changes now and then."""
    made: list[list[Sample]] = []
    owner, sequence, loaded_at, base = 0, 0, 0.0, 0
    for second, total in enumerate(totals):
        if second in owner_changes:
            owner, sequence, loaded_at, base = owner + 1, 0, float(second), total
        name = InstanceName(service, f"{service}-{owner}", "c", loaded_at)
        view = PartitionView(0, "running", position=total, end=total + 5, loaded_at=loaded_at)
        stats = {"counters": {"links": total}, "passed": {"handled": total - base}}
        work = WorkFigures(steps=sequence)
        made.append(
            [
                instance_sample(name, work, partitions=1, at=float(second), sequence=sequence),
                partition_sample(name, view, stats, at=float(second), sequence=sequence),
            ]
        )
        sequence += 1
    return made


@given(
    st.lists(st.integers(0, 40), min_size=2, max_size=40),
    st.sets(st.integers(1, 39)),
    st.data(),
)
def test_a_fleet_counts_each_link_once(growth: list[int], owner_changes: set[int], data: st.DataObject) -> None:
    totals = list(itertools.accumulate(growth))
    reports = reports_of("dedup", totals, owner_changes=owner_changes)
    kept = data.draw(st.lists(st.sampled_from(range(len(reports))), max_size=60))
    order = [0, *kept, len(reports) - 1]
    fleet = Fleet()
    counted: Counter[str] = Counter()
    for number, heard in zip(order, itertools.accumulate(order, max), strict=True):
        for increase in fleet.hear(reports[number], float(heard)).values():
            assert all(count >= 0 for count in increase.counts.values())
            counted.update({name: int(count) for name, count in increase.counts.items()})
    assert counted["links"] == totals[-1] - totals[0]
    assert counted["consumed"] == totals[-1] - totals[0]
    assert counted["handled"] <= totals[-1] - totals[0]
    hearing = fleet.hearing
    assert hearing.samples == 2 * len(order)


@given(st.lists(st.integers(0, 40), min_size=2, max_size=40), st.sets(st.integers(1, 39)))
def test_nothing_lost_is_everything_counted(growth: list[int], owner_changes: set[int]) -> None:
    totals = list(itertools.accumulate(growth))
    fleet = Fleet()
    counted: Counter[str] = Counter()
    for second, report in enumerate(reports_of("dedup", totals, owner_changes=owner_changes)):
        for increase in fleet.hear(report, float(second)).values():
            counted.update({name: int(count) for name, count in increase.counts.items()})
        latest = fleet.partitions("dedup")[0].latest
        assert isinstance(latest, PartitionSample)
        assert latest.position == totals[second]
    assert counted["links"] == totals[-1] - totals[0]
    assert (fleet.hearing.lost_reports, fleet.hearing.repeated, fleet.hearing.late) == (0, 0, 0)
