"""What a schedule by worth is worth, and what a recrawl costs.

    python bench/freshness.py worth
    python bench/freshness.py recrawl --rows 2000000 --due 1.0

`worth`: mean freshness of 1,000 pages whose change rates are known (even in the logarithm, once a year to once an
hour), under allocations of equal budgets. `recrawl`: due rows a second of CPU time, on made-up records.
"""

from __future__ import annotations

import argparse
import itertools
import math
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from meguri_common.identity import CampaignIdentity
from meguri_common.records import CRAWL_DELAY_UNSET, Status
from meguri_common.runtime.files import LocalFiles
from meguri_store.compact import Changes, publish_generation
from meguri_store.fold import FoldRules
from meguri_store.freshness import Freshness, target_interval
from meguri_store.generation import Generation
from meguri_store.recrawl import recrawl
from meguri_store.recrawl_outcomes import drawn_outcomes
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

PAGES = 1000
GAPS = (4, 8, 16, 24, 48, 96, 192)
NOW = 490_000
GROUP_ROWS = 131_072
URLS_A_HOST = 50
IDENTITY = CampaignIdentity(
    campaign="bench", partitions=1, group_by="registrable", policy="", suffix_list="", url_parser=""
)


def mean_freshness(rates: NDArray[np.float64], fetches: NDArray[np.float64]) -> float:
    """Time-averaged freshness of pages that are fetched at even gaps."""
    changes = rates / fetches
    return float(np.mean(-np.expm1(-changes) / changes))


def allocated(rates: NDArray[np.float64], budget: float, rules: Freshness) -> NDArray[np.float64]:
    """Fetch rates at the price under which they sum up to the budget."""
    low, high = 1e-12, 1e6
    fetches = np.zeros(len(rates))
    for _ in range(80):
        price = math.sqrt(low * high)
        fetches = np.array([1 / target_interval(1.0, rate, price, math.inf, rules) for rate in rates])
        low, high = (price, high) if fetches.sum() > budget else (low, price)
    return fetches


def worth() -> None:
    """Freshness by budget."""
    rates = np.exp(np.random.default_rng(0).uniform(math.log(1 / 8760), 0, PAGES))
    lowered = Freshness(ref_rate=Freshness().reprobe_rate)
    print("| a fetch of each page in, on average | by worth | by worth, ref_rate 1/336 | uniform | proportional |")
    print("|---|---|---|---|---|")
    for gap in GAPS:
        budget = PAGES / gap
        found = [
            allocated(rates, budget, Freshness()),
            allocated(rates, budget, lowered),
            np.full(PAGES, 1 / gap),
            rates / rates.sum() * budget,
        ]
        print(f"| {gap} hours | " + " | ".join(f"{mean_freshness(rates, fetches):.3f}" for fetches in found) + " |")


def filled(schema: pa.Schema, rows: int, given: dict[str, object]) -> pa.Table:
    """A table with these columns, and zeros or nulls for the others."""
    arrays = []
    for field in schema:
        if field.name in given:
            arrays.append(pa.array(given[field.name]).cast(field.type, safe=False))
        elif field.nullable:
            arrays.append(pa.nulls(rows, field.type))
        else:
            arrays.append(pa.array(np.zeros(rows, field.type.to_pandas_dtype())))
    return pa.Table.from_arrays(arrays, schema=schema)


def urls(rows: int, due: float, host_key: NDArray[np.uint64]) -> Iterator[pa.Table]:
    """Records that were fetched some times, in store order; a share of them due."""
    random = np.random.default_rng(1)
    for start in range(0, rows, GROUP_ROWS):
        size = min(GROUP_ROWS, rows - start)
        number = np.arange(start, start + size)
        host = number // URLS_A_HOST
        fetches = random.integers(1, 40, size)
        is_due = random.random(size) < due
        named = zip(host.tolist(), number.tolist(), strict=True)
        yield filled(
            URL_SCHEMA,
            size,
            {
                "host_key": host_key[host],
                "url": [f"https://www.site{of}.example/articles/page-{at:010d}.html" for of, at in named],
                "status": np.full(size, Status.DUE_RECRAWL),
                "priority": np.exp(random.normal(size=size)),
                "first_seen": np.full(size, NOW - 8000),
                "last_crawled": NOW - random.integers(30, 400, size),
                "next_due": np.where(is_due, NOW - random.integers(0, 24, size), NOW + random.integers(1, 500, size)),
                "crawl_count": fetches,
                "change_count": (fetches * random.random(size)).astype(np.int64),
                "no_change_streak": random.integers(0, 5, size),
                "content_fp": random.integers(1, 2**63, size),
                "simhash": random.integers(1, 2**63, size),
                "http_status": np.full(size, 200),
            },
        )


def hosts(host_key: NDArray[np.uint64]) -> pa.Table:
    """Their hosts."""
    size = len(host_key)
    unset = np.full(size, CRAWL_DELAY_UNSET)
    return filled(
        HOST_SCHEMA,
        size,
        {
            "host_key": host_key,
            "host_group": [f"site{of}.example" for of in range(size)],
            "crawl_delay": np.full(size, 100),
            "crawl_delay_set": unset,
            "crawl_delay_stated": unset,
            "url_count": np.full(size, URLS_A_HOST),
            "first_row": np.arange(size) * URLS_A_HOST,
        },
    )


def speed(rows: int, due: float) -> None:
    """Recrawl a shard three times over."""
    rows -= rows % URLS_A_HOST
    host_key = np.sort(np.random.default_rng(2).integers(0, 2**64 - 1, rows // URLS_A_HOST, dtype=np.uint64))
    names = (f"{number:08x}" for number in itertools.count())
    rules = FoldRules(reschedule=True, budget=rows / 300)
    with tempfile.TemporaryDirectory() as folder:
        files = LocalFiles(Path(folder))
        made = publish_generation(
            files,
            0,
            urls(rows, due, host_key),
            lambda: iter([hosts(host_key)]),
            lambda: Changes(rows, 0, 0),
            expected=rows,
            offset=0,
            identity=IDENTITY,
            token=lambda: next(names),
        )
        base = Generation.open(files, made.folder, IDENTITY)
        found = []
        for turn in range(4):  # the first one loads the kernels
            before = time.process_time()
            result = recrawl(
                files,
                0,
                base,
                drawn_outcomes(turn),
                rules,
                now=NOW,
                identity=IDENTITY,
                token=lambda: next(names),
            )
            seconds = time.process_time() - before
            found.append(result.due / seconds)
            print(
                f"{result.rows} rows, {result.due} due: {seconds:.2f} s CPU, {result.due / seconds / 1e6:.2f} M due "
                f"rows/s; {result.changed} changed, {result.failed} failed, {result.gone} gone"
            )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"median of the last three: {statistics.median(found[1:]) / 1e6:.2f} M due rows/s, {memory:.0f} MiB at most")


def main() -> None:
    """Run it."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=["worth", "recrawl"])
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--due", type=float, default=1.0)
    given = arguments.parse_args()
    if given.what == "worth":
        worth()
    else:
        speed(given.rows, given.due)


if __name__ == "__main__":
    main()
