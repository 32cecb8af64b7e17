"""Fingerprints of many texts at once."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meguri_common.content.classes import class_table
from meguri_common.content.tokens import decode, fold

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Fingerprints", "fingerprint_texts"]


class Fingerprints(NamedTuple):
    """Columns of `fingerprint_texts`, all (n,)."""

    content_fp: NDArray[np.uint64]
    """0 where empty."""
    simhash: NDArray[np.uint64]
    """0 where empty, and where a text's tokens cancel out."""
    empty: NDArray[np.bool_]
    """Whether the text has no token."""


def fingerprint_texts(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> Fingerprints:
    """Content fingerprint and simhash of each text, equal to `content_fp(normalize_body(t))` and `simhash_text(t)`.

    Everything is compiled but NFKC and lower-casing of the texts that aren't pure ASCII.

    Args:
        data: u8 (m,), UTF-8 texts one after another; invalid sequences separate tokens.
        offsets: i64 (n + 1,), text i is `data[offsets[i]:offsets[i + 1]]`.

    Raises:
        TypeError: a column has another type.
        ValueError: the offsets step backwards or leave the data.
    """
    from meguri_common.content.kernels import hash_bodies, simhash_texts  # noqa: PLC0415 - imports numba

    _check(data, offsets)
    rows = offsets.size - 1
    data = _frozen(data)
    offsets = np.ascontiguousarray(offsets)
    content_fp, simhash = np.zeros((2, rows), np.uint64)
    is_ascii, empty = np.zeros((2, rows), np.bool_)
    longest = int(np.diff(offsets).max(initial=0))
    hash_bodies(data, offsets, np.empty(longest + 1, np.uint8), content_fp, is_ascii)
    classes = np.frombuffer(class_table(), np.uint8)
    wide = np.flatnonzero(~is_ascii)
    for chosen, texts, limits in (
        (np.flatnonzero(is_ascii), data, offsets),
        (wide, *_fold_words(data, offsets[wide], offsets[wide + 1])),
    ):
        lines = chosen if texts is data else np.arange(chosen.size)
        made, none = np.zeros(chosen.size, np.uint64), np.zeros(chosen.size, np.bool_)
        simhash_texts(texts, limits[lines], limits[lines + 1], classes, made, none)
        simhash[chosen] = made
        empty[chosen] = none
    content_fp[empty] = 0
    return Fingerprints(content_fp, simhash, empty)


def _fold_words(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Texts as valid UTF-8 whose words beyond ASCII are folded, and their offsets.

    Spaces and control characters neither compose with anything nor take part in the rule of the final sigma, so each
    word between them can be folded by itself: the same as folding the text, but most of it needs nothing, and what
    does is repetitive.
    """
    from meguri_common.content.kernels import wide_words  # noqa: PLC0415 - imports numba

    counts = np.zeros(starts.size, np.int64)
    wide_words(data, starts, ends, counts, np.zeros((0, 2), np.int64))
    spans = np.zeros((int(counts.sum()), 2), np.int64)
    wide_words(data, starts, ends, counts, spans)
    known: dict[bytes, bytes] = {}
    pieces: list[bytes] = []
    sizes: list[int] = []
    words = iter(spans.tolist())
    for start, end, count in zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True):
        text = data[start:end].tobytes()
        size = done = 0
        for word_start, word_end in itertools.islice(words, count):
            word = text[word_start - start : word_end - start]
            folded = known.get(word)
            if folded is None:
                folded = known[word] = fold(decode(word)).encode()
            pieces += (text[done : word_start - start], folded)
            size += word_start - start - done + len(folded)
            done = word_end - start
        pieces.append(text[done:])
        sizes.append(size + len(text) - done)
    offsets = np.cumsum([0, *sizes], dtype=np.int64)
    return np.frombuffer(b"".join(pieces), np.uint8), offsets


def _check(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
    if data.dtype != np.uint8 or data.ndim != 1:
        raise TypeError(f"texts must be a u8 column, not {data.dtype} of {data.ndim} dimensions")
    if offsets.dtype != np.int64 or offsets.ndim != 1:
        raise TypeError(f"offsets must be an i64 column, not {offsets.dtype} of {offsets.ndim} dimensions")
    if offsets.size == 0 or offsets[0] < 0 or offsets[-1] > data.size or (np.diff(offsets) < 0).any():
        raise ValueError(f"offsets must be n + 1 rising numbers within the {data.size} bytes of the texts")


def _frozen(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A contiguous read-only view: kernels are compiled once for that, not again for writable arrays."""
    view = np.ascontiguousarray(data).view()
    view.flags.writeable = False
    return view
