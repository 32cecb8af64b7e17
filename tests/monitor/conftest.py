"""The folder's own modules by name, and the broker of the Kafka tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "kafka"))

from kafka_fixtures import kafka_bootstrap

__all__ = ["kafka_bootstrap"]
