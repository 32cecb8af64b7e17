"""Discovery or refresh: deficit round-robin between the two streams."""

from __future__ import annotations

from typing import Literal

__all__ = ["BudgetSplit"]

_CLAIM_LIMIT = 64
"""Picks of the other stream that an idle stream may claim when it has work again."""


class BudgetSplit:
    """Picks the stream that is served next, so that the long-run ratio is the configured one."""

    def __init__(self, discovery: float = 0.8, refresh: float = 0.2) -> None:
        """Shares of the two streams; one that isn't positive counts as 0.5."""
        self._discovery_share = discovery if discovery > 0 else 0.5
        self._refresh_share = refresh if refresh > 0 else 0.5
        self._discovered = 0.0
        self._refreshed = 0.0

    def shares(self) -> tuple[float, float]:
        """The shares in force: discovery, refresh."""
        return self._discovery_share, self._refresh_share

    def admit(self, *, discovery_ready: bool, refresh_ready: bool) -> Literal["discovery", "refresh"]:
        """The stream to serve; "discovery", uncharged, when none is ready."""
        if not discovery_ready and not refresh_ready:
            return "discovery"
        due = self._discovered / self._discovery_share <= self._refreshed / self._refresh_share
        if discovery_ready and (due or not refresh_ready):
            self._discovered += 1
            if not refresh_ready:
                claim = self._discovered / self._discovery_share * self._refresh_share
                self._refreshed = max(self._refreshed, claim - _CLAIM_LIMIT)
            return "discovery"
        self._refreshed += 1
        if not discovery_ready:
            claim = self._refreshed / self._refresh_share * self._discovery_share
            self._discovered = max(self._discovered, claim - _CLAIM_LIMIT)
        return "refresh"
