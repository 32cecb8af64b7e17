"""Makes `store_world`, the store tests' own vocabulary and plain twin, importable from them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location("store_world", Path(__file__).with_name("store_world.py"))
assert _spec is not None
assert _spec.loader is not None
if "store_world" not in sys.modules:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["store_world"] = _module
    _spec.loader.exec_module(_module)
