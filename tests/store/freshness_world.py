"""Rescheduling by worth: a plain twin that sweeps all records at each tick; a shard whose water level ticks often."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import store_world as world

from meguri_common.records import Status
from meguri_store.freshness_rules import DEFAULTS
from meguri_store.water_level import RATE_UNIT

if TYPE_CHECKING:
    from pathlib import Path

BUDGET = 0.05
EVERY = 2


def interval_of(priority: float, rate: float, tau: float, share: float) -> float:
    """Hours to the next fetch: the band is halved 40 times, as the method is told."""
    low, high, weight = 1 / 8760, 4.0, priority if priority > 0 else 1.0
    rate = min(max(rate, low), high)

    def gain(fetches: float) -> float:
        x = rate / fetches
        if x < 0.05:
            share_of_gap = sum((-x) ** k * (k + 1) / math.factorial(k + 2) for k in range(12))
        else:
            share_of_gap = (1 - math.exp(-x) - x * math.exp(-x)) / x**2
        return weight * share_of_gap * rate / fetches**2

    if gain(1 / 24) <= tau:
        fetches = 1 / 336
    elif gain(high) >= tau:
        fetches = high
    elif gain(low) <= tau:
        fetches = low
    else:
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if gain(middle) > tau else (low, middle)
        fetches = (low + high) / 2
    return 1 / min(max(min(fetches, share), 1 / 8760), 4.0)


class PlainSchedule(world.PlainStore):
    """The plain store, with hours by worth."""

    def __init__(self, budget: float = BUDGET) -> None:
        super().__init__()
        self.tau, self.count, self.budget = 1e-6, 0, budget

    def outcome(self, row: dict[str, Any]) -> None:
        super().outcome(row)
        record = self.records.get((row["host_key"], row["path_key"]))
        if record is None or record["status"] != Status.CRAWLED:
            return
        owner = self.host_records[row["host_key"]]
        share = 36_000 / (owner["crawl_delay"] or 10) / max(owner["url_count"], 1)
        interval = interval_of(float(record["priority"]), record["lambda"], self.tau, share)
        hours = max(math.floor(interval + 0.5), 1)
        spread = row["path_key"] % min(24, hours)
        record["status"] = int(Status.DUE_RECRAWL)
        record["next_due"] = min(record["last_crawled"] + hours + spread, 2**32 - 1)
        self.count += 1
        if self.count % EVERY == 0:
            scheduled = self.scheduled() / RATE_UNIT
            if scheduled > 1.02 * self.budget:
                self.tau *= 1.05
            elif scheduled < 0.98 * self.budget:
                self.tau *= 0.95
            self.tau = max(self.tau, 1e-12)

    def scheduled(self) -> int:
        return sum(
            RATE_UNIT // max(record["next_due"] - record["last_crawled"], 1)
            for record in self.records.values()
            if record["status"] in (Status.CRAWLED, Status.DUE_RECRAWL) and record["next_due"]
        )


class LiveWorld(world.World):
    """A shard that reschedules by worth, and moves the water level often."""

    def __init__(self, root: Path, **parameters: Any) -> None:
        super().__init__(root, parameters={**DEFAULTS, "reschedule": True, "budget": BUDGET, **parameters})

    def fresh(self):
        store = super().fresh()
        store.rules = replace(store.rules, tick_every=EVERY)
        return store
