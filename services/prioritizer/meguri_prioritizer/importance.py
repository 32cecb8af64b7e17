"""Pure arithmetic of importance: cash in fixed point, scores and priorities in the float widths of the records.

OPIC: Abiteboul, Preda, Cobena, "Adaptive On-Line Page Importance Computation", WWW 2003.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "LEVELS",
    "UNIT",
    "Payment",
    "blend",
    "compress",
    "crosses",
    "depth_penalty",
    "depth_power",
    "level_bounds",
    "opic_score",
    "pay",
    "quantize",
    "relative_level",
    "trap_penalty",
    "units_of",
]

UNIT = 1 << 32
"""Units of 1.0 cash."""

LEVELS = 64
"""Priority levels between which a waiting URL moves."""

_HISTORY_LIMIT = (1 << 64) - 1
_MINT_LIMIT = 1 << 63
_SCALE = 256.0
_HALVINGS = 16


class Payment(NamedTuple):
    """What a visit does to the page that is visited and to its targets."""

    share: int
    """Units that each entry of the target list gets."""
    to_pool: int
    """Units that go to the pool: the cut and the remainder."""
    history: int
    """The page's history afterwards."""


def units_of(amount: float) -> int:
    """Units of an amount of cash, half to even.

    Raises:
        ValueError: negative, not finite, or beyond 2^63 units.
    """
    if not math.isfinite(amount) or amount < 0 or amount * UNIT >= _MINT_LIMIT:
        msg = f"cash must be from 0 to 2^31, not {amount!r}"
        raise ValueError(msg)
    return round(amount * UNIT)


def pay(cash: int, history: int, targets: int, *, teleport: int, discount: int) -> Payment:
    """One OPIC visit of a page that holds `cash` units; `teleport` and `discount` are rates in units."""
    kept = min(_HISTORY_LIMIT, (history * discount >> 32) + cash)
    if targets == 0:
        return Payment(0, cash, kept)
    share = (cash - (cash * teleport >> 32)) // targets
    return Payment(share, cash - targets * share, kept)


def opic_score(raw: int, log_norm: float) -> np.float32:
    """Importance estimate of raw = history + cash + floor, in units."""
    return np.float32(math.log(1.0 + raw / UNIT) / (log_norm if log_norm > 0 else 1.0))


def compress(score: float) -> np.float32:
    """Imported ranks and host scores on the scale of OPIC scores."""
    return np.float32(math.log1p(float(np.float32(score)))) if score > 0 else np.float32(0)


def blend(
    opic: float,
    page_rank: float | None,
    host_score: float,
    *,
    w_pagerank: float = 0.6,
    w_opic_with_page: float = 0.25,
    w_host: float = 0.15,
    w_opic_with_host: float = 0.7,
    w_host_only: float = 0.3,
) -> np.float32:
    """Weighted sum of compressed inputs, in f32, terms from left to right."""
    one = np.float32
    if page_rank is not None:
        total = one(w_pagerank) * one(page_rank) + one(w_opic_with_page) * one(opic)
        return total + one(w_host) * one(host_score)
    if host_score != 0:
        return one(w_opic_with_host) * one(opic) + one(w_host_only) * one(host_score)
    return one(opic)


def trap_penalty(priority: float, *, suspect: bool, factor: float = 0.1) -> np.float32:
    """The penalty of a host that is suspected of being a trap."""
    return np.float32(priority) * np.float32(factor) if suspect else np.float32(priority)


def depth_penalty(priority: float, depth: int, *, decay: float = 0.95) -> np.float32:
    """The penalty of the distance from a seed: the factor in f32, its power in f64 rounded to f32."""
    return np.float32(priority) * depth_power(depth, decay) if depth else np.float32(priority)


def depth_power(depth: int, decay: float) -> np.float32:
    """The factor of a depth: decay ^ depth."""
    return np.float32(math.pow(float(np.float32(decay)), depth))


def quantize(priority: float, levels: int) -> int:
    """Level of a priority in 0..levels - 1: 16 halvings over all levels, monotone, exact at powers of two."""
    if levels <= 1 or not priority > 0:
        return 0
    if priority >= 1:
        return levels - 1
    return max(0, levels - 1 - int(-math.log2(priority) * (levels - 1) / _HALVINGS))


def level_bounds(levels: int = LEVELS) -> NDArray[np.float32]:
    """The least f32 of each level, found by bisection over bit patterns, which order as the numbers do; (levels,)."""
    out = np.zeros(levels, np.float32)
    for level in range(1, levels):
        low, high = 0, 0x3F800000  # 0 is below every level, 1 in the highest
        while high - low > 1:
            middle = (low + high) // 2
            if quantize(float(np.uint32(middle).view(np.float32)), levels) >= level:
                high = middle
            else:
                low = middle
        out[level] = np.uint32(high).view(np.float32)
    return out


def crosses(before: float, after: float, levels: int) -> bool:
    """Whether two priorities are of different levels."""
    return quantize(before, levels) != quantize(after, levels)


def relative_level(priority: float, cash: int, known: int) -> int:
    """Level relative to a partition's totals: cash is constant while the frontier grows, so levels shift with it.

    Args:
        priority: f32.
        cash: held + pool of the partition, units.
        known: URLs that share it.
    """
    if known == 0 or cash == 0:
        return 0
    return quantize(float(np.float32(priority / (_SCALE * math.log(1.0 + cash / UNIT / known)))), LEVELS)
