"""One set or filter at one size, in a process of its own. Prints a JSON object: measure, value, unit.

    python bench/seen_case.py set "SeenSet on disk" 10000000
    python bench/seen_case.py filter "ribbon r = 7" 10000000
    python bench/seen_case.py soak "SeenSet on disk" 50000000
    python bench/seen_case.py rates Bloom 65536

Started by `bench/seen.py`. Every answer is checked: a wrong one ends the process.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from seen_filters import FILTERS
from seen_keys import FRESH, batches, columns, crawled, half_known, known, unknown
from seen_sets import SETS

from meguri_common.filters.bloom import Filter
from meguri_common.filters.ribbon import RibbonFilter
from meguri_common.filters.ribbon_stream import FileSpill, RibbonStream
from meguri_common.filters.sharded import freeze_keys
from meguri_common.runtime.files import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray
    from seen_filters import KeyFilter
    from seen_sets import ExactSet

    Figures = dict[str, tuple[float, str]]

ASKED = 1_000_000
"""Keys that a filter is asked for, in a round."""
ASKED_FOR_RATES = 10_000_000
"""Absent keys that a rate is counted with: at one in 10,000 it comes out to 3 %."""
ASKED_OF_SETS = 300_000
"""Keys that a set is asked for, in a round."""
ROUNDS = 3
_WARM = 30_000
RATES = (0.05, 0.01, 0.001, 0.0001)
FILLS = (0.05, 0.5, 1.0, 4.0, 20.0)


def merged(exact: ExactSet, orders: Iterable[NDArray[np.int64]], size: int) -> tuple[float, int]:
    """CPU seconds of merging, and how many keys are in afterwards, where numbers below `size` were in.

    Raises:
        AssertionError: a verdict was wrong.
    """
    spent = 0.0
    for numbers in orders:
        new = np.unique(numbers[numbers >= size]).size
        batch = exact.prepare(columns(numbers))
        begun = time.process_time()
        seen = exact.merge(batch)
        spent += time.process_time() - begun
        assert seen == numbers.size - new, f"{seen} were called seen, {numbers.size - new} were"
        size += new
    return spent, size


def _warm(make: Callable[[Path], ExactSet], folder: Path) -> ExactSet:
    """A new set, after another one has had everything loaded and compiled."""
    warm, place = folder / "warm", folder / "measured"
    warm.mkdir()
    place.mkdir()
    merged(make(warm), batches(0, _WARM), 0)
    return make(place)


def measure_set(make: Callable[[Path], ExactSet], keys: int) -> Figures:
    """Cost of filling a set, and of four mixes of questions to the full one."""
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(prefix="meguri-bench-") as folder:
        exact = _warm(make, Path(folder))
        gc.disable()  # keys as Python objects aren't garbage; looking through them isn't the set's cost
        spent, size = merged(exact, batches(0, keys), 0)
        out: Figures = {"filling": (spent * 1e9 / keys, "ns")}
        for name, order in (("all known", known), ("half new", half_known), ("crawl", crawled), ("all new", unknown)):
            costs = []
            for _ in range(ROUNDS):
                spent, size = merged(exact, order(random, size, ASKED_OF_SETS), size)
                costs.append(spent * 1e9 / ASKED_OF_SETS)
            out[name] = statistics.median(costs), "ns"
        out.update(exact.figures(size))
        del exact
    return out


def measure_filter(make: Callable[[int], KeyFilter], keys: int) -> Figures:
    """Cost of building a filter and of asking it, its size and its rate."""
    small = make(_WARM)
    small.build([small.prepare(columns(numbers)) for numbers in batches(0, _WARM)])
    small.probe(small.prepare(columns(np.arange(100))))
    tested = make(keys)
    held = [tested.prepare(columns(numbers)) for numbers in batches(0, keys)]
    gc.disable()
    begun = time.process_time()
    tested.build(held)
    out: Figures = {"build": ((time.process_time() - begun) * 1e9 / keys, "ns")}
    del held
    random = np.random.default_rng(1)
    orders = {"probe, absent": list(batches(FRESH, ASKED)), "probe, present": list(known(random, keys, ASKED))}
    for name, order in orders.items():
        costs, maybe = [], 0
        for _ in range(ROUNDS):
            spent = 0.0
            maybe = 0
            for numbers in order:
                batch = tested.prepare(columns(numbers))
                begun = time.process_time()
                maybe += tested.probe(batch)
                spent += time.process_time() - begun
            costs.append(spent * 1e9 / ASKED)
        out[name] = statistics.median(costs), "ns"
        if name == "probe, absent":
            out["false positives"] = 100 * maybe / ASKED, "%"
        else:
            assert maybe == ASKED, f"{ASKED - maybe} keys that are in were called absent"
    out["bits a key"] = tested.bits() / keys, "bits"
    return out


def soak_set(make: Callable[[Path], ExactSet], keys: int) -> Figures:
    """Fill a set and ask it for every key again; `merged` checks each answer."""
    with tempfile.TemporaryDirectory(prefix="meguri-bench-") as folder:
        exact = _warm(make, Path(folder))
        filled, size = merged(exact, batches(0, keys), 0)
        asked, _ = merged(exact, batches(0, keys), size)
        return {
            "soak, keys asked again": (keys, "keys"),
            "soak, of these called new": (0, "keys"),
            "soak, filling": (filled * 1e9 / keys, "ns"),
            "soak, asking": (asked * 1e9 / keys, "ns"),
            **{f"soak, {name}": figure for name, figure in exact.figures(keys).items()},
        }


def soak_ribbon(bits: int, keys: int) -> Figures:
    """Stream keys into a ribbon and ask it for every key again."""
    freeze_keys(*columns(np.arange(_WARM)), bits)
    with tempfile.TemporaryDirectory(prefix="meguri-bench-") as folder:
        begun = time.process_time()
        with FileSpill(LocalFiles(Path(folder)), "hashes") as spill:
            stream = RibbonStream(keys, bits, spill=spill)
            for numbers in batches(0, keys):
                stream.add(*columns(numbers))
            blob = stream.finish().marshal()
        built = time.process_time() - begun
    read = RibbonFilter.load(blob)
    missed = sum(int((~read.maybe_contains_batch(*columns(numbers))).sum()) for numbers in batches(0, keys))
    peak = max(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return {
        "soak, keys asked again": (keys, "keys"),
        "soak, of these called new": (missed, "keys"),
        "soak, build with making the keys": (built * 1e9 / keys, "ns"),
        "soak, bits a key": (read.bits_per_url, "bits"),
        "soak, peak memory of the process": (peak / 1024, "MiB"),
    }


def measure_rates(first: int) -> Figures:
    """Rate of the Bloom filter that grows, below and beyond its first capacity, over the rate that was asked for."""
    asked = [columns(numbers) for numbers in batches(FRESH, ASKED_FOR_RATES)]
    out: Figures = {}
    for rate in RATES:
        bloom = Filter(first, rate)
        size = 0
        for fill in FILLS:
            for numbers in batches(size, int(first * fill) - size):
                bloom.add_batch(*columns(numbers))
            size = int(first * fill)
            wrong = sum(int(bloom.maybe_contains_batch(*keys).sum()) for keys in asked)
            out[f"rate {rate:g} asked for, {fill:.0%} of the first capacity"] = 100 * wrong / ASKED_FOR_RATES, "%"
    return out


def main() -> None:
    """Run it."""
    what, name, keys = sys.argv[1], sys.argv[2], int(sys.argv[3])
    found: dict[str, Any]
    if what == "set":
        found = measure_set(SETS[name], keys)
    elif what == "filter":
        found = measure_filter(FILTERS[name], keys)
    elif what == "rates":
        found = measure_rates(keys)
    elif name in SETS:
        found = soak_set(SETS[name], keys)
    else:
        found = soak_ribbon(int(name.rpartition(" ")[2]), keys)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
