"""Sharded ribbon filters of keys on disk and of keys that stream by: same bytes, bounded memory, refusals."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ribbon_twin import ALL_BITS, columns, hash_of, random_keys

from meguri_common.errors import FilterBuildError
from meguri_common.filters.resident import unmarshal_filter
from meguri_common.filters.ribbon import build_ribbon
from meguri_common.filters.ribbon_sizing import SHARD_KEYS, ribbon_shard_count
from meguri_common.filters.ribbon_stream import FileSpill, RibbonStream
from meguri_common.filters.sharded import (
    build_sharded_ribbon,
    build_sharded_ribbon_from_disk,
    freeze_keys,
    ribbon_shard_index,
    ribbon_shard_index_batch,
)
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.simulated import SimulatedFiles

PAIRS = st.lists(st.tuples(st.integers(0, ALL_BITS), st.integers(0, ALL_BITS)), max_size=60)


def routed(host, path, count):
    index = ribbon_shard_index_batch(host, path, count)
    return [(host[index == shard], path[index == shard]) for shard in range(count)]


def test_shard_counts():
    sizes = [0, 1, SHARD_KEYS, SHARD_KEYS + 1, 2 * SHARD_KEYS, 2 * SHARD_KEYS + 1, 10**8, 1 << 33, 1 << 40]
    assert [ribbon_shard_count(size) for size in sizes] == [1, 1, 1, 2, 2, 4, 1024, 65_536, 65_536]
    with pytest.raises(ValueError, match="-1 keys"):
        ribbon_shard_count(-1)


def test_shard_is_the_top_of_the_hash():
    host, path = random_keys(1, 500)
    for count in (1, 2, 64, 65_536):
        expected = [hash_of(int(h), int(p)) * count >> 64 for h, p in zip(host, path, strict=True)]
        assert ribbon_shard_index_batch(host, path, count).tolist() == expected
        assert ribbon_shard_index(int(host[0]), int(path[0]), count) == expected[0]


@pytest.mark.parametrize("count", [0, 3, 65_537, 131_072, -1])
def test_shard_counts_that_mean_nothing_are_refused(count):
    one = np.zeros(1, np.uint64)
    with pytest.raises(ValueError, match="1, 2, 4"):
        ribbon_shard_index_batch(one, one, count)
    with pytest.raises(ValueError, match="1, 2, 4"):
        build_sharded_ribbon_from_disk(count, 0, lambda _: (one, one))
    if 0 <= count < 10:
        with pytest.raises(ValueError, match="1, 2, 4"):
            build_sharded_ribbon([(one, one)] * count)


def test_one_shard_gives_the_bytes_of_kind_1():
    keys = random_keys(3, 5000)
    assert (
        build_sharded_ribbon([keys]) == build_ribbon(*keys) == build_sharded_ribbon_from_disk(1, 5000, lambda _: keys)
    )


@pytest.mark.parametrize("bits", [1, 7, 14])
def test_all_ways_give_the_same_bytes(bits, tmp_path):
    size = 3 * SHARD_KEYS
    host, path = random_keys(bits, size)
    blob = freeze_keys(host, path, bits)
    shards = routed(host, path, 4)
    loads = []
    assert build_sharded_ribbon(shards, bits) == blob
    assert build_sharded_ribbon_from_disk(4, size, lambda i: loads.append(i) or shards[i], bits) == blob
    assert loads == [0, 1, 2, 3]
    with FileSpill(LocalFiles(tmp_path), "keys") as spill:
        stream = RibbonStream(size, bits, spill=spill, resident=50_000)
        for start in range(0, size, 70_001):
            stream.add(host[start : start + 70_001], path[start : start + 70_001])
        built = stream.finish()
    assert built.marshal() == blob
    assert not list(tmp_path.iterdir())
    read = unmarshal_filter(blob)
    assert (len(read), read.shards) == (size, 4)
    assert read.maybe_contains_batch(host, path).all()


@settings(deadline=None)
@given(PAIRS, st.sampled_from([1, 2, 16, 256]), st.integers(1, 16))
def test_keys_on_disk_repeats_included(keys, count, bits):
    again = columns(keys + keys[::2])
    shards = routed(*again, count)
    blob = build_sharded_ribbon(shards, bits)
    assert blob == build_sharded_ribbon(routed(*columns(set(keys)), count), bits)
    assert blob == build_sharded_ribbon_from_disk(count, again[0].size, shards.__getitem__, bits)
    read = unmarshal_filter(blob)
    assert len(read) == len(set(keys))
    assert read.maybe_contains_batch(*again).all()


@settings(deadline=None)
@given(PAIRS, st.lists(st.integers(0, 9), max_size=30), st.integers(1, 9), st.integers(0, 300_000))
def test_streams_in_whatever_batches(keys, sizes, resident, spare):
    keys = list(dict.fromkeys(keys))
    host, path = columns(keys)
    files = SimulatedFiles(lambda: 0.0)
    with FileSpill(files, "keys") as spill:
        stream = RibbonStream(len(keys) + spare, spill=spill, resident=resident)
        at = 0
        for size in [*sizes, len(keys)]:
            stream.add(host[at : at + size], path[at : at + size])
            at += size
            assert len(stream) == min(at, len(keys))
        sink = io.BytesIO()
        stream.finish().write(sink)
    assert sink.getvalue() == freeze_keys(host, path)
    assert files.list("") == []


def test_stream_without_a_spill_file():
    host, path = random_keys(8, 300_000)
    stream = RibbonStream(400_000, 9)
    stream.add(host[:1000], path[:1000])
    stream.add(host[1000:], path[1000:])
    assert stream.finish().marshal() == freeze_keys(host, path, 9)


def test_empty_stream():
    blob = RibbonStream(1_000_000).finish().marshal()
    assert blob == freeze_keys(*random_keys(0, 0))
    assert len(unmarshal_filter(blob)) == 0


def test_more_keys_than_announced_are_refused():
    stream = RibbonStream(10)
    stream.add(*random_keys(1, 10))
    with pytest.raises(ValueError, match="11 keys came where 10 were announced"):
        stream.add(*random_keys(2, 1))
    with pytest.raises(ValueError, match="resident"):
        RibbonStream(10, resident=0)
    with pytest.raises(ValueError, match="-1 keys"):
        RibbonStream(-1)


def test_another_number_of_keys_than_loaded_is_refused():
    shards = routed(*random_keys(5, 100), 2)
    for wrong in (99, 101, 0):
        with pytest.raises(FilterBuildError, match=f"of {wrong} keys was asked for, but 100 were loaded from 2"):
            build_sharded_ribbon_from_disk(2, wrong, shards.__getitem__)


def test_keys_of_another_shard_are_refused():
    shards = routed(*random_keys(5, 100), 2)
    with pytest.raises(ValueError, match=r"key 0 of shard 0, .* another of the 2 shards"):
        build_sharded_ribbon(shards[::-1])
    with pytest.raises(ValueError, match="of shard 1"):
        build_sharded_ribbon_from_disk(2, 200, lambda _: shards[0])


def test_full_disk_is_named_and_leaves_nothing():
    def before(operation):
        if operation == "file.write":
            raise OSError(28, "No space left on device")

    files = SimulatedFiles(lambda: 0.0, before)
    with FileSpill(files, "keys") as spill:
        stream = RibbonStream(1000, spill=spill, resident=100)
        with pytest.raises(OSError, match="No space left"):
            stream.add(*random_keys(5, 1000))
    assert files.list("") == []


MEMORY = """
import resource, sys
import numpy as np
from meguri_common.filters.ribbon_stream import FileSpill, RibbonStream
from meguri_common.runtime.files import LocalFiles
from pathlib import Path
def grown():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def keys(number):
    return np.random.default_rng(number).integers(0, 1 << 63, (2, 100_000), np.uint64)
def build(most, resident, name):
    with FileSpill(LocalFiles(Path(sys.argv[1])), name) as spill:
        stream = RibbonStream(most, spill=spill, resident=resident)
        for number in range(most // 100_000):
            stream.add(*keys(number))
        return len(stream.finish().marshal())
build(200_000, 100_000, "small")
before = grown()
size = build(8_000_000, 1 << 18, "large")
print((grown() - before) * 1024 - 2 * size)
"""


def test_memory_of_a_stream_is_the_filter_and_what_may_be_resident(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True, timeout=300
    )
    assert int(done.stdout) < 12 << 20  # 64 MB of hashes went through; the filter is there in pieces and as a whole
