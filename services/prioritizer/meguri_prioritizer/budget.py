"""URL budgets of hosts: IRLbot's STAR, earned by the number of other hosts that link in.

Lee, Leonard, Wang, Loguinov, "IRLbot: Scaling to 6 Billion Pages and Beyond", WWW 2008.
"""

from __future__ import annotations

__all__ = ["update_budget"]

_U32 = (1 << 32) - 1


def update_budget(
    in_degree: int, *, base_budget: int = 64, per_in_link: int = 16, min_budget: int = 16, max_budget: int = 1 << 20
) -> int:
    """URLs that a host of this in-degree may have admitted, saturating in u32."""
    earned = min(base_budget + per_in_link * in_degree, _U32)
    return min(max(earned, min_budget), max_budget)
