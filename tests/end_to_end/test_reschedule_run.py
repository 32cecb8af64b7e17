"""Rescheduling by worth through the program: hours are a function of the input, however it is cut into runs."""

from __future__ import annotations

import json
import random

import pytest
from program import AT, encoded, exported, here, write_lines

BY_WORTH = ("--set", "store.reschedule=true", "--set", "store.budget=0.5", "--partitions", "2")


def weeks(count: int) -> list[list[bytes]]:
    """Weeks of visits to the same pages: some change each time, some now and then, some never, some go."""
    chance = random.Random(11)
    found = []
    for week in range(count):
        events = []
        for number in range(30):
            version = week if number % 3 == 0 else week // 3 if number % 3 == 1 else 0
            page = {
                "url": f"https://www.h{number % 4}.example/p{number}",
                "fetched_at": AT + (week * 168 + chance.randrange(100)) * 3600,
                "status": 404 if number % 7 == 6 and week > 2 else 200,
                "links": [f"https://www.h{number % 4}.example/p{(number + 4) % 30}"],
                "text": " ".join(f"word{version * 1000 + at * (number + 1)}" for at in range(80)),
            }
            events.append({"type": "page", "schema": 1, **page})
        first = [{"type": "seed", "schema": 1, "urls": [event["url"]], "observed_at": AT} for event in events]
        found.append([encoded(event) for event in [*(first if week == 0 else []), *events]])
    return found


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weeks")
    return [write_lines(folder / f"week{at}.jsonl", lines) for at, lines in enumerate(weeks(5))]


def test_cut_into_runs_with_compactions_between(tmp_path, inputs):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    done = here("run", *inputs, "--data", whole, *BY_WORTH, "--json")
    assert done.code == 0, done.err
    for at, source in enumerate(inputs):
        done = here("run", source, "--data", cut, *(BY_WORTH if at == 0 else ()), "--json")
        assert done.code == 0, done.err
        if at % 2 == 0:
            done = here("compact", "--data", cut)
            assert done.code == 0, done.err
    urls, hosts = exported(whole)
    assert exported(cut) == (urls, hosts)
    rows = [json.loads(line) for line in urls]
    crawled = [row for row in rows if row["crawl_count"] > 1]
    assert len(crawled) == 30
    by_kind = {kind: [row for row in crawled if int(row["url"].rpartition("p")[2]) % 3 == kind] for kind in (0, 2)}
    quickest = min(row["lambda"] for row in by_kind[0] if row["http_status"] == 200)
    assert quickest > max(row["lambda"] for row in by_kind[2]), "pages that change are known to"
    assert {row["status"] for row in crawled} == {5}
    assert all(row["next_due"] > row["last_crawled"] for row in crawled)
    gaps = {row["next_due"] - row["last_crawled"] for row in crawled if row["http_status"] == 200}
    assert gaps != {168}


def test_a_look_at_one_url_agrees_with_the_export(tmp_path, inputs):
    data = tmp_path / "data"
    assert here("run", *inputs, "--data", data, *BY_WORTH, "--json").code == 0
    rows = [json.loads(line) for line in exported(data)[0]]
    soon = min(rows, key=lambda row: row["next_due"] or 2**32)
    host = soon["url"].split("/")[2].removeprefix("www.")
    mine = [json.loads(line) for line in here("export", "--data", data, "--host", host).out.splitlines()]
    assert mine == [row for row in rows if host in row["url"]]
    explained = here("explain", soon["url"], "--data", data, "--json")
    assert explained.code == 0, explained.err
    assert explained.document["record"]["next_due"] == soon["next_due"]


def test_parameters_out_of_range_are_refused(tmp_path, inputs):
    done = here("run", inputs[0], "--data", tmp_path / "d", "--set", "store.min_rate=9")
    assert done.code in (2, 4)
    assert "min_rate is 9" in done.err
