"""The pure functions against every row of the right answers, and telling facts of the same without that folder."""

from __future__ import annotations

import math
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meguri_common.records import ParkReason
from meguri_prioritizer.admission import admit
from meguri_prioritizer.budget import update_budget
from meguri_prioritizer.importance import (
    UNIT,
    blend,
    compress,
    crosses,
    depth_penalty,
    level_bounds,
    opic_score,
    pay,
    quantize,
    trap_penalty,
    units_of,
)
from meguri_prioritizer.kernels.priority import _level
from meguri_prioritizer.kernels.votes import earned_budget
from meguri_prioritizer.split import BudgetSplit

if TYPE_CHECKING:
    from collections.abc import Callable

    Golden = Callable[[str], list[dict[str, Any]]]


def f32(bits: str) -> float:
    return float(struct.unpack(">f", bytes.fromhex(bits))[0])


def bits(number: Any) -> str:
    return struct.pack(">f", float(number)).hex()


def test_compress(golden_rows: Golden) -> None:
    for row in golden_rows("golden/compress.jsonl"):
        assert bits(compress(row["in"])) == row["out_bits"], row


def test_blend(golden_rows: Golden) -> None:
    for row in golden_rows("golden/blend.jsonl"):
        rank = row["page_rank"] if row["have_page"] else None
        assert bits(blend(row["opic"], rank, row["host_score"])) == row["out_bits"], row


def test_penalties(golden_rows: Golden) -> None:
    for row in golden_rows("golden/penalty.jsonl"):
        suspect = row["flags"] >= 0 and bool(row["flags"] & 1)
        trapped = trap_penalty(row["pri"], suspect=suspect)
        assert trapped == np.float32(row["trap"]), row
        assert depth_penalty(row["pri"], row["depth"]) == np.float32(row["depth_penalty"]), row
        assert bits(depth_penalty(float(trapped), row["depth"])) == row["both_bits"], row


def test_quantize(golden_rows: Golden) -> None:
    for row in golden_rows("golden/quantize.jsonl"):
        assert quantize(f32(row["pri_bits"]), row["levels"]) == row["level"], row


def test_budget(golden_rows: Golden) -> None:
    names = ("base_budget", "per_in_link", "min_budget", "max_budget")
    for row in golden_rows("golden/budget.jsonl"):
        rule = {name: row[name] for name in names}
        assert update_budget(row["in_degree"], **rule) == row["url_budget"], row
        assert earned_budget(row["in_degree"], np.array(list(rule.values()), np.uint64)) == row["url_budget"], row


def test_split(golden_rows: Golden) -> None:
    splits: dict[int, BudgetSplit] = {}
    for row in golden_rows("golden/split.jsonl"):
        split = splits.setdefault(row["seq"], BudgetSplit(*row["shares"]))
        picked = split.admit(discovery_ready=row["discovery_ready"], refresh_ready=row["refresh_ready"])
        assert picked == row["stream"], row


def test_admit(golden_rows: Golden) -> None:
    for row in golden_rows("golden/admit.jsonl"):
        limits = {name: row[name] for name in ("depth_cap", "url_count", "url_budget")}
        reason = admit(row["depth"], **limits)
        assert ("trapped" if reason else "scheduled") == row["prioritize_admit"], row


class Page:
    def __init__(self) -> None:
        self.cash = self.history = 0
        self.known = False
        self.last: int | None = None


class Ledger:
    """Cash of a few pages, by the pure functions."""

    def __init__(self, teleport_rate: float, discount: float) -> None:
        self.teleport, self.discount = round(teleport_rate * UNIT), round(discount * UNIT)
        self.pages: dict[int, Page] = {}
        self.pool = self.minted = 0

    def give(self, page: int, units: int) -> None:
        target = self.pages.setdefault(page, Page())
        target.cash += units
        target.known |= units > 0

    def seed(self, page: int, units: int) -> None:
        self.minted += units
        self.give(page, units)

    def visit(self, page: int, links: list[int], at: int | None = None) -> Any:
        source = self.pages.setdefault(page, Page())
        if at is not None and source.last is not None and at <= source.last:
            return None
        source.last = at
        paid = pay(source.cash, source.history, len(links), teleport=self.teleport, discount=self.discount)
        source.cash, source.history, source.known = 0, paid.history, True
        self.pool += paid.to_pool
        for link in links:
            self.give(link, paid.share)
        return paid

    @property
    def known(self) -> int:
        return sum(page.known for page in self.pages.values())

    @property
    def floor(self) -> int:
        return self.pool // self.known if self.known else 0


def test_opic_exact(golden_rows: Golden) -> None:
    ledgers: dict[int, Ledger] = {}
    for row in golden_rows("golden/opic_exact.jsonl"):
        match row["op"]:
            case "params":
                ledger = ledgers[row["seq"]] = Ledger(row["teleport_rate"], row["discount"])
                assert (ledger.teleport, ledger.discount) == (row["teleport_rate_units"], row["discount_units"])
                assert row["units_per_cash"] == UNIT
            case "seed":
                assert units_of(row["cash"]) == row["units"], row
                ledgers[row["seq"]].seed(row["id"], row["units"])
            case "visit":
                ledger = ledgers[row["seq"]]
                before = ledger.pages[row["src"]].cash if row["src"] in ledger.pages else 0
                paid = ledger.visit(row["src"], row["links"], row["fetched_at"])
                assert (paid is not None) == row["applied"], row
                if paid is not None:
                    got = (before, paid.share, paid.to_pool, paid.history)
                    assert got == tuple(row[k] for k in ("cash_before", "share", "to_teleport", "history_after")), row
            case "state":
                ledger = ledgers[row["seq"]]
                got = (ledger.minted, ledger.pool, ledger.known, ledger.floor)
                assert got == tuple(row[name] for name in ("minted", "teleport", "known", "floor"))
                for url in row["urls"]:
                    page = ledger.pages.get(url["id"], Page())
                    assert (page.cash, page.history) == (url["cash"], url["history"]), url
                    assert page.cash + page.history + ledger.floor == url["raw"], url


def near(value: float, right: float) -> bool:
    return math.isclose(value, right, rel_tol=1e-6, abs_tol=1e-12)


def test_opic_of_the_original(golden_rows: Golden) -> None:
    ledgers: dict[int, Ledger] = {}
    params: dict[int, dict[str, Any]] = {}
    setups: dict[int, dict[str, Any]] = {}
    ranks: dict[int, dict[int, float]] = {}
    sources: dict[tuple[int, int], set[int]] = {}
    for row in golden_rows("golden/opic.jsonl"):
        seq = row["seq"]
        match row["op"]:
            case "params":
                params[seq], ranks[seq] = row["params"], {}
                ledgers[seq] = Ledger(row["params"]["teleport_rate"], row["params"]["discount"])
            case "setup":
                setups[seq] = row
            case "seed":
                ledgers[seq].seed(row["id"], units_of(row["cash"]))
            case "import_pagerank":
                ranks[seq][row["id"]] = row["rank"]
            case "distribute_credit":
                paid = ledgers[seq].visit(row["src"], row["links"])
                for weight in row["link_weights"]:
                    assert abs(paid.share / UNIT - f32(weight["bits"])) <= 1e-6 * weight["v"] + 2 / UNIT, row
                mod = setups[seq]["host_mod"]
                degrees = []
                for link in row["links"]:
                    voters = sources.setdefault((seq, link % mod), set())
                    if link % mod != row["src"] % mod:
                        voters.add(row["src"] % mod)
                    degrees.append(len(voters))
                check_degrees(row, degrees, sources, mod)
            case "scores":
                hosts = {host["host"]: host for host in setups[seq]["hosts"]}
                for url in row["scores"]:
                    check_score(url, ledgers[seq], params[seq], setups[seq], hosts, ranks[seq])


def check_degrees(row: dict[str, Any], running: list[int], sources: Any, mod: int) -> None:
    final = [len(sources[row["seq"], link % mod]) for link in row["links"]]
    for given_degree, during, after in zip(row["credit_indegree"], running, final, strict=True):
        number = given_degree if isinstance(given_degree, int) else given_degree["in_degree"]
        assert number in {during, after}, row


def check_score(url: Any, ledger: Ledger, p: Any, setup: Any, hosts: Any, ranks: Any) -> None:
    page = ledger.pages.get(url["id"], Page())
    score = opic_score(page.cash + page.history + ledger.floor, p["log_norm"])
    assert near(float(score), f32(url["score_bits"])), url
    host = hosts[url["id"] % setup["host_mod"]]
    depth = url["id"] % setup["depth_mod"]
    rank = float(compress(ranks[url["id"]])) if url["id"] in ranks else None
    names = ("w_pagerank", "w_opic_with_page", "w_host", "w_opic_with_host", "w_host_only")
    weights = {name: p[name] for name in names}
    factor, decay = p["trap_suspect_factor"], p["depth_decay"]
    value = blend(float(score), rank, float(compress(host["host_score"])), **weights)
    value = trap_penalty(float(value), suspect=host["trap_suspect"], factor=factor)
    assert near(float(depth_penalty(float(value), depth, decay=decay)), f32(url["priority_bits"])), url
    alone = depth_penalty(float(blend(float(score), rank, 0.0, **weights)), depth, decay=decay)
    assert near(float(alone), url["priority_nohost"]), url


# -- the same without the folder --------------------------------------------------------------------------------


def test_known_facts() -> None:
    assert units_of(0.15) == 644_245_094
    assert units_of(0.9998) == 4_294_108_303
    assert units_of(1e-9) == 4
    assert units_of(1e-10) == 0
    paid = pay(30_064_771_076, 0, 2, teleport=644_245_094, discount=4_294_108_303)
    assert paid == (12_777_527_709, 4_509_715_658, 30_064_771_076)
    assert pay(100, 0, 0, teleport=644_245_094, discount=0) == (0, 100, 100)
    assert pay(1 << 63, (1 << 64) - 1, 3, teleport=0, discount=UNIT).history == (1 << 64) - 1
    assert bits(compress(1e-8)) == "322bcc77"
    assert bits(blend(0, None, 0.05)) == "3c75c290"
    assert bits(blend(0, 0, 0)) == "00000000"
    assert update_budget(268_435_452) == 1 << 20
    assert (update_budget(0), update_budget(2)) == (64, 96)
    assert admit(3, depth_cap=3, url_count=4, url_budget=5) == ParkReason.NONE
    assert admit(4, depth_cap=3, url_count=5, url_budget=5) == ParkReason.DEPTH
    assert admit(3, depth_cap=3, url_count=5, url_budget=5) == ParkReason.BUDGET


@pytest.mark.parametrize("amount", [-0.5, math.nan, math.inf, -math.inf, 2.0**31])
def test_cash_that_cannot_be_minted(amount: float) -> None:
    with pytest.raises(ValueError, match="cash must be"):
        units_of(amount)


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, 5000))
def test_a_visit_loses_nothing(cash: int, history: int, targets: int) -> None:
    paid = pay(cash, history, targets, teleport=644_245_094, discount=4_294_108_303)
    assert paid.share * targets + paid.to_pool == cash
    assert 0 <= paid.history < 1 << 64


@pytest.mark.parametrize("halvings", range(17))
def test_levels_at_powers_of_two(halvings: int) -> None:
    level = quantize(2.0**-halvings, 64)
    assert level == 63 - math.floor(halvings * 63 / 16)
    assert crosses(2.0**-halvings, 4.0, 64) == (level != 63)


def test_level_bounds_are_the_levels() -> None:
    bounds = level_bounds()
    assert all(low < high for low, high in pairwise(bounds))
    for level, bound in enumerate(bounds.tolist()):
        below = float(np.nextafter(np.float32(bound), np.float32(-1)))
        assert quantize(bound, 64) == level or level == 0
        assert quantize(below, 64) == max(level - 1, 0)
        for value in (bound, below):
            assert _level(np.float32(value), 1.0) == quantize(value, 64)


@given(st.floats(0, 2, width=32))
def test_levels_of_the_kernel(value: float) -> None:
    assert _level(np.float32(value), 1.0) == quantize(value, 64)


def test_long_idle_stream_claims_little() -> None:
    cases = ((0.8, "discovery"), (0.8, "refresh"), (0.1, "discovery"), (0.1, "refresh"), (0.5, "refresh"))
    for share, ready in cases:
        split = BudgetSplit(share, 1 - share)
        for _ in range(100_000):
            split.admit(discovery_ready=ready == "discovery", refresh_ready=ready == "refresh")
        waited = 0
        while split.admit(discovery_ready=True, refresh_ready=True) != ready:
            waited += 1
        assert waited <= 65


def test_shares_hold_in_the_long_run() -> None:
    split = BudgetSplit(0.8, 0.2)
    picks = [split.admit(discovery_ready=True, refresh_ready=True) for _ in range(10_000)]
    assert abs(picks.count("discovery") - 8000) <= 1
    assert BudgetSplit(0, -3).shares() == (0.5, 0.5)
    assert split.admit(discovery_ready=False, refresh_ready=False) == "discovery"
