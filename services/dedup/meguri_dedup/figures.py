"""What a seen-set has decided, counted."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SeenFigures"]


@dataclass(frozen=True, slots=True)
class SeenFigures:
    """Counts that go on over restarts.

    All but `run_probes` and `batches` follow from the keys in their order; those two depend on how they were grouped.
    So does `false_hits` by a few, where keys are on disk and the filter grows within a batch.
    """

    decisions: int = 0
    """Keys that were decided on, or put in."""
    batches: int = 0
    """Calls in which they were."""
    probes: int = 0
    """Decisions that went past the filter, to the exact set."""
    false_hits: int = 0
    """Those of them that were about new keys: the filter's false positives."""
    trusted: int = 0
    """Decisions that took the filter's "maybe" for "seen"."""
    run_probes: int = 0
    """Decisions that went past memory, to the runs on disk."""

    @property
    def hits(self) -> int:
        """Decisions for "seen"."""
        return self.probes - self.false_hits + self.trusted

    @property
    def misses(self) -> int:
        """Decisions for "new"."""
        return self.decisions - self.hits

    def summary(self) -> dict[str, float]:
        """As `SeenSet.stats` gives them."""
        return {
            "measured_fpr": self.false_hits / self.misses if self.misses else 0.0,
            "decisions": self.decisions,
            "batches": self.batches,
            "hits": self.hits,
            "misses": self.misses,
            "base_probes": self.probes,
            "base_share": self.probes / self.decisions if self.decisions else 0.0,
            "run_probes": self.run_probes,
            "run_share": self.run_probes / self.decisions if self.decisions else 0.0,
            "trusted": self.trusted,
        }
