"""Rescheduling by worth in the live store, against a plain twin that sweeps all records at each tick."""

from __future__ import annotations

import itertools
import math
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
import store_world as world
from freshness_world import EVERY, LiveWorld, PlainSchedule
from hypothesis import event, given, settings
from hypothesis import strategies as st

from meguri_common.records import Status, UpdateField, VisitFlag
from meguri_store.freshness_plan import plan_schedule
from meguri_store.freshness_rules import DEFAULTS
from meguri_store.queries import open_shard
from meguri_store.verify import verify_generation
from meguri_store.water_level import RATE_UNIT

HOSTS = [f"site{number}.org" for number in range(3)]
URLS = [world.url_of(name, page) for name in HOSTS for page in ("", "a", "b")]


urls = st.sampled_from(URLS)
times = st.integers(world.START, world.START + 4000 * world.HOUR) | st.sampled_from([0, 2**32 - 1])
# The price begins at 1e-6: it tells among priorities as low as that.
priorities = st.sampled_from([1e-5, 4e-6, 2e-5, 0.5, 0.0]).map(lambda value: float(np.float32(value)))
admissions = st.builds(
    world.admitted,
    urls,
    at=times,
    priority=priorities,
    reason=st.sampled_from([0, 0, 0, 0, 1]),
)
updates = st.builds(world.update, urls, st.integers(1, 15).map(UpdateField), priority=priorities, at=times)
visits = st.builds(
    world.visit,
    urls,
    at=times,
    status=st.sampled_from([200, 200, 200, 200, 304, 301, 404, 410, 0]),
    error=st.sampled_from([0, 1, 5]),
    flags=st.sampled_from([0, 0, 0, 0, 1, 4, 8, 16]),
    content_fp=st.sampled_from([0, 5, 6, 7]),
    simhash=st.sampled_from([0, 0xFF, 0xF000]),
    crawl_delay=st.sampled_from([0xFFFF, 0xFFFF, 20, 0]),
)
hosts = st.builds(
    world.host,
    st.sampled_from([*HOSTS, "never-seen.org"]),
    url_count=st.sampled_from([0, 9, 100_000]),
    crawl_delay=st.sampled_from([0xFFFF, 50, 5000]),
)
ops = st.lists(admissions | updates | visits | visits | visits | visits | hosts, max_size=30)
points = st.sampled_from(["nothing", "save", "quick", "compact", "compact", "kill", "look"])


def compare(live: world.World, twin: PlainSchedule) -> None:
    assert live.urls() == twin.urls()
    assert live.hosts() == twin.hosts()


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.tuples(ops, points), min_size=2, max_size=5))
def test_schedule_equals_the_twins_whenever_it_is_compacted_or_looked_at(steps):
    with tempfile.TemporaryDirectory() as folder:
        live, twin = LiveWorld(Path(folder)), PlainSchedule()
        since_snapshot = [world.admitted(url, priority=float(np.float32(1e-5))) for url in URLS]
        live.feed(since_snapshot)
        twin.apply(since_snapshot)
        for batch, point in steps:
            live.feed(batch)
            twin.apply(batch)
            since_snapshot += batch
            if point == "kill":
                live.restore()
                live.feed(since_snapshot)
            elif point == "look":
                compare(live, twin)
            elif point != "nothing":
                live.snapshot(compact=point == "compact", quick=point == "quick")
                since_snapshot = []
        compare(live, twin)
        shard = live.shard()
        for url in URLS:
            keys = world.keys_of(url)
            assert shard.get(**keys) == twin.records.get((keys["host_key"], keys["path_key"]))
            owner = shard.host(keys["host_key"])
            assert owner is None or owner["crawl_total"] == twin.host_records[keys["host_key"]]["crawl_total"]
        plan = plan_schedule(live.store.base, live.store.log, live.store.rules)
        assert plan is not None
        assert plan.level == (twin.tau, twin.scheduled(), twin.count)
        event(f"{min(twin.count // EVERY, 10)} ticks")
        live.snapshot(compact=True)
        compare(live, twin)
        if live.store.base:
            meta = live.store.base.meta
            assert (meta.tau, meta.scheduled, meta.reschedules) == (twin.tau, twin.scheduled(), twin.count)
            verify_generation(live.files, live.store.base.folder, world.IDENTITY)
            live.restore()
            compare(live, twin)


@pytest.mark.parametrize("budget", [0.002, 20.0])
def test_schedule_equals_the_twins_over_many_ticks(tmp_path, budget):
    """Above its budget the price rises tick by tick, below it falls; generations in between change nothing."""
    chance = random.Random(3)
    live, twin = LiveWorld(tmp_path, budget=budget), PlainSchedule(budget)
    batch = [world.admitted(url, priority=float(np.float32(chance.choice([1e-5, 4e-6, 3e-5])))) for url in URLS]
    for turn in range(40):
        batch += [
            world.visit(
                chance.choice(URLS),
                at=world.START + (turn * 9 + at) * 12 * world.HOUR,
                status=chance.choice([200, 200, 200, 200, 200, 404, 304]),
                content_fp=chance.randrange(1, 4),
            )
            for at in range(9)
        ]
        live.feed(batch)
        twin.apply(batch)
        batch = []
        if turn in (7, 11, 30):
            live.snapshot(compact=turn != 11)
    compare(live, twin)
    assert twin.count > 100 * EVERY
    plan = plan_schedule(live.store.base, live.store.log, live.store.rules)
    assert plan is not None
    assert plan.level == (twin.tau, twin.scheduled(), twin.count)
    assert twin.tau > 1e-5 if budget < 1 else twin.tau < 1e-7


@settings(max_examples=30, deadline=None)
@given(first=ops, second=ops, cuts=st.lists(st.integers(0, 20), max_size=4))
def test_grouping_of_messages_changes_nothing(first, second, cuts):
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        whole, pieces = LiveWorld(Path(one)), LiveWorld(Path(other))
        whole.feed(first + second)
        pieces.feed(first)
        pieces.snapshot(compact=True)
        bounds = [0, *sorted(cut for cut in cuts if cut < len(second)), len(second)]
        for begin, end in itertools.pairwise(bounds):
            pieces.feed(second[begin:end])
            pieces.snapshot()
        assert whole.urls() == pieces.urls()


def crawled(number: int, gap: int, changes: int, priority: float = 0.5) -> list[world.Op]:
    """A URL's admission and visits at even gaps, with a real change at every `changes`-th."""
    url = URLS[number]
    found = [world.admitted(url, priority=priority)]
    for turn in range(1, 9):
        at = world.START + turn * gap * world.HOUR
        found.append(world.visit(url, at=at, content_fp=1 + turn // changes, simhash=0))
    return found


def shuffled(lists: list[list[world.Op]], seed: int) -> list[world.Op]:
    """The lists run into one another; each keeps its own order."""
    chance = random.Random(seed)
    turns = [at for at, ops in enumerate(lists) for _ in ops]
    chance.shuffle(turns)
    ahead = [iter(ops) for ops in lists]
    return [next(ahead[at]) for at in turns]


@pytest.mark.parametrize("budget", [0, 1e-5])
def test_with_the_level_held_other_urls_change_nothing(tmp_path, budget):
    """With a budget of 0 the price stays: a URL's hours follow from its own visits. Where it moves, they don't."""
    mine = crawled(0, 30, 2, priority=1e-5)
    others = [crawled(number, 7 * number, 1 + number % 3) for number in range(1, len(URLS))]
    found = []
    for seed, rivals in enumerate([[], others, others, others[::-1]]):
        live = LiveWorld(tmp_path / str(seed), budget=budget)
        live.feed(shuffled([mine, *rivals], seed))
        found.append(next(row for row in live.urls() if row["url"] == URLS[0].decode()))
    if budget:
        assert len({row["next_due"] for row in found}) > 1
    else:
        assert found == [found[0]] * len(found)


def test_the_same_events_twice_give_the_same_records(tmp_path):
    events = [op for number in range(len(URLS)) for op in crawled(number, 5 + number, 1 + number % 3)]
    first, second = LiveWorld(tmp_path / "1"), LiveWorld(tmp_path / "2")
    first.feed(events)
    second.feed(events)
    assert first.urls() == second.urls()
    assert all(row["next_due"] > row["last_crawled"] for row in first.urls())


@pytest.mark.parametrize("compacted", [False, True])
def test_fault_gone_is_taken_last_and_never_rescheduled(tmp_path, compacted):
    """A "not found" template, 410 and the fifth failure end a URL, whatever the schedule would have made of it."""
    ends = [
        [{"content_fp": 9, "flags": VisitFlag.SOFT_404}],
        [{"status": 410}],
        [{"status": 404}] * 5,
    ]
    live = LiveWorld(tmp_path)
    for url, facts in zip(URLS, ends, strict=False):
        live.feed([world.admitted(url), world.visit(url, content_fp=7)])
        live.feed([world.visit(url, at=world.START + at * 90_000, **fact) for at, fact in enumerate(facts, 1)])
        # A gone URL that answers, but with nothing that revives it, stays gone.
        live.feed([world.visit(url, at=world.START + 10**6, status=304)])
    live.snapshot(compact=compacted)
    assert [(row["status"], row["next_due"]) for row in live.urls()] == [(Status.GONE, 0)] * len(ends)
    assert live.shard().due(2**32 - 1, 10).num_rows == 0
    plan = plan_schedule(live.store.base, live.store.log, live.store.rules)
    assert plan is not None
    assert plan.level.scheduled == 0, "what is gone is in no schedule"
    live.feed([world.visit(URLS[0], at=world.START + 2 * 10**6, content_fp=8)])
    assert live.shard().due(2**32 - 1, 10).column("url").to_pylist() == [URLS[0].decode()]


@pytest.mark.parametrize("compacted", [False, True])
def test_fault_what_is_rescheduled_comes_due(tmp_path, compacted):
    """With hours by worth every row that has one, in whatever status it left them, is found when it has come."""
    live = LiveWorld(tmp_path)
    live.feed([op for number in range(len(URLS)) for op in crawled(number, 5, 1)])
    live.feed([world.visit(URLS[1], at=world.START + 500 * world.HOUR, status=503)])
    live.feed([world.visit(URLS[2], at=world.START + 500 * world.HOUR, status=410)])
    live.snapshot(compact=compacted)
    rows = {row["url"]: row for row in live.urls()}
    assert {row["status"] for row in rows.values()} == {Status.DUE_RECRAWL, Status.GONE}
    for now in {row["next_due"] + step for row in rows.values() for step in (-1, 0) if row["next_due"]}:
        expected = {url for url, row in rows.items() if row["next_due"] and row["next_due"] <= now}
        assert set(live.shard().due(now, 100).column("url").to_pylist()) == expected
    latest = max(row["next_due"] for row in rows.values())
    assert live.shard().due(latest, 100).num_rows == len(URLS) - 1


def test_a_schedule_can_be_turned_on_and_off_between_runs(tmp_path):
    """The rate is summed over records whoever scheduled them, so the level knows where it stands from the start."""
    flat = world.World(tmp_path)
    flat.feed([op for number in range(len(URLS)) for op in crawled(number, 24, 2)])
    flat.snapshot(compact=True)
    assert {row["status"] for row in flat.urls()} == {Status.CRAWLED}
    assert flat.store.base.meta.scheduled == len(URLS) * (RATE_UNIT // 168)
    flat.parameters = {**DEFAULTS, "reschedule": True, "budget": 0.05}
    flat.restore()
    visited = world.START + 300 * world.HOUR
    flat.feed([world.visit(URLS[0], at=visited, content_fp=99)])
    flat.snapshot()
    row = flat.shard().get(**world.keys_of(URLS[0]))
    assert row is not None
    assert row["status"] == Status.DUE_RECRAWL
    assert row == open_shard(flat.files, 0, world.IDENTITY).get(**world.keys_of(URLS[0]))
    plan = plan_schedule(flat.store.base, flat.store.log, flat.store.rules)
    assert plan is not None
    gap = row["next_due"] - row["last_crawled"]
    assert plan.level.scheduled == (len(URLS) - 1) * (RATE_UNIT // 168) + RATE_UNIT // gap


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reschedule", 1),
        ("reschedule", "yes"),
        ("budget", -1),
        ("budget", math.inf),
        ("budget", math.nan),
        ("budget", "100"),
        ("alpha", 0),
        ("min_rate", 0),
        ("min_rate", 5.0),
        ("max_rate", True),
        ("recency_half_life", -0.5),
        ("host_spread_window", 0),
        ("host_spread_window", 1.5),
        ("min_reprobe_gap", 2**32),
    ],
)
def test_unusable_parameters_are_refused_by_name(tmp_path, name, value):
    with pytest.raises(ValueError, match=name):
        LiveWorld(tmp_path, **{name: value})
