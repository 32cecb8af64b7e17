"""The simulations' own modules are imported by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from meguri_dedup import budget

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _tiny_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seen-set whose memory is bounded writes to disk after a few keys, so that a few dozen make runs and merges."""
    monkeypatch.setattr(budget, "_LEAST", 256)
    monkeypatch.setattr(budget, "_LEAST_SLOTS", 4)
