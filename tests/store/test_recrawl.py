"""Recrawl: the same records as a live store that is fed the same visits in store order, and nothing decoded in vain."""

from __future__ import annotations

import errno
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import store_world as world
from freshness_world import LiveWorld
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.records import Status
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_store.generation import Generation
from meguri_store.recrawl import LAST_HOUR, recrawl
from meguri_store.recrawl_outcomes import DueRows, Visits, drawn_outcomes, drawn_rates, given_outcomes
from meguri_store.verify import verify_generation

HOSTS = [f"site{number}.org" for number in range(3)]
URLS = [world.url_of(name, page) for name in HOSTS for page in ("", "a", "b", "c")]
NOW = world.START // world.HOUR + 400
OPS = [
    op
    for number, url in enumerate(URLS)
    for op in (
        world.admitted(url, priority=float(np.float32(10 ** -(number % 7)))),
        world.visit(url, at=world.START + 3600, content_fp=1, simhash=0, etag=b"e" * (number % 3)),
        world.visit(url, at=world.START + 36_000 * (number + 1), content_fp=1 + number % 2, simhash=0),
    )
]


def generation_of(live: world.World) -> Generation:
    live.snapshot(compact=True)
    assert live.store.base is not None
    return live.store.base


def run(live: world.World, base: Generation, outcomes, now: int = NOW, **rules):
    return recrawl(
        live.files,
        0,
        base,
        outcomes,
        replace(live.store.rules, **rules),
        now=now,
        identity=world.IDENTITY,
        token=live.token,
    )


def of_ops(ops: list[world.Op]):
    return given_outcomes(pa.RecordBatch.from_pylist([row for _, row in ops], SCHEMAS[RowKind.OUTCOME]))


def opened(live: world.World, result) -> Generation:
    assert result.made is not None
    return verify_generation(live.files, result.made.folder, world.IDENTITY)


def rows_of(generation: Generation) -> list[dict]:
    return [row for group in range(generation.groups) for row in generation.urls(group).to_pylist()]


def hosts_of(generation: Generation) -> list[dict]:
    return [row for table in generation.hosts() for row in table.to_pylist()]


visits = st.builds(
    world.visit,
    st.sampled_from(URLS),
    at=st.integers(NOW * world.HOUR, NOW * world.HOUR + 3599),
    status=st.sampled_from([200, 200, 200, 304, 301, 404, 410, 0, 503]),
    error=st.sampled_from([0, 1, 5]),
    flags=st.sampled_from([0, 0, 0, 0, 4, 8, 16]),
    content_fp=st.sampled_from([0, 1, 2, 9]),
    simhash=st.sampled_from([0, 0xFF]),
    etag=st.sampled_from([b"", b'"new"']),
    last_modified=st.sampled_from([0, 77]),
    redirect=st.sampled_from([b"", b"https://t.org/"]),
    retry_after=st.sampled_from([0, 7200]),
)


@settings(max_examples=40, deadline=None)
@given(given_visits=st.lists(visits, max_size=20), reschedule=st.booleans(), early=st.booleans())
def test_the_same_as_a_live_store_that_is_fed_the_visits(given_visits, reschedule, early):
    with tempfile.TemporaryDirectory() as folder:
        live = LiveWorld(Path(folder), reschedule=reschedule)
        live.feed(OPS)
        base = generation_of(live)
        now = min(row["next_due"] for row in live.urls() if row["next_due"]) if early else NOW
        outcomes = given_outcomes(
            pa.RecordBatch.from_pylist([row for _, row in given_visits], SCHEMAS[RowKind.OUTCOME])
        )
        result = run(live, base, outcomes, now=now)
        due = [row for row in live.urls() if 0 < row["next_due"] <= now]
        last = {(row["host_key"], row["path_key"]): (RowKind.OUTCOME, row) for _, row in given_visits}
        mine = [tuple(world.keys_of(row["url"].encode()).values()) for row in due]
        fed = [last[key] for key in mine if key in last]
        assert (result.rows, result.due, result.visited) == (len(URLS), len(due), len(fed))
        if not fed:
            assert result.made is None or rows_of(opened(live, result)) == live.urls()
            return
        before = {row["url"]: row for row in live.urls()}
        live.feed(fed)
        expected = generation_of(live)
        found = opened(live, result)
        assert rows_of(found) == rows_of(expected)
        assert hosts_of(found) == hosts_of(expected)
        for name in ("tau", "scheduled", "reschedules", "by_status", "due_by_day"):
            assert getattr(found.meta, name) == getattr(expected.meta, name)
        assert (found.meta.updated, found.meta.carried) == (len(fed), len(URLS) - len(fed))
        assert result.tau == found.meta.tau
        after = rows_of(found)
        assert result.gone == sum(row["status"] == Status.GONE for row in after)
        assert result.changed == sum(row["change_count"] - before[row["url"]]["change_count"] for row in after)
        crawls = sum(row["crawl_count"] - before[row["url"]]["crawl_count"] for row in after)
        assert result.changed + result.unchanged == crawls
        errors = sum(row["error_count"] - before[row["url"]]["error_count"] for row in after)
        assert result.failed == errors
        gaps = [
            row["next_due"] - row["last_crawled"]
            for row in after
            if row["next_due"] and row["crawl_count"] > before[row["url"]]["crawl_count"]
        ]
        assert result.rescheduled == len(gaps)
        assert result.mean_interval == pytest.approx(sum(gaps) / len(gaps) if gaps else 0)


def test_a_recrawl_is_the_next_generation_of_its_offset(tmp_path):
    live = LiveWorld(tmp_path)
    live.feed(OPS)
    base = generation_of(live)
    result = run(live, base, drawn_outcomes(1))
    found = opened(live, result)
    assert (found.meta.offset, found.meta.sequence) == (base.meta.offset, base.meta.sequence + 1)
    assert sum(row["crawl_count"] + row["error_count"] for row in rows_of(found)) == 2 * len(URLS) + result.due
    totals = sum(row["crawl_total"] + row["error_total"] for row in hosts_of(found))
    assert totals == 2 * len(URLS) + result.due
    assert result.due_rows_a_second > 0


def test_row_groups_of_which_nothing_is_due_are_not_decoded(tmp_path, monkeypatch):
    live = LiveWorld(tmp_path)
    live.feed(OPS)
    base = generation_of(live)
    first_due = [group.first_due for group in base.meta.groups]
    assert len(set(first_due)) > 1
    now = min(first_due)
    decoded = []
    plain = Generation.urls
    monkeypatch.setattr(
        Generation, "urls", lambda self, group, *rest: decoded.append(group) or plain(self, group, *rest)
    )
    result = run(live, base, drawn_outcomes(1, failing=0), now=now)
    assert set(decoded) == {group for group, due in enumerate(first_due) if due <= now}
    monkeypatch.undo()
    untouched = {group for group, due in enumerate(first_due) if due > now}
    for group in untouched:
        assert opened(live, result).urls(group).equals(base.urls(group))
    quiet = run(live, base, drawn_outcomes(1), now=now - 1)
    assert (quiet.made, quiet.due, quiet.visited, quiet.mean_interval) == (None, 0, 0, 0)
    assert quiet.tau == base.meta.tau


def due_rows(count: int, now: int = NOW, **columns) -> DueRows:
    even = np.random.default_rng(5)
    keys = even.integers(0, 2**64 - 1, (2, count), dtype=np.uint64)
    records = {
        "last_crawled": np.full(count, now - 24, np.uint32),
        "content_fp": np.full(count, 7, np.uint64),
        "simhash": np.full(count, 9, np.uint64),
        **columns,
    }
    return DueRows(now, np.sort(keys[0]), keys[1], records)


def test_drawn_outcomes_follow_from_seed_key_and_hour():
    due = due_rows(1000)
    facts = drawn_outcomes(3)(due).facts
    order = np.random.default_rng(1).permutation(1000)
    shuffled = DueRows(
        due.now, due.host_key[order], due.path_key[order], {name: column[order] for name, column in due.records.items()}
    )
    again = drawn_outcomes(3)(shuffled).facts
    assert all(np.array_equal(facts[name][order], again[name]) for name in facts)
    for other in (drawn_outcomes(4)(due), drawn_outcomes(3)(replace(due, now=due.now + 1))):
        assert not np.array_equal(facts["content_fp"], other.facts["content_fp"])
    seeded = drawn_outcomes(3)(due_rows(1000, content_fp=np.zeros(1000, np.uint64))).facts
    assert (seeded["content_fp"] != 0).all(), "a first body has a fingerprint"


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.5])
def test_drawn_changes_are_a_poisson_process(rate):
    count, hours = 40_000, 24
    due = due_rows(count)
    outcomes = drawn_outcomes(8, lambda host, _: np.full(len(host), rate), failing=0.1, vanishing=0.05)
    facts = outcomes(due).facts
    expected = 1 - math.exp(-rate * hours)
    spread = 4 * math.sqrt(expected * (1 - expected) / count)
    assert np.mean(facts["content_fp"] != 7) == pytest.approx(expected, abs=spread)
    assert np.mean(facts["status"] == 410) == pytest.approx(0.05, abs=0.005)
    assert np.mean(np.isin(facts["status"], (0, 404, 503))) == pytest.approx(0.1, abs=0.007)
    assert set(facts["status"].tolist()) == {0, 200, 404, 410, 503}
    assert ((facts["status"] == 0) == (facts["error"] != 0)).all()


def test_drawn_rates_are_even_in_the_logarithm():
    due = due_rows(40_000)
    rates = np.log(drawn_rates(2)(due.host_key, due.path_key)) / math.log(8760)
    shares, _ = np.histogram(rates, bins=10, range=(-1, 0))
    assert shares.sum() == 40_000
    assert (abs(shares - 4000) < 300).all()


def test_groups_of_another_size_give_the_same_records(tmp_path):
    found = []
    for size in (3, 5, 100):
        live = LiveWorld(tmp_path / str(size))
        live.rules = replace(live.rules, group_rows=size)
        live.store = live.fresh()
        live.feed(OPS)
        found.append(rows_of(opened(live, run(live, generation_of(live), drawn_outcomes(1)))))
    assert found[0] == found[1] == found[2]


def test_stale_and_foreign_visits_do_not_count(tmp_path):
    live = LiveWorld(tmp_path)
    live.feed(OPS)
    base = generation_of(live)
    row = live.urls()[0]
    url = row["url"].encode()
    given_visits = [
        world.visit(url, at=row["last_crawled"] * world.HOUR + 3599, status=410),
        world.visit(world.url_of("nowhere.org", ""), at=NOW * world.HOUR),
    ]
    result = run(live, base, of_ops(given_visits))
    assert result.due > 0
    assert result.visited == 0
    assert rows_of(opened(live, result)) == live.urls()
    assert run(live, base, of_ops([])).visited == 0


@pytest.mark.parametrize("now", [0, -1, LAST_HOUR + 1])
def test_an_hour_that_no_visit_can_have_is_refused(tmp_path, now):
    live = LiveWorld(tmp_path)
    live.feed(OPS)
    with pytest.raises(ValueError, match="now is"):
        run(live, generation_of(live), drawn_outcomes(1), now=now)


def test_a_recrawl_that_fails_leaves_nothing(tmp_path):
    live = LiveWorld(tmp_path)
    live.feed(OPS)
    base = generation_of(live)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))

    def breaking(due: DueRows) -> Visits:
        if due.host_key[0] != base.meta.groups[0].first_host:
            raise OSError(errno.ENOSPC, "No space left on device")
        return drawn_outcomes(1)(due)

    with pytest.raises(OSError, match="No space"):
        run(live, base, breaking)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
    assert rows_of(base) == live.urls()
