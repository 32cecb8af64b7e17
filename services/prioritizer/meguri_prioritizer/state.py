"""A partition's state: tables of URLs and hosts, the sparse ones beside them, and the totals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from meguri_common.records import CRAWL_DELAY_UNSET, NO_DEPTH
from meguri_prioritizer import layout
from meguri_prioritizer.budget import update_budget
from meguri_prioritizer.importance import UNIT, depth_power
from meguri_prioritizer.kernels.priority import Weights, priorities_of
from meguri_prioritizer.parameters import checked
from meguri_prioritizer.sources import Sources
from meguri_prioritizer.tables import KeyTable, UrlTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["PartitionState"]

_POWERS = 256
"""Depths whose penalty is looked up."""
_MINT_LIMIT = 1 << 63
"""Units that a whole campaign may mint, so that no sum of cash passes 2^64."""


class PartitionState:
    """All that one partition of the prioritizer keeps, but what a step collects."""

    def __init__(self, parameters: Mapping[str, Any], partitions: int) -> None:
        """Empty state.

        Raises:
            ValueError: a parameter that is unknown or out of range.
        """
        p = checked(parameters)
        self.parameters = p
        self.teleport = np.uint64(round(p["teleport_rate"] * UNIT))
        self.discount = np.uint64(round(p["discount"] * UNIT))
        self.mint_limit = np.uint64(_MINT_LIMIT // partitions)
        names = ("w_pagerank", "w_opic_with_page", "w_host", "w_opic_with_host", "w_host_only")
        norm = p["log_norm"] if p["log_norm"] > 0 else 1.0
        weights = (norm, *(p[name] for name in names), p["trap_suspect_factor"], np.float32(p["depth_decay"]))
        self.weights = cast("Weights", tuple(float(weight) for weight in weights))
        self.powers = np.array([depth_power(depth, p["depth_decay"]) for depth in range(_POWERS)], np.float32)
        rule = ("base_budget", "per_in_link", "min_budget", "max_budget")
        self.budget_rule = np.array([p[name] for name in rule], np.uint64)
        self.urls = UrlTable()
        self.hosts = KeyTable(layout.host_template(self.earned(0), p["depth_cap"], CRAWL_DELAY_UNSET))
        self.extras = KeyTable(np.zeros(1, layout.EXTRA)[0])
        self.held: NDArray[Any] = np.zeros(0, layout.HELD)
        self.held_meta = np.array([0, -1], np.int64)
        self.sources = Sources()
        self.totals = np.zeros(len(layout.TOTALS), np.uint64)
        self.controls: dict[tuple[int, int, int], int] = {}
        """Time of an operator's last word on (host key, path key or 0, thing)."""
        self.changed_controls: set[tuple[int, int, int]] = set()
        self.queue = np.zeros((2, 0), np.int32)
        """Hosts that changed in this step, and hosts whose URLs held back are to be looked at."""
        self.queued = np.zeros(2, np.int64)

    def earned(self, in_degree: int) -> int:
        """Budget that an in-degree earns."""
        base, per, least, most = self.budget_rule.tolist()
        return update_budget(in_degree, base_budget=base, per_in_link=per, min_budget=least, max_budget=most)

    def budget_of(self, host: int) -> int:
        """Budget in force of a host that no operator has given one."""
        flags = self.hosts.records["flags"][host]
        return 0 if flags & layout.VOUCHED else self.earned(int(self.hosts.records["in_degree"][host]))

    def locate_hosts(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Rows of hosts, made where they aren't there; (n,) u64 -> (n,) i64."""
        rows = self.hosts.locate(keys)
        if len(self.hosts) > self.queue.shape[1]:
            longer = np.zeros((2, len(self.hosts.records)), np.int32)
            longer[:, : self.queue.shape[1]] = self.queue
            self.queue = longer
        return rows

    def locate(self, host_keys: NDArray[np.uint64], path_keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Rows of URLs, made where they aren't there; both (n,) u64, gives (n,) i64."""
        return self.urls.locate(self.locate_hosts(host_keys), path_keys)

    def find(self, host_key: int, path_key: int) -> int:
        """Row of a URL, or -1."""
        host = self.hosts.find(host_key)
        return self.urls.find(host, path_key) if host >= 0 else -1

    def reserve_held(self, more: int) -> None:
        """Make room on the lists of URLs held back."""
        need = int(self.held_meta[0]) + more
        if need > len(self.held):
            longer: NDArray[Any] = np.zeros(need + need // 2, layout.HELD)
            longer[: len(self.held)] = self.held
            self.held = longer

    def priorities(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Priorities of URLs as of now; (n,) i64 -> (n,) f32."""
        out = np.empty(len(rows), np.float32)
        extras = self.extras
        priorities_of(
            rows, self.urls.records, self.hosts.records, extras.slots, extras.records, extras.count, self.totals,
            self.weights, self.powers, out,
        )  # fmt: skip
        return out

    def set_rank(self, row: int, rank: float, epoch: int) -> bool:
        """Take over an imported rank if it is of a newer epoch; whether it is."""
        extra = int(self.extras.locate(np.array([row], np.uint64))[0])
        record = self.extras.records[extra : extra + 1]
        if epoch + 1 <= record["rank_epoch"][0]:
            return False
        record["rank_epoch"], record["rank"], record["marks"] = epoch + 1, rank, 1
        self.urls.records["flags"][row] |= layout.RANKED | layout.CHANGED
        return True

    def later_control(self, host_key: int, path_key: int, thing: int, at: int) -> bool:
        """Whether an operator's word is later than the last on the same thing; if so it is now the last."""
        key = (host_key, path_key, thing)
        if at <= self.controls.get(key, -1):
            return False
        self.controls[key] = at
        self.changed_controls.add(key)
        return True

    def depth_of(self, row: int) -> int | None:
        """Depth of a URL, None if nobody has stated one."""
        depth = int(self.urls.records["depth"][row])
        return None if depth == NO_DEPTH else depth
