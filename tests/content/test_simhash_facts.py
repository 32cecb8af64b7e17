"""Facts stated by another implementation, over hashes of features instead of tokens."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from meguri_common.content import distance, simhash, simhash_hashes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ALL_BITS = (1 << 64) - 1


def weightless(hashes: Iterable[int]) -> int:
    return simhash_hashes((hashed, 1) for hashed in hashes)


def test_facts_of_another_implementation(
    golden_rows: Callable[[str], list[dict[str, Any]]], say: Callable[[str, str], None]
) -> None:
    checked = 0
    for row in golden_rows("golden/simhash_public.jsonl"):
        given, expected = row["input"], row["expected"]
        if row["func"] == "compute":
            assert weightless(given) == expected, row
        elif row["func"] == "num_differing_bits":
            assert distance(*given) == expected, row
        elif row["func"] == "find_all":
            most = row["options"]["max_diff"]
            close = (pair for pair in itertools.combinations(sorted(given), 2) if distance(*pair) <= most)
            assert sorted(close) == sorted(tuple(sorted(pair)) for pair in expected), row
        else:
            assert row["func"] == "shingle", row  # a sliding window over tokens: no operation of this pipeline
            continue
        checked += 1
    say("facts of another simhash", f"{checked} apply")


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        ([], 0),
        ([0xABCD, 0xBCDE, 0xCDEF], 0xADCF),
        ([16045690984833335023, 2401053088876216592], 0),  # complements: every bit ties, a tie gives 0
        ([ALL_BITS], ALL_BITS),
        ([0], 0),
    ],
)
def test_sums(hashes: list[int], expected: int) -> None:
    assert weightless(hashes) == expected


def test_weights_count_as_given() -> None:
    assert simhash_hashes([(0b11, 2), (0b01, -1)]) == 0b11
    assert simhash_hashes([(0b11, 2), (0b01, -3)]) == ALL_BITS - 1  # bits that both lack sum to -2 + 3
    assert simhash_hashes([(0b01, -1)]) == ALL_BITS - 1
    assert simhash([("a", 0)]) == 0
    assert simhash([("a", 3), ("b", 1)]) == simhash([("a", 1)])


def test_heavy_weights_neither_overflow_nor_depend_on_the_order() -> None:
    most = (1 << 63) - 1
    features = [("a", most), ("b", most), ("c", -most), ("d", most)]
    assert {simhash(order) for order in itertools.permutations(features)} == {simhash(features)}
    assert simhash([("a", most), ("a", most)]) == simhash([("a", 1)])
