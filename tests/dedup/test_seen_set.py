"""The seen-set against a plain set, with saving and loading in the middle; its filter's size and rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from meguri_common.filters.layer import Layer, key_columns
from meguri_dedup.exact import ExactTable
from meguri_dedup.kernels.exact import settle_keys
from meguri_dedup.kernels.growth import fill_blocks
from meguri_dedup.seen_set import SeenSet

ALL_BITS = (1 << 64) - 1
HALF = st.sampled_from([0, 1, 2, 3, 1 << 63, ALL_BITS]) | st.integers(0, ALL_BITS)
KEYS = st.lists(st.tuples(HALF, HALF), max_size=40)


def columns(keys):
    table = np.array(list(keys), np.uint64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def random_keys(seed, count):
    table = np.random.default_rng(seed).integers(0, ALL_BITS, (count, 2), np.uint64, endpoint=True)
    return table[:, 0].copy(), table[:, 1].copy()


class SeenSetMachine(RuleBasedStateMachine):
    """A crash goes back to what was saved; saves are the unsaved keys alone, on top of the ones before."""

    @initialize(capacity=st.sampled_from([1, 7, 1000]), rate=st.sampled_from([0.5, 0.01]))
    def start(self, capacity, rate):
        self.shape = capacity, rate
        self.real = SeenSet(*self.shape)
        self.model = set()
        self.disk = []

    @rule(keys=KEYS)
    def merge(self, keys):
        expected = []
        for key in keys:
            expected.append(key in self.model)
            self.model.add(key)
        assert self.real.merge(*columns(keys)).tolist() == expected

    @rule(seed=st.integers(0, 50), count=st.integers(0, 3000))
    def merge_many(self, seed, count):
        host, path = random_keys(seed, count)
        keys = list(zip(host.tolist(), path.tolist(), strict=True))
        assert self.real.merge(host, path).tolist() == [key in self.model for key in keys]
        self.model.update(keys)

    @rule(key=st.tuples(HALF, HALF))
    def check_and_insert(self, key):
        assert self.real.check_and_insert(*key) == (key in self.model)
        self.model.add(key)

    @rule(keys=KEYS)
    def contains(self, keys):
        before = self.real.stats()
        assert self.real.contains_batch(*columns(keys)).tolist() == [key in self.model for key in keys]
        for key in keys[:3]:
            assert self.real.contains(*key) == (key in self.model)
            assert self.real.maybe_contains(*key) or key not in self.model
        assert self.real.stats() == before

    @rule()
    def save(self):
        self.disk.append(self.real.unsaved_keys())
        self.real.mark_saved(self.real.unsaved)

    @rule()
    def crash_and_load(self):
        self.real = SeenSet(*self.shape)
        self.model = set()
        for host, path in self.disk:
            self.real.insert_batch(host, path)
            self.model.update(zip(host.tolist(), path.tolist(), strict=True))
        self.real.mark_saved(self.real.unsaved)

    @invariant()
    def same_keys(self):
        host, path = self.real.keys()
        assert len(self.real) == len(self.model) == host.size
        assert set(zip(host.tolist(), path.tolist(), strict=True)) == self.model
        assert self.real.unsaved == len(self.model) - sum(saved[0].size for saved in self.disk)


TestSeenSetMachine = SeenSetMachine.TestCase
TestSeenSetMachine.settings = settings(deadline=None, max_examples=60, stateful_step_count=20)


def test_first_of_repeated_keys_decides():
    seen = SeenSet()
    assert seen.merge(*columns([(0, 0), (5, 0), (0, 0), (5, 0), (0, 5)])).tolist() == [False, False, True, True, False]
    assert seen.merge(*columns([])).tolist() == []
    assert len(seen) == 3


def test_part_of_what_is_unsaved_may_be_saved():
    seen = SeenSet()
    seen.insert_batch(*columns([(i, i) for i in range(700)]))
    seen.mark_saved(600)
    seen.insert_batch(*columns([(i, 0) for i in range(1, 2000)]))
    host, path = seen.unsaved_keys()
    assert list(zip(host.tolist(), path.tolist(), strict=True)) == [
        *((i, i) for i in range(600, 700)),
        *((i, 0) for i in range(1, 2000)),
    ]


@pytest.mark.parametrize(
    "keys",
    [
        [(i, 0) for i in range(20_000)],
        [(0, i) for i in range(20_000)],
        [(i << 44, i << 44) for i in range(20_000)],
        [(i, -i & ALL_BITS) for i in range(20_000)],
    ],
    ids=["hosts", "paths", "high bits only", "sum zero"],
)
def test_keys_in_sequence(keys):
    seen = SeenSet(capacity=100)
    host, path = columns(keys)
    assert not seen.merge(host, path).any()
    assert seen.merge(host, path).all()
    assert not seen.contains_batch(host, path ^ np.uint64(1 << 30)).any()


def test_the_filters_word_is_trusted_where_all_keys_are_in_memory_too():
    seen = SeenSet(100, 0.2, trust_filter=True)
    host, path = random_keys(1, 1500)
    lost = int(seen.merge(host, path).sum())
    assert 0 < lost < 1.2 * 0.2 * 1500
    assert seen.stats()["trusted"] == lost
    assert int(seen.contains_batch(host, path).sum()) == len(seen) == 1500 - lost


@pytest.mark.parametrize("batch", [1, 100, 5000])
def test_state_depends_on_the_keys_alone(batch):
    host, path = random_keys(1, 5000)
    whole, parts = SeenSet(capacity=64), SeenSet(capacity=64)
    whole.insert_batch(host, path)
    for start in range(0, 5000, batch):
        parts.insert_batch(host[start : start + batch], path[start : start + batch])
    assert parts.stats() == whole.stats() | {"batches": -(-5000 // batch)}
    assert np.array_equal(parts.keys(), whole.keys())


@pytest.mark.parametrize("count", [0, 1, 3, 700, 3000])
@pytest.mark.parametrize("zero", [False, True])
def test_a_filter_made_of_a_table_has_the_bits_of_one_that_keys_are_added_to(count, zero):
    host, path = random_keys(8, count)
    if zero:
        host, path = np.append(host, np.uint64(0)), np.append(path, np.uint64(0))
    host, path = key_columns(host, path)
    table = ExactTable()
    table.grow(host.size)
    settle_keys(
        table.table, table.log, table.counts, host, path, np.arange(host.size), np.zeros(host.size, np.bool_), True
    )
    made, added = Layer.sized(3001, 0.01), Layer.sized(3001, 0.01)
    fill_blocks(made.words, made.probes, table.table, table.counts)
    assert added.add(host, path, np.zeros(host.size, np.bool_)) == host.size
    assert np.array_equal(made.words, added.words)
    before = sorted(map(tuple, np.concatenate(list(table.pairs())).tolist()))
    table.grow(4 * len(before) + 4096)
    assert sorted(map(tuple, np.concatenate(list(table.pairs())).tolist())) == before


@pytest.mark.parametrize("rate", [0.05, 0.01, 0.001, 0.0001])
def test_filter_keeps_rate_and_size_while_it_grows(rate):
    """From a million keys on at most 1.4 times the bits of a Bloom filter made for just these keys."""
    seen = SeenSet(capacity=65_536, fp_rate=rate)
    host, path = random_keys(2, 1_500_000)
    ideal = -math.log(rate) / math.log(2) ** 2
    checked = 0
    for start in range(0, host.size, 20_000):
        seen.insert_batch(host[start : start + 20_000], path[start : start + 20_000])
        if len(seen) >= 1_000_000:
            checked += 1
            assert seen.bits_per_url <= 1.4 * ideal
    assert checked > 20
    stats = seen.stats()
    assert stats["keys"] == stats["misses"] == host.size
    most = 1.1 * rate * host.size
    assert stats["measured_fpr"] * host.size <= most + 3 * most**0.5
    assert stats["base_probes"] == stats["measured_fpr"] * host.size
    assert stats["table_bytes"] <= 56 * host.size
    seen.mark_saved(seen.unsaved)
    assert seen.stats()["table_bytes"] <= 40 * host.size
    assert seen.merge(host, path).all()
    assert seen.stats()["hits"] == host.size


@pytest.mark.parametrize(("capacity", "rate"), [(0, 0.01), (10, 0.0), (10, 1.0), (10, -0.1)])
def test_sizes_that_mean_nothing_are_refused(capacity, rate):
    with pytest.raises(ValueError, match=r"must be at least 1|lies between 0 and 1"):
        SeenSet(capacity, rate)
