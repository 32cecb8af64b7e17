"""The right answers for sequences, through the service: seeds, visits, votes, imports and admissions as messages."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from prio_world import Fed, admission_row, control_row, seed_row, visit_row

from meguri_common.keys import partition_of
from meguri_common.records import ControlAction, UpdateField
from meguri_common.wire.schemas import RowKind
from meguri_prioritizer.importance import UNIT, units_of
from meguri_prioritizer.service import DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

    Golden = Callable[[str], list[dict[str, Any]]]


class Campaign:
    """Two partitions whose credits and votes are handed over after each step; pages are numbered."""

    def __init__(self, parameters: dict[str, Any], hosts: int) -> None:
        known = {name: value for name, value in parameters.items() if name in DEFAULTS}
        self.parts = [Fed(known, number, 2) for number in range(2)]
        self.hosts = hosts
        self.clock = 0

    def key(self, page: int) -> tuple[int, int]:
        """Even hosts belong to the lower partition, odd ones to the upper one."""
        return self.host(page % self.hosts), 1000 + page

    def host(self, number: int) -> int:
        return number + 1 + (number % 2 << 63)

    def feed(self, kind: RowKind, *rows: dict[str, Any]) -> None:
        for row in rows:
            self.parts[partition_of(row["host_key"], 2)].feed((kind, [row]))
        for kind_sent in (RowKind.CREDIT, RowKind.VOTE):
            moved = [row for part in self.parts for row in part.sent.pop(kind_sent, [])]
            if moved:
                self.feed(kind_sent, *moved)

    def visit(self, page: int, links: list[int], at: int) -> dict[str, int]:
        """What the visit did: cash before it, units paid, what went to the pool."""
        before, totals = self.look(page)["priority"], self.totals()
        self.feed(RowKind.VISIT, visit_row(*self.key(page), at, [self.key(link) for link in links]))
        after = self.totals()
        return {"cash": before["cash"]} | {name: after[name] - totals[name] for name in ("sent", "pool", "visits")}

    def totals(self) -> dict[str, int]:
        each = [part.service.totals() for part in self.parts]
        return {name: sum(totals[name] for totals in each) for name in each[0]}

    def look(self, page: int) -> dict[str, Any]:
        key = self.key(page)
        return self.parts[partition_of(key[0], 2)].look(*key)


def test_exact_cash_through_messages(golden_rows: Golden) -> None:
    worlds: dict[int, Campaign] = {}
    for row in golden_rows("golden/opic_exact.jsonl"):
        if row["op"] == "params":
            rates = {"teleport_rate": row["teleport_rate"], "discount": row["discount"]}
            world = worlds[row["seq"]] = Campaign(rates, 7)
            continue
        world = worlds[row["seq"]]
        match row["op"]:
            case "seed":
                world.clock += 1
                world.feed(RowKind.SEEDED, seed_row(*world.key(row["id"]), world.clock, units_of(row["cash"])))
            case "visit":
                did = world.visit(row["src"], row["links"], row["fetched_at"])
                assert bool(did["visits"]) == row["applied"], row
                if not row["applied"]:
                    assert did["sent"] == did["pool"] == 0
                    continue
                assert did["cash"] == row["cash_before"]
                assert did["sent"] == row["share"] * len(row["links"])
                assert did["pool"] == row["to_teleport"]
                # A page that links to itself has been paid again by now; its history tells nevertheless.
                assert world.look(row["src"])["priority"]["history"] == row["history_after"]
            case "state":
                totals = world.totals()
                assert [totals[name] for name in ("minted", "pool", "known")] == [
                    row[name] for name in ("minted", "teleport", "known")
                ]
                assert totals["minted"] == totals["held"] + totals["pool"]
                for url in row["urls"]:
                    terms = world.look(url["id"])["priority"]
                    assert (terms["cash"], terms["history"]) == (url["cash"], url["history"]), url


def test_scores_through_messages(golden_rows: Golden) -> None:
    """One partition here: the floor of the rows is one for all pages, and each partition has its own."""
    for rows in _sequences(golden_rows("golden/opic.jsonl")):
        _replay(rows)


def _sequences(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    out: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        out.setdefault(row["seq"], []).append(row)
    return list(out.values())


def _replay(rows: list[dict[str, Any]]) -> None:
    parameters = next(row["params"] for row in rows if row["op"] == "params")
    setup = next(row for row in rows if row["op"] == "setup")
    fed = Fed({name: value for name, value in parameters.items() if name in DEFAULTS}, 0, 1)
    mod = setup["host_mod"]

    def key(page: int) -> tuple[int, int]:
        return page % mod + 1, page + 1000

    for host in setup["hosts"]:
        number = host["host"] + 1
        fed.feed((RowKind.HOST_SIGNAL, [{"host_key": number, "score": host["host_score"], "epoch": 1}]))
        if host["trap_suspect"]:
            fed.feed((RowKind.CONTROL, [control_row(number, ControlAction.FLAG, 1)]))
    voters: dict[int, set[int]] = {}
    for clock, row in enumerate(rows, 1):
        match row["op"]:
            case "seed":
                fed.feed((RowKind.SEEDED, [seed_row(*key(row["id"]), clock, units_of(row["cash"]))]))
            case "import_pagerank":
                host, path = key(row["id"])
                signal = {"host_key": host, "path_key": path, "rank": row["rank"], "epoch": clock}
                fed.feed((RowKind.URL_SIGNAL, [signal]))
            case "distribute_credit":
                targets = [key(link) for link in row["links"]]
                before = fed.service.totals()["sent"]
                fed.feed((RowKind.VISIT, [visit_row(*key(row["src"]), clock, targets)]))
                paid = fed.service.totals()["sent"] - before
                for weight in row["link_weights"]:
                    assert abs(paid / len(targets) / UNIT - weight["v"]) <= 1e-6 * weight["v"] + 2 / UNIT, row
                for kind in (RowKind.CREDIT, RowKind.VOTE):
                    if sent := fed.sent.pop(kind, []):
                        fed.feed((kind, sent))
                for host, _ in targets:
                    voters.setdefault(host, set()).update({row["src"] % mod + 1} - {host})
                for (host, path), degree in zip(targets, row["credit_indegree"], strict=True):
                    found = fed.look(host, path)["host"]["in_degree"]
                    assert found == len(voters[host])
                    # The original counts along the list, so an entry's figure may come before a later one's.
                    assert degree <= found
                if targets:
                    host, path = targets[-1]
                    assert fed.look(host, path)["host"]["in_degree"] == row["credit_indegree"][-1], row
            case "scores":
                _check_scores(fed, row["scores"], key, setup["depth_mod"])


def _check_scores(fed: Fed, scores: list[dict[str, Any]], key: Any, depth_mod: int) -> None:
    """Depths of the rows are fixed numbers, so that they are put where credits would else have lowered them."""
    state = fed.service._state
    for url in scores:
        assert math.isclose(fed.look(*key(url["id"]))["priority"]["score"], _f32(url["score_bits"]), rel_tol=1e-6)
        row = state.find(*key(url["id"]))
        if row < 0:
            continue
        before = state.urls["depth"][row]
        state.urls["depth"][row] = url["id"] % depth_mod
        compiled = float(state.priorities(np.array([row]))[0])
        shown = fed.look(*key(url["id"]))["priority"]["priority"]
        state.urls["depth"][row] = before
        assert math.isclose(compiled, _f32(url["priority_bits"]), rel_tol=1e-6), url
        assert math.isclose(shown, compiled, rel_tol=2e-7)


def _f32(bits: str) -> float:
    return float(struct.unpack(">f", bytes.fromhex(bits))[0])


def test_admissions_through_messages(golden_rows: Golden) -> None:
    fed = Fed(DEFAULTS, 0, 1)
    rows = golden_rows("golden/admit.jsonl")
    for host, row in enumerate(rows):
        limits = {ControlAction.BUDGET: row["url_budget"], ControlAction.DEPTH_CAP: row["depth_cap"]}
        fed.feed((RowKind.CONTROL, [control_row(host, action, 1, value) for action, value in limits.items()]))
        if row["flags"] & 1:
            fed.feed((RowKind.CONTROL, [control_row(host, ControlAction.FLAG, 1)]))
        fed.service._state.hosts["count"][fed.service._state.hosts.find(host)] = row["url_count"]
    fed.feed((RowKind.ADMISSION, [admission_row(host, 7, row["depth"]) for host, row in enumerate(rows)]))
    for row, told in zip(rows, fed.sent[RowKind.ADMITTED], strict=True):
        assert ("trapped" if told["reason"] else "scheduled") == row["prioritize_admit"], row


def test_a_page_and_its_links_by_hand() -> None:
    """Numbers of one sequence of the right answers, for where the folder is missing."""
    world = Campaign({}, 7)
    for clock, (page, cash) in enumerate([(0, 1e-9), (1, 1 / 3), (2, 1.0), (3, 7.000000001)], 1):
        world.feed(RowKind.SEEDED, seed_row(*world.key(page), clock, units_of(cash)))
    assert world.visit(3, [15, 27], 50) == {"cash": 30_064_771_076, "sent": 2 * 12_777_527_709, "pool": 4_509_715_658,
                                            "visits": 1}  # fmt: skip
    assert world.visit(3, [15, 27], 50)["visits"] == world.visit(3, [1], 49)["visits"] == 0
    assert world.visit(27, [0, 17, 25], 60)["sent"] == 3 * 3_620_299_518
    assert world.look(0)["priority"]["cash"] == 4 + 3_620_299_518
    assert world.look(3)["priority"]["history"] == 30_064_771_076
    totals = world.totals()
    assert (totals["stale"], totals["known"]) == (2, 8)
    assert totals["minted"] == totals["held"] + totals["pool"] == 4 + 1_431_655_765 + UNIT + 30_064_771_076
    told = [row for part in world.parts for row in part.sent[RowKind.UPDATE] if row["fields"] & UpdateField.PRIORITY]
    assert all(row["path_key"] - 1000 in {0, 1, 2, 3} for row in told), "only what was admitted"
