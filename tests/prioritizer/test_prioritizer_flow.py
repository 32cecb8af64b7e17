"""Cash, ranks, votes and releases over partitions that send each other messages."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prio_world import (
    CAMPAIGN,
    SMALL,
    Fed,
    Rows,
    admission_row,
    control_row,
    credit_row,
    listed,
    message,
    seed_row,
    visit_row,
)

from meguri_common.errors import EnvelopeError
from meguri_common.keys import partition_of
from meguri_common.records import ControlAction, UpdateField
from meguri_common.runtime.outputs import Outputs
from meguri_common.topics import FRONTIER
from meguri_common.wire.schemas import RowKind
from meguri_prioritizer.service import DEFAULTS, Prioritizer, prioritizer_spec

UNIT = 1 << 32
Url = tuple[int, int]


class Loop:
    """Partitions and the messages on their way between them, taken in a random order of partitions and groups."""

    def __init__(self, partitions: int, rng: random.Random, parameters: dict[str, Any] = SMALL) -> None:
        self.rng, self.partitions = rng, partitions
        self.services = [Prioritizer(part, CAMPAIGN, partitions, parameters) for part in range(partitions)]
        self.inboxes: list[deque[tuple[RowKind, Rows]]] = [deque() for _ in range(partitions)]
        self.deltas: Counter[RowKind] = Counter()

    def post(self, kind: RowKind, rows: Rows) -> None:
        mine: defaultdict[int, Rows] = defaultdict(list)
        for row in rows:
            mine[partition_of(row["host_key"], self.partitions)].append(row)
        for part, group in mine.items():
            self.inboxes[part].append((kind, group))

    def step(self) -> bool:
        ready = [part for part, inbox in enumerate(self.inboxes) if inbox]
        if not ready:
            return False
        part = self.rng.choice(ready)
        inbox = self.inboxes[part]
        taken = [inbox.popleft() for _ in range(self.rng.randint(1, len(inbox)))]
        outputs = Outputs(CAMPAIGN)
        self.services[part].apply([message(kind, rows) for kind, rows in taken], outputs)
        for (topic, partition), batches in listed(outputs).items():
            for kind, rows in batches:
                if topic == FRONTIER:
                    assert all(partition_of(row["host_key"], self.partitions) == partition for row in rows)
                    self.inboxes[partition].append((kind, rows))
                else:
                    self.deltas[kind] += len(rows)
        return True

    def totals(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for service in self.services:
            total.update(service.totals())
        return total

    def in_flight(self) -> int:
        waiting = [rows for inbox in self.inboxes for kind, rows in inbox if kind == RowKind.CREDIT]
        return sum(row["units"] for rows in waiting for row in rows)

    def look(self, url: Url) -> dict[str, Any]:
        return self.services[partition_of(url[0], self.partitions)].look(*url)


def key(number: int) -> int:
    return number * 0x9E3779B97F4A7C15 % (1 << 64)


@given(st.integers(0, 1 << 40), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_cash_is_conserved_to_the_unit(seed: int, partitions: int) -> None:
    rng = random.Random(seed)
    loop = Loop(partitions, rng)
    urls = [(key(1 + rng.randrange(4)), key(100 + number)) for number in range(12)]
    loop.post(RowKind.ADMISSION, [admission_row(*url) for url in urls])
    written_off = 0
    for clock in range(5, 65):
        url = rng.choice(urls)
        if rng.random() < 0.2:
            loop.post(RowKind.SEEDED, [seed_row(*url, rng.randint(1, clock), rng.randint(0, 1 << 34), 0)])
        else:
            targets = rng.sample([other for other in urls if other != url], rng.randint(0, 6))
            at = clock - rng.randint(0, 3)
            loop.post(RowKind.VISIT, [visit_row(*url, at, targets, depth=rng.choice([0, 2, 0xFFFF]))])
        if rng.random() < 0.7:
            loop.step()
        if rng.random() < 0.1:
            part = rng.randrange(partitions)
            for item in [item for item in loop.inboxes[part] if item[0] == RowKind.CREDIT][:1]:
                loop.inboxes[part].remove(item)
                written_off += loop.services[part].skip(message(*item))
        t = loop.totals()
        assert t["sent"] - t["received"] == loop.in_flight()
        assert t["minted"] == t["held"] + t["pool"] + loop.in_flight() + t["written_off"]
    while loop.step():
        pass
    t = loop.totals()
    assert t["written_off"] == written_off
    assert t["minted"] == t["held"] + t["pool"] + t["written_off"]
    held = sum(loop.look(url)["priority"]["cash"] for url in urls)
    assert held == t["held"]
    assert t["admissions_repeated"] == 0


def page_rank(links: dict[int, list[int]], teleport: float) -> np.ndarray[Any, Any]:
    """Power iteration with uniform teleport; dangling pages jump anywhere."""
    size = len(links)
    rank = np.full(size, 1 / size)
    for _ in range(200):
        spread = np.full(size, teleport / size)
        for page, targets in links.items():
            if targets:
                spread[targets] += (1 - teleport) * rank[page] / len(targets)
            else:
                spread += (1 - teleport) * rank[page] / size
        rank = spread
    return rank


def spearman(left: Any, right: Any) -> float:
    ranks = [np.argsort(np.argsort(values, kind="stable")) for values in (left, right)]
    return float(np.corrcoef(*ranks)[0, 1])


def test_ranks_agree_with_page_rank() -> None:
    rng = random.Random(5)
    size, hosts = 200, 20
    links: dict[int, list[int]] = {}
    for page in range(size):
        popular = [min(int(rng.paretovariate(0.7)) - 1, size - 1) for _ in range(6)]
        links[page] = sorted({*popular, rng.randrange(size)} - {page})
    urls = [(key(1 + page % hosts), key(1000 + page)) for page in range(size)]
    loop = Loop(3, rng, {**DEFAULTS, "discount": 1.0})
    loop.post(RowKind.ADMISSION, [admission_row(*url) for url in urls])
    loop.post(RowKind.SEEDED, [seed_row(*url, 1, UNIT, 0) for url in urls])
    for clock in range(10):
        order = rng.sample(range(size), size)
        for start in range(0, size, 25):
            pages = order[start : start + 25]
            rows = [visit_row(*urls[page], 10 + clock, [urls[other] for other in links[page]]) for page in pages]
            loop.post(RowKind.VISIT, rows)
            while rng.random() < 0.8 and loop.step():
                pass
    while loop.step():
        pass
    scores = [loop.look(url)["priority"]["score"] for url in urls]
    assert spearman(scores, page_rank(links, 0.15)) >= 0.9


@pytest.mark.parametrize("sources", [1, 4, 5, 63, 64])
def test_in_degree_is_exact_below_65(sources: int) -> None:
    fed = Fed()
    votes = [{"host_key": 5, "source_host": key(number)} for number in range(1, sources + 1)]
    fed.feed((RowKind.VOTE, votes * 3 + [{"host_key": 5, "source_host": 5}]))
    assert fed.look(5, 1)["host"]["in_degree"] == sources
    assert fed.look(5, 1)["host"]["in_degree_exact"]


def test_in_degree_beyond_is_near_and_never_falls() -> None:
    fed = Fed()
    rng = np.random.default_rng(3)
    fed.feed((RowKind.ADMISSION, [admission_row(5, 1)]))
    seen = 0
    for batch in (10, 54, 1, 35, 400, 500, 1500, 2500, 20_000, 75_000):
        before = fed.look(5, 1)["host"]["in_degree"]
        votes = [{"host_key": 5, "source_host": key(number)} for number in range(seen, seen + batch)]
        rng.shuffle(votes)
        half = len(votes) // 2
        fed.feed((RowKind.VOTE, votes[:half]), (RowKind.VOTE, votes[half:] + votes[:5]))
        seen += batch
        now = fed.look(5, 1)["host"]["in_degree"]
        assert now >= before
        assert abs(now - seen) <= (0 if seen <= 64 else 0.1 * seen)
        if seen == 464:
            fed.snapshot()
            fed.restore()
            assert fed.look(5, 1)["host"]["in_degree"] == now


def test_in_degrees_of_many_hosts_stay_within_bounds() -> None:
    fed, wrong = Fed(), 0
    wanted = {host: 40 + host * 13 for host in range(1, 101)}
    votes = [
        {"host_key": host, "source_host": key(host * 100_000 + number)}
        for host, count in wanted.items()
        for number in range(count)
    ]
    random.Random(1).shuffle(votes)
    for start in range(0, len(votes), 5000):
        fed.feed((RowKind.VOTE, votes[start : start + 5000]))
    for host, count in wanted.items():
        got = fed.look(host, 1)["host"]["in_degree"]
        assert got == count or count > 64
        wrong += abs(got - count) > 0.1 * count
    assert wrong <= 1


def released(fed: Fed) -> list[int]:
    return [row["path_key"] for row in fed.sent[RowKind.UPDATE] if row["fields"] & UpdateField.RELEASE]


def run_releases(fed: Fed) -> int:
    """Feed continuation rows back until there are none; gives how many there were."""
    rounds = 0
    while rows := list(fed.sent[RowKind.RELEASE]):
        fed.sent[RowKind.RELEASE].clear()
        fed.feed((RowKind.RELEASE, rows))
        rounds += 1
        assert rounds < 10_000
    return rounds


def test_release_goes_by_priority_in_bounded_batches() -> None:
    fed = Fed({**SMALL, "base_budget": 1, "release_batch": 3})
    fed.feed((RowKind.ADMISSION, [admission_row(5, path) for path in range(12)]))
    assert [row["reason"] for row in fed.sent[RowKind.ADMITTED]] == [0] + [2] * 11
    fed.feed((RowKind.CREDIT, [credit_row(5, path, path % 4 * UNIT) for path in range(12)]))
    fed.feed((RowKind.CONTROL, [control_row(5, ControlAction.BUDGET, 10, 9)]))
    batches = []
    while rows := list(fed.sent[RowKind.RELEASE]):
        fed.sent[RowKind.RELEASE].clear()
        before = len(released(fed))
        fed.feed((RowKind.RELEASE, rows))
        batches.append(released(fed)[before:])
    assert batches == [[3, 7, 11], [2, 6, 10], [1, 5]]
    assert fed.look(5, 9)["parked"] == "budget"
    assert fed.look(5, 9)["host"]["url_count"] == 9
    again = len(fed.sent[RowKind.UPDATE])
    fed.feed((RowKind.RELEASE, [{"host_key": 5}] * 2), (RowKind.CONTROL, [control_row(5, ControlAction.RELEASE, 11)]))
    assert run_releases(fed) == 0
    assert len(fed.sent[RowKind.UPDATE]) == again
    fed.feed((RowKind.SEEDED, [seed_row(5, 9, 20, 0, 0)]))  # vouches, but an operator's budget stands
    assert run_releases(fed) == 0
    fed.feed((RowKind.CONTROL, [control_row(5, ControlAction.BUDGET, 12)]))
    run_releases(fed)
    assert fed.look(5, 9)["parked"] is None
    assert fed.look(5, 9)["host"]["url_count"] == 12


def test_operator_lets_one_url_go() -> None:
    fed = Fed({**SMALL, "base_budget": 1})
    fed.feed((RowKind.ADMISSION, [admission_row(5, path) for path in (1, 2, 3)]))
    fed.feed((RowKind.CONTROL, [control_row(5, ControlAction.RELEASE, 4, path=3)] * 2))
    assert released(fed) == [3]
    assert fed.look(5, 3)["host"]["url_count"] == 2
    assert fed.look(5, 2)["parked"] == "budget"


def test_depth_cap_and_a_shorter_path() -> None:
    fed = Fed({**SMALL, "depth_cap": 2, "base_budget": 2})
    fed.feed((RowKind.ADMISSION, [admission_row(5, path, path) for path in range(5)]))
    assert [row["reason"] for row in fed.sent[RowKind.ADMITTED]] == [0, 0, 2, 1, 1]
    fed.feed((RowKind.CREDIT, [credit_row(5, 3, 0, 2)]))
    assert fed.look(5, 3)["parked"] == "budget"
    assert "budget" in fed.look(5, 3)["would_release"]
    fed.feed((RowKind.CONTROL, [control_row(5, ControlAction.BUDGET, 1, 0)]))
    run_releases(fed)
    assert sorted(released(fed)) == [2, 3]
    fed.feed((RowKind.CREDIT, [credit_row(5, 4, 0, 1)]))
    update = fed.sent[RowKind.UPDATE][-1]
    assert update["path_key"] == 4
    assert update["fields"] & (UpdateField.RELEASE | UpdateField.DEPTH) == UpdateField.RELEASE | UpdateField.DEPTH


def test_robots_changed_revives_what_was_excluded_before() -> None:
    fed = Fed()
    visits = [visit_row(5, path, at, status=0, error=5) for path, at in ((1, 10), (2, 20), (3, 30), (4, 10), (6, 10))]
    fed.feed((RowKind.SEEDED, [seed_row(5, path, 1) for path in (1, 2, 3, 4, 6)]), (RowKind.VISIT, visits))
    fed.feed((RowKind.VISIT, [visit_row(5, 4, 11)]))
    assert fed.look(5, 3)["excluded_by_robots"]
    assert not fed.look(5, 4)["excluded_by_robots"]
    fed.feed((RowKind.CONTROL, [control_row(5, ControlAction.ROBOTS_CHANGED, 25)]))
    assert run_releases(fed) == 2
    revived = [(row["path_key"], row["at"]) for row in fed.sent[RowKind.UPDATE] if row["fields"] & UpdateField.REVIVE]
    assert revived == [(1, 25), (2, 25), (6, 25)]
    assert fed.look(5, 3)["excluded_by_robots"]


def test_one_trap_host_takes_no_more_than_its_budget() -> None:
    fed = Fed(DEFAULTS, partitions=1)
    for start in range(0, 20_000, 2000):
        fed.feed((RowKind.ADMISSION, [admission_row(5, key(start + n)) for n in range(2000)]))
    scheduled = [row for row in fed.sent[RowKind.ADMITTED] if row["reason"] == 0]
    assert len(scheduled) == 64
    fed.feed((RowKind.CONTROL, [control_row(5, ControlAction.VOUCH, 9)]))
    # A batch is at least a 64th of what waits, so that a large host takes no quadratic time.
    assert run_releases(fed) < 200
    assert len(set(released(fed))) == 20_000 - 64
    bytes_each = fed.service.stats()["gauges"]["bytes"] / 20_000
    assert bytes_each <= 54


def test_snapshots_write_what_changed() -> None:
    fed = Fed(DEFAULTS, partitions=1)
    fed.feed((RowKind.ADMISSION, [admission_row(n % 50, key(n)) for n in range(5000)]))
    fed.snapshot()
    writer = fed._store.writer(1, fed._last, quick=False)
    fed.service.save(writer)
    assert writer.written == 0
    fed.feed((RowKind.CREDIT, [credit_row(7, key(7), UNIT, 2)]))
    fed.service.save(writer := fed._store.writer(2, fed._last, quick=False))
    assert 0 < writer.written < 5000
    assert sum(reference.rows for reference in writer.kept if reference.role == "urls.changes") == 1


def test_rows_that_say_nothing_yet_are_saved() -> None:
    fed = Fed()
    fed.feed((RowKind.ADMISSION, [admission_row(5, path) for path in range(20)]))
    fed.feed((RowKind.VOTE, [{"host_key": host, "source_host": 5} for host in range(200, 230)]))
    fed.snapshot()
    # Hosts 6 and 7 are only known to be there: by a credit to a URL, and by a vote for itself.
    fed.feed((RowKind.CREDIT, [credit_row(6, 1, UNIT)]), (RowKind.VOTE, [{"host_key": 7, "source_host": 7}]))
    fed.feed((RowKind.ADMISSION, [admission_row(8, 1)]))
    before = [fed.look(host, 1) for host in (5, 6, 7, 8)]
    fed.snapshot()
    assert any(reference.role == "hosts.changes" for reference in fed._last.files)
    fed.restore()
    assert [fed.look(host, 1) for host in (5, 6, 7, 8)] == before
    fed.feed((RowKind.ADMISSION, [admission_row(7, 1), admission_row(6, 1)]))
    assert fed.sent[RowKind.ADMITTED][-1]["host_key"] == 6
    assert fed.look(6, 1)["priority"]["cash"] == UNIT


def test_mints_have_a_limit_and_repeats_mint_nothing() -> None:
    fed = Fed(partitions=1)
    fed.feed((RowKind.SEEDED, [seed_row(5, 1, 10, 1 << 63), seed_row(5, 2, 10, 1)]))
    fed.feed((RowKind.SEEDED, [seed_row(5, 1, 10, 5, 0), seed_row(5, 1, 9, 5, 0)]))
    assert fed.service.totals() | {"minted": 1 << 63, "mints_refused": 1, "known": 1} == fed.service.totals()
    assert [row["path_key"] for row in fed.sent[RowKind.ADMITTED]] == [1, 2]


def test_nothing_goes_to_the_store_before_the_admission() -> None:
    fed = Fed()
    fed.feed(
        (RowKind.SEEDED, [seed_row(5, 1, 10, UNIT, 0)]),
        (RowKind.VISIT, [visit_row(5, 1, 11, [(6, 1)], depth=0)]),
        (RowKind.CREDIT, [credit_row(5, 1, 99, 0)]),
        (RowKind.URL_SIGNAL, [{"host_key": 5, "path_key": 1, "rank": 0.5, "epoch": 1}]),
    )
    assert not fed.batches
    assert fed.sent[RowKind.VOTE] == [{"host_key": 6, "source_host": 5}]
    fed.feed((RowKind.ADMISSION, [admission_row(5, 1, 3)]))
    (row,) = fed.sent[RowKind.ADMITTED]
    assert row["depth"] == 0
    assert row["priority"] == pytest.approx(fed.look(5, 1)["priority"]["priority"])


def test_redirects_pay_at_the_same_depth_and_do_not_vote() -> None:
    fed = Fed()
    fed.feed((RowKind.SEEDED, [seed_row(5, 1, 1)]))
    fed.feed((RowKind.VISIT, [visit_row(5, 1, 2, [(6, 1)], status=302, redirect=b"x")]))
    (credit,) = fed.sent[RowKind.CREDIT]
    assert credit["depth"] == 0
    assert credit["units"] == UNIT - UNIT * round(0.3 * UNIT) // UNIT
    assert not fed.sent[RowKind.VOTE]
    fed.feed((RowKind.VISIT, [visit_row(5, 1, 3, [(6, 1)], status=302)]))
    fed.feed((RowKind.VISIT, [visit_row(5, 1, 4, [(6, 1)], status=404, redirect=b"x")]))
    fed.feed((RowKind.VISIT, [visit_row(5, 1, 5, [], status=304)]))
    assert len(fed.sent[RowKind.CREDIT]) == 1
    assert len(fed.sent[RowKind.OUTCOME]) == 4


def test_rows_that_do_not_belong_here() -> None:
    fed = Fed()
    update: defaultdict[str, Any] = defaultdict(int, host_key=1, path_key=2, fields=1, priority=0.5, depth=0, at=0)
    with pytest.raises(EnvelopeError, match="UPDATE rows: not for the prioritizer"):
        fed.feed((RowKind.UPDATE, [dict(update)]))
    with pytest.raises(EnvelopeError, match="action 99"):
        fed.feed((RowKind.CONTROL, [control_row(5, 99, 1)]))


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"discont": 0.5}, "discont"),
        ({"teleport_rate": 1.5}, "teleport_rate"),
        ({"base_budget": 1.5}, "base_budget"),
        ({"min_budget": 0}, "min_budget"),
        ({"depth_decay": float("nan")}, "depth_decay"),
        ({"w_host": "much"}, "w_host"),
        ({"release_batch": True}, "release_batch"),
    ],
)
def test_parameters_are_refused_by_name(parameters: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        prioritizer_spec(1, 2, parameters)
