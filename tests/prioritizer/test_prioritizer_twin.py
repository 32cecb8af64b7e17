"""The columnar prioritizer against its plain twin, in any grouping of the messages, through snapshots and restores."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prio_twin import Twin
from prio_world import HOSTS, PATHS, SMALL, Fed, random_messages

from meguri_common.keys import partition_of
from meguri_common.records import NO_DEPTH
from meguri_common.wire.schemas import RowKind

SEEDS = st.integers(0, 1 << 48)


def state_of(fed: Fed) -> Any:
    return fed.service.totals(), fed.service.top(1000), {(h, p): fed.look(h, p) for h in HOSTS for p in PATHS}


def told(fed: Fed) -> Any:
    """All that was sent, with what may be grouped otherwise summed or left out."""
    paid: dict[tuple[int, int], list[int]] = {}
    for row in fed.sent[RowKind.CREDIT]:
        credit = paid.setdefault((row["host_key"], row["path_key"]), [0, NO_DEPTH])
        credit[0] += row["units"]
        credit[1] = min(credit[1], row["depth"])
    votes = {(row["host_key"], row["source_host"]) for row in fed.sent[RowKind.VOTE]}
    hosts = {row["host_key"]: tuple(row.values()) for row in fed.sent[RowKind.HOST]}
    rows = {
        kind: [tuple(row.values()) for row in fed.sent[kind]]
        for kind in (RowKind.ADMITTED, RowKind.UPDATE, RowKind.OUTCOME, RowKind.RELEASE)
    }
    return paid, votes, hosts, rows


@given(SEEDS, st.integers(1, 60))
@settings(max_examples=150, deadline=None)
def test_agrees_with_the_twin(seed: int, count: int) -> None:
    messages = random_messages(random.Random(seed), count)
    fed, twin = Fed(), Twin(SMALL, 2)
    hosts: dict[int, tuple[Any, ...]] = {}
    for kind, rows in messages:
        fed.sent[RowKind.HOST].clear()
        fed.feed((kind, rows))
        twin.apply(kind, rows)
        changed = {row["host_key"]: tuple(row.values()) for row in fed.sent[RowKind.HOST]}
        expected = {key: twin.host_row(key) for key in twin.stepped if twin.hosts[key].announced}
        assert changed == expected
        hosts |= changed
        twin.stepped.clear()
    assert fed.service.totals() == twin.t
    for (host, path), url in twin.urls.items():
        look = fed.look(host, path)
        terms = look["priority"]
        assert (terms["cash"], terms["history"]) == (url.cash, url.history)
        assert terms["priority"] == twin.priority((host, path))
        assert terms["level"] == twin.level(terms["priority"])
        assert look["parked"] == (url.reason.name.lower() if url.reason else None)
        assert look["last_visit"] == url.last
        assert look["host"]["in_degree"] == len(twin.hosts[host].sources)
    paid, votes, _, rows = told(fed)
    assert paid == twin.credits
    assert votes == twin.votes
    passed = ("url", "host_key", "path_key", "depth", "source", "at", "priority", "reason")
    assert [tuple(row[name] for name in passed) for row in fed.sent[RowKind.ADMITTED]] == twin.out[RowKind.ADMITTED]
    assert rows[RowKind.UPDATE] == twin.out[RowKind.UPDATE]
    assert [row[:4] for row in rows[RowKind.OUTCOME]] == twin.out[RowKind.OUTCOME]
    assert [row["host_key"] for row in fed.sent[RowKind.RELEASE]] == twin.out[RowKind.RELEASE]
    for kind in (RowKind.CREDIT, RowKind.VOTE):
        assert all(partition == partition_of(host, 2) for host, partition in fed.to[kind])
    assert all(partition == 0 for _, partition in fed.to[RowKind.RELEASE])


@given(SEEDS, st.integers(2, 60))
@settings(max_examples=120, deadline=None)
def test_groupings_and_restores_change_nothing(seed: int, count: int) -> None:
    rng = random.Random(seed)
    messages = random_messages(rng, count)
    one_by_one, grouped = Fed(), Fed()
    for item in messages:
        one_by_one.feed(item)
    done = 0
    while done < len(messages):
        size = rng.choice([1, 2, 5, 40])
        grouped.feed(*messages[done : done + size])
        done += size
        match rng.randrange(4):
            case 0:
                grouped.snapshot(quick=rng.random() < 0.5, confirm=rng.random() < 0.7)
            case 1:
                grouped.snapshot(quick=rng.random() < 0.3)
                grouped.restore()
                grouped.service.saved()
    assert state_of(grouped) == state_of(one_by_one)
    assert told(grouped) == told(one_by_one)


@given(SEEDS, st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_order_of_deltas_in_a_step(seed: int, count: int) -> None:
    """The store may read a step's deltas front to back: admissions first, a revival after what it undoes."""
    fed = Fed()
    messages = random_messages(random.Random(seed), count)
    fed.feed(*messages)
    admitted: set[tuple[int, int]] = set()
    last: dict[tuple[int, int], str] = {}
    for kind, rows in fed.batches:
        for row in rows:
            key = (row["host_key"], row.get("path_key", 0))
            if kind == RowKind.ADMITTED:
                assert key not in admitted
                admitted.add(key)
            elif kind == RowKind.HOST:
                assert any(host == key[0] for host, _ in admitted)
            else:
                assert key in admitted
            if kind == RowKind.OUTCOME:
                last[key] = "visit"
            elif kind == RowKind.UPDATE and row["fields"] & 8:
                last[key] = "revival"
    twin = Twin(SMALL, 2)
    expected: dict[tuple[int, int], str] = {}
    seen: Counter[RowKind] = Counter()
    for kind, rows in messages:
        twin.apply(kind, rows)
        for out in (RowKind.UPDATE, RowKind.OUTCOME):
            for row in twin.out[out][seen[out] :]:
                if out == RowKind.OUTCOME or row[2] & 8:
                    expected[row[:2]] = "visit" if out == RowKind.OUTCOME else "revival"
            seen[out] = len(twin.out[out])
    assert last == expected


@given(SEEDS, st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_credits_in_any_order_give_equal_cash(seed: int, count: int) -> None:
    rng = random.Random(seed)
    rows = [row for kind, rows in random_messages(rng, count * 4) if kind == RowKind.CREDIT for row in rows]
    shuffled = rng.sample(rows, len(rows))
    one, other = Fed(), Fed()
    if rows:
        one.feed((RowKind.CREDIT, rows))
    for row in shuffled:
        other.feed((RowKind.CREDIT, [row]))
    sums: dict[tuple[int, int], int] = defaultdict(int)
    for row in rows:
        sums[row["host_key"], row["path_key"]] += row["units"]
    for (host, path), units in sums.items():
        assert one.look(host, path)["priority"]["cash"] == other.look(host, path)["priority"]["cash"] == units
        assert one.look(host, path)["depth"] == other.look(host, path)["depth"]
    assert one.service.totals() == other.service.totals()
