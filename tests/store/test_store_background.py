"""Compaction beside the intake: records are the twin's whenever a job ends, fails, is killed or comes too late."""

from __future__ import annotations

import errno
import tempfile
import threading
import time
from pathlib import Path

import pytest
import store_world as world
from hypothesis import event, given, settings
from hypothesis import strategies as st

from meguri_common.errors import CorruptGeneration
from meguri_common.records import UpdateField
from meguri_common.runtime.simulated import SimulatedFiles
from meguri_store.background import Abandoned, Compactor, Job, machine_lock
from meguri_store.delta_file import is_delta
from meguri_store.queries import open_shard
from meguri_store.service import CompactionRules
from meguri_store.verify import verify_generation

PAGES = [world.url_of(f"site{number % 5}.org", f"p/{number}") for number in range(30)]
EAGER = CompactionRules(rows=1, share=0.0, group_rows=4)
LARGE_GROUPS = CompactionRules(rows=1, share=0.0, group_rows=64)


@pytest.fixture(scope="module", autouse=True)
def _patient_intake():
    """Intake that waits for no compaction, however much comes in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("meguri_store.service._PATIENCE", 1 << 40)
        yield


class Idle(Job):
    """A job that is done at the latest when somebody waits for it."""

    def wait(self, timeout=None):
        if not self.ended():
            self.run()
        return super().wait(timeout)


class Waiting:
    """Jobs that are done when the test says so."""

    def __init__(self):
        self.jobs = []

    def submit(self, work):
        self.jobs.append(Idle(work))
        return self.jobs[-1]

    def work(self):
        while self.jobs:
            self.jobs.pop(0).run()


numbers = st.integers(0, len(PAGES) - 1)
ops = st.lists(
    st.builds(lambda number, depth: world.admitted(PAGES[number], depth=depth), numbers, st.integers(0, 5))
    | st.builds(
        lambda number, hour, status: world.visit(
            PAGES[number], at=world.START + 3600 * hour, status=status, content_fp=hour + 1, latency=9
        ),
        numbers,
        st.integers(0, 50),
        st.sampled_from([200, 404, 410]),
    )
    | st.builds(
        lambda number, priority: world.update(PAGES[number], UpdateField.PRIORITY, priority=priority),
        numbers,
        st.sampled_from([0.25, 2.0]),
    ),
    max_size=12,
)
points = st.sampled_from(["nothing", "save", "save", "quick", "work", "compact", "kill", "look"])


def same(live: world.World, twin: world.PlainStore) -> None:
    assert live.urls() == twin.urls()
    assert live.hosts() == twin.hosts()


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(ops, points), max_size=12))
def test_records_equal_the_twins_whenever_a_job_ends(steps):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("meguri_store.delta_file.FILES_A_LEVEL", 3)
        jobs = Waiting()
        live, twin = world.World(Path(folder), rules=EAGER, jobs=jobs), world.PlainStore()
        since_snapshot: list[world.Op] = []
        for batch, point in steps:
            live.feed(batch)
            twin.apply(batch)
            since_snapshot += batch
            if point == "kill":
                live.restore()
                live.feed(since_snapshot)
            elif point == "look":
                same(live, twin)
            elif point == "work":
                jobs.work()
            elif point == "compact":
                live.snapshot(compact=True)
                since_snapshot = []
                assert not any(map(is_delta, live.last.files))
            elif point != "nothing":
                base = live.store.base
                live.snapshot(quick=point == "quick")
                since_snapshot = []
                event(f"adopted: {live.store.base is not base}")
        same(live, twin)
        live.snapshot()
        jobs.work()
        live.snapshot()
        same(live, twin)
        live.restore()
        same(live, twin)
        shard = open_shard(live.files, 0, world.IDENTITY)
        assert [row for chunk in shard.records() for row in chunk.to_pylist()] == twin.urls()
        if live.store.base is not None:
            verify_generation(live.files, live.store.base.folder, world.IDENTITY)


def parts(count: int) -> list[list[world.Op]]:
    found = []
    for part in range(count):
        mine = PAGES[part * 5 : part * 5 + 10]
        found.append([world.admitted(url) for url in mine] + [world.visit(url, content_fp=part + 1) for url in mine])
    return found


def test_a_restart_reads_only_what_came_after_the_generation(tmp_path):
    jobs = Waiting()
    live, twin = world.World(tmp_path, rules=EAGER, jobs=jobs), world.PlainStore()
    for number, part in enumerate(parts(4)):
        live.feed(part)
        twin.apply(part)
        live.snapshot()
        if number == 1:
            jobs.work()  # of what the first snapshot held
    assert live.store.base is not None
    assert live.store.base.meta.inserted == 10
    assert live.store.log.count == 60
    deltas = [reference for reference in live.last.files if is_delta(reference)]
    assert sum(reference.rows for reference in deltas) == 60
    live.restore()
    assert live.store.log.count == 60
    same(live, twin)


def test_stopping_waits_for_no_compaction(tmp_path):
    jobs = Waiting()
    live = world.World(tmp_path, rules=EAGER, jobs=jobs)
    live.feed(parts(1)[0])
    live.snapshot()
    assert len(jobs.jobs) == 1
    live.feed(parts(2)[1])
    live.snapshot(quick=True)
    assert live.store.base is None
    jobs.work()
    assert live.store.wants_compaction()
    live.snapshot(quick=True)
    assert live.store.base is not None


def test_intake_that_is_far_ahead_waits_for_the_compaction(tmp_path, monkeypatch):
    monkeypatch.setattr("meguri_store.service._PATIENCE", 2)
    jobs = Waiting()
    rules = CompactionRules(rows=20, share=0.5, group_rows=4)
    live, twin = world.World(tmp_path, rules=rules, jobs=jobs), world.PlainStore()
    for number, part in enumerate(parts(5)):
        live.feed(part)
        twin.apply(part)
        assert live.store.wants_compaction() == (number in (0, 2, 4))
        live.snapshot()
        assert (live.store.base is None) == (number < 2)
    assert live.store.log.count == 40
    same(live, twin)


class Power(BaseException):
    """The machine stops."""


class Failing:
    """Raises at the N-th operation on files that a given thing does."""

    def __init__(self, make, spared=()):
        self.make = make
        self.spared = spared
        self.left = None
        self.raised = 0

    def __call__(self, operation):
        if self.left is None or operation in self.spared:
            return
        if self.left == 0:
            self.raised += 1
            raise self.make(operation)
        self.left -= 1


def leftovers(live: world.World) -> list[str]:
    live.now += 1000
    kept = live.snapshots.sweep()
    named = {reference.path.split("/")[2] for snapshot in kept for reference in snapshot.files}
    return [name for name in live.files.list("store/shard-00000") if name not in named | {"current"}]


@pytest.mark.parametrize(("step", "power", "every"), [("job", True, 1), ("adoption", True, 1), ("adoption", False, 3)])
def test_killed_at_every_step(step, power, every):
    """Whatever operation on files the process dies at: the next one restores the twin's records, and clears away.

    Where power stays on, what was written is there, synced or not, which is the milder case: every third step will do.
    """
    attempts = 0
    for limit in range(0, 300, every):
        failing = Failing(lambda _operation: Power())
        clock = [0.0]
        files = SimulatedFiles(lambda clock=clock: clock[0], failing)
        jobs = Waiting()
        live, twin = world.World(Path(), rules=LARGE_GROUPS, files=files, jobs=jobs), world.PlainStore()
        first, second, third = parts(3)
        live.feed(first)
        live.snapshot()
        live.feed(second)
        if step == "adoption":
            jobs.work()
        failing.left = limit
        try:
            if step == "job":
                job = jobs.jobs[0]
                jobs.work()
                job.result()
            live.snapshot()
        except Power:
            attempts += 1
        else:
            break
        failing.left = None
        if power:
            files.power_failure()
        live.restore()
        pending = second if live.offset == 2 else []
        assert live.offset in (2, 4)
        live.feed(pending)
        live.feed(third)
        for part in (first, second, third):
            twin.apply(part)
        same(live, twin)
        jobs.jobs.clear()
        live.snapshot()
        jobs.work()
        live.snapshot()
        same(live, twin)
        assert live.store.base is not None
        assert live.store.log.count == 0
        clock[0] = live.now = 10_000.0
        assert leftovers(live) == []
    assert attempts > 10


def test_a_full_disk_leaves_the_delta_and_the_job_is_tried_again(tmp_path):
    attempts = 0
    for limit in range(300):
        failing = Failing(lambda _operation: OSError(errno.ENOSPC, "full"), ("file.read", "file.list", "file.remove"))
        files = SimulatedFiles(lambda: 0.0, failing)
        jobs = Waiting()
        live, twin = world.World(tmp_path, rules=LARGE_GROUPS, files=files, jobs=jobs), world.PlainStore()
        first, second, third = parts(3)
        live.feed(first)
        live.snapshot()
        failing.left = limit
        jobs.work()
        failing.left = None
        if not failing.raised:
            break
        attempts += 1
        live.feed(second)
        live.snapshot()
        assert live.store.base is None
        live.feed(third)
        live.snapshot()
        jobs.work()
        live.snapshot()
        assert live.store.base is not None
        for part in (first, second, third):
            twin.apply(part)
        same(live, twin)
        live.now = 10_000.0
        assert leftovers(live) == []
    assert attempts > 10


def test_a_base_that_cant_be_read_is_told(tmp_path):
    jobs = Waiting()
    live = world.World(tmp_path, rules=EAGER, jobs=jobs)
    live.feed(parts(1)[0])
    live.snapshot(compact=True)
    live.feed(parts(2)[1])
    live.snapshot()
    path = tmp_path / live.store.base.folder / "urls.parquet"
    path.write_bytes(path.read_bytes()[:-8])
    jobs.work()
    with pytest.raises(CorruptGeneration, match=r"urls\.parquet"):
        live.snapshot()


def test_a_job_of_a_store_that_is_gone_changes_nothing(tmp_path):
    jobs = Waiting()
    live, twin = world.World(tmp_path, rules=EAGER, jobs=jobs), world.PlainStore()
    first, second = parts(2)
    live.feed(first)
    live.snapshot()
    (late,) = jobs.jobs
    jobs.jobs.clear()
    live.restore()
    live.feed(second)
    live.snapshot()
    jobs.work()
    live.snapshot()
    late.run()
    assert late.result().generation.folder != live.store.base.folder
    for part in (first, second):
        twin.apply(part)
    same(live, twin)
    live.now = time.time() + 1000
    assert leftovers(live) == []
    live.restore()
    same(live, twin)


def test_an_old_delta_is_compacted_though_small(tmp_path):
    rules = CompactionRules(rows=1 << 30, age=3600.0, group_rows=4)
    jobs = Waiting()
    live = world.World(tmp_path, rules=rules, jobs=jobs)
    live.feed(parts(1)[0])
    live.snapshot()
    assert not live.store.wants_compaction()
    live.now = 3601.0
    assert live.store.wants_compaction()
    live.snapshot()
    assert len(jobs.jobs) == 1


def test_intake_goes_on_while_a_thread_compacts_and_a_stop_gives_it_up(tmp_path, monkeypatch):
    compactor = Compactor()
    live, twin = world.World(tmp_path, rules=EAGER, jobs=compactor), world.PlainStore()
    for part in parts(5):
        live.feed(part)
        twin.apply(part)
        live.snapshot()
    deadline = time.monotonic() + 60
    while live.store.log.count and time.monotonic() < deadline:
        if live.store.wants_compaction():
            live.snapshot()
        time.sleep(0.01)
    assert live.store.log.count == 0
    same(live, twin)

    reached, let = threading.Event(), threading.Event()

    def slowly(given_up, pieces):
        reached.set()
        let.wait(60)
        if given_up():
            raise Abandoned("given up")
        yield from pieces

    monkeypatch.setattr("meguri_store.compact._unless", slowly)
    before = set(live.files.list("store/shard-00000"))
    live.feed(parts(1)[0])
    live.snapshot()
    assert reached.wait(60)
    threading.Timer(0.05, let.set).start()
    compactor.close()
    assert not [name for name in live.files.list("store/shard-00000") if name.startswith(".new-g")]
    assert {name for name in live.files.list("store/shard-00000") if name.startswith("g")} <= before
    live.restore()
    twin.apply(parts(1)[0])
    same(live, twin)


def test_one_compaction_at_a_time_on_a_machine():
    running, most, lock = 0, 0, threading.Lock()

    def work(_given_up):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return True

    jobs = [compactor.submit(work) for compactor in (Compactor(), Compactor()) for _ in range(3)]
    assert all(job.wait(60) and job.result() for job in jobs)
    assert most == 1
    with machine_lock(lambda: True), pytest.raises(Abandoned), machine_lock(lambda: False):
        pass
