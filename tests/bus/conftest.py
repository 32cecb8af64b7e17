"""The broker's fixtures."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "kafka"))

from kafka_fixtures import kafka_bootstrap

__all__ = ["kafka_bootstrap"]
