"""Sorting by keys: equal to numpy's own, whatever the keys are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meguri_store.ordering import order_by_keys

# Hashes, and keys that differ in the low bits only, where room is made for the places.
keys = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(2**64 - 9, 2**64 - 1))


@given(st.lists(st.tuples(keys, keys), max_size=200), st.randoms(use_true_random=False))
def test_equals_a_plain_sort_and_keeps_equal_keys_as_they_were(rows, rng):
    rows += [rng.choice(rows) for _ in range(len(rows) // 2)]
    host, path = (np.array([row[part] for row in rows], np.uint64) for part in (0, 1))
    assert order_by_keys(host, path).tolist() == sorted(range(len(rows)), key=lambda row: rows[row])
    order = list(range(len(rows)))
    rng.shuffle(order)
    given_order = np.array(order, np.int64)
    assert order_by_keys(host, path, given_order).tolist() == sorted(order, key=lambda row: rows[row])
