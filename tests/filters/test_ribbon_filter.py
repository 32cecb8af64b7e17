"""The ribbon filter: one-sided answers, rate, size, blobs, key sets that broke others, and its plain twin."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ribbon_twin import ALL_BITS, columns, random_keys, sealed, twin_answer, twin_blob

from meguri_common.errors import CorruptFilter, FilterBuildError
from meguri_common.filters import ribbon_solving
from meguri_common.filters.bloom import Filter
from meguri_common.filters.resident import unmarshal_filter
from meguri_common.filters.ribbon import RibbonFilter, build_ribbon
from meguri_common.filters.ribbon_sizing import SHARD_KEYS, chunks_for, ribbon_bits_for_fpr, segments_for
from meguri_common.filters.sharded import build_sharded_ribbon, freeze_keys, ribbon_shard_index_batch

KEYS = st.lists(st.tuples(st.integers(0, ALL_BITS), st.integers(0, ALL_BITS)), max_size=60)


@pytest.mark.parametrize("bits", [1, 2, 7, 8, 9, 14, 16])
@pytest.mark.parametrize("count", [0, 1, 2, 70, 400])
def test_blob_is_the_plain_twins(bits, count):
    host, path = random_keys((bits, count), count)
    keys = list(zip(host.tolist(), path.tolist(), strict=True))
    blob = build_ribbon(host, path, bits)
    assert blob == twin_blob(keys, bits, 1, lambda held: segments_for(held, count, bits))


def test_blob_of_several_chunks_is_the_plain_twins():
    host, path = random_keys(5, 6200)
    keys = list(zip(host.tolist(), path.tolist(), strict=True))
    assert chunks_for(6200, 3) == 3
    assert build_ribbon(host, path, 3) == twin_blob(keys, 3, 3, lambda held: segments_for(held, 6200, 3))


@pytest.mark.parametrize("bits", [1, 5, 8, 9, 14, 16])
@pytest.mark.parametrize("shards", [1, 4])
def test_answers_are_the_plain_twins(bits, shards):
    """Near the end of the payload too, where whole vectors can't be read."""
    host, path = random_keys((bits, 1), 120)
    index = ribbon_shard_index_batch(host, path, shards)
    blob = build_sharded_ribbon([(host[index == shard], path[index == shard]) for shard in range(shards)], bits)
    asked = np.concatenate([host, random_keys(2, 300)[0]]), np.concatenate([path, random_keys(3, 300)[1]])
    answers = unmarshal_filter(blob).maybe_contains_batch(*asked).tolist()
    assert answers == [twin_answer(blob, int(h), int(p)) for h, p in zip(*asked, strict=True)]
    assert all(answers[:120])


@settings(deadline=None)  # the first call compiles
@given(KEYS, st.integers(-3, 20), st.randoms(use_true_random=False))
def test_no_key_is_absent_and_order_and_repeats_change_nothing(keys, bits, random):
    host, path = columns(keys)
    blob = build_ribbon(host, path, bits)
    read = unmarshal_filter(blob)
    assert len(read) == len(set(keys))
    assert read.maybe_contains_batch(host, path).all()
    assert all(read.maybe_contains(*key) for key in keys)
    again = keys + keys[: len(keys) // 2]
    random.shuffle(again)
    assert build_ribbon(*columns(again), bits) == blob
    assert freeze_keys(*columns(again), bits) == blob


@pytest.mark.parametrize(
    "keys",
    [
        [(7, i) for i in range(5000)],
        [(i, 7) for i in range(5000)],
        [(i << 40, i << 40) for i in range(5000)],
        [(i, -i & ALL_BITS) for i in range(5000)],
        [(3, 5)] * 5000,
        [(0, 0), (ALL_BITS, ALL_BITS)] * 2000,
        [(i % 50, i % 70) for i in range(5000)],
    ],
    ids=["one host", "one path", "high bits only", "sum zero", "one key", "two keys", "repeats"],
)
def test_key_sets_that_broke_others(keys):
    host, path = columns(keys)
    read = RibbonFilter.load(build_ribbon(host, path))
    assert len(read) == len(set(keys))
    assert read.maybe_contains_batch(host, path).all()
    assert read.maybe_contains_batch(host ^ np.uint64(1 << 20), path).mean() < 0.012
    assert read.maybe_contains_batch(host, path ^ np.uint64(1 << 21)).mean() < 0.012


@pytest.mark.parametrize("keys", [31, 32, 33, 64, 127, 3072, 3073, 6144, 6145, 9999, 10_000, 12_288, 12_289])
@pytest.mark.parametrize("bits", [1, 7])
def test_sizes_around_every_step(keys, bits):
    host, path = random_keys((keys, bits), keys)
    for count in (keys - 1, keys):
        read = RibbonFilter.load(build_ribbon(host[:count], path[:count], bits))
        assert (len(read), read.shards) == (count, 1)
        assert read.maybe_contains_batch(host[:count], path[:count]).all()


@pytest.mark.parametrize("keys", [SHARD_KEYS, SHARD_KEYS + 1, 2 * SHARD_KEYS + 1])
def test_sizes_around_the_shards(keys):
    host, path = random_keys(keys, keys)
    blob = freeze_keys(host, path)
    read = RibbonFilter.load(blob)
    assert read.shards == 1 << (-(-keys // SHARD_KEYS) - 1).bit_length()
    assert len(read) == keys
    assert read.maybe_contains_batch(host, path).all()
    assert (blob == build_ribbon(host, path)) == (read.shards == 1)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 7, 14, 16])
def test_bits_a_key_header_included(bits):
    for keys in (10_000, 10_001, 12_289, 20_000, 65_000, 200_000):
        host, path = random_keys((keys, bits), keys)
        for build in (build_ribbon, freeze_keys):
            blob = build(host, path, bits)
            read = RibbonFilter.load(blob)
            assert read.bits_per_url == 8 * len(blob) / keys <= 1.05 * bits


@pytest.mark.parametrize(("bits", "keys"), [(1, 20_000), (4, 20_000), (7, 200_000), (10, 5000), (16, 20_000)])
def test_rate_is_what_the_bits_say(bits, keys):
    fresh = random_keys(99, 2_000_000)
    host, path = random_keys((bits, 3), keys)
    wrong = int(RibbonFilter.load(freeze_keys(host, path, bits)).maybe_contains_batch(*fresh).sum())
    expected = fresh[0].size / 2**bits
    assert abs(wrong - expected) <= 4 * expected**0.5


def test_keys_that_differ_but_share_a_hash_count_each(monkeypatch):
    """Made so by a hash that forgets; distinct keys are told from repeated ones by the keys themselves."""
    whole = ribbon_solving.hashes_of
    monkeypatch.setattr(ribbon_solving, "hashes_of", lambda host, path: whole(host, path >> np.uint64(1)))
    host, path = random_keys(4, 500)
    assert len(RibbonFilter.load(build_ribbon(np.append(host, host), np.append(path, path ^ np.uint64(1))))) == 1000
    assert len(RibbonFilter.load(build_ribbon(np.append(host, host), np.append(path, path)))) == 500


def test_what_no_seed_solves_ends_in_an_error_that_says_so(monkeypatch):
    """One bit a slot, and more equations than slots: they contradict each other at any seed."""
    monkeypatch.setattr(ribbon_solving, "segments_for", lambda *_: 3)
    monkeypatch.setattr(ribbon_solving, "larger", lambda segments: segments + 1)
    tried = []
    solve_chunks = ribbon_solving.solve_chunks

    def counted(*arguments):
        tried.append((int(arguments[4][0]), arguments[3]))
        return solve_chunks(*arguments)

    monkeypatch.setattr(ribbon_solving, "solve_chunks", counted)
    with pytest.raises(FilterBuildError, match=r"1,000 keys: chunk 0 of 1 .* 224 slots, .* 64 seeds"):
        build_ribbon(*random_keys(6, 1000))
    assert tried == [(3, 64), (4, 64), (5, 64), (6, 64), (7, 64)]


def test_more_slots_are_taken_when_seeds_run_out(monkeypatch):
    monkeypatch.setattr(ribbon_solving, "segments_for", lambda *_: 30)
    host, path = random_keys(7, 1000)
    blob = build_ribbon(host, path)
    read = RibbonFilter.load(blob)
    assert read.maybe_contains_batch(host, path).all()
    assert int.from_bytes(blob[24:26], "little") == 34


@pytest.mark.parametrize(
    ("rate", "bits"),
    [(2, 1), (1, 1), (0.5, 1), (0.49, 2), (0.01, 7), (2**-7, 7), (0.0078, 8), (1e-4, 14), (2**-16, 16), (1e-9, 16)],
)
def test_bits_for_a_rate(rate, bits):
    assert ribbon_bits_for_fpr(rate) == bits


def test_bits_for_no_rate():
    assert (ribbon_bits_for_fpr(0), ribbon_bits_for_fpr(-1)) == (16, 16)
    with pytest.raises(ValueError, match="a number"):
        ribbon_bits_for_fpr(float("nan"))


def blobs():
    """One of each kind, small, with an empty shard or chunk."""
    host, path = random_keys(2, 40)
    index = ribbon_shard_index_batch(host, path, 4)
    own = [(host[index == shard], path[index == shard]) for shard in range(4)]
    own[2] = random_keys(0, 0)
    return {
        "empty": build_ribbon(*random_keys(0, 0)),
        "kind 1": build_ribbon(host, path, 2),
        "kind 2": build_sharded_ribbon(own, 1),
    }


@pytest.mark.parametrize("which", ["empty", "kind 1", "kind 2"])
def test_damage_anywhere_is_refused(which):
    blob = blobs()[which]
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


@pytest.mark.parametrize("which", ["empty", "kind 1", "kind 2"])
def test_sealed_nonsense_is_refused_or_harmless(which):
    """With a checksum that fits: every byte of header and directory at every value; no answer reads past the end."""
    body = blobs()[which][:-8]
    asked = random_keys(9, 50)
    refused = 0
    for at in range(min(len(body), 110)):
        for value in {0, 1, 2, 3, 17, 64, 127, 128, 200, 255, body[at] ^ 1} - {body[at]}:
            changed = bytearray(body)
            changed[at] = value
            try:
                read = unmarshal_filter(sealed(changed))
            except CorruptFilter:
                refused += 1
            else:
                assert read.maybe_contains_batch(*asked).size == 50
    assert refused > 150


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 2, "version"),
        (1, 0, "contradicts itself"),
        (1, 2, "contradicts itself"),
        (1, 3, "kind 3"),
        (2, 0, "0 bits"),
        (2, 17, "17 bits"),
        (2, 3, "don't take"),
        (3, 1, "reserved byte 1"),
        (4, 0, "0 chunks"),
        (4, 2, "slots"),
        (7, 255, "chunks"),
        (8, 200, "slots"),
        (15, 255, "slots"),
        (16, 0, "slots"),
        (23, 255, "slots"),
        (24, 2, "slots"),
        (26, 64, "seed 64"),
        (27, 1, "seed"),
    ],
)
def test_counts_that_dont_fit_are_refused(at, value, message):
    body = bytearray(blobs()["kind 1"][:-8])
    assert body[at] != value
    body[at] = value
    with pytest.raises(CorruptFilter, match=message):
        unmarshal_filter(sealed(body))


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (4, 3, "3"),
        (4, 8, "contradicts itself"),
        (6, 2, "131,076"),
        (8, 41, "41 keys"),
        (24, 1, "keys"),
        (32, 0, "0 chunks"),
        (36, 1, "reserved word 1"),
        (35, 1, "chunks"),
    ],
)
def test_shards_that_dont_fit_are_refused(at, value, message):
    body = bytearray(blobs()["kind 2"][:-8])
    assert body[at] != value
    body[at] = value
    with pytest.raises(CorruptFilter, match=message):
        unmarshal_filter(sealed(body))


def test_each_loader_refuses_the_others_blob():
    with pytest.raises(CorruptFilter, match="not a ribbon"):
        RibbonFilter.load(Filter(10, 0.01).marshal())
    with pytest.raises(CorruptFilter, match="not a Bloom filter"):
        Filter.load(build_ribbon(*random_keys(1, 10)))


def test_blob_is_read_where_it_lies(tmp_path):
    host, path = random_keys(9, 5000)
    blob = build_ribbon(host, path)
    for shift in range(9):
        lying = memoryview(bytes(shift) + blob)[shift:]
        assert unmarshal_filter(lying).maybe_contains_batch(host, path).all()
    file = tmp_path / "filter"
    file.write_bytes(blob)
    with file.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    read = RibbonFilter.load(mapped)
    assert read.maybe_contains_batch(host, path).all()
    assert not read._words.flags.owndata


def test_empty_filter_says_no():
    read = unmarshal_filter(build_ribbon(*random_keys(0, 0)))
    assert (len(read), read.bits_per_url) == (0, 0.0)
    assert not read.maybe_contains_batch(*random_keys(4, 1000)).any()
    assert not read.maybe_contains(0, 0)
    assert read.maybe_contains_batch(*random_keys(0, 0)).tolist() == []


def test_keys_of_other_types_and_shapes_are_refused():
    one, two = np.zeros(1, np.uint64), np.zeros(2, np.uint64)
    with pytest.raises(TypeError, match="int64"):
        build_ribbon(one.astype(np.int64), one)
    with pytest.raises(ValueError, match="one length"):
        freeze_keys(one, two)


def test_right_answers(golden_rows):
    wrong, expected = 0, 0.0
    for row in golden_rows("golden/filter_keys.jsonl"):
        keys, absent = (
            columns((int(digits[:16], 16), int(digits[16:], 16)) for digits in row[name])
            for name in ("keys_host_path_hex", "absent_keys_hex")
        )
        order = np.random.default_rng(row["n"]).permutation(len(keys[0]))
        for bits in (1, 7, 14):
            routed = ribbon_shard_index_batch(*keys, 8)
            shuffled = routed[order]
            for blob, again in (
                (build_ribbon(*keys, bits), build_ribbon(keys[0][order], keys[1][order], bits)),
                (
                    build_sharded_ribbon([(keys[0][routed == i], keys[1][routed == i]) for i in range(8)], bits),
                    build_sharded_ribbon(
                        [(keys[0][order][shuffled == i], keys[1][order][shuffled == i]) for i in range(8)], bits
                    ),
                ),
            ):
                assert again == blob
                read = unmarshal_filter(blob)
                assert len(read) == row["n"]
                assert read.maybe_contains_batch(*keys).all()
                answers = read.maybe_contains_batch(*absent)
                assert np.array_equal(unmarshal_filter(bytes(blob)).maybe_contains_batch(*absent), answers)
                if bits == 7:
                    wrong += int(answers.sum())
                    expected += answers.size / 2**bits
    assert wrong <= 2 * expected
