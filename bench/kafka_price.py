"""The price of transactions: latency from a page to the store, processor time and messages, by commit interval."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from typing import TYPE_CHECKING

from kafka_fleet import Fleet
from kafka_watch import Look, Watch, spent

from meguri_common.config import KafkaSettings
from meguri_common.sdk.publisher import Publisher

if TYPE_CHECKING:
    from pathlib import Path

    from kafka_cluster import Cluster
    from run_stretch import Crawl

__all__ = ["measure"]

_PAGES_A_SECOND = 10
_LOOK_SECONDS = 0.02
_WARM_PAGES = 50
_FLOW = (("canonicalizer",), ("dedup",), ("prioritizer",), ("store",))


def measure(brokers: Cluster, crawl: Crawl, root: Path, interval: int, seconds: float) -> list[tuple[str, float, str]]:
    """Publish single pages at a steady pace, and see when each has gone through all services.

    A page has gone through a service when the service's committed position has passed the end of its inbox as it was
    when the page had gone through the service before it. The last is the store's.

    Args:
        brokers: that run.
        crawl: whose pages are published, in order.
        root: folder for the fleet's state.
        interval: commit interval in milliseconds.
        seconds: how long pages are published.
    """
    settings = {"MEGURI_FLEET_COMMIT_INTERVAL": str(interval / 1000)}
    looks: list[Look] = []
    sent: list[float] = []
    with Fleet(brokers.bootstrap, root / f"price-{interval}", settings=settings) as fleet:
        fleet.start_all()
        watch = Watch(fleet)
        kafka = KafkaSettings(bootstrap=fleet.bootstrap, prefix=fleet.prefix)
        lines = itertools.cycle(crawl.lines)
        with Publisher.connect(kafka, linger=0) as publisher:
            for line in itertools.islice(lines, _WARM_PAGES):
                publisher.publish(line)
            publisher.flush(30)
            watch.await_drained()
            before, at_first = spent(fleet, brokers), watch.look()
            done = threading.Event()
            looking = threading.Thread(target=_look, args=(watch, looks, done))
            looking.start()
            began = time.monotonic()
            for number in range(int(seconds * _PAGES_A_SECOND)):
                time.sleep(max(0.0, began + number / _PAGES_A_SECOND - time.monotonic()))
                publisher.publish(next(lines))
                publisher.flush(30)
                sent.append(time.monotonic())
            took = time.monotonic() - began
            after, at_last = spent(fleet, brokers), watch.look()
            watch.await_drained()
            done.set()
            looking.join()
        fleet.stop_all()
    latencies = [each for each in (_latency(looks, at) for at in sent) if each is not None]
    name = f"price, commit interval {interval} ms"
    cpu = {who: (after[who] - before[who]) / took for who in after}
    return [
        (f"{name}: page to store, median", statistics.median(latencies), "s"),
        (f"{name}: page to store, p99", statistics.quantiles(latencies, n=100)[-1], "s"),
        (f"{name}: pages followed", len(latencies), ""),
        (f"{name}: CPU of the services", 100 * (sum(cpu.values()) - cpu["kafka"]), "% of a core"),
        (f"{name}: CPU of Kafka, the looking included", 100 * cpu["kafka"], "% of a core"),
        (f"{name}: messages and markers in the inboxes", (at_last.messages - at_first.messages) / len(sent), "a page"),
    ]


def _look(watch: Watch, looks: list[Look], done: threading.Event) -> None:
    while not done.wait(_LOOK_SECONDS):
        looks.append(watch.look())


def _latency(looks: list[Look], sent: float) -> float | None:
    """Seconds until a page that was published then had gone through all services; None if nobody looked so long."""
    following = iter(looks)
    look = next((each for each in following if each.at >= sent), None)
    for (service,) in _FLOW:
        if look is None:
            return None
        marks = look.ends[service]
        while look is not None and not look.passed(service, marks):
            look = next(following, None)
    return None if look is None else look.at - sent
