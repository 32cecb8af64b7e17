"""Makes `program`, the end-to-end tests' way to the program, importable from them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_spec = importlib.util.spec_from_file_location("program", Path(__file__).with_name("program.py"))
assert _spec is not None
assert _spec.loader is not None
if "program" not in sys.modules:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["program"] = _module
    _spec.loader.exec_module(_module)
