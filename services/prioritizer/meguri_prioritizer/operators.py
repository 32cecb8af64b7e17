"""What operators and imports say: controls and signals. Few rows, so one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meguri_common.records import CRAWL_DELAY_UNSET, ControlAction
from meguri_prioritizer.kernels import flags as bits

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from meguri_prioritizer.state import PartitionState

__all__ = ["apply_controls", "apply_host_signals", "apply_url_signals", "budget_in_force"]

_THINGS = {
    ControlAction.UNVOUCH: ControlAction.VOUCH,
    ControlAction.RELEASE: ControlAction.FLAG,
}
"""Actions that speak of the same thing as another: the later of the two holds."""


def budget_in_force(state: PartitionState, host: int) -> int:
    """URL budget of a host: what an operator set, none for one that is vouched for, else what it has earned."""
    flags = state.hosts["flags"][host]
    if flags & bits.BUDGET_SET:
        return int(state.hosts["budget"][host])
    return 0 if flags & bits.VOUCHED else state.earned(int(state.hosts["in_degree"][host]))


def apply_controls(state: PartitionState, batch: pa.RecordBatch) -> None:
    """Controls in order; an older word on the same thing is ignored."""
    rows = state.hosts.locate(batch.column("host_key").to_numpy())
    columns = (batch.column(name).to_pylist() for name in ("at", "action", "host_key", "value"))
    for host, at, action, host_key, value in zip(rows.tolist(), *columns, strict=True):
        kind = ControlAction(action)
        if state.later_control(host_key, int(_THINGS.get(kind, kind)), at):
            _control(state, host, kind, at, value)
            state.hosts["marks"][host] |= bits.HOST_DIRTY | bits.HOST_STEPPED | bits.HOST_JUDGE


def apply_host_signals(state: PartitionState, batch: pa.RecordBatch) -> None:
    """Imported host scores; a newer epoch overwrites, an older one is ignored."""
    hosts = state.hosts
    rows = hosts.locate(batch.column("host_key").to_numpy())
    columns = (batch.column(name).to_pylist() for name in ("score", "epoch"))
    for host, score, epoch in zip(rows.tolist(), *columns, strict=True):
        if epoch + 1 > hosts["score_epoch"][host]:
            hosts["score_epoch"][host] = epoch + 1
            hosts["score"][host] = score
            hosts["marks"][host] |= bits.HOST_DIRTY | bits.HOST_STEPPED


def apply_url_signals(state: PartitionState, batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Imported page ranks; gives the rows that changed."""
    rows = state.locate_urls(batch.column("host_key").to_numpy(), batch.column("path_key").to_numpy())
    columns = (batch.column(name).to_pylist() for name in ("rank", "epoch"))
    changed = [
        row for row, rank, epoch in zip(rows.tolist(), *columns, strict=True) if state.set_rank(row, rank, epoch)
    ]
    found = np.array(changed, np.int64)
    state.urls["marks"][found] |= bits.CHANGED | bits.TOUCHED
    return found


def _vouch(state: PartitionState, host: int, at: int, *, vouched: bool) -> None:
    """Take a word on a host's standing, unless a seed or a start page has spoken later."""
    hosts = state.hosts
    if at + 1 > hosts["vouched_at"][host]:
        hosts["vouched_at"][host] = at + 1
        hosts["flags"][host] &= ~bits.VOUCHED
        if vouched:
            hosts["flags"][host] |= bits.VOUCHED
        hosts["budget"][host] = budget_in_force(state, host)


def _set_budget(state: PartitionState, host: int, value: float) -> None:
    hosts = state.hosts
    hosts["flags"][host] &= ~bits.BUDGET_SET
    if np.isnan(value):
        hosts["budget"][host] = budget_in_force(state, host)
    else:
        hosts["flags"][host] |= bits.BUDGET_SET
        hosts["budget"][host] = min(max(int(value), 0), 0xFFFFFFFF)


def _control(state: PartitionState, host: int, action: ControlAction, at: int, value: float) -> None:
    hosts = state.hosts
    given = not np.isnan(value)
    match action:
        case ControlAction.VOUCH | ControlAction.UNVOUCH:
            _vouch(state, host, at, vouched=action == ControlAction.VOUCH)
        case ControlAction.BUDGET:
            _set_budget(state, host, value)
        case ControlAction.DEPTH_CAP:
            hosts["depth_cap"][host] = min(max(int(value), 0), 0xFFFE) if given else state.parameters["depth_cap"]
        case ControlAction.FLAG:
            hosts["flags"][host] |= bits.SUSPECT
        case ControlAction.RELEASE:
            hosts["flags"][host] &= ~bits.SUSPECT
        case ControlAction.ROBOTS_CHANGED:
            hosts["robots_at"][host] = at + 1
        case ControlAction.CRAWL_DELAY:
            hosts["crawl_delay"][host] = min(max(int(value), 0), 0xFFFE) if given else CRAWL_DELAY_UNSET
