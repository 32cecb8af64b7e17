"""The Bloom filter that grows: one-sided answers, rates, blobs, and the kernels' plain twin."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.errors import CorruptFilter
from meguri_common.filters.bloom import Filter
from meguri_common.filters.layer import Layer
from meguri_common.filters.resident import unmarshal_filter
from meguri_common.filters.sizing import blocked_rate, blocks_for, expected_bits, shape_for

RATES = (0.05, 0.01, 0.001, 0.0001)
ALL_BITS = (1 << 64) - 1
KEYS = st.lists(st.tuples(st.integers(0, ALL_BITS), st.integers(0, ALL_BITS)), max_size=60)


def columns(keys):
    table = np.array(list(keys), np.uint64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


def random_keys(seed, count):
    generator = np.random.default_rng(seed)
    table = generator.integers(0, ALL_BITS, (count, 2), np.uint64, endpoint=True)
    return table[:, 0].copy(), table[:, 1].copy()


def twin_mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & ALL_BITS
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & ALL_BITS
    return z ^ (z >> 31)


def twin_positions(host, path, blocks, probes):
    """Bits of the whole filter that a key sets, in plain Python."""
    golden = 0x9E3779B97F4A7C15
    hashed = twin_mix((path + twin_mix((host + golden) & ALL_BITS)) & ALL_BITS)
    block = hashed * blocks >> 64
    for draw in range(probes):
        number = twin_mix((hashed + golden * (draw // 6 + 1)) & ALL_BITS) >> 9 * (draw % 6)
        yield block * 512 + (number & 7) * 64 + (number >> 3 & 63)


@pytest.mark.parametrize("rate", [0.3, *RATES])
def test_layer_sets_the_bits_that_the_plain_twin_sets(rate):
    host, path = random_keys(1, 300)
    host[:4], path[:4] = [0, 0, ALL_BITS, ALL_BITS], [0, ALL_BITS, 0, ALL_BITS]
    added = Layer.sized(300, rate)
    found = np.zeros(300, np.bool_)
    assert added.add(host, path, found) == 300

    bits = set()
    for i in range(300):
        mine = set(twin_positions(int(host[i]), int(path[i]), added.blocks, added.probes))
        assert bool(found[i]) == (mine <= bits)
        bits |= mine
    expected = np.zeros(added.bits, np.uint8)
    expected[sorted(bits)] = 1
    assert np.array_equal(np.unpackbits(added.words.view(np.uint8), bitorder="little"), expected)
    assert added.counts.tolist() == [300, len(bits)]


@settings(deadline=None)  # the first call compiles
@given(KEYS, st.lists(st.integers(1, 7), max_size=30), st.sampled_from([1, 3, 50]))
def test_no_key_is_reported_absent_in_whatever_batches(keys, sizes, capacity):
    bloom = Filter(capacity, 0.01)
    host, path = columns(keys)
    bounds = [0, *(min(end, len(keys)) for end in itertools.accumulate(sizes)), len(keys)]
    for start, end in itertools.pairwise(bounds):
        bloom.add_batch(host[start:end], path[start:end])
        assert bloom.maybe_contains_batch(host[:end], path[:end]).all()
    assert unmarshal_filter(bloom.marshal()).maybe_contains_batch(host, path).all()
    assert all(bloom.maybe_contains(*key) for key in keys)


def test_check_and_add_answers_for_each_turn():
    bloom = Filter(10, 0.001)
    keys = [(1, 1), (2, 2), (1, 1), (0, 0), (0, 0)]
    assert bloom.check_and_add_batch(*columns(keys)).tolist() == [False, False, True, False, True]
    assert bloom.check_and_add_batch(*columns(keys)).all()
    assert bloom.check_and_add_batch(*columns([])).tolist() == []


@pytest.mark.parametrize("rate", RATES)
def test_rate_holds_while_it_grows(rate):
    first = 16_384
    fresh = random_keys(99, 400_000)
    bloom = Filter(first, rate)
    total = 0
    for share in (0.05, 0.5, 1, 4, 20):
        count = int(first * share) - total
        host, path = random_keys((int(share * 100), 7), count)
        bloom.add_batch(host, path)
        total += count
        assert len(bloom) == total
        assert bloom.maybe_contains_batch(host, path).all()
        wrong = int(bloom.maybe_contains_batch(*fresh).sum())
        most = 1.1 * rate * fresh[0].size
        assert wrong <= most + 3 * most**0.5
    assert bloom.bits_per_url == pytest.approx((len(bloom.marshal()) - 8) // 64 * 512 / total, rel=0.01)


@pytest.mark.parametrize(
    "keys",
    [
        [(7, i) for i in range(5000)],
        [(i, 7) for i in range(5000)],
        [(i << 40, i << 40) for i in range(5000)],
        [(i, -i & ALL_BITS) for i in range(5000)],
    ],
    ids=["one host", "one path", "high bits only", "sum zero"],
)
def test_keys_in_sequence_keep_the_rate(keys):
    bloom = Filter(len(keys), 0.01)
    host, path = columns(keys)
    bloom.add_batch(host, path)
    assert bloom.maybe_contains_batch(host, path).all()
    assert bloom.maybe_contains_batch(host, path ^ np.uint64(1 << 20)).mean() < 0.015
    assert bloom.maybe_contains_batch(host ^ np.uint64(1 << 20), path).mean() < 0.015


def test_repeats_neither_grow_it_nor_spoil_it():
    bloom = Filter(100, 0.01)
    host, path = random_keys(3, 50)
    bloom.add_batch(host, path)
    size = len(bloom.marshal())
    for _ in range(100):
        bloom.add_batch(host, path)
    assert len(bloom.marshal()) == size


def test_same_additions_give_same_bytes_in_any_order_within_the_first_size():
    host, path = random_keys(5, 1000)
    order = np.random.default_rng(6).permutation(1000)
    one, two, three = Filter(1000, 0.01), Filter(1000, 0.01), Filter(1000, 0.01)
    one.add_batch(host, path)
    two.add_batch(host[order], path[order])
    for i in range(0, 1000, 13):
        three.add_batch(host[i : i + 13], path[i : i + 13])
    assert one.marshal() == two.marshal() == three.marshal()


def test_loaded_filter_goes_on():
    host, path = random_keys(8, 9000)
    bloom = Filter(1000, 0.01)
    bloom.add_batch(host[:5000], path[:5000])
    blob = bloom.marshal()
    loaded = Filter.load(blob)
    assert loaded.marshal() == blob
    assert (len(loaded), loaded.bits_per_url) == (len(bloom), bloom.bits_per_url)
    for each in (bloom, loaded):
        each.add_batch(host[5000:], path[5000:])
        assert each.maybe_contains_batch(host, path).all()
    assert loaded.marshal() == bloom.marshal()
    assert Filter.load(blob).marshal() == blob


def test_blob_is_read_where_it_lies():
    bloom = Filter(50, 0.01)
    host, path = random_keys(9, 50)
    bloom.add_batch(host, path)
    for shift in range(9):
        lying = memoryview(bytes(shift) + bloom.marshal())[shift:]
        assert unmarshal_filter(lying).maybe_contains_batch(host, path).all()


def test_damage_anywhere_is_refused():
    bloom = Filter(3, 0.01)
    bloom.add_batch(*random_keys(2, 10))
    blob = bloom.marshal()
    for at in range(len(blob)):
        for bit in range(8):
            damaged = bytearray(blob)
            damaged[at] ^= 1 << bit
            with pytest.raises(CorruptFilter):
                unmarshal_filter(damaged)
        with pytest.raises(CorruptFilter):
            unmarshal_filter(blob[:at])
    with pytest.raises(CorruptFilter):
        unmarshal_filter(blob + b"\0")


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 2),
        (1, 1),
        (1, 9),
        (2, 0),
        (2, 200),
        (8, 0),
        (23, 255),
        (32, 0),
        (32, 17),
        (40, 0),
        (48, 1),
        (57, 255),
        (64, 0),
        (64, 2),
    ],
)
def test_sealed_nonsense_is_refused(at, value):
    """A checksum that fits doesn't make a blob of another version, kind or contradicting counts good."""
    body = bytearray(Filter(10, 0.01).marshal()[:-8])
    body[at] = value
    with pytest.raises(CorruptFilter):
        unmarshal_filter(bytes(body) + xxhash.xxh64_intdigest(bytes(body)).to_bytes(8, "little"))


@pytest.mark.parametrize(("capacity", "rate"), [(0, 0.01), (-1, 0.01), (10, 0.0), (10, 1.0), (10, float("nan"))])
def test_sizes_that_mean_nothing_are_refused(capacity, rate):
    with pytest.raises(ValueError, match=r"must be at least 1|lies between 0 and 1"):
        Filter(capacity, rate)


def test_keys_of_other_types_and_shapes_are_refused():
    bloom = Filter(10, 0.01)
    one, two = np.zeros(1, np.uint64), np.zeros(2, np.uint64)
    with pytest.raises(TypeError, match="int64"):
        bloom.add_batch(one.astype(np.int64), one)
    with pytest.raises(ValueError, match="one length"):
        bloom.add_batch(one, two)


def test_empty_filter():
    bloom = Filter(1000, 0.01)
    assert (len(bloom), bloom.bits_per_url) == (0, 0.0)
    assert not bloom.maybe_contains_batch(*random_keys(4, 1000)).any()
    assert not Filter.load(bloom.marshal()).maybe_contains(0, 0)


@pytest.mark.parametrize("rate", [0.5, *RATES, 1e-6])
def test_shape_is_the_smallest_that_keeps_the_rate(rate):
    bits, probes = shape_for(rate)
    assert blocked_rate(bits, probes) <= rate
    assert all(blocked_rate(bits * 0.999, other) > rate for other in range(1, 17))


def test_expected_bits_are_met():
    capacity = 20_000
    bits, probes = shape_for(0.01)
    layer = Layer.sized(capacity, 0.01)
    host, path = random_keys(12, capacity)
    layer.add(host, path, np.zeros(capacity, np.bool_))
    expected = expected_bits(capacity, blocks_for(capacity, bits), probes)
    assert layer.counts[1] == pytest.approx(expected, rel=0.01)


def test_right_answers(golden_rows):
    wrong, asked = 0, 0
    for row in golden_rows("golden/filter_keys.jsonl"):
        keys, absent = (
            columns((int(digits[:16], 16), int(digits[16:], 16)) for digits in row[name])
            for name in ("keys_host_path_hex", "absent_keys_hex")
        )
        bloom = Filter(max(row["n"], 1), 0.01)
        bloom.add_batch(*keys)
        assert len(bloom) == row["n"]
        assert bloom.maybe_contains_batch(*keys).all()
        answers = bloom.maybe_contains_batch(*absent)
        wrong += int(answers.sum())
        asked += answers.size
        loaded = unmarshal_filter(bloom.marshal())
        assert loaded.maybe_contains_batch(*keys).all()
        assert np.array_equal(loaded.maybe_contains_batch(*absent), answers)
        order = np.random.default_rng(row["n"]).permutation(row["n"])
        shuffled = Filter(max(row["n"], 1), 0.01)
        shuffled.add_batch(keys[0][order], keys[1][order])
        assert shuffled.marshal() == bloom.marshal()
    assert wrong <= 2 * 0.01 * asked
