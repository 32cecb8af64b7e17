"""The broker's fixtures, and the folder's own modules by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kafka_fixtures import kafka_bootstrap

__all__ = ["kafka_bootstrap"]
