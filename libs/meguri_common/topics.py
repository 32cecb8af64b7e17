"""Names of the topics."""

from __future__ import annotations

__all__ = ["DELTAS", "FRONTIER", "LINKS", "PAGES", "REJECTS"]

PAGES = "meguri.pages"
"""Public events of fetchers and operators."""
LINKS = "meguri.links"
"""Canonical links, visits, seeds, signals and controls, by target host."""
FRONTIER = "meguri.frontier"
"""Admissions, visits with verdicts, seeds, signals, controls, credits and votes."""
DELTAS = "meguri.deltas"
"""What changed about URLs and hosts."""
REJECTS = "meguri.rejects"
"""Public events that can't be used, with the reason."""
