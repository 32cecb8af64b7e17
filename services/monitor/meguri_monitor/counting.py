"""From samples to increases: what was counted between two samples of the same thing.

Samples are lost, doubled, late; counters go back after a failed step and start anew after a restore. What is counted
here never exceeds what happened since the first sample, and a later sample makes good what a lost one would have said.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

__all__ = ["LifeCounts", "Sequences", "StateCounts"]

REBASE_AFTER = 60.0
"""Seconds that a total must stay below its highest before it is taken to have begun anew (a rebuilt state)."""


@dataclass
class StateCounts:
    """Totals of a state: equal at equal positions, whoever owns it. Only what exceeds the highest so far counts."""

    highest: dict[str, int] = field(default_factory=dict)
    below_since: float | None = None

    def advance(self, at: float, totals: Mapping[str, int]) -> dict[str, int]:
        """Increases since the highest totals so far; a total heard for the first time is where it begins.

        Args:
            at: when the totals were read, epoch seconds.
            totals: by name.
        """
        increases = {}
        below = False
        for name, total in totals.items():
            highest = self.highest.get(name)
            if highest is None or total > highest:
                self.highest[name] = total
                if highest is not None:
                    increases[name] = total - highest
            below = below or (highest is not None and total < highest)
        if not below:
            self.below_since = None
        elif self.below_since is None:
            self.below_since = at
        elif at - self.below_since >= REBASE_AFTER:
            self.highest.update(totals)
            self.below_since = None
        return increases


@dataclass
class LifeCounts:
    """Counts that begin at 0 with a life (of a process, of a loaded partition)."""

    life: Hashable = None
    last: dict[str, float] = field(default_factory=dict)

    def advance(self, life: Hashable, counts: Mapping[str, float]) -> dict[str, float]:
        """Increases since the last counts of the same life; the first ones of a life are where it begins.

        Args:
            life: what tells lives apart, e.g. who lives and since when.
            counts: by name.
        """
        if life != self.life:
            self.life = life
            self.last = dict(counts)
            return {}
        increases = {}
        for name, count in counts.items():
            last = self.last.get(name)
            if last is None or count > last:
                self.last[name] = count
                if last is not None:
                    increases[name] = count - last
        return increases


@dataclass
class Sequences:
    """Which reports of one life of an instance were heard: `heard + lost` is their span."""

    remembered: int = 256
    """Missing numbers that are remembered at most, so that one that is only late can be told from a repeat."""
    last: int | None = None
    heard: int = 0
    lost: int = 0
    repeated: int = 0
    _missing: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def hear(self, number: int) -> bool:
        """Take note of a report; whether it wasn't heard before."""
        if self.last is None or number > self.last:
            first = number if self.last is None else self.last + 1
            self.lost += number - first
            for missing in range(max(first, number - self.remembered), number):
                self._missing[missing] = None
            while len(self._missing) > self.remembered:
                self._missing.popitem(last=False)
            self.last = number
        elif number in self._missing:
            del self._missing[number]
            self.lost -= 1
        else:
            self.repeated += 1
            return False
        self.heard += 1
        return True
