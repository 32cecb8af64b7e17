"""Fingerprints of many texts at once."""

from __future__ import annotations

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

    def add(texts: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], at: NDArray[np.intp]) -> None:
        room = np.empty(int((ends - starts).max(initial=0)), np.uint8)
        made, none = np.zeros(at.size, np.uint64), np.zeros(at.size, np.bool_)
        simhash_texts(texts, starts, ends, classes, room, made, none)
        simhash[at] = made
        empty[at] = none

    plain = np.flatnonzero(is_ascii)
    add(data, offsets[plain], offsets[plain + 1], plain)
    others = np.flatnonzero(~is_ascii)
    folded = [fold(decode(data[offsets[row] : offsets[row + 1]].tobytes())).encode() for row in others.tolist()]
    ends = np.cumsum([0, *map(len, folded)], dtype=np.int64)
    add(np.frombuffer(b"".join(folded), np.uint8), ends[:-1], ends[1:], others)
    content_fp[empty] = 0
    return Fingerprints(content_fp, simhash, empty)


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
