"""Run files and their kernels against plain-Python twins; damage, other campaigns; plans of memory and merges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.errors import CampaignMismatch, CorruptSnapshot
from meguri_common.filters.kernels.bloom import hash_key
from meguri_common.filters.resident import unmarshal_filter
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.snapshots import FileRef
from meguri_dedup import budget
from meguri_dedup.budget import divide, first_to_merge
from meguri_dedup.drum import Drum, merged
from meguri_dedup.exact import ExactTable
from meguri_dedup.kernels.runs import check_rows, lower_bound, table_rows
from meguri_dedup.rows import keys_of_rows
from meguri_dedup.run_file import ROW_BYTES, RunFolder, local_folder, verify_run
from meguri_dedup.seen_set import SeenSet

WORD = 1 << 64
HALF = st.sampled_from([0, 1, 2, 1 << 63, WORD - 1]) | st.integers(0, WORD - 1)
KEYS = st.sets(st.tuples(HALF, HALF), max_size=80)


def twin_hash(host, path):
    """SplitMix64 of the path plus that of the host."""

    def mix(z):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB % WORD
        return z ^ z >> 31

    return mix((path + mix((host + 0x9E3779B97F4A7C15) % WORD)) % WORD)


def twin_rows(keys):
    """Rows of a run, as plain pairs of hash and host."""
    return sorted((twin_hash(*key), key[0]) for key in keys)


def as_rows(keys):
    data = np.array(twin_rows(keys), np.uint64).reshape(-1)
    data.flags.writeable = False
    return data


def plain(rows):
    return [tuple(row) for row in rows.reshape(-1, 2).tolist()]


def columns(keys):
    table = np.array(list(keys), np.uint64).reshape(-1, 2)
    host, path = table[:, 0].copy(), table[:, 1].copy()
    for column in (host, path):
        column.flags.writeable = False
    return host, path


def random_keys(seed, count):
    table = np.random.default_rng(seed).integers(0, WORD - 1, (count, 2), np.uint64, endpoint=True)
    return {tuple(key) for key in table.tolist()}


def make_run(folder, keys, buckets=2):
    return folder.write(lambda: [as_rows(keys)], len(keys), buckets)


@settings(deadline=None)
@given(HALF, HALF)
def test_the_hash_and_its_undoing(host, path):
    hashed = twin_hash(host, path)
    assert int(hash_key(np.uint64(host), np.uint64(path))) == hashed
    assert keys_of_rows(np.array([hashed, host], np.uint64)).tolist() == [[host, path]]


@settings(deadline=None, max_examples=60)
@given(KEYS | st.integers(0, 20).map(lambda seed: random_keys(seed, 700)))
def test_a_table_becomes_rows_and_a_table_again(keys):
    table = ExactTable.of(np.array(list(keys), np.uint64).reshape(-1, 2), np.zeros(0, np.uint64), np.zeros(7, np.int64))
    table.counts[0] = len(keys)
    table.counts[2] = (0, 0) in keys
    rows = table.table.copy()
    assert plain(rows[: 2 * table_rows(rows, table.counts)]) == twin_rows(keys)


def test_keys_pushed_beyond_the_end_of_the_table_come_last():
    """Keys whose places are at the end of the table, more than there is room for there."""
    high = [key for key in random_keys(1, 60_000) if twin_hash(*key) >> 53 == (1 << 11) - 1][:20]
    table = ExactTable.of(np.array(high, np.uint64), np.zeros(0, np.uint64), np.zeros(7, np.int64))
    table.counts[0] = len(high)
    rows = table.table
    assert plain(rows[: 2 * table_rows(rows, table.counts)]) == twin_rows(high)


@settings(deadline=None, max_examples=40)
@given(st.lists(KEYS, min_size=1, max_size=5), st.sampled_from([1, 2, 100, 5000]), KEYS)
def test_search_merge_and_bounds_agree_with_sets(tmp_path_factory, sets, buckets, others):
    folder = local_folder(tmp_path_factory.mktemp("runs"))
    disjoint, known = [], set()
    for keys in sets:
        disjoint.append(keys - known)
        known |= keys
    drum = Drum(folder, buckets)
    for keys in disjoint:
        drum.add(as_rows(keys))
    assert drum.keys == len(known)
    assert plain(np.concatenate([*merged(drum.runs), np.zeros(0, np.uint64)])) == twin_rows(known)

    asked = [*known, *others, *list(known)[:10], *list(others)[:10]]
    host, path = columns(asked)
    seen = np.zeros(len(asked), np.bool_)
    cache = np.zeros(8 * 4, np.uint64)
    left = drum.search(np.arange(len(asked)), host, path, seen, cache)
    assert seen.tolist() == [key in known for key in asked]
    missing = [row for row, key in enumerate(asked) if key not in known]
    assert sorted(left.tolist()) == missing
    for first, second in itertools.pairwise(left.tolist()):
        assert asked[first] != asked[second] or first < second
    cached = {tuple(pair) for pair in cache.reshape(-1, 2).tolist()}
    assert cached <= known | {(0, 0)}

    for run in drum.runs:
        hashes = [hashed for hashed, _ in plain(run.data)]
        for bound in [0, WORD - 1, 1 << 63, *hashes[:5], *(hashed + 1 for hashed in hashes[:5] if hashed + 1 < WORD)]:
            expected = sum(hashed < bound for hashed in hashes)
            assert lower_bound(run.data, run.directory, run.bits, np.uint64(bound)) == expected
        assert verify_run(folder, run.reference) == len(run)


def test_large_runs_are_merged_in_pieces(tmp_path):
    folder = local_folder(tmp_path)
    sets = [random_keys(1, 60_000), random_keys(2, 30_000), random_keys(3, 500), set()]
    runs = [make_run(folder, keys, buckets) for keys, buckets in zip(sets, (64, 1, 4096, 1), strict=True)]
    pieces = list(merged(runs))
    assert len(pieces) > 8
    assert max(piece.size for piece in pieces) < 4 * 8192
    assert plain(np.concatenate(pieces)) == twin_rows(set().union(*sets))


@pytest.mark.parametrize("keys", [0, 1, 2, 3, 127, 128, 129, 255, 256, 257, 8191, 8192, 8193, 16_385])
def test_sizes_around_steps(tmp_path, keys):
    folder = local_folder(tmp_path)
    run = make_run(folder, random_keys(keys, keys))
    assert len(run) == keys
    again = folder.open(run.reference)
    assert np.array_equal(again.data, run.data)
    assert np.array_equal(again.directory, run.directory)
    assert int(again.directory[-1]) == keys
    assert verify_run(folder, run.reference) == keys


def test_rows_out_of_order_or_repeated_are_noticed():
    rows = as_rows(random_keys(1, 50)).copy()
    assert check_rows(_read_only(rows), np.uint64(0), True) == -1
    assert check_rows(_read_only(rows), rows[0], False) == -1
    assert check_rows(_read_only(rows), rows[-2], False) == 0
    for at in (1, 20, 49):
        swapped = rows.reshape(-1, 2).copy()
        swapped[[at - 1, at]] = swapped[[at, at - 1]]
        assert check_rows(_read_only(swapped.reshape(-1)), np.uint64(0), True) == at
        repeated = rows.reshape(-1, 2).copy()
        repeated[at] = repeated[at - 1]
        assert check_rows(_read_only(repeated.reshape(-1)), np.uint64(0), True) == at


def _read_only(rows):
    rows = rows.copy()
    rows.flags.writeable = False
    return rows


def test_every_flipped_bit_and_every_cut_is_found(tmp_path):
    folder = local_folder(tmp_path)
    run = make_run(folder, random_keys(1, 9))
    path = tmp_path / run.reference.path
    whole = path.read_bytes()
    del run
    for at in range(len(whole)):
        for bit in (0, 7):
            changed = bytearray(whole)
            changed[at] ^= 1 << bit
            _replace(path, bytes(changed))
            with pytest.raises((CorruptSnapshot, CampaignMismatch)):
                verify_run(folder, _reference(folder, path, whole))
            if at >= 9 * ROW_BYTES:  # directory and trailer: what a start reads
                with pytest.raises((CorruptSnapshot, CampaignMismatch)):
                    folder.open(_reference(folder, path, whole))
    for size in range(len(whole)):
        _replace(path, whole[:size])
        with pytest.raises(CorruptSnapshot, match=f"{size} bytes"):
            folder.open(_reference(folder, path, whole))
        # Also where the manifest itself states the shorter size.
        with pytest.raises(CorruptSnapshot):
            verify_run(folder, FileRef("run", f"runs/{path.name}", size, "0" * 16))
    path.unlink()
    with pytest.raises(CorruptSnapshot, match="None bytes"):
        folder.open(_reference(folder, path, whole))


def _replace(path, content):
    path.unlink()
    path.write_bytes(content)


def _reference(folder, path, whole):
    import xxhash  # noqa: PLC0415 - here alone

    return FileRef("run", f"{folder.folder}/{path.name}", len(whole), xxhash.xxh64_hexdigest(whole), 9)


@pytest.mark.parametrize(("campaign", "partition"), [(8, 3), (7, 2)])
def test_runs_of_others_are_refused(tmp_path, campaign, partition):
    files = LocalFiles(tmp_path)
    mine = RunFolder(files, "runs", 7, 3, lambda: "00")
    run = make_run(mine, random_keys(1, 5))
    others = RunFolder(files, "runs", campaign, partition, lambda: "01")
    with pytest.raises(CampaignMismatch, match=f"{run.reference.path}: keys of campaign 0000000000000007, partition 3"):
        others.open(run.reference)


def test_rows_out_of_order_are_found_though_every_checksum_fits(tmp_path):
    folder = local_folder(tmp_path)
    rows = as_rows(random_keys(1, 6)).reshape(-1, 2)
    for order, row in (([0, 1, 3, 2, 4, 5], 3), ([0, 1, 2, 3, 4, 4], 5)):
        run = folder.write(lambda order=order: [_read_only(rows[order].ravel())], 6, 2)
        with pytest.raises(CorruptSnapshot, match=f"row {row} isn't behind the row before it"):
            verify_run(folder, run.reference)


def test_pieces_that_lack_rows_are_no_run(tmp_path):
    folder = local_folder(tmp_path)
    with pytest.raises(CorruptSnapshot, match="5 rows came where 6"):
        folder.write(lambda: [as_rows(random_keys(1, 5))], 6, 2)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_merges_keep_runs_few_and_rewrite_little(added):
    sizes, written = [], 0
    for rows in added:
        sizes.append(rows)
        written += rows
        first = first_to_merge(sizes)
        if first < len(sizes):
            written += sum(sizes[first:])
            sizes[first:] = [sum(sizes[first:])]
        assert all(size > sum(sizes[at + 1 :]) for at, size in enumerate(sizes))
    total = sum(added)
    assert sum(sizes) == total
    assert len(sizes) <= total.bit_length()
    assert written <= total * (1 + total.bit_length())


def test_runs_beyond_what_a_directory_counts_are_left_alone():
    assert first_to_merge([1 << 31, 1 << 31]) == 2
    assert first_to_merge([1 << 31, (1 << 31) - 1]) == 2
    assert first_to_merge([1 << 30, 1 << 30]) == 0
    assert first_to_merge([1 << 31, 1 << 31, 5, 5]) == 2


@given(st.integers(0, 1 << 34), st.integers(0, 10**9))
def test_a_budget_is_kept(given_bytes, keys):
    filter_most = int(1.65 * keys)
    filter_now = int(1.3 * keys)
    directories = int(0.06 * keys)
    shares = divide(given_bytes, keys, filter_now, filter_most, directories)
    assert shares.slots & (shares.slots - 1) == 0
    spent = shares.slots * budget.SLOT_BYTES + shares.lines * 64
    allowed = max(given_bytes, 2 * keys) - filter_now - directories
    assert spent <= max(allowed, budget._LEAST) + 64
    # From a few million keys on the least budget is enough to work with.
    if keys > 10_000_000:
        assert shares.recent > keys / 1000


@pytest.mark.parametrize("count", [0, 1, 30, 3000, 200_000])
def test_blobs_of_the_filter_and_of_the_keys(tmp_path, monkeypatch, count):
    monkeypatch.setattr(budget, "_LEAST", 20_000 if count < 100_000 else 400_000)
    monkeypatch.setattr(budget, "_LEAST_SLOTS", 16)
    keys = random_keys(5, count)
    host, path = columns(keys)
    on_disk = SeenSet(100, 0.01, folder=local_folder(tmp_path), memory_bytes=1)
    resident = SeenSet(100, 0.01)
    order = np.random.default_rng(1).permutation(count)
    on_disk.insert_batch(host, path)
    resident.insert_batch(host[order], path[order])
    assert count < 3000 or on_disk.drum.runs
    assert on_disk.marshal_filter() == resident.marshal_filter()
    assert on_disk.marshal_ribbon() == resident.marshal_ribbon()
    absent = columns(random_keys(6, 20_000))
    for blob, rate in ((on_disk.marshal_filter(), 0.011), (on_disk.marshal_ribbon(10), 2**-10)):
        read = unmarshal_filter(blob)
        assert len(read) == count
        assert read.maybe_contains_batch(host, path).all()
        assert read.maybe_contains_batch(*absent).mean() <= rate + 4 * (rate / 20_000) ** 0.5
