"""Some rows of a column chunk: texts put together for these rows only, and rows told by their dictionary codes.

A text shares its beginning with the one before it. What it shares is looked for backwards, in the rests of the rows
before it, no farther than the last text that was put together: so each row is passed twice, and few bytes are copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.kernels.jit import inline_kernel, kernel
from meguri_common.kernels.memory import load64, store64

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["pick_texts", "texts_fit", "unmark_codes"]

_BYTE = 8


@kernel
def texts_fit(prefixes: NDArray[np.int64], lengths: NDArray[np.int64], size: int) -> bool:
    """Whether each text (n,) shares no more than the one before it has, and all rests have `size` bytes together."""
    good = True
    total = 0
    before = np.int64(0)
    for row in range(prefixes.size):
        shared = prefixes[row]
        rest = lengths[row]
        good &= (shared >= 0) & (shared <= before) & (rest >= 0) & (rest <= size)
        before = shared + rest
        total += rest
    return good and total == size


@inline_kernel
def _copy(source: NDArray[np.uint8], begin: np.int64, out: NDArray[np.uint8], at: np.int64, size: np.int64) -> None:
    done = np.int64(0)
    while done + 8 <= size:
        store64(out, at + done, load64(source, begin + done))
        done += 8
    while done < size:
        out[at + done] = source[begin + done]
        done += 1


@kernel
def pick_texts(
    prefixes: NDArray[np.int64],
    lengths: NDArray[np.int64],
    data: NDArray[np.uint8],
    start: int,
    rows: NDArray[np.int64],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    """Put the texts of some rows together.

    Args:
        prefixes: bytes shared with the text before, (n,); `texts_fit`.
        lengths: bytes of the rests, (n,).
        data: holds the rests, one after another.
        start: where they begin.
        rows: which rows, ascending; one may come more than once, (k,).
        offsets: where these texts begin in `out`, (k + 1,).
        out: filled in.
    """
    source = np.int64(start)
    row = np.int64(0)
    last = np.int64(-1)
    for at in range(rows.size):
        picked = rows[at]
        while row < picked:
            source += lengths[row]
            row += 1
        place = np.int64(offsets[at])
        needed = prefixes[picked]
        _copy(data, source, out, place + needed, lengths[picked])
        rest = source
        back = picked - 1
        while needed > 0 and back > last:
            rest -= lengths[back]
            shared = prefixes[back]
            if shared < needed:
                _copy(data, rest, out, place + shared, needed - shared)
                needed = shared
            back -= 1
        if needed > 0:
            _copy(out, np.int64(offsets[at - 1]), out, place, needed)
        last = picked


@kernel
def unmark_codes(
    data: NDArray[np.uint8], start: int, width: int, wanted: NDArray[np.uint8], marks: NDArray[np.uint8]
) -> None:
    """Clear the marks of rows whose code isn't wanted.

    Args:
        data: holds the codes of `width` bits, 1 to 32, lowest first, and 8 bytes more.
        start: the byte at which they begin.
        width: see above.
        wanted: 1 for each code that is, (2 ** width,).
        marks: 0 or 1 a row, changed, (n,).
    """
    if width == _BYTE:
        for row in range(marks.size):
            marks[row] &= wanted[data[start + row]]
    else:
        mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
        bit = np.int64(0)
        for row in range(marks.size):
            word = load64(data, start + (bit >> 3))
            marks[row] &= wanted[(word >> np.uint64(bit & 7)) & mask]
            bit += width
