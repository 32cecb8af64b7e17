"""Measure the fleet on Kafka: the price of transactions, links a second, a second instance, and faults.

    make bench-kafka                                          # the first three; some ten minutes
    make bench-kafka ARGS="--only price --seconds 10"         # price, throughput, scaling
    make bench-kafka ARGS="--chaos 30m --seed 7"              # faults alone

Events are those of `docs-crawl` of the folder `MEGURI_TEST_DATA` (default: `shared` beside the checkout; without it, of
the shipped example). The broker is the tests' one, fetched by Maven. Results go to `bench/results/kafka.json`, a table
to standard output. See docs/benchmarks/kafka.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent
sys.path.insert(0, str(_ROOT / "tests" / "kafka"))

import kafka_price  # noqa: E402 - it needs the path above
import kafka_speed  # noqa: E402 - see above
from kafka_chaos import Chaos  # noqa: E402 - see above
from kafka_cluster import Cluster  # noqa: E402 - see above
from kafka_crawl import EXAMPLE, Crawl  # noqa: E402 - see above
from kafka_fleet import Fleet, outcome_of  # noqa: E402 - see above
from run_stretch import read_crawl  # noqa: E402 - see above

if TYPE_CHECKING:
    from collections.abc import Iterator

    from run_stretch import Crawl as Pages

_RESULTS = _HERE / "results" / "kafka.json"
_UNITS = {"s": 1, "m": 60, "h": 3600}

Figures = list[tuple[str, float, str]]


def main() -> None:
    """Run it."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", choices=["price", "throughput", "scaling"], nargs="*", default=None)
    arguments.add_argument("--intervals", type=int, nargs="*", default=[50, 100, 200, 500, 1000, 2000], metavar="MS")
    arguments.add_argument("--seconds", type=float, default=30.0, help="of events for each commit interval")
    arguments.add_argument("--times", type=int, default=10, help="how often the sites are multiplied for throughput")
    arguments.add_argument("--chaos", metavar="TIME", help="strike for so long (90s, 30m), and measure nothing else")
    arguments.add_argument("--seed", type=int, default=None, help="of the faults")
    given = arguments.parse_args()
    data = Path(os.environ.get("MEGURI_TEST_DATA", _ROOT.parent / "shared")) / "data" / "docs-crawl.jsonl.zst"
    crawl = read_crawl(data if data.is_file() else EXAMPLE)
    load = os.getloadavg()[1]
    print(f"{os.cpu_count()} cores, load {load:.1f} over the last five minutes; {crawl.links} links", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        if given.chaos:
            _keep(_chaos(crawl, root, _seconds(given.chaos), given.seed), load)
            return
        wanted = given.only or ["price", "throughput", "scaling"]
        with _brokers(root / "brokers", 1) as brokers:
            if "price" in wanted:
                for interval in given.intervals:
                    _keep(kafka_price.measure(brokers, crawl, root, interval, given.seconds), load)
            if "throughput" in wanted:
                figures, busiest = kafka_speed.throughput(brokers, crawl, root, given.times)
                _keep(figures, load)
            else:
                busiest = "canonicalizer"
            if "scaling" in wanted:
                _keep(kafka_speed.scaling(brokers, crawl, root, given.times, busiest), load)


def _chaos(crawl: Pages, root: Path, seconds: float, seed: int | None) -> Figures:
    """Strike; an AssertionError if the fleet doesn't end like the embedded run."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"--seed {seed}", flush=True)
    wanted = Crawl(crawl.lines, root).outcome
    pieces = root / "pieces"
    pieces.mkdir()
    with _brokers(root / "brokers", 3) as brokers, Fleet(brokers.bootstrap, root / "data") as fleet:
        fleet.start_all(2)
        struck = Chaos(fleet, brokers, crawl.lines, pieces, seed=seed).run(seconds)
        fleet.drain()
        fleet.stop_all()
        found = outcome_of(fleet.data)
    assert found.urls == wanted.urls, f"seed {seed}: other URLs than the embedded run's"
    assert found.visits == wanted.visits, f"seed {seed}: other visits than the embedded run's"
    assert found.cash == wanted.cash, f"seed {seed}: other cash than the embedded run's"
    return struck.figures()


@contextmanager
def _brokers(folder: Path, nodes: int) -> Iterator[Cluster]:
    cluster = Cluster(folder, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if found is None:
        raise SystemExit(f"--chaos {text}: a number and s, m or h, such as 30m")
    return float(found[1]) * _UNITS[found[2]]


def _keep(figures: Figures, load: float) -> None:
    """Print them, and put them into the results in place of older ones of the same names."""
    for name, value, unit in figures:
        print(f"{name:80} {value:12.4g} {unit}", flush=True)
    old = json.loads(_RESULTS.read_text()) if _RESULTS.exists() else []
    kept = {each["name"]: each for each in old}
    for name, value, unit in figures:
        kept[name] = {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "load": round(load, 1)}
    _RESULTS.write_text("[\n" + ",\n".join(json.dumps(each) for each in kept.values()) + "\n]\n")


if __name__ == "__main__":
    main()
