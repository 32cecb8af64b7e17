"""The change verdict over columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meguri_common.content import classify_change, classify_changes, observe_change, observe_changes

if TYPE_CHECKING:
    from collections.abc import Callable

numbers = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 3, 2**64 - 1])


@given(st.lists(st.tuples(numbers, numbers, numbers, numbers, st.booleans()), min_size=1, max_size=20))
def test_columns_agree_with_single_verdicts(rows: list[tuple[int, int, int, int, bool]]) -> None:
    columns = [np.array(column, np.uint64) for column in list(zip(*rows, strict=True))[:4]]
    unmodified = np.array([row[4] for row in rows])
    assert classify_changes(*columns).tolist() == [classify_change(*row[:4]) for row in rows]
    assert observe_changes(*columns, unmodified).tolist() == [
        observe_change(*row[:4], not_modified=row[4]) for row in rows
    ]


def test_right_answers(golden_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    rows = golden_rows("golden/observe_change.jsonl")
    names = ("rec_fp", "fp", "rec_simhash", "simhash")
    columns = [np.array([int(row[name], 16) for row in rows], np.uint64) for name in names]
    found = observe_changes(*columns, np.array([row["not_modified"] for row in rows]))
    assert found.tolist() == [row["changed"] for row in rows]
