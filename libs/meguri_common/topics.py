"""Names of the topics that services read and write."""

from __future__ import annotations

__all__ = [
    "DELTAS",
    "DUE",
    "FRONTIER",
    "LEDGER",
    "LINKS",
    "PAGES",
    "PAGES_MESSAGE_BYTES",
    "REJECTS",
    "SKIPS",
    "TELEMETRY",
]

PAGES = "meguri.pages"
"""Public events, JSON: from fetchers and operators to the canonicalizer."""

PAGES_MESSAGE_BYTES = 9 << 20
"""Size that a message of the pages may have: one event of the largest size, and its headers."""

LINKS = "meguri.links"
"""Canonical links, visits, seeds, signals and controls: from the canonicalizer to dedup."""

FRONTIER = "meguri.frontier"
"""Admissions and everything that passes dedup; credits and votes of the prioritizer to itself."""

DELTAS = "meguri.deltas"
"""What changed about a URL or a host: from the prioritizer to the store."""

REJECTS = "meguri.rejects"
"""Public events that can't be used, with the reason, JSON: to operators."""

DUE = "meguri.due"
"""Fetch requests, JSON: from the store to fetchers."""

TELEMETRY = "meguri.telemetry"
"""Counters and gauges, JSON: from every service to the monitor. Lossy by design."""

SKIPS = "meguri.skips"
"""Messages that operators have skipped, JSON: from the service that read them to each re-read. On Kafka only."""

LEDGER = "meguri.ledger"
"""What `meguri publish` has published, in steps: from each publisher to the ones after it. On Kafka only."""
