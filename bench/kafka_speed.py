"""Links a second through all services, what each costs, and what a second instance of the busiest one brings."""

from __future__ import annotations

import signal
import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from kafka_fleet import SERVICES, Fleet
from kafka_watch import MIDDLE, Watch, spent
from run_stretch import write_stretched

if TYPE_CHECKING:
    from pathlib import Path

    from kafka_cluster import Cluster
    from run_stretch import Crawl

__all__ = ["scaling", "throughput"]

Figures = list[tuple[str, float, str]]

_ASLEEP = {
    "MEGURI_FLEET_SESSION_TIMEOUT": "300",
    "MEGURI_FLEET_GIVE_UP_TIMEOUT": "600",
    "MEGURI_FLEET_TRANSACTION_TIMEOUT": "60",
    "MEGURI_FLEET_COMMIT_INTERVAL": "0.2",
    "MEGURI_TOPICS_PAGES_PARTITIONS": "16",
}
"""Instances that are stopped while their inbox is filled keep their partitions."""
_SETTLE_SECONDS = 5.0
_ROUNDS = 3


def throughput(brokers: Cluster, crawl: Crawl, root: Path, times: int) -> tuple[Figures, str]:
    """Publish all, and let one instance of each service read it; and which service was the busiest.

    Time is that from the first to the last position committed; everybody has started before anything is published.
    """
    pages = _pages(crawl, root, times)
    links = crawl.links * times
    with Fleet(brokers.bootstrap, root / "throughput", settings=_ASLEEP) as fleet:
        fleet.start_all()
        watch = Watch(fleet)
        time.sleep(_SETTLE_SECONDS)
        _signal(fleet, "canonicalizer", signal.SIGSTOP)
        publishing = spent(fleet, brokers)["kafka"]
        fleet.publish(pages)
        before = spent(fleet, brokers)
        began = time.monotonic()
        _signal(fleet, "canonicalizer", signal.SIGCONT)
        took = watch.await_drained() - began
        after = spent(fleet, brokers)
        fleet.stop_all()
    cpu = {who: (after[who] - before[who]) * 1e6 / links for who in after}
    busiest = max(SERVICES, key=lambda service: cpu[service])
    everything = sum(cpu.values())
    figures = [
        ("throughput: links", float(links), ""),
        ("throughput: links a second through all services", links / took, "1/s"),
        *[(f"throughput: CPU of {who}", value, "us a link") for who, value in cpu.items()],
        ("throughput: CPU of all", everything, "us a link"),
        ("throughput: Kafka's share", 100 * cpu["kafka"] / everything, "%"),
        ("throughput: CPU of Kafka while publishing", (before["kafka"] - publishing) * 1e6 / links, "us a link"),
    ]
    return figures, busiest


def scaling(brokers: Cluster, crawl: Crawl, root: Path, times: int, service: str) -> Figures:
    """Fill the inbox of a service, and let one and then two instances of it read it, nobody else at work."""
    pages = _pages(crawl, root, times)
    links = crawl.links * times
    speeds, shares = defaultdict(list), defaultdict(list)
    for number, instances in enumerate((1, 2) * _ROUNDS):
        with Fleet(brokers.bootstrap, root / f"scaling-{number}", settings=_ASLEEP) as fleet:
            for _ in range(instances):
                fleet.start(service)
            fleet.await_started()
            watch = Watch(fleet)
            watch.await_shared(service, instances)
            time.sleep(_SETTLE_SECONDS)
            _signal(fleet, service, signal.SIGSTOP)
            above = SERVICES[: SERVICES.index(service)]
            for each in above:
                fleet.start(each)
            fleet.await_started()
            fleet.publish(pages)
            if above:
                watch.await_drained(*above)
            for each in above:
                for process in fleet.running.pop(each):
                    process.send_signal(signal.SIGTERM)
                    process.wait(60)
            before = spent(fleet, brokers)
            began = time.monotonic()
            _signal(fleet, service, signal.SIGCONT)
            speeds[instances].append(links * MIDDLE / watch.middle_seconds(service))
            after = spent(fleet, brokers)
            shares[instances].append((after["kafka"] - before["kafka"]) / (time.monotonic() - began))
            print(f"{instances} of {service}: {speeds[instances][-1]:,.0f} links/s", flush=True)
    speed = {count: statistics.median(found) for count, found in speeds.items()}
    return [
        *[(f"scaling: {service}, {count} instance(s)", each, "links/s") for count, each in speed.items()],
        *[
            (f"scaling: Kafka beside {count} instance(s)", 100 * statistics.median(each), "% of a core")
            for count, each in shares.items()
        ],
        (f"scaling: {service}, two instances to one", speed[2] / speed[1], "times"),
    ]


def _pages(crawl: Crawl, root: Path, times: int) -> Path:
    path = root / f"pages-x{times}.jsonl.zst"
    if not path.exists():
        write_stretched(crawl, path, times)
    return path


def _signal(fleet: Fleet, service: str, number: int) -> None:
    for process in fleet.running[service]:
        process.send_signal(number)
