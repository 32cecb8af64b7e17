"""Measure the store: bytes a URL, build, compaction, reads, due scans, stalls of intake, and peers.

    make bench-store                                   # everything; about half an hour, and 6 GB of free disk
    make bench-store ARGS="--rows 100000 1000000"

URLs are those of `docs-crawl` and `urls-web` of the folder `MEGURI_TEST_DATA` (default: `shared` beside the checkout;
without it, of the shipped example), copied under host groups of their own for larger stores. Each case is a process of
its own. Results go to `bench/results/store.json`, a table to standard output. See docs/benchmarks/store.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import measure_machine

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results" / "store.json"
_PEER_ROWS = 1_000_000


def measured(case: str, folder: Path, *arguments: str) -> list[tuple[str, float, str]]:
    """Figures of a case."""
    command = [sys.executable, str(_HERE / "store_case.py"), case, str(folder), *arguments]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    found = [(str(name), float(value), str(unit)) for name, value, unit in json.loads(answer)]
    for name, value, unit in found:
        print(f"{name:90} {value:12.4g} {unit}", flush=True)
    return found


def machine(when: str) -> list[tuple[str, float, str]]:
    """How fast the machine is just now, apart from the store."""
    return [(f"machine, {when}: {name}", value, unit) for name, (value, unit) in measure_machine().items()]


def main() -> None:
    """Run it."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, nargs="*", default=[100_000, 1_000_000, 10_000_000])
    arguments.add_argument("--folder", type=Path, default=None, help="where stores are made (default: temporary)")
    given = arguments.parse_args()
    load = os.getloadavg()[1]
    print(f"{os.cpu_count()} cores, load {load:.1f} over the last five minutes", flush=True)
    figures = [("load of the machine over five minutes, at the start", load, ""), *machine("at the start")]
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        root = Path(temporary)
        for name in ("docs-crawl", "urls-web"):
            figures += measured("sizes", root / "sizes", name)
        for rows in given.rows:
            folder = root / str(rows)
            folder.mkdir()
            figures += measured("build", folder, str(rows))
            for kind in ("mixed", "visits", "priorities", "host"):
                figures += measured("compaction", folder, kind)
            figures += measured("reading", folder)
            for where in ("together", "anywhere"):
                figures += measured("due", folder, where)
            if rows >= _PEER_ROWS:
                figures += measured("stall", folder, str(rows))
            if rows == _PEER_ROWS:
                figures += measured("peers", folder)
    figures += machine("at the end")
    lines = [json.dumps({"name": name, "value": float(f"{value:.4g}"), "unit": unit}) for name, value, unit in figures]
    _RESULTS.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
