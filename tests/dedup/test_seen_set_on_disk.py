"""The seen-set with runs on disk against a plain set, with crashes, power failures and full disks at every I/O."""

from __future__ import annotations

import errno
import itertools

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meguri_common.errors import RestoreRefused
from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.simulated import SimulatedFiles
from meguri_common.runtime.snapshots import SnapshotStore
from meguri_dedup import budget
from meguri_dedup.run_file import RunFolder, local_folder, verify_run
from meguri_dedup.saving import load_seen, recover, save_seen
from meguri_dedup.seen_set import SeenSet

ALL_BITS = (1 << 64) - 1
HALF = st.sampled_from([0, 1, 2, 1 << 63, ALL_BITS])
KEYS = st.lists(st.tuples(HALF, HALF | st.integers(0, 40)), max_size=60)
IDENTITY = CampaignIdentity(campaign="test", partitions=1, group_by="host", policy="", suffix_list="", url_parser="")
CAMPAIGN = IDENTITY.digest()
GRACE = 3.0


@pytest.fixture
def tiny(monkeypatch):
    """Sets with a bound of 1 byte keep a dozen keys in memory."""
    monkeypatch.setattr(budget, "_LEAST", 1000)
    monkeypatch.setattr(budget, "_LEAST_SLOTS", 16)


def columns(keys):
    table = np.array(list(keys), np.uint64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def random_keys(seed, count):
    table = np.random.default_rng(seed).integers(0, ALL_BITS, (count, 2), np.uint64, endpoint=True)
    return table[:, 0].copy(), table[:, 1].copy()


def pairs(host, path):
    return list(zip(host.tolist(), path.tolist(), strict=True))


class Crash(BaseException):
    """The process ends here."""


class TornFiles(SimulatedFiles):
    """A process that ends in a write leaves half of it; a power failure leaves some of what nobody had synced."""

    def create(self, path):
        handle = super().create(path)
        write = handle.write

        def torn(chunk):
            content = memoryview(chunk).cast("B")
            try:
                return write(content)
            except Crash:
                handle.inode.written += content[: content.nbytes // 2]
                raise

        handle.write = torn
        return handle

    def power_failure(self):
        for number, (path, inode) in enumerate(sorted(self._entries.items())):
            inode.synced = bytes(inode.written[: (len(inode.synced) + len(inode.written)) // 2])
            if number % 2:
                self._synced_entries[path] = inode
        super().power_failure()


class World:
    """Files with trouble at a chosen call, and snapshots upon them."""

    def __init__(self, files=SimulatedFiles):
        self.clock = 100.0
        self.files = files(lambda: self.clock, self._before)
        names = itertools.count()
        self.token = lambda: f"{next(names):04x}"
        self.store = SnapshotStore(self.files, "dedup", 0, token=self.token, now=lambda: self.clock, grace=GRACE)
        self.trouble = None
        self.countdown = 0

    def plan(self, trouble, after):
        self.trouble, self.countdown = trouble, after

    def _before(self, operation):
        if self.trouble is None:
            return
        self.countdown -= 1
        if self.countdown < 0:
            raise self.trouble if self.trouble is Crash else OSError(errno.ENOSPC, "No space left on device", operation)

    def seen_set(self, memory_bytes, rate=0.05):
        folder = RunFolder(self.files, self.store.folder, CAMPAIGN, 0, self.token)
        return SeenSet(3, rate, 2, folder=folder, memory_bytes=memory_bytes)

    def snapshot(self, seen, offset, previous, *, quick):
        writer = self.store.writer(offset, previous, quick=quick)
        unsaved = save_seen(seen, writer)
        taken = self.store.commit(writer, topic_id="t", identity=IDENTITY, parameters={}, logic_version=1)
        seen.mark_saved(unsaved)
        seen.runs_saved()
        self.store.sweep()
        return taken


TROUBLE = st.sampled_from([None, None, "crash", "power", "full"])


class DiskMachine(RuleBasedStateMachine):
    """An inbox of batches; a crash goes back to the last snapshot and reads the inbox again, as far as confirmed."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(budget, "_LEAST", 1000)
        self.patch.setattr(budget, "_LEAST_SLOTS", 16)

    def teardown(self):
        self.patch.undo()

    @initialize(memory_bytes=st.sampled_from([1, 1, 20_000]))
    def start(self, memory_bytes):
        self.world = World()
        self.memory_bytes = memory_bytes
        self.real = self.world.seen_set(memory_bytes)
        self.model = set()
        self.inbox = []
        self.taken = None
        """The snapshot that the last start began from, or the newest one since."""
        self.kept = None
        """The newest one whose folder was synced: of one that a crash cut off behind its rename nobody knows that."""

    def _restart(self, *, power=False):
        self.world.clock += 1
        whole = self.world.store.whole()
        least = self.kept if power else self.taken
        if least is not None:
            assert whole[0].offset >= least.offset
        self.taken = whole[0] if whole else None
        if power:
            self.kept = self.taken
        self.real = self.world.seen_set(self.memory_bytes)
        self.real.may_write = False
        if self.taken:
            load_seen(self.real, self.world.store.reader(self.taken))
        before = set()
        for keys in self.inbox[: self.taken.offset if self.taken else 0]:
            before.update(keys)
        assert set(pairs(*self.real.keys())) == before
        for keys in self.inbox[self.taken.offset if self.taken else 0 :]:
            assert self.real.merge(*columns(keys)).tolist() == self._verdicts(keys, before)
        self.real.may_write = True

    @staticmethod
    def _verdicts(keys, known):
        out = []
        for key in keys:
            out.append(key in known)
            known.add(key)
        return out

    def _attempt(self, work, trouble, after):
        """Whether it was done; after a crash the set is that of a new process."""
        self.world.plan({"full": OSError, None: None}.get(trouble, Crash), after)
        try:
            work()
        except Crash:
            self.world.plan(None, 0)
            if trouble == "power":
                self.world.files.power_failure()
            self._restart(power=trouble == "power")
            return False
        except OSError as problem:
            assert problem.errno == errno.ENOSPC  # noqa: PT017 - it is met again and again, and may not come at all
            self.world.plan(None, 0)
            return False
        self.world.plan(None, 0)
        return True

    def _merge(self, keys, trouble, after):
        verdicts = []
        if self._attempt(lambda: verdicts.append(self.real.merge(*columns(keys)).tolist()), trouble, after):
            self.inbox.append(keys)
            assert verdicts == [self._verdicts(keys, self.model)]
        else:
            assert len(self.real) == len(self.model)
            assert self.real.contains_batch(*columns(keys)).tolist() == [key in self.model for key in keys]

    @rule(keys=KEYS, trouble=TROUBLE, after=st.integers(0, 25))
    def merge(self, keys, trouble, after):
        self._merge(keys, trouble, after)

    @rule(seed=st.integers(0, 30), count=st.integers(0, 300), trouble=TROUBLE, after=st.integers(0, 120))
    def merge_many(self, seed, count, trouble, after):
        self._merge(pairs(*random_keys(seed, count)), trouble, after)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), repeats=st.integers(1, 3))
    def merge_known(self, data, repeats):
        known = sorted(self.model)
        some = data.draw(st.lists(st.sampled_from(known), max_size=30))
        self._merge(some * repeats, None, 0)

    @rule(quick=st.booleans(), trouble=TROUBLE, after=st.integers(0, 15), wait=st.sampled_from([0, 0, 10]))
    def save(self, quick, trouble, after, wait):
        self.world.clock += wait

        def work():
            self._snapshot(quick=quick)

        self._attempt(work, trouble, after)

    @rule(power=st.booleans())
    def die(self, power):
        if power:
            self.world.files.power_failure()
        self._restart(power=power)

    def _snapshot(self, *, quick):
        self.taken = self.kept = self.world.snapshot(self.real, len(self.inbox), self.taken, quick=quick)

    @rule(memory_bytes=st.sampled_from([0, 1, 20_000]))
    def change_the_bound(self, memory_bytes):
        """As parameters change: from a snapshot at the last offset, taken anew under the new ones."""
        self._snapshot(quick=True)
        self.memory_bytes = memory_bytes
        self._restart()
        self._snapshot(quick=True)

    @rule(keys=KEYS)
    def contains(self, keys):
        before = self.real.stats()
        assert self.real.contains_batch(*columns(keys)).tolist() == [key in self.model for key in keys]
        assert all(self.real.maybe_contains(*key) for key in keys if key in self.model)
        assert self.real.stats() == before

    @rule()
    def lose_unnamed_files(self):
        """A paused instance wakes up and sweeps what no snapshot names, runs in use among them."""
        self.world.clock += 2 * GRACE
        self.world.store.sweep()

    @invariant()
    def same_keys(self):
        keys = pairs(*self.real.keys())
        assert len(self.real) == len(self.model) == len(keys)
        assert set(keys) == self.model
        if self.memory_bytes:
            assert self.real.recent <= max(len(keys), 1)
        sizes = [len(run) for run in self.real.drum.runs]
        assert sum(sizes) + self.real.recent == len(self.model)


TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(deadline=None, max_examples=80, stateful_step_count=25)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("files", [SimulatedFiles, TornFiles])
@pytest.mark.usefixtures("tiny")
def test_a_crash_at_each_call_of_a_batch_loses_nothing(power, files):
    """One script of batches and snapshots, ended at its first call, its second, ... until it is through."""
    batches = [pairs(*random_keys(seed, 20)) for seed in range(6)] + [pairs(*random_keys(3, 20))]
    for at in itertools.count():
        world, done = World(files), 0
        seen, taken = world.seen_set(1), None
        world.plan(Crash, at)
        try:
            for keys in batches:
                seen.merge(*columns(keys))
                done += 1
                if done in {3, 5}:
                    taken = world.snapshot(seen, done, taken, quick=False)
        except Crash:
            world.plan(None, 0)
        else:
            break
        if power:
            world.files.power_failure()
        whole = world.store.whole()
        start = whole[0].offset if whole else 0
        assert start in ({3, 5} if done > 3 else {0, 3})
        again = world.seen_set(1)
        if whole:
            load_seen(again, world.store.reader(whole[0]))
        known = {key for keys in batches[:start] for key in keys}
        assert set(pairs(*again.keys())) == known
        for keys in batches[start:]:
            assert again.merge(*columns(keys)).tolist() == [key in known for key in keys]
            known.update(keys)
        assert set(pairs(*again.keys())) == known
    assert at > 40
    assert len(seen.drum.runs) >= 2


@pytest.mark.usefixtures("tiny")
def test_a_full_disk_fails_the_batch_as_a_whole():
    world = World()
    seen = world.seen_set(1)
    host, path = random_keys(1, 100)
    seen.insert_batch(host, path)
    more = random_keys(2, 200)  # far more than memory takes: some of it is on disk before the disk is full
    again = tuple(np.concatenate([column[:100], column]) for column in more)  # and found there, and kept in the cache
    for after in itertools.count():
        world.plan(OSError, after)
        try:
            seen.merge(*again)
        except OSError as problem:
            assert problem.errno == errno.ENOSPC  # noqa: PT017 - the last round goes through
        else:
            break
        world.plan(None, 0)
        assert len(seen) == 100
        assert not seen.contains_batch(*more).any()  # before the cache has others
        assert seen.contains_batch(host, path).all()
        assert sum(seen.maybe_contains(*key) for key in pairs(*more)) <= 30, "the filter has them still"
        assert seen.unsaved + seen.spilled_unsaved == 100
    assert after > 20
    world.plan(None, 0)
    assert len(seen) == 300
    assert seen.merge(*more).all()
    named = {run.reference.path.rpartition("/")[2] for run in seen.drum.runs}
    assert named <= set(world.files.list(world.store.folder))


@pytest.mark.usefixtures("tiny")
def test_memory_goes_to_disk_and_files_stay_few(tmp_path):
    seen = SeenSet(100, 0.01, folder=local_folder(tmp_path), memory_bytes=1)
    host, path = random_keys(1, 4000)
    for start in range(0, host.size, 500):
        assert not seen.merge(host[start : start + 500], path[start : start + 500]).any()
    runs = [len(run) for run in seen.drum.runs]
    assert 0 < seen.recent < 30
    assert sum(runs) + seen.recent == 4000
    assert all(size > sum(runs[at + 1 :]) for at, size in enumerate(runs))
    # Merged files go at once, as long as no snapshot ever named them.
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == sorted(
        run.reference.path.rpartition("/")[2] for run in seen.drum.runs
    )
    assert seen.merge(host, path).all()
    stats = seen.stats()
    assert stats["keys"] == 4000
    assert stats["keys_on_disk"] == sum(runs)
    assert stats["hits"] == stats["misses"] == 4000
    assert 0 < stats["run_probes"] <= stats["base_probes"]
    assert stats["merge_bytes_written"] > stats["merge_bytes_read"] > 16 * 4000
    assert stats["measured_fpr"] <= 0.011 + 3 * (0.01 / 4000) ** 0.5


@pytest.mark.parametrize("rate", [0.05, 0.01, 0.001])
def test_the_filter_keeps_its_rate_while_keys_go_to_disk(tmp_path, rate):
    """From empty to thirty times the first capacity; the memory stays within the bound."""
    seen = SeenSet(2000, rate, folder=local_folder(tmp_path), memory_bytes=1)
    host, path = random_keys(1, 60_000)
    fresh = random_keys(2, 40_000)
    for start in range(0, host.size, 6000):
        seen.insert_batch(host[start : start + 6000], path[start : start + 6000])
        known = slice(0, start + 6000)
        assert seen.contains_batch(host[known], path[known]).all()
        wrong = sum(seen.maybe_contains(*key) for key in pairs(fresh[0][:300], fresh[1][:300]))
        assert wrong <= 1.1 * rate * 300 + 5 * (rate * 300) ** 0.5 + 2
    before = seen.stats()
    assert before["runs"] >= 2
    assert before["memory_bytes"] - before["filter_bits"] / 8 <= (512 << 10) + 16 * before["keys"] / 64
    assert not seen.merge(*fresh).any()
    stats = seen.stats()
    false_hits = stats["measured_fpr"] * stats["misses"] - before["measured_fpr"] * before["misses"]
    most = 1.1 * rate * 40_000
    assert false_hits <= most + 4 * most**0.5


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("keys", [[(5, i) for i in range(900)], [(i, 7) for i in range(900)], [(0, 0)] * 900])
def test_key_sets_that_broke_others(tmp_path, keys):
    seen = SeenSet(1, 0.01, 1, folder=local_folder(tmp_path), memory_bytes=1)
    host, path = columns(keys)
    known = set()
    expected = []
    for key in keys:
        expected.append(key in known)
        known.add(key)
    assert seen.merge(host, path).tolist() == expected
    assert seen.merge(host, path).all()
    assert len(seen) == len(known)
    assert not seen.contains_batch(host, path ^ np.uint64(1 << 40)).any()


@pytest.mark.usefixtures("tiny")
def test_of_equal_keys_that_the_filter_takes_for_known_the_first_is_new(tmp_path):
    seen = SeenSet(10, 0.5, folder=local_folder(tmp_path), memory_bytes=1)
    seen.insert_batch(*random_keys(1, 300))
    assert seen.drum.runs
    more = random_keys(2, 400)
    twice = tuple(np.concatenate([half, half[::-1]]) for half in more)
    false_hits = sum(seen.maybe_contains(*key) for key in pairs(*more))
    assert false_hits > 20
    assert seen.merge(*twice).tolist() == [False] * 400 + [True] * 400
    assert len(seen) == len(set(pairs(*seen.keys()))) == 700


@pytest.mark.usefixtures("tiny")
def test_single_keys(tmp_path):
    seen = SeenSet(10, 0.5, folder=local_folder(tmp_path), memory_bytes=1)
    keys = pairs(*random_keys(4, 150))
    assert [seen.check_and_insert(*key) for key in keys] == [False] * 150
    assert [seen.check_and_insert(*key) for key in keys] == [True] * 150
    seen.insert(1, 1)
    seen.insert(1, 1)
    assert len(seen) == 151
    assert seen.contains(1, 1)
    assert not seen.contains(1, 2)
    assert seen.drum.runs


@pytest.mark.usefixtures("tiny")
def test_a_run_that_was_swept_is_written_again_for_the_snapshot():
    world = World()
    seen = world.seen_set(1)
    host, path = random_keys(1, 200)
    seen.insert_batch(host, path)
    for run in seen.drum.runs:
        world.files.remove(run.reference.path)
    taken = world.snapshot(seen, 1, None, quick=False)
    again = world.seen_set(1)
    load_seen(again, world.store.reader(taken))
    assert again.contains_batch(host, path).all()
    assert len(again) == 200


@pytest.mark.usefixtures("tiny")
def test_files_that_a_snapshot_named_are_left_to_the_sweep():
    world = World()
    seen = world.seen_set(1)
    seen.insert_batch(*random_keys(1, 200))
    first = world.snapshot(seen, 1, None, quick=False)
    seen.insert_batch(*random_keys(2, 500))
    assert all(world.files.size(reference.path) == reference.size for reference in first.files)
    taken = first
    for offset in (2, 3):
        seen.insert_batch(*random_keys(offset + 10, 5))
        taken = world.snapshot(seen, offset, taken, quick=False)
    world.clock += 2 * GRACE
    world.store.sweep()
    assert not set(world.files.list(world.store.folder)) & {
        reference.path.rpartition("/")[2] for reference in set(first.files) - set(taken.files)
    }
    for reference in taken.files:
        if reference.role == "run":
            verify_run(seen.drum.folder, reference)


def test_a_set_that_only_looks_writes_nothing(tmp_path, tiny):  # noqa: ARG001 - a small table
    seen = SeenSet(10, 0.01, folder=local_folder(tmp_path), memory_bytes=1)
    seen.may_write = False
    seen.insert_batch(*random_keys(1, 1500))
    assert not list(tmp_path.iterdir())
    assert seen.recent == 1500
    seen.may_write = True
    seen.insert_batch(*random_keys(2, 5))
    assert seen.recent == 5
    assert len(seen) == 1505


def test_the_filters_word_is_counted_where_it_is_trusted(tmp_path, tiny):  # noqa: ARG001 - a small table
    rate = 0.2
    exact = SeenSet(100, rate)
    trusting = SeenSet(100, rate, folder=local_folder(tmp_path), memory_bytes=1, trust_filter=True)
    host, path = random_keys(1, 1500)
    assert not exact.merge(host, path).any()
    lost = int(trusting.merge(host, path).sum())
    assert 0 < lost < 1.2 * rate * 1500
    assert len(trusting) == 1500 - lost
    stats = trusting.stats()
    assert stats["trusted"] == stats["hits"] == lost
    assert stats["base_probes"] == stats["run_probes"] == 0
    # Readers and recovery are exact all the same.
    assert int(trusting.contains_batch(host, path).sum()) == 1500 - lost
    trusting.insert_batch(host, path)
    assert len(trusting) == 1500
    assert trusting.contains_batch(host, path).all()


def test_recovery_from_a_key_column(tmp_path, tiny):  # noqa: ARG001 - a small table
    host, path = random_keys(1, 3000)
    chunks = [(host[at : at + 700], path[at : at + 700]) for at in range(0, 3000, 700)]
    seen = SeenSet(100, 0.01, folder=local_folder(tmp_path / "a"), memory_bytes=1)
    recover(seen, chunks, 3000)
    assert seen.contains_batch(host, path).all()
    short = SeenSet(100, 0.01, folder=local_folder(tmp_path / "b"), memory_bytes=1)
    with pytest.raises(RestoreRefused, match=r"3001 rows and has 3000 distinct keys"):
        recover(short, chunks, 3001)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"buckets": 0}, "at least 1 bucket"),
        ({"memory_bytes": -1}, "not -1"),
        ({"memory_bytes": 10}, "needs a folder"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        SeenSet(10, 0.01, **options)
