"""What a run takes: a bound for its memory; its time is told in the closing summary, and measured by the benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from program import EXAMPLE, assert_sums

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
MEBIBYTES = 800


def measured(source: Path, data: Path) -> tuple[dict[str, Any], float]:
    """Run an input as a process; the closing document, and the peak of its memory in MiB."""
    command = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "meguri", "run", source, "--data", data, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), int(done.stderr.split()[-1]) / 1024


@pytest.mark.parametrize("name", ["example", "docs-crawl.jsonl.zst"])
def test_time_and_memory(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, say: Callable[[str, str], None]
) -> None:
    source = EXAMPLE if name == "example" else request.getfixturevalue("test_data") / "data" / name
    if not source.is_file():
        pytest.skip(f"no {source}")
    measured(EXAMPLE, tmp_path / "warm")  # compiled kernels are cached from here on
    document, memory = measured(source, tmp_path / "data")
    assert_sums(document)
    assert document["urls_total"] > 0
    assert document["cash_minted"] > 0
    rate = document["links"] / document["cpu_seconds"]
    say(
        f"end to end, cost of {source.name}",
        f"{document['links']:,} links in {document['seconds']:.1f} s, {document['cpu_seconds']:.1f} s of CPU "
        f"({rate:,.0f} links/s of CPU), at most {memory:.0f} MiB",
    )
    assert memory < MEBIBYTES
