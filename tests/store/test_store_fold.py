"""The outcome table: every cell of it from every status, and the faults that a recrawl schedule must not have."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import store_world as world

from meguri_common.records import Status, VisitFlag
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_store.fold import FOLDED, VISIT_FACTS, FoldRules, fold_visits
from meguri_store.schema import URL_SCHEMA

HOUR = world.START // world.HOUR
OUTCOMES = [
    {"status": 200, "content_fp": 7, "simhash": 0xFF},
    {"status": 200, "content_fp": 5, "simhash": 0xFF},
    {"status": 200, "content_fp": 6, "simhash": 0xFE},
    {"status": 200, "content_fp": 9, "simhash": 0},
    {"status": 206, "content_fp": 9, "simhash": 0xFFFF_FFFF, "etag": b"x", "last_modified": 9},
    {"status": 200, "content_fp": 0},
    {"status": 200, "content_fp": 7, "flags": VisitFlag.EMPTY_BODY},
    {"status": 200, "content_fp": 7, "flags": VisitFlag.SOFT_404},
    {"status": 304},
    {"status": 200, "flags": VisitFlag.NOT_MODIFIED, "content_fp": 7, "simhash": 1},
    *({"status": code, "redirect": b"https://t.org/"} for code in (301, 302, 303, 307, 308, 300, 305)),
    {"status": 301},
    {"status": 302, "flags": VisitFlag.REDIRECT_UNUSABLE},
    {"status": 302, "flags": VisitFlag.REDIRECT_SELF},
    {"status": 410},
    *({"status": code} for code in (100, 400, 404, 429, 451, 500, 503, 599)),
    {"status": 429, "retry_after": 5 * 3600},
    {"status": 503, "retry_after": 2**32 - 1},
    *({"status": 0, "error": code} for code in range(7)),
]


def record_of(status: int, **values: int) -> dict[str, object]:
    record = {field.name: None if field.nullable else 0 for field in URL_SCHEMA}
    return {**record, "status": int(status), "next_due": 5 if status not in (6, 7, 8) else 0, **values}


RECORDS = [
    record_of(status, **{**counters, **signals, "reason": 1 if status == Status.TRAPPED else 0})
    for status, counters, signals in itertools.product(
        Status,
        [
            {"retry_count": tries, "crawl_count": crawls, "first_seen": crawls}
            for tries in (0, 1, 3, 4, 5)
            for crawls in (0, 3)
        ]
        + [
            {
                "retry_count": 255,
                "crawl_count": 2**32 - 1,
                "error_count": 65_535,
                "no_change_streak": 65_535,
                "change_count": 2**32 - 1,
            }
        ],
        [{"content_fp": 0, "simhash": 0}, {"content_fp": 5, "simhash": 0xFF}, {"content_fp": 5, "simhash": 0}],
    )
]


def fold_all(records, visits):
    """The columns' fold of aligned records and visits, as dicts again."""
    columns = {
        name: np.array([record[name] for record in records], URL_SCHEMA.field(name).type.to_pandas_dtype())
        for name in FOLDED
    }
    facts = {
        name: np.array([visit[name] for visit in visits], SCHEMAS[RowKind.OUTCOME].field(name).type.to_pandas_dtype())
        for name in VISIT_FACTS
    }
    folded = fold_visits(
        columns,
        facts,
        np.array([bool(visit["etag"]) for visit in visits], bool),
        np.array([bool(visit["redirect"]) for visit in visits], bool),
        FoldRules(),
    )
    results = []
    for at, (record, visit) in enumerate(zip(records, visits, strict=True)):
        result = {**record, **{name: folded.records[name][at].item() for name in FOLDED}}
        if folded.takes_etag[at]:
            result["etag"] = visit["etag"]
        if folded.drops_redirect[at]:
            result["redirect"] = None
        if folded.takes_redirect[at]:
            result["redirect"] = visit["redirect"].decode()
        kind = "crawl" if folded.crawled[at] else "failure" if folded.failed[at] else "neither"
        results.append((result, kind))
    return results


def test_every_cell_from_every_status():
    url = world.url_of("a.org", "")
    visits = [world.visit(url, at=world.START + 1234, **facts)[1] for facts in OUTCOMES]
    pairs = [(record, visit) for record in RECORDS for visit in visits]
    results = fold_all([record for record, _ in pairs], [visit for _, visit in pairs])
    for (record, visit), (result, kind) in zip(pairs, results, strict=True):
        twin = dict(record)
        assert world.fold_one(twin, visit) == kind
        assert result == twin, (record, visit)
        assert not (result["status"] in (Status.GONE, Status.EXCLUDED_ROBOTS) and result["next_due"])
        assert result["status"] in (Status.GONE, Status.EXCLUDED_ROBOTS) or result["next_due"] > HOUR
    assert len(pairs) == len(Status) * 33 * len(OUTCOMES)


@pytest.mark.parametrize(
    ("record", "facts", "expected"),
    [
        ({}, {"content_fp": 7, "simhash": 9}, {"status": 4, "next_due": HOUR + 168, "crawl_count": 1, "content_fp": 7}),
        ({"content_fp": 7, "simhash": 9}, {"content_fp": 7}, {"no_change_streak": 1, "change_count": 0, "simhash": 9}),
        (
            {"content_fp": 7, "simhash": 8},
            {"content_fp": 6, "simhash": 15},
            {"no_change_streak": 1, "change_count": 0, "content_fp": 6, "simhash": 15},
        ),
        (
            {"content_fp": 7, "simhash": 16, "no_change_streak": 3},
            {"content_fp": 6, "simhash": 15},
            {"no_change_streak": 0, "change_count": 1, "last_changed": HOUR, "content_fp": 6},
        ),
        ({"content_fp": 7}, {"content_fp": 6, "simhash": 15}, {"change_count": 1, "last_changed": HOUR}),
        ({"content_fp": 7, "no_change_streak": 2}, {}, {"crawl_count": 1, "content_fp": 7, "no_change_streak": 2}),
        (
            {"content_fp": 7, "simhash": 9},
            {"status": 304, "content_fp": 8, "simhash": 1},
            {"no_change_streak": 1, "content_fp": 7, "simhash": 9, "http_status": 304, "crawl_count": 1},
        ),
        ({}, {"status": 301, "redirect": b"https://t.org/"}, {"redirect": "https://t.org/", "crawl_count": 1}),
        ({}, {"status": 302, "flags": 4}, {"redirect": None, "crawl_count": 0, "error_count": 1, "next_due": HOUR + 1}),
        ({}, {"status": 410}, {"status": 6, "next_due": 0, "error_count": 1, "retry_count": 0}),
        ({}, {"status": 404}, {"status": 1, "next_due": HOUR + 1, "retry_count": 1, "crawl_count": 0}),
        ({"crawl_count": 1, "retry_count": 1}, {"status": 500}, {"status": 5, "next_due": HOUR + 2}),
        ({"retry_count": 2}, {"status": 0, "error": 3}, {"status": 1, "next_due": HOUR + 4}),
        ({"retry_count": 3}, {"status": 429}, {"status": 1, "next_due": HOUR + 8, "error_count": 1}),
        ({"retry_count": 4}, {"status": 503}, {"status": 6, "next_due": 0, "retry_count": 5}),
        ({}, {"status": 429, "retry_after": 7200}, {"next_due": HOUR + 2}),
        ({}, {"status": 429, "retry_after": 7201}, {"next_due": HOUR + 3}),
        ({}, {"status": 429, "retry_after": 10**9}, {"next_due": HOUR + 168}),
        ({"retry_count": 3}, {"status": 429, "retry_after": 60}, {"next_due": HOUR + 8}),
        ({"error_count": 3}, {"status": 0, "error": 5}, {"status": 7, "next_due": 0, "error_count": 3}),
        ({"status": 6, "retry_count": 5}, {"content_fp": 7}, {"status": 4, "next_due": HOUR + 168, "retry_count": 0}),
        ({"status": 6}, {"status": 503}, {"status": 6, "next_due": 0}),
        ({"status": 6}, {"status": 304}, {"status": 6, "next_due": 0}),
    ],
)
def test_cells_that_tell(record, facts, expected):
    visit = world.visit(world.url_of("a.org", ""), **facts)[1]
    ((result, _),) = fold_all([record_of(**{"status": Status.SCHEDULED, **record})], [visit])
    assert {name: result[name] for name in expected} == expected


def test_fault_gone_is_not_overwritten_by_scheduling():
    """A "not found" template is a usable answer, which schedules; the terminal verdict must win all the same."""
    template = world.visit(world.url_of("a.org", ""), content_fp=7, flags=VisitFlag.SOFT_404)[1]
    for status in Status:
        ((result, kind),) = fold_all([record_of(status)], [template])
        assert kind == "crawl"
        assert (result["status"], result["next_due"], result["crawl_count"]) == (Status.GONE, 0, 1)


@pytest.mark.parametrize("compacted", [False, True])
def test_fault_what_was_crawled_comes_due_again(tmp_path, compacted):
    """Every row that has an hour and isn't terminal is found when it has come, whatever its status."""
    url, failing = world.url_of("a.org", "x"), world.url_of("a.org", "y")
    live = world.World(tmp_path)
    live.feed([world.admitted(url), world.admitted(failing), world.visit(url), world.visit(failing)])
    live.feed([world.visit(failing, at=world.START + 168 * world.HOUR, status=500)])
    live.snapshot(compact=compacted)
    shard = live.shard()
    statuses = [row["status"] for row in live.urls()]
    assert statuses == [Status.CRAWLED, Status.DUE_RECRAWL]
    assert shard.due(HOUR + 167, 10).num_rows == 0
    assert shard.due(HOUR + 168, 10).column("url").to_pylist() == [url.decode()]
    assert shard.due(HOUR + 169, 10).column("url").to_pylist() == [url.decode(), failing.decode()]


@pytest.mark.parametrize("compacted", [False, True])
def test_fault_one_row_for_a_url_however_it_came(tmp_path, compacted):
    """A seed and a link to it carry one canonical URL: the second admission keeps the first row."""
    url = world.url_of("a.org", "x")
    live = world.World(tmp_path)
    live.feed([world.admitted(url, at=0, priority=1.5, depth=0), world.visit(url)])
    live.snapshot(compact=compacted)
    live.feed([world.admitted(url, priority=0.25, depth=4)])
    live.snapshot(compact=True)
    (row,) = live.urls()
    assert (row["priority"], row["depth"], row["crawl_count"]) == (1.5, 0, 1)


def test_a_seed_of_time_zero_is_due_and_a_future_one_waits(tmp_path):
    live = world.World(tmp_path)
    seed, later = world.url_of("a.org", "seed"), world.url_of("a.org", "later")
    live.feed([world.admitted(seed, at=0), world.admitted(later, at=world.START + world.HOUR)])
    assert live.shard().due(HOUR, 10).column("url").to_pylist() == [seed.decode()]
    assert live.shard().due(HOUR + 1, 10).num_rows == 2


@pytest.mark.parametrize("compacted", [False, True])
def test_a_redirect_and_validators_last_until_an_answer_replaces_them(tmp_path, compacted):
    url = world.url_of("a.org", "x")
    live = world.World(tmp_path)

    def after(number: int, **facts: object) -> tuple[object, object, object]:
        live.feed([world.visit(url, at=world.START + number * world.HOUR, **facts)])
        live.snapshot(compact=compacted)
        (row,) = live.urls()
        return row["redirect"], row["etag"], row["last_modified"]

    live.feed([world.admitted(url)])
    assert after(1, status=301, redirect=b"https://t.org/", etag=b"one") == ("https://t.org/", b"one", 0)
    assert after(2, status=304, last_modified=77) == ("https://t.org/", b"one", 77)
    assert after(3, status=503) == ("https://t.org/", b"one", 77)
    assert after(4, status=308, redirect=b"https://u.org/") == ("https://u.org/", b"one", 77)
    assert after(5, content_fp=7, etag=b"two") == (None, b"two", 77)
    assert after(6, status=302, redirect=b"https://t.org/") == ("https://t.org/", b"two", 77)
    assert after(7, status=302, flags=VisitFlag.REDIRECT_UNUSABLE) == (None, b"two", 77)
