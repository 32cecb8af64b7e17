"""Several partitions with a message loop between them, some of which lose their memory on the way.

The loop has one inbox a partition, which only grows. A partition may fall behind, lose its memory and read on from its
last snapshot, whereby what it sends again is thrown away, as the runtime does.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prio_world import CAMPAIGN, Fed, admission_row, control_row, credit_row, message, seed_row, visit_row

from meguri_common.keys import partition_of
from meguri_common.records import NO_DEPTH, ControlAction, UpdateField
from meguri_common.runtime.outputs import Outputs
from meguri_common.topics import FRONTIER
from meguri_common.wire.envelope import decode
from meguri_common.wire.schemas import RowKind
from meguri_prioritizer.importance import UNIT
from meguri_prioritizer.service import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meguri_common.bus.port import Message

PARAMETERS = {**DEFAULTS, "base_budget": 5, "per_in_link": 2, "min_budget": 1, "release_batch": 3}


class Loop:
    """Partitions, their inboxes, and dedup's part: each URL is admitted once, ahead of its visit."""

    def __init__(self, partitions: int, parameters: dict[str, Any] = PARAMETERS) -> None:
        self.partitions = partitions
        self.parts = [Fed(parameters, number, partitions) for number in range(partitions)]
        self.inbox: list[list[Message]] = [[] for _ in self.parts]
        self.position = [0] * partitions
        self.saved_at = [-1] * partitions
        self.admitted: set[tuple[int, int]] = set()
        self.deltas: list[tuple[RowKind, dict[str, Any]]] = []

    def put(self, kind: RowKind, rows: Iterable[dict[str, Any]]) -> None:
        """Rows to the inboxes of their hosts' partitions, as one message each."""
        mine: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            mine.setdefault(partition_of(row["host_key"], self.partitions), []).append(row)
        for partition, its in mine.items():
            self.inbox[partition].append(message(kind, its, len(self.inbox[partition])))

    def discover(self, keys: Iterable[tuple[int, int]], depth: int = NO_DEPTH) -> None:
        new = [key for key in dict.fromkeys(keys) if key not in self.admitted]
        self.admitted |= set(new)
        self.put(RowKind.ADMISSION, [admission_row(*key, depth) for key in new])

    def seed(self, key: tuple[int, int], at: int, cash: int = UNIT) -> None:
        self.put(RowKind.SEEDED, [seed_row(*key, at, cash, int(key not in self.admitted))])
        self.admitted.add(key)

    def visit(self, key: tuple[int, int], at: int, targets: list[tuple[int, int]], **facts: Any) -> None:
        self.discover([key, *targets])
        self.put(RowKind.VISIT, [visit_row(*key, at, targets, **facts)])

    def step(self, partition: int, size: int) -> int:
        """Apply up to `size` messages; gives how many there were."""
        done = self.position[partition]
        messages = self.inbox[partition][done : done + size]
        if messages:
            outputs = Outputs(CAMPAIGN)
            self.parts[partition].service.apply(messages, outputs)
            self.position[partition] += len(messages)
            for target, payload in outputs.envelopes():
                kind, batch = decode(payload, CAMPAIGN)
                if target.topic == FRONTIER:
                    self.put(kind, batch.to_pylist())
                else:
                    assert target.partition == partition
                    self.deltas += [(kind, row) for row in batch.to_pylist()]
        return len(messages)

    def snapshot(self, partition: int) -> None:
        self.parts[partition].snapshot()
        self.saved_at[partition] = self.position[partition]

    def crash(self, partition: int, size: int) -> None:
        """Lose the memory, and read on from the last snapshot in steps of another size."""
        if self.saved_at[partition] < 0:
            return
        self.parts[partition].restore()
        again = self.inbox[partition][self.saved_at[partition] : self.position[partition]]
        for start in range(0, len(again), size):
            self.parts[partition].service.apply(again[start : start + size], Outputs(CAMPAIGN))

    def drain(self) -> None:
        while sum(self.step(partition, 50) for partition in range(self.partitions)):
            pass

    def totals(self) -> dict[str, int]:
        each = [part.service.totals() for part in self.parts]
        return {name: sum(totals[name] for totals in each) for name in each[0]}

    def waiting(self) -> int:
        """Units in credits that lie in inboxes, not yet applied."""
        units = 0
        for inbox, position in zip(self.inbox, self.position, strict=True):
            for waiting in inbox[position:]:
                kind, batch = decode(waiting.payload, CAMPAIGN)
                if kind == RowKind.CREDIT:
                    units += sum(batch.column("units").to_pylist())
        return units

    def check(self) -> None:
        totals = self.totals()
        assert totals["sent"] - totals["received"] == self.waiting()
        assert totals["minted"] == totals["held"] + totals["pool"] + self.waiting() + totals["written_off"]


def url(number: int, hosts: int) -> tuple[int, int]:
    """Pages of hosts that are spread over all keys."""
    return (number % hosts + 1) * ((1 << 64) // (hosts + 1)), number + 1


@given(st.integers(0, 1 << 48), st.integers(1, 4), st.integers(5, 100))
@settings(max_examples=25, deadline=None)
def test_cash_is_conserved_through_crashes_and_duplicates(seed: int, partitions: int, count: int) -> None:
    rng = random.Random(seed)
    loop, pages, hosts = Loop(partitions), rng.randint(2, 40), rng.randint(1, 9)
    events: list[Any] = []
    visits: set[tuple[Any, int]] = set()
    minted: dict[Any, int] = {}
    for clock in range(1, count):
        key = url(rng.randrange(pages), hosts)
        match rng.randrange(10):
            case 0 | 1:
                events.append(("seed", key, clock, rng.choice([1, UNIT // 3, UNIT])))
            case 2 if events:
                events.append(rng.choice(events))
            case 3:
                events.append(("visit", key, clock, [url(rng.randrange(pages), hosts)], 301))
            case _:
                targets = {url(rng.randrange(pages), hosts) for _ in range(rng.randint(0, 7))} - {key}
                events.append(("visit", key, clock, sorted(targets), rng.choice([200, 200, 200, 404])))
        match events[-1]:
            case ("seed", page, at, cash):
                if at > minted.get((page, "at"), -1):
                    minted[page, "at"] = at
                    minted[page, at] = cash
                loop.seed(page, at, cash)
            case ("visit", page, at, targets, status):
                loop.visit(page, at, targets, status=status, redirect=b"r" if status == 301 else b"")
                visits.add((page, at))
        for partition in range(partitions):
            if rng.random() < 0.5:
                loop.step(partition, rng.choice([1, 2, 9]))
            if rng.random() < 0.1:
                loop.snapshot(partition)
            if rng.random() < 0.1:
                loop.crash(partition, rng.choice([1, 3, 50]))
        loop.check()
    loop.drain()
    loop.check()
    totals = loop.totals()
    assert loop.waiting() == 0
    assert totals["minted"] == sum(units for (_, what), units in minted.items() if what != "at")
    assert totals["visits"] <= len(visits)
    assert totals["admissions_repeated"] == 0
    _check_what_the_store_heard(loop)


def _check_what_the_store_heard(loop: Loop) -> None:
    admitted = [(row["host_key"], row["path_key"]) for kind, row in loop.deltas if kind == RowKind.ADMITTED]
    assert sorted(admitted) == sorted(loop.admitted)
    parked = {(r["host_key"], r["path_key"]) for kind, r in loop.deltas if kind == RowKind.ADMITTED and r["reason"]}
    for kind, row in loop.deltas:
        key = (row["host_key"], row.get("path_key", 0))
        if kind == RowKind.OUTCOME or (kind == RowKind.UPDATE and row["fields"] & UpdateField.RELEASE):
            parked.discard(key)
    for key in admitted:
        look = loop.parts[partition_of(key[0], loop.partitions)].look(*key)
        assert bool(look["parked"]) == (key in parked)
    last = {row["host_key"]: row for kind, row in loop.deltas if kind == RowKind.HOST}
    for host, row in last.items():
        scheduled = sum(key[0] == host and key not in parked for key in admitted)
        assert row["url_count"] == scheduled
        visited = {(r["host_key"], r["path_key"]) for kind, r in loop.deltas if kind == RowKind.OUTCOME}
        unseen = sum(key[0] == host and key not in parked and key not in visited for key in admitted)
        assert row["url_budget"] == 0 or unseen <= row["url_budget"]


@given(st.integers(0, 1 << 48))
@settings(max_examples=8, deadline=None)
def test_totals_do_not_depend_on_how_inboxes_interleave(seed: int) -> None:
    """Which partition runs first moves cash between pages, never the sums that must not depend on it."""
    rng = random.Random(seed)
    pages, hosts = 25, 6
    graph = {page: sorted({url(rng.randrange(pages), hosts) for _ in range(4)} - {url(page, hosts)})
             for page in range(pages)}  # fmt: skip
    plan = [rng.randrange(pages) for _ in range(60)]
    seen = []
    for order in (random.Random(1), random.Random(2)):
        loop = Loop(3)
        for page in range(0, pages, 5):
            loop.seed(url(page, hosts), 1)
        for clock, page in enumerate(plan, 2):
            loop.visit(url(page, hosts), clock, graph[page])
            for partition in order.sample(range(3), order.randint(0, 3)):
                loop.step(partition, order.choice([1, 4]))
        loop.drain()
        totals = loop.totals()
        hosts_seen = sorted({key[0] for key in loop.admitted})
        looks = [loop.parts[partition_of(host, 3)].look(host, 0)["host"] for host in hosts_seen]
        degrees = [(look["in_degree"], look["url_budget"]) for look in looks]
        seen.append((totals["minted"], totals["visits"], totals["held"] + totals["pool"], degrees))
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (RowKind.CREDIT, credit_row(50, 1, 5, 2)),
        (RowKind.CREDIT, credit_row(50, 1, 0, 2)),
        (RowKind.VOTE, {"host_key": 50, "source_host": 50}),
        (RowKind.VOTE, {"host_key": 50, "source_host": 51}),
        (RowKind.RELEASE, {"host_key": 50}),
        (RowKind.URL_SIGNAL, {"host_key": 50, "path_key": 1, "rank": 0.5, "epoch": 0}),
        (RowKind.HOST_SIGNAL, {"host_key": 50, "score": 0.5, "epoch": 0}),
        (RowKind.ADMISSION, admission_row(50, 1)),
        (RowKind.VISIT, visit_row(50, 1, 4)),
        (RowKind.SEEDED, seed_row(50, 1, 0, 0, 0)),
        (RowKind.CONTROL, control_row(50, ControlAction.RELEASE, 3, path=9)),
        (RowKind.CONTROL, control_row(50, ControlAction.UNVOUCH, 3)),
    ],
)
def test_whatever_speaks_of_a_host_first_it_is_in_the_next_snapshot(kind: RowKind, row: dict[str, Any]) -> None:
    fed = Fed()
    fed.feed((RowKind.ADMISSION, [admission_row(host, path) for host in range(1, 30) for path in range(40)]))
    fed.snapshot()
    fed.feed((kind, [row]))
    known = fed.service.totals(), fed.look(50, 1)
    fed.snapshot()
    fed.restore()
    assert (fed.service.totals(), fed.look(50, 1)) == known
    assert known[1]["host"] is not None
