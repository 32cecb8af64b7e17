"""Texts in many scripts: edits stay near, strangers stay far, and both paths read every character alike."""

from __future__ import annotations

import importlib
import random
import unicodedata

import numpy as np
import pytest

from meguri_common.content import distance, fingerprint_texts, near, simhash_text, tokens
from meguri_common.content.classes import class_table, unassigned
from meguri_common.content.tokens import fold
from meguri_common.content.unicode_tables import UNICODE_VERSION

SAME_TABLES = unicodedata.unidata_version == UNICODE_VERSION
SURROGATES = range(0xD800, 0xE000)
LETTERS = {
    "Russian": (0x430, 0x450),
    "Japanese": (0x3041, 0x3097),
    "Chinese": (0x4E00, 0x5E00),
    "Arabic": (0x627, 0x63B),
    "Hindi": (0x905, 0x93A),
    "Thai": (0xE01, 0xE2F),
    "emoji": (0x1F300, 0x1FA00),
    "Korean": (0xAC00, 0xB400),
}


def batch(texts: list[bytes]) -> list[tuple[int, bool]]:
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    made = fingerprint_texts(np.frombuffer(b"".join(texts), np.uint8), offsets)
    return list(zip(made.simhash.tolist(), made.empty.tolist(), strict=True))


def words(script: str, seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    first, end = LETTERS[script]
    return ["".join(chr(rng.randrange(first, end)) for _ in range(rng.randint(2, 7))) for _ in range(count)]


@pytest.mark.parametrize("script", LETTERS)
def test_edits_are_near_and_strangers_far(script: str) -> None:
    text = words(script, 1, 300)
    edited = [*text[:150], *words(script, 3, 1), *text[151:]]
    original, other, stranger = (simhash_text(" ".join(part)) for part in (text, edited, words(script, 2, 300)))
    assert original != 0
    assert distance(original, other) <= 6, "one word in 300"
    assert distance(original, stranger) >= 15
    assert not near(original, stranger)


@pytest.mark.parametrize("script", LETTERS)
def test_the_compiled_path_reads_scripts_alike(script: str) -> None:
    texts = [" ".join(words(script, seed, 1 + seed * 7)) for seed in range(12)]
    assert batch([text.encode() for text in texts]) == [(simhash_text(text), False) for text in texts]


@pytest.mark.parametrize("context", ["{}", "x{}y ", "日{}本 ", "\N{WHITE SMILING FACE}{}\u093e", "Σ{}\u0301"])
def test_the_compiled_path_reads_every_character_alike(context: str) -> None:
    texts = []
    for first in (*range(0, 0x20000, 128), 0x20000, 0x2F800, 0xE0000, 0xE0100):
        points = (point for point in range(first, first + 128) if point not in SURROGATES)
        texts.append("".join(context.replace("{}", chr(point)) for point in points))
    found = batch([text.encode() for text in texts])
    for text, one in zip(texts, found, strict=True):
        assert one == (simhash_text(text), not tokens(text)), ascii(text[:8])


def test_characters_that_the_tables_do_not_know_are_inert() -> None:
    unknown = "\U00016000"
    assert unassigned().fullmatch(unknown)
    assert fold(f"É{unknown}\uff21") == f"é{unknown}a"
    assert tokens(f"É{unknown}\uff21") == ["é", "a"]
    assert len(class_table()) == 0x110000


def test_folding_around_unknown_characters_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["ΟΔΟΣ \uff21\U00016000Σ", "e\U00016000\u0301", "\U00016000", "a\U00016000", "\u1e9b\u0323\U00016000\ufb01"]
    with_these_tables = [fold(text) for text in texts]
    module = importlib.import_module("meguri_common.content.tokens")
    monkeypatch.setattr(module, "UNICODE_VERSION", "0")
    assert [fold(text) for text in texts] == with_these_tables


@pytest.mark.skipif(not SAME_TABLES, reason="the interpreter's Unicode is another than the tables'")
def test_the_tables_are_those_of_their_version() -> None:
    table = class_table()
    letters = {point for point in range(0x110000) if unicodedata.category(chr(point))[0] in "LN"}
    assert {point for point in range(0x110000) if table[point] in {2, 3}} == letters
    for point in range(0x110000):
        category = unicodedata.category(chr(point))
        if category == "Cf":
            assert table[point] == 1, hex(point)
        elif category[0] == "M" and not 0xFE00 <= point <= 0xFE0F:
            assert table[point] == 4, hex(point)
