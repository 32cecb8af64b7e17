"""The prioritizer over again in plain Python, with dicts and sets: what the columnar one must agree with.

It takes messages one by one, each (kind, rows) with rows as dicts, and collects what each says to whom.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meguri_common.keys import partition_of
from meguri_common.records import NO_DEPTH, ControlAction, ParkReason, Source, UpdateField
from meguri_common.wire.schemas import RowKind
from meguri_prioritizer.admission import admit
from meguri_prioritizer.budget import update_budget
from meguri_prioritizer.importance import (
    UNIT,
    blend,
    compress,
    depth_penalty,
    opic_score,
    pay,
    relative_level,
    trap_penalty,
)

WEIGHTS = ("w_pagerank", "w_opic_with_page", "w_host", "w_opic_with_host", "w_host_only")
BUDGETS = ("base_budget", "per_in_link", "min_budget", "max_budget")
TOTALS = (
    "held", "pool", "minted", "sent", "received", "written_off", "known", "visits", "stale", "mints_refused",
    "admissions_repeated",
)  # fmt: skip
HELD = (ParkReason.DEPTH, ParkReason.BUDGET)


@dataclass
class Url:
    cash: int = 0
    history: int = 0
    last: int | None = None
    depth: int = NO_DEPTH
    admitted: bool = False
    known: bool = False
    started: bool = False
    excluded: bool = False
    seeded: int | None = None
    rank: tuple[int, float] | None = None
    reason: ParkReason = ParkReason.NONE
    sent: float = 0.0
    moved: int = 0


@dataclass
class Host:
    vouched: bool = False
    vouched_at: int = -1
    own_budget: int | None = None
    count: int = 0
    cap: int = 0
    sources: set[int] = field(default_factory=set)
    score: float = 0.0
    score_epoch: int = -1
    suspect: bool = False
    crawl_delay: int = 0xFFFF
    robots_at: int | None = None
    cap_rose: bool = False
    releasing: bool = False
    announced: bool = False


class Twin:
    def __init__(self, parameters: dict[str, Any], partitions: int) -> None:
        self.p = parameters
        self.partitions = partitions
        self.teleport = round(parameters["teleport_rate"] * UNIT)
        self.discount = round(parameters["discount"] * UNIT)
        self.urls: dict[tuple[int, int], Url] = defaultdict(Url)
        self.hosts: dict[int, Host] = defaultdict(lambda: Host(cap=parameters["depth_cap"]))
        self.t = dict.fromkeys(TOTALS, 0)
        self.controls: dict[Any, int] = {}
        self.asked: list[int] = []
        self.stepped: set[int] = set()
        self.out: dict[RowKind, list[Any]] = defaultdict(list)
        self.credits: dict[tuple[int, int], list[int]] = {}
        self.votes: set[tuple[int, int]] = set()

    # -- what is in force ------------------------------------------------------------------------------------

    def budget(self, key: int) -> int:
        host = self.hosts[key]
        if host.own_budget is not None:
            return host.own_budget
        return 0 if host.vouched else update_budget(len(host.sources), **{name: self.p[name] for name in BUDGETS})

    def has_room(self, key: int) -> bool:
        budget = self.budget(key)
        return budget == 0 or self.hosts[key].count < budget

    def verdict(self, key: tuple[int, int]) -> ParkReason:
        host, depth = self.hosts[key[0]], self.urls[key].depth
        return admit(
            0 if depth == NO_DEPTH else depth,
            depth_cap=host.cap,
            url_count=host.count,
            url_budget=self.budget(key[0]),
        )

    def priority(self, key: tuple[int, int]) -> float:
        url, host = self.urls[key], self.hosts[key[0]]
        floor = self.t["pool"] // self.t["known"] if self.t["known"] else 0
        opic = opic_score(url.history + url.cash + floor, self.p["log_norm"])
        rank = None if url.rank is None else float(compress(url.rank[1]))
        weights = {name: self.p[name] for name in WEIGHTS}
        blended = blend(float(opic), rank, float(compress(host.score)), **weights)
        penalised = trap_penalty(float(blended), suspect=host.suspect, factor=self.p["trap_suspect_factor"])
        depth = 0 if url.depth == NO_DEPTH else url.depth
        return float(depth_penalty(float(penalised), depth, decay=self.p["depth_decay"]))

    def level(self, priority: float) -> int:
        return relative_level(priority, self.t["held"] + self.t["pool"], self.t["known"])

    # -- moves -----------------------------------------------------------------------------------------------

    def know(self, url: Url) -> None:
        if not url.known:
            url.known = True
            self.t["known"] += 1

    def mint(self, url: Url, units: int) -> None:
        if not units:
            return
        if self.t["minted"] + units > (1 << 63) // self.partitions:
            self.t["mints_refused"] += 1
            return
        url.cash += units
        self.t["minted"] += units
        self.t["held"] += units
        self.know(url)

    def vouch(self, key: int, at: int, *, vouched: bool = True, told: bool = False) -> None:
        host = self.hosts[key]
        if at <= host.vouched_at:
            return
        host.vouched_at = at
        if host.vouched != vouched or told:
            host.vouched = vouched
            self.stepped.add(key)
            self.asked.append(key)

    def admit(self, key: tuple[int, int]) -> None:
        url, host = self.urls[key], self.hosts[key[0]]
        url.admitted = host.announced = True
        self.stepped.add(key[0])
        url.reason = self.verdict(key)
        host.count += url.reason == ParkReason.NONE

    def release(self, key: tuple[int, int]) -> None:
        url = self.urls[key]
        url.reason = ParkReason.NONE
        url.moved |= UpdateField.RELEASE
        self.hosts[key[0]].count += 1
        self.stepped.add(key[0])

    def lower(self, key: tuple[int, int], depth: int) -> None:
        url = self.urls[key]
        if depth >= url.depth:
            return
        url.depth = depth
        url.moved |= UpdateField.DEPTH
        if url.reason == ParkReason.DEPTH:
            url.reason = self.verdict(key)
            if url.reason == ParkReason.NONE:
                self.release(key)

    def held(self, host: int, *reasons: ParkReason) -> list[tuple[int, int]]:
        return [key for key, url in self.urls.items() if key[0] == host and url.reason in reasons]

    def waits(self, key: int) -> bool:
        host = self.hosts[key]
        excluded = any(url.excluded for (other, _), url in self.urls.items() if other == key)
        return bool(
            (host.robots_at is not None and excluded)
            or (host.cap_rose and self.held(key, ParkReason.DEPTH))
            or (self.has_room(key) and self.held(key, ParkReason.BUDGET))
        )

    # -- messages --------------------------------------------------------------------------------------------

    def apply(self, kind: RowKind, rows: list[dict[str, Any]]) -> None:
        touched: list[tuple[int, int]] = []
        admitted: list[tuple[tuple[int, int], dict[str, Any], int]] = []
        revived: list[tuple[tuple[int, int], int]] = []
        for row in rows:
            key = (row["host_key"], row.get("path_key", 0))
            self.hosts[key[0]]  # a host that is spoken of is known from then on
            match kind:
                case RowKind.CONTROL:
                    touched += self.control(row)
                case RowKind.HOST_SIGNAL:
                    host = self.hosts[key[0]]
                    if row["epoch"] > host.score_epoch:
                        host.score, host.score_epoch = row["score"], row["epoch"]
                        self.stepped.add(key[0])
                case RowKind.URL_SIGNAL:
                    url = self.urls[key]
                    if url.rank is None or row["epoch"] > url.rank[0]:
                        url.rank = (row["epoch"], row["rank"])
                        touched.append(key)
                case RowKind.SEEDED:
                    if self.seed(key, row, admitted, revived):
                        touched.append(key)
                case RowKind.ADMISSION:
                    if self.urls[key].admitted:
                        self.t["admissions_repeated"] += 1
                        continue
                    self.urls[key].depth = min(self.urls[key].depth, row["depth"])
                    self.admit(key)
                    admitted.append((key, row, row["source"]))
                case RowKind.VISIT:
                    self.visit(key, row)
                    touched.append(key)
                case RowKind.CREDIT:
                    url = self.urls[key]
                    url.cash += row["units"]
                    self.t["held"] += row["units"]
                    self.t["received"] += row["units"]
                    if row["units"]:
                        self.know(url)
                    self.lower(key, row["depth"])
                    touched.append(key)
                case RowKind.VOTE if key[0] != row["source_host"]:
                    before = self.budget(key[0])
                    self.hosts[key[0]].sources.add(row["source_host"])
                    if self.budget(key[0]) != before:
                        self.stepped.add(key[0])
                        self.asked.append(key[0])
                case RowKind.RELEASE:
                    touched += self.continuation(key[0])
        self.tell_admitted(admitted)
        for key, at in revived:
            self.out[RowKind.UPDATE].append(self.update(key, UpdateField.REVIVE, at))
        if kind == RowKind.SEEDED:
            # Each at its first mention in the message, even if only a later one of the same URL changed something.
            mentioned = [(row["host_key"], row["path_key"]) for row in rows]
            touched.sort(key=mentioned.index)
        self.judge(touched)
        for host in dict.fromkeys(self.asked):
            if not self.hosts[host].releasing and self.waits(host):
                self.hosts[host].releasing = True
                self.out[RowKind.RELEASE].append(host)
        self.asked.clear()

    def tell_admitted(self, admitted: list[tuple[tuple[int, int], dict[str, Any], int]]) -> None:
        for key, row, source in admitted:
            url = self.urls[key]
            url.sent = self.priority(key)
            at = row["observed_at"] if "observed_at" in row else row["at"]
            told = (row["url"], *key, url.depth, source, at, url.sent, int(url.reason))
            self.out[RowKind.ADMITTED].append(told)

    def update(self, key: tuple[int, int], fields: int, at: int = 0) -> tuple[Any, ...]:
        url = self.urls[key]
        return (*key, int(fields), url.sent, url.depth, at)

    def judge(self, touched: list[tuple[int, int]]) -> None:
        for key in dict.fromkeys(touched):
            url = self.urls[key]
            fields, url.moved = url.moved, 0
            if not url.admitted:
                continue
            now = self.priority(key)
            if fields & UpdateField.RELEASE or self.level(now) != self.level(url.sent):
                url.sent = now
                fields |= UpdateField.PRIORITY
            if fields:
                self.out[RowKind.UPDATE].append(self.update(key, fields))

    def seed(self, key: tuple[int, int], row: dict[str, Any], admitted: list[Any], revived: list[Any]) -> bool:
        url = self.urls[key]
        self.vouch(key[0], row["observed_at"])
        mine = bool(row["new"]) and not url.admitted
        if mine:
            url.depth = 0
            self.admit(key)
            admitted.append((key, row, Source.SEED))
        elif row["new"]:
            self.t["admissions_repeated"] += 1
        if url.seeded is not None and row["observed_at"] <= url.seeded:
            return False
        url.seeded = row["observed_at"]
        self.mint(url, row["cash"])
        self.lower(key, 0)
        if url.admitted and not mine:
            revived.append((key, row["observed_at"]))
        return True

    def visit(self, key: tuple[int, int], row: dict[str, Any]) -> None:
        url, host, at, status = self.urls[key], self.hosts[key[0]], row["fetched_at"], row["status"]
        if row["depth"] == 0:
            self.vouch(key[0], at)
            if not url.started:
                url.started = True
                self.mint(url, UNIT)
        if url.last is not None and at <= url.last:
            self.t["stale"] += 1
            return
        url.last = at
        self.t["visits"] += 1
        self.know(url)
        if url.reason:
            url.reason = ParkReason.NONE
            host.count += 1
            self.stepped.add(key[0])
        self.lower(key, row["depth"])
        url.excluded = row["error"] == 5
        if url.admitted:
            self.out[RowKind.OUTCOME].append((*key, at, status))
        targets = list(zip(row["target_host"], row["target_path"], strict=True))
        good = 200 <= status < 300
        moved = status in {301, 302, 303, 307, 308} and bool(row["redirect"]) and bool(targets)
        if not good and not moved:
            return
        paid = pay(url.cash, url.history, len(targets), teleport=self.teleport, discount=self.discount)
        self.t["held"] -= url.cash
        self.t["pool"] += paid.to_pool
        self.t["sent"] += paid.share * len(targets)
        url.cash, url.history = 0, paid.history
        depth = NO_DEPTH if url.depth == NO_DEPTH else min(url.depth + good, NO_DEPTH - 1)
        for target in targets:
            if paid.share or depth != NO_DEPTH:
                credit = self.credits.setdefault(target, [0, NO_DEPTH])
                credit[0] += paid.share
                credit[1] = min(credit[1], depth)
            if good and target[0] != key[0]:
                self.votes.add((target[0], key[0]))

    def control(self, row: dict[str, Any]) -> list[tuple[int, int]]:
        key, at, action = row["host_key"], row["at"], ControlAction(row["action"])
        host, value = self.hosts[key], row["value"]
        given = not math.isnan(value)
        if action in {ControlAction.VOUCH, ControlAction.UNVOUCH}:
            self.vouch(key, at, vouched=action == ControlAction.VOUCH, told=True)
            return []
        about = row["path_key"] if action == ControlAction.RELEASE else 0
        thing = (key, about, ControlAction.FLAG if action == ControlAction.RELEASE else action)
        if at <= self.controls.get(thing, -1):
            return []
        self.controls[thing] = at
        if about:
            url = self.urls.get((key, about))
            if url is None or not url.reason:
                return []
            self.release((key, about))
            return [(key, about)]
        match action:
            case ControlAction.BUDGET:
                host.own_budget = int(value) if given else None
            case ControlAction.DEPTH_CAP:
                host.cap, host.cap_rose = int(value) if given else self.p["depth_cap"], True
            case ControlAction.FLAG | ControlAction.RELEASE:
                host.suspect = action == ControlAction.FLAG
            case ControlAction.ROBOTS_CHANGED:
                host.robots_at = at
            case ControlAction.CRAWL_DELAY:
                host.crawl_delay = int(value) if given else 0xFFFF
        self.stepped.add(key)
        self.asked.append(key)
        return []

    def continuation(self, key: int) -> list[tuple[int, int]]:
        host, released = self.hosts[key], []
        if host.robots_at is not None:
            urls = sorted(k for k, url in self.urls.items() if k[0] == key and url.excluded and url.admitted)
            mine = [k for k in urls if (self.urls[k].last or 0) <= host.robots_at]
            batch = mine[: self.p["release_batch"]]
            for k in batch:
                self.urls[k].excluded = False
                self.out[RowKind.UPDATE].append(self.update(k, UpdateField.REVIVE, host.robots_at))
            if len(batch) == len(mine):
                host.robots_at = None
        elif self.waits(key):
            for k in self.held(key, *HELD):
                url = self.urls[k]
                deep = host.cap and url.depth != NO_DEPTH and url.depth > host.cap
                url.reason = ParkReason.DEPTH if deep else ParkReason.BUDGET
            host.cap_rose = False
            waiting = sorted(self.held(key, ParkReason.BUDGET), key=lambda k: (-self.priority(k), k))
            for k in waiting[: self.p["release_batch"]]:
                if self.has_room(key):
                    self.release(k)
                    released.append(k)
        host.releasing = self.waits(key)
        if host.releasing:
            self.out[RowKind.RELEASE].append(key)
        return released

    # -- what others see -------------------------------------------------------------------------------------

    def host_row(self, key: int) -> tuple[Any, ...]:
        host = self.hosts[key]
        flags = host.suspect | 16 * host.vouched
        return (key, flags, self.budget(key), host.count, host.cap, float(np.float32(host.score)), host.crawl_delay)

    def owner(self, host: int) -> int:
        return partition_of(host, self.partitions)
