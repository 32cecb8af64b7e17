"""Change rates, worth, intervals, due hours and the water level against the right answers, row by row."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from meguri_common.records import Status
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_store.fold import FOLDED, VISIT_FACTS, FoldRules, fold_visits
from meguri_store.freshness import (
    Freshness,
    estimate,
    host_share,
    next_due,
    target_interval,
    value_density,
)
from meguri_store.schema import URL_SCHEMA
from meguri_store.water_level import START_TAU, WaterLevel

RULES = Freshness()

# (crawl_count, change_count, streak, first_seen, last_crawled), bits of the rate in f64 and f32
FEW_ESTIMATES = [
    ((0, 0, 0, 0, 0), "3f1decd44801decd", "38ef66a2"),
    ((23, 10, 0, 480648, 483048), "3f76e508be4a2628", "3bb72846"),
    ((32, 29, 3, 480805, 482423), "3fa1991f539e3530", "3d0cc8fb"),
]

# (rate's f32 bits, priority, tau, (crawl_delay, url_count), path_key, last_crawled, now), interval bits, due
FEW_TARGETS = [
    (("38ef66a2", 0, 1e-12, None, 0x6C1BE8D3DB506EF0, 0, 45), "3fd0000000000000", 46),
    (("38ef66a2", 0, 1e-6, (300, 5000), 0x6C1BE8D3DB506EF0, 0, 31), "4044d55555555555", 42),
    (("38ef66a2", 0, 0.01, None, 0x6C1BE8D3DB506EF0, 0, 34), "402a7c6886c527de", 35),
    (("3bb72846", 0.25, 0.01, None, 0x2F598D0FC676280B, 483048, 483060), "400e7b1da3fc0f81", 483061),
    (("3bb72846", 0.25, 0.1, None, 0x2F598D0FC676280B, 483048, 483095), "40287a2ce475701b", 483096),
    (("3bb72846", 0.25, 1, (10, 100), 0x2F598D0FC676280B, 483048, 483081), "4075000000000000", 483395),
    (("3d0cc8fb", 1, 0.1, None, 0x780AC45FD0BF23A6, 482423, 482469), "4003da2e349f04af", 482470),
    (("3d0cc8fb", 1, 5, None, 0x780AC45FD0BF23A6, 482423, 482452), "4035b273c2a26a6b", 482453),
]


def f64(bits: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(bits))[0])


def f32(bits: str) -> float:
    return float(struct.unpack(">f", bytes.fromhex(bits))[0])


def ulps(left: float, right: float) -> int:
    """Distance of two positive numbers in representable steps."""
    return abs(int.from_bytes(struct.pack(">d", left)) - int.from_bytes(struct.pack(">d", right)))


def check_estimate(counters: tuple[int, ...], bits: str, single: str, rules: Freshness) -> None:
    rate = estimate(*counters, rules)
    assert ulps(rate, f64(bits)) <= 4, counters
    assert struct.pack(">f", rate).hex() == single, counters


def check_target(given: tuple, bits: str, due: int, rules: Freshness) -> None:
    single, priority, tau, host, path, last, now = given
    share = math.inf if host is None else host_share(*host)
    interval = target_interval(priority, f32(single), tau, share, rules)
    assert interval == pytest.approx(f64(bits), rel=1e-7, abs=0), given
    assert next_due(last, interval, path, now, rules) == due, given


@pytest.mark.parametrize("known", FEW_ESTIMATES)
def test_known_estimates(known):
    check_estimate(*known, RULES)


@pytest.mark.parametrize("known", FEW_TARGETS)
def test_known_targets(known):
    check_target(*known, RULES)


def params_of(row: dict) -> Freshness:
    """A params row: what a schedule is made under, and the threshold that the change verdict has built in."""
    names = set(Freshness._fields) & row.keys()
    assert names == set(Freshness._fields)
    assert row["simhash_near_dup_threshold"] == 3
    whole = ("min_reprobe_gap", "host_spread_window")
    return Freshness(**{name: int(row[name]) if name in whole else float(row[name]) for name in names})


def set_by_fold(due: list[int]) -> list[tuple[int, str]]:
    """Hour and status of records after a fetch that schedules them for these hours."""
    size = len(due)
    records = {name: np.zeros(size, URL_SCHEMA.field(name).type.to_pandas_dtype()) for name in FOLDED}
    schema = SCHEMAS[RowKind.OUTCOME]
    visits = {name: np.zeros(size, schema.field(name).type.to_pandas_dtype()) for name in VISIT_FACTS}
    visits["status"][:] = 200
    nothing = np.zeros(size, np.bool_)
    folded = fold_visits(records, visits, nothing, nothing, FoldRules(reschedule=True), np.array(due, np.uint32))
    status = (Status(code).name.lower() for code in folded.records["status"].tolist())
    return list(zip(folded.records["next_due"].tolist(), status, strict=True))


def test_freshness(golden_rows, say):
    rules, estimates, targets = RULES, 0, 0
    told: list[tuple[int, str]] = []
    for row in golden_rows("golden/freshness.jsonl"):
        if row["op"] == "params":
            rules = params_of(row)
            continue
        counters = tuple(
            row[name] for name in ("crawl_count", "change_count", "no_change_streak", "first_seen", "last_crawled")
        )
        single = row["lambda_f32_bits"]
        check_estimate(counters, row["lambda_bits"], single, rules)
        worth = value_density(row["priority"], f32(single), rules)
        assert worth == pytest.approx(f64(row["value_density_bits"]), rel=1e-9, abs=0)
        estimates += 1
        for target in row["targets"]:
            host = (target["crawl_delay_ds"], target["url_count"]) if "crawl_delay_ds" in target else None
            where = int(row["path_key"], 16), row["last_crawled"], target["now"]
            given = single, row["priority"], target["tau"], host, *where
            check_target(given, target["interval_bits"], target["next_due"], rules)
            told.append((target["next_due"], target["status"]))
            targets += 1
    assert estimates
    assert targets
    assert set_by_fold([due for due, _ in told]) == told
    say("freshness", f"{estimates} estimates, {targets} schedules equal")


def test_tau(golden_rows):
    sequence, level = None, WaterLevel(0)
    for row in golden_rows("golden/tau.jsonl"):
        if row["seq"] != sequence:
            sequence, level = row["seq"], WaterLevel(row["budget"], START_TAU)
        level.budget = row["budget"]
        assert struct.pack(">d", level.tick(row["scheduled_rate"])).hex() == row["tau_bits"], row
        assert level.tau == f64(row["tau_bits"])
