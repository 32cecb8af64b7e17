"""Measure `meguri run`: cost of a link by stage and by size, memory, bytes of snapshots, an ordered stop.

Inputs are `docs-crawl` and `cc-pages` of the folder `MEGURI_TEST_DATA` (default: `shared` beside the checkout), as they
are and stretched to 10 and 100 times the sites; without the folder, the shipped example. Each run has a process of its
own. Results go to `bench/results/run.json`, a table to standard output. See docs/benchmarks/run.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machine import add_machine
from run_figures import Figures
from run_stages import STAGES
from run_stop import stop_and_go_on
from run_stretch import Crawl, read_crawl, write_interleaved, write_later, write_stretched

if TYPE_CHECKING:
    from collections.abc import Callable

_HERE = Path(__file__).resolve().parent
_RESULTS = _HERE / "results" / "run.json"
_EXAMPLE = _HERE.parent / "examples" / "sqlite-docs.jsonl.zst"
_CRAWLS = ("docs-crawl", "cc-pages")
_ONCE_FROM_LINKS = 20_000_000
"""Links of an input from which on it is run once."""
_OFTEN = 1 << 20
_ROOM = 1.5
"""Free space needed, in bytes a byte of the largest input's lines."""


@dataclass(frozen=True)
class Case:
    """One input to run."""

    name: str
    crawl: Crawl
    copies: int
    """How often the crawl's links are in it."""
    write: Callable[[Path], None]
    snapshot_after: int | None = None
    """Bytes of inbox between two snapshots, where not the usual."""
    stop: bool = False
    """It is stopped and gone on with, too."""


def crawls() -> dict[str, Crawl]:
    """The crawls that are there."""
    folder = Path(os.environ.get("MEGURI_TEST_DATA", _HERE.parents[1] / "shared")) / "data"
    found = {name: folder / f"{name}.jsonl.zst" for name in _CRAWLS}
    paths = {name: path for name, path in found.items() if path.exists()} or {"sqlite-docs": _EXAMPLE}
    return {name: read_crawl(path) for name, path in paths.items()}


def cases(name: str, crawl: Crawl, times: list[int], repeated: int) -> list[Case]:
    """What is measured of a crawl."""
    out = [
        Case(f"{name} x{copies}", crawl, copies, _stretched(crawl, copies), stop=copies == max(times))
        for copies in times
    ]
    often = f"{name} x{repeated}, a snapshot each {_OFTEN >> 20} MiB"
    out.append(Case(often, crawl, repeated, _stretched(crawl, repeated), snapshot_after=_OFTEN))
    out.append(Case(f"{name} x{repeated} in turns", crawl, repeated, partial(_in_turns, crawl, repeated)))
    out.append(Case(f"{name} again x{repeated}", crawl, repeated, partial(_later, crawl, repeated)))
    return out


def _stretched(crawl: Crawl, copies: int) -> Callable[[Path], None]:
    return lambda target: write_stretched(crawl, target, copies)


def _in_turns(crawl: Crawl, copies: int, target: Path) -> None:
    write_interleaved(crawl, target, copies)


def _later(crawl: Crawl, times: int, target: Path) -> None:
    write_later(crawl, target, times)


def environment() -> dict[str, str]:
    """For the processes that are measured: the machine's own arithmetic, not one chosen for all machines."""
    return {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}


def measured(script: str, source: Path, *more: str) -> dict[str, Any]:
    """What a script of this folder says of an input.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, str(_HERE / script), str(source), *more]
    done = subprocess.run(command, env=environment(), capture_output=True, check=False)
    if done.returncode:
        msg = f"{script} failed on {source.name}: {done.stderr.decode(errors='replace')}"
        raise RuntimeError(msg)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the median CPU time."""
    return sorted(runs, key=lambda run: run["cpu"])[(len(runs) - 1) // 2]


def check_room(folder: str, crawl: Crawl, most: int) -> None:
    """Stop early if the disk is too full.

    Raises:
        SystemExit: it is.
    """
    needed = int(crawl.size * most * _ROOM)
    free = shutil.disk_usage(folder).free
    if free < needed:
        msg = f"{folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed: set TMPDIR, or lower --times"
        raise SystemExit(msg)


def run_case(case: Case, source: Path, repeats: int, figures: Figures) -> dict[str, Any]:
    """Run a case as often as its size allows and note its figures."""
    often = 1 if case.crawl.links * case.copies >= _ONCE_FROM_LINKS else repeats
    more = [] if case.snapshot_after is None else [str(case.snapshot_after)]
    run = middle([measured("run_case.py", source, *more) for _ in range(often)])
    expected = case.crawl.links * case.copies
    if run["links"] != expected:
        msg = f"{case.name}: {run['links']} links were counted of {expected}"
        raise RuntimeError(msg)
    figures.of_run(case.name, run, case.crawl.distinct * case.copies, STAGES)
    return run


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100], help="how often the sites are multiplied")
    parser.add_argument("--repeated", type=int, default=10, help="how often pages are fetched again; copies in turns")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the smaller sizes; their median counts")
    parser.add_argument("--crawl", choices=[*_CRAWLS, "sqlite-docs"], action="append", help="only this one")
    parser.add_argument("--stop-at", type=float, help="fraction of the input at which to stop (default: random)")
    parser.add_argument("--output", type=Path, default=_RESULTS)
    given = parser.parse_args()
    figures = Figures()
    add_machine(figures, "at the start")
    found = {name: crawl for name, crawl in crawls().items() if name in (given.crawl or [name])}
    for name, crawl in found.items():
        with tempfile.TemporaryDirectory(prefix="meguri-bench-") as folder:
            check_room(folder, crawl, max(given.times))
            runs: dict[str, dict[str, Any]] = {}
            for case in cases(name, crawl, sorted(given.times), given.repeated):
                print(f"{case.name} ...", file=sys.stderr)
                source = Path(folder) / f"{case.name.replace(' ', '-')}.jsonl.zst"
                case.write(source)
                if not runs:
                    peers = [measured("run_peer.py", source) for _ in range(given.repeats)]
                runs[case.name] = run_case(case, source, given.repeats, figures)
                if case.stop:
                    fraction = given.stop_at or random.SystemRandom().uniform(0.5, 0.95)
                    stopped = stop_and_go_on(source, Path(folder) / "stopped", fraction, environment())
                    figures.of_stop(case.name, fraction, stopped, runs[case.name])
                    shutil.rmtree(Path(folder) / "stopped")
                source.unlink()
            sizes = [runs[f"{name} x{copies}"] for copies in sorted(given.times)]
            figures.of_sizes(name, sizes, runs[f"{name} again x{given.repeated}"])
            for way in peers[0]:
                cost = statistics.median(peer[way]["us_a_link"] for peer in peers)
                figures.of_peer(name, way, sizes[0], cost)
    add_machine(figures, "at the end")
    figures.write(given.output)
    figures.show()


if __name__ == "__main__":
    main()
