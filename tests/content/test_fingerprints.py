"""Fingerprints against right answers, and the compiled path against the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meguri_common.content import (
    Change,
    classify_change,
    content_fp,
    distance,
    fingerprint_texts,
    near,
    normalize_body,
    observe_change,
    simhash,
    simhash_text,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def text_of(row: dict[str, Any], name: str = "text") -> bytes:
    hexed = row.get(f"{name}_b16")
    return bytes.fromhex(hexed) if hexed is not None else row[name].encode("utf-8", "surrogatepass")


def batch(texts: list[bytes]) -> list[tuple[int, int, bool]]:
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    data = np.frombuffer(b"".join([*texts, bytes(16)]), np.uint8)
    fps, hashes, empty = fingerprint_texts(data, offsets)
    return list(zip(fps.tolist(), hashes.tolist(), empty.tolist(), strict=True))


def plain(text: bytes) -> tuple[int, int, bool]:
    if not tokens(text):
        return 0, 0, True
    return content_fp(normalize_body(text)), simhash_text(text), False


def test_bodies(golden_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    rows = golden_rows("golden/simhash.jsonl")
    for row in rows:
        text = text_of(row)
        assert f"{content_fp(normalize_body(text)):016x}" == row["content_fp_hex"]
        assert f"{content_fp(text):016x}" == row["raw_fp_hex"]
        if row.get("normalized") is not None or "normalized_b16" in row:
            assert normalize_body(text) == text_of(row, "normalized")
        if row["simhash_applies"]:
            assert f"{simhash_text(text):016x}" == row["simhash_hex"], text[:80]
    assert batch([text_of(row) for row in rows]) == [plain(text_of(row)) for row in rows]


def test_features(golden_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    for row in golden_rows("golden/simhash_features.jsonl"):
        features = [(feature["token"], feature["weight"]) for feature in row["features"]]
        assert f"{simhash(features):016x}" == row["simhash_hex"]


def test_tokens(golden_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    for row in golden_rows("golden/unicode_tokens.jsonl"):
        assert tokens(text_of(row)) == row["tokens"], row["text"]
        assert f"{simhash_text(text_of(row)):016x}" == row["simhash_hex"]
        assert (not tokens(text_of(row))) == row["empty"]


def test_changes(golden_rows: Callable[[str], list[dict[str, Any]]]) -> None:
    for row in golden_rows("golden/classify_change.jsonl"):
        numbers = [int(row[name], 16) for name in ("old_fp", "new_fp", "old_simhash", "new_simhash")]
        assert classify_change(*numbers).name.lower() == row["kind"], row
        assert near(*numbers[2:]) == row["near"]
    for row in golden_rows("golden/observe_change.jsonl"):
        changed = observe_change(
            *(int(row[name], 16) for name in ("rec_fp", "fp", "rec_simhash", "simhash")),
            not_modified=row["not_modified"],
        )
        assert changed == row["changed"], row


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, WORLD-42!", ["hello", "world", "42"]),
        ("straße CAFÉ", ["straße", "café"]),
        ("abc日本語def", ["abc", "日本", "本語", "def"]),
        ("a\u00adb_c", ["ab", "c"]),
        ("👍🏽 ok", ["👍", "ok"]),
        ("สวัสดี", ["สวั", "วัส", "สดี"]),
        ("\u0301 lone mark", ["lone", "mark"]),
        ("ಕಿತ್ತೂರು ಕರ್ನಾಟಕ", ["ಕಿತ್ತೂರು", "ಕರ್ನಾಟಕ"]),
        (b"caf\xe9 ok", ["caf", "ok"]),
        ("", []),
    ],
)
def test_tokens_of(text: str | bytes, expected: list[str]) -> None:
    assert tokens(text) == expected


def test_empty_and_equal() -> None:
    assert batch([b"", b" \n\t", b"...", b"x"])[:3] == [(0, 0, True)] * 3
    assert not near(0, 0)
    assert classify_change(5, 5, 0, 0) == Change.NO_CHANGE
    assert classify_change(5, 6, 0, 7) == Change.REAL_CHANGE
    assert classify_change(5, 6, 6, 7) == Change.COSMETIC_CHANGE
    assert distance(0, (1 << 64) - 1) == 64


words = st.text(st.characters(codec="utf-8"), max_size=60)
ascii_words = st.text(st.sampled_from("abcXYZ019 \t\n\r\f\v.,-_"), max_size=200)


@given(st.lists(st.one_of(ascii_words.map(str.encode), words.map(str.encode), st.binary(max_size=40)), max_size=8))
def test_batches_agree_with_single_texts(texts: list[bytes]) -> None:
    assert batch(texts) == [plain(text) for text in texts]


@given(st.binary(max_size=200))
def test_normalizing_twice_is_once(body: bytes) -> None:
    once = normalize_body(body)
    assert normalize_body(once) == once
    assert not any(run in once for run in (b"  ", b"\t", b"\n", b"\r", b"\f", b"\v"))


@given(st.lists(st.sampled_from(["one", "two", "three", "4"]), min_size=1, max_size=30), st.randoms())
def test_the_order_of_words_does_not_matter(found: list[str], rng: Any) -> None:
    shuffled = found.copy()
    rng.shuffle(shuffled)
    assert simhash_text(" ".join(found)) == simhash_text(" ".join(shuffled))
    assert simhash_text(" ".join(found)) == simhash([(word, found.count(word)) for word in set(found)])
