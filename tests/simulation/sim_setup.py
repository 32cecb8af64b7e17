"""What both simulations share: simulated bus, files and clock under the real services, and what came of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sim_world import T0, Expected, host_of

from meguri_canonicalizer.policy import DEFAULT
from meguri_canonicalizer.service import canonicalizer_spec
from meguri_common.bus.simulated import SimulatedBus
from meguri_common.identity import CampaignIdentity
from meguri_common.keys import host_key, partition_of, path_key
from meguri_common.runtime.partition import Surroundings
from meguri_common.runtime.restore import restore
from meguri_common.runtime.simulated import SimulatedFiles
from meguri_common.topics import DELTAS, FRONTIER, LINKS, PAGES, REJECTS
from meguri_dedup.service import dedup_spec
from meguri_prioritizer.service import prioritizer_spec
from meguri_store.queries import Shard
from meguri_store.service import CompactionRules, store_spec

if TYPE_CHECKING:
    from meguri_common.bus.port import Bus

SMALL_BUDGETS = {"base_budget": 1, "per_in_link": 1, "min_budget": 1, "release_batch": 1}


class Simulation:
    """One campaign's world."""

    def __init__(
        self, seed: int, partitions: int, pages: int = 1, parameters: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self.rng = random.Random(seed * 7919 + 1)
        self.clock = float(T0 + 100_000)
        topics = {PAGES: pages, LINKS: partitions, FRONTIER: partitions, DELTAS: partitions, REJECTS: 1}
        self.bus = SimulatedBus(topics, rng=self.rng, now=lambda: self.clock)
        self.files = SimulatedFiles(lambda: self.clock)
        self.partitions = partitions
        self.memory_bytes = seed % 2
        """Of a seen-set: every other campaign's has room for a few keys in memory, and writes the others to disk."""
        self.identity = CampaignIdentity(
            campaign=f"sim-{seed}",
            partitions=partitions,
            group_by="registrable",
            policy="",
            suffix_list="",
            url_parser="",
        )
        self.specs = self.make_specs(parameters or {})

    def make_specs(self, parameters: dict[str, dict[str, Any]]) -> dict[str, Any]:
        digest = self.identity.digest()
        specs = (
            canonicalizer_spec(digest, self.partitions, DEFAULT),
            dedup_spec(digest, {"capacity": 64, "memory_bytes": self.memory_bytes}, files=self.files, token=self.token),
            prioritizer_spec(digest, self.partitions, {**SMALL_BUDGETS, **parameters.get("prioritizer", {})}),
            store_spec(self.identity, self.files, self.token, None, CompactionRules(rows=12, group_rows=4)),
        )
        return {spec.name: spec for spec in specs}

    def token(self) -> str:
        return f"{self.rng.getrandbits(32):08x}"

    def around(self, instance: str) -> Surroundings:
        return self.around_bus(self.bus.view(instance))

    def around_bus(self, bus: Bus) -> Surroundings:
        return Surroundings(
            bus=bus, files=self.files, identity=self.identity, now=lambda: self.clock, token=self.token, grace=30.0
        )

    def outcome(self) -> dict[str, Any]:
        """All state of a settled campaign, restored as any later process would."""
        self.bus.before = lambda _operation, _instance: None
        self.files.before = lambda _operation: None
        around = self.around("outcome")
        state = {
            name: [restore(self.specs[name], part, name, around).service for part in range(self.partitions)]
            for name in ("dedup", "prioritizer", "store")
        }
        shards = [Shard(store.base, store.log, store.rules, self.identity.group_by) for store in state["store"]]
        records = [row for shard in shards for table in shard.records() for row in table.to_pylist()]
        hosts = [row for shard in shards for table in shard.hosts() for row in table.to_pylist()]
        importance = {row["url"]: self._look(state["prioritizer"], row["url"]) for row in records}
        seen = {row["url"]: self._look(state["dedup"], row["url"]) for row in records}
        counters: Counter[str] = Counter()
        for service in state["dedup"]:
            for name, value in asdict(service.counters).items():
                counters[name] += sum(value) if isinstance(value, list) else value
        cash: Counter[str] = Counter()
        for service in state["prioritizer"]:
            cash.update(service.totals())
        return {
            "records": records,
            "hosts": hosts,
            "importance": importance,
            "seen": seen,
            "counters": dict(counters),
            "cash": dict(cash),
            "keys": sum(len(service._seen) for service in state["dedup"]),
        }

    def _look(self, services: list[Any], url: str) -> Any:
        host = host_key(host_of(url).encode())
        return services[partition_of(host, self.partitions)].look(host, path_key(url.encode()))


def problems(outcome: dict[str, Any], want: Expected) -> list[str]:
    """What doesn't hold of a settled campaign, whatever the interleaving was."""
    bad = []
    urls = [row["url"] for row in outcome["records"]]
    if len(urls) != len(set(urls)):
        bad.append("a URL has two records")
    if set(urls) != want.urls:
        bad.append(
            f"URL set: missing {sorted(want.urls - set(urls))[:3]}, too many {sorted(set(urls) - want.urls)[:3]}"
        )
    if outcome["keys"] != len(want.urls) or not all(look["seen"] for look in outcome["seen"].values()):
        bad.append(f"seen-set has {outcome['keys']} keys of {len(want.urls)}")
    visits = {row["url"]: row["crawl_count"] + row["error_count"] for row in outcome["records"]}
    wrong = {url: (count, want.visits[url]) for url, count in visits.items() if count != want.visits[url]}
    if wrong:
        bad.append(f"visits: {dict(list(wrong.items())[:3])}")
    cash = outcome["cash"]
    if cash["minted"] != want.minted:
        bad.append(f"minted {cash['minted']}, expected {want.minted}")
    if cash["sent"] != cash["received"] or cash["held"] + cash["pool"] != cash["minted"]:
        bad.append(f"cash: {cash}")
    if cash["admissions_repeated"]:
        bad.append("a URL was admitted twice")
    counters = outcome["counters"]
    if counters["links"] != want.links or counters["rejected"] != want.rejected:
        bad.append(f"links {counters['links']} of {want.links}, rejected {counters['rejected']} of {want.rejected}")
    if counters["links"] != counters["rejected"] + counters["links_new"] + counters["links_known"]:
        bad.append(f"links don't add up: {counters}")
    if counters["urls_new"] != len(want.urls):
        bad.append(f"{counters['urls_new']} admissions of {len(want.urls)} URLs")
    for url, look in outcome["importance"].items():
        degree = len(want.in_degree[host_of(url)])
        if look["host"]["in_degree"] != degree:
            bad.append(f"in-degree of {host_of(url)}: {look['host']['in_degree']}, expected {degree}")
            break
    return bad
