"""Parameters of the prioritizer: names, defaults, ranges. Each is part of every snapshot."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULTS", "checked"]

DEFAULTS: dict[str, Any] = {
    "discount": 0.9998,
    "teleport_rate": 0.15,
    "log_norm": 1.0,
    "w_pagerank": 0.6,
    "w_opic_with_page": 0.25,
    "w_host": 0.15,
    "w_opic_with_host": 0.7,
    "w_host_only": 0.3,
    "base_budget": 64,
    "per_in_link": 16,
    "min_budget": 16,
    "max_budget": 1 << 20,
    "trap_suspect_factor": 0.1,
    "depth_decay": 0.95,
    "depth_cap": 0,
    "release_batch": 4096,
}
"""Parameters and their defaults. `depth_cap` is that of hosts without one of their own, 0 = unlimited;
`release_batch` is how many URLs of a host one message releases."""

_U32 = (1 << 32) - 1
_RANGES: dict[str, tuple[float, float]] = {
    "discount": (0, 1),
    "teleport_rate": (0, 1),
    "base_budget": (0, _U32),
    "per_in_link": (0, _U32),
    "min_budget": (1, _U32),  # 0 would be unlimited
    "max_budget": (1, _U32),
    "trap_suspect_factor": (0, 1),
    "depth_decay": (0, 1),
    "depth_cap": (0, 0xFFFE),
    "release_batch": (1, 1 << 20),
}


def checked(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters, those given over the defaults.

    Raises:
        ValueError: one that is unknown, of another type, or out of range; names it.
    """
    unknown = sorted(parameters.keys() - DEFAULTS.keys())
    if unknown:
        msg = f"prioritizer has no parameter {', '.join(unknown)}: it has {', '.join(sorted(DEFAULTS))}"
        raise ValueError(msg)
    out = {**DEFAULTS, **parameters}
    for name, value in out.items():
        whole = isinstance(DEFAULTS[name], int)
        wanted = "an integer" if whole else "a number"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not math.isfinite(value):
            msg = f"prioritizer.{name} must be {wanted}, not {value!r}"
            raise ValueError(msg)
        low, high = _RANGES.get(name, (-math.inf, math.inf))
        if not low <= value <= high:
            msg = f"prioritizer.{name} must be from {low} to {high}, not {value!r}"
            raise ValueError(msg)
    return out
