"""The broker's fixture, and the folder's own modules by name."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parent.parent / "kafka"):
    sys.path.insert(0, str(folder))

from kafka_fixtures import kafka_bootstrap  # noqa: E402 - found by the path above

__all__ = ["kafka_bootstrap"]
