"""What operators and imports say: controls and signals. Few rows, so one by one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from meguri_common.errors import EnvelopeError
from meguri_common.records import CRAWL_DELAY_UNSET, ControlAction, ParkReason
from meguri_prioritizer import layout
from meguri_prioritizer.kernels.admission import ask, move_reason, note

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from meguri_prioritizer.state import PartitionState

__all__ = ["apply_controls", "apply_host_signals", "apply_url_signals"]

_THINGS = {ControlAction.RELEASE: ControlAction.FLAG}
"""Actions that speak of the same thing as another: the later of the two holds."""
_U16 = 0xFFFE
_U32 = 0xFFFFFFFF


def apply_controls(state: PartitionState, batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Controls in order; an older word on the same thing is ignored. Gives the rows of URLs that changed.

    A release may name a URL: that one leaves its place whatever the rules say. All other actions are about the host.

    Raises:
        EnvelopeError: an action that this program doesn't know.
    """
    hosts = state.locate_hosts(batch.column("host_key").to_numpy())
    columns = (batch.column(name).to_pylist() for name in ("at", "action", "host_key", "path_key", "value"))
    touched = []
    for host, at, code, host_key, path_key, value in zip(hosts.tolist(), *columns, strict=True):
        try:
            action = ControlAction(code)
        except ValueError as problem:
            msg = f"control of action {code}, which this program doesn't know: use the release that wrote it"
            raise EnvelopeError(msg) from problem
        if action in {ControlAction.VOUCH, ControlAction.UNVOUCH}:
            _vouch(state, host, at, vouched=action == ControlAction.VOUCH)
            continue
        about = path_key if action == ControlAction.RELEASE else 0
        if not state.later_control(host_key, about, int(_THINGS.get(action, action)), at):
            continue
        if about:
            touched += _release_url(state, host, path_key)
            continue
        _control(state, host, action, at, value if math.isfinite(value) else None)
        _noted(state, host)
    return np.array(touched, np.int64)


def apply_host_signals(state: PartitionState, batch: pa.RecordBatch) -> None:
    """Imported host scores; a newer epoch overwrites, an older or equal one is ignored."""
    rows = state.locate_hosts(batch.column("host_key").to_numpy())
    hosts = state.hosts.records
    columns = (batch.column(name).to_pylist() for name in ("score", "epoch"))
    for host, score, epoch in zip(rows.tolist(), *columns, strict=True):
        if epoch + 1 > hosts["score_epoch"][host]:
            hosts["score_epoch"][host] = epoch + 1
            hosts["score"][host] = score
            note(host, hosts, state.queue, state.queued)


def apply_url_signals(state: PartitionState, batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Imported page ranks, likewise; gives the rows that changed."""
    rows = state.locate(batch.column("host_key").to_numpy(), batch.column("path_key").to_numpy())
    columns = (batch.column(name).to_pylist() for name in ("rank", "epoch"))
    changed = [
        row for row, rank, epoch in zip(rows.tolist(), *columns, strict=True) if state.set_rank(row, rank, epoch)
    ]
    found = np.array(changed, np.int64)
    state.urls.records["flags"][found] |= layout.TOUCHED
    return found


def _noted(state: PartitionState, host: int) -> None:
    """The store hears of the host, and what it holds back is looked at."""
    note(host, state.hosts.records, state.queue, state.queued)
    ask(host, state.hosts.records, state.queue, state.queued)


def _vouch(state: PartitionState, host: int, at: int, *, vouched: bool) -> None:
    """Take a word on a host's standing, unless a seed, a start page or an operator has spoken as late."""
    hosts = state.hosts.records
    if at + 1 <= hosts["vouched_at"][host]:
        return
    hosts["vouched_at"][host] = at + 1
    if vouched:
        hosts["flags"][host] |= layout.VOUCHED
    else:
        hosts["flags"][host] &= 0xFFFF ^ layout.VOUCHED
    if not hosts["flags"][host] & layout.BUDGET_SET:
        hosts["budget"][host] = state.budget_of(host)
    _noted(state, host)


def _release_url(state: PartitionState, host: int, path_key: int) -> list[int]:
    """An operator lets one parked URL go; gives its row if it was parked."""
    row = state.urls.find(host, path_key)
    urls, hosts = state.urls.records, state.hosts.records
    if row < 0 or not int(urls["flags"][row]) >> layout.REASON_SHIFT:
        return []
    move_reason(row, int(ParkReason.NONE), urls, hosts)
    urls["flags"][row] |= layout.TOUCHED | layout.RELEASED
    hosts["count"][host] += 1
    note(host, hosts, state.queue, state.queued)
    return [row]


def _control(state: PartitionState, host: int, action: ControlAction, at: int, value: float | None) -> None:
    """Apply an action to a host; no value takes back what an earlier one has set."""
    hosts = state.hosts.records
    match action:
        case ControlAction.BUDGET if value is None:
            hosts["flags"][host] &= 0xFFFF ^ layout.BUDGET_SET
            hosts["budget"][host] = state.budget_of(host)
        case ControlAction.BUDGET:
            hosts["flags"][host] |= layout.BUDGET_SET
            hosts["budget"][host] = min(max(int(value or 0), 0), _U32)
        case ControlAction.DEPTH_CAP:
            default = state.parameters["depth_cap"]
            hosts["depth_cap"][host] = default if value is None else min(max(int(value), 0), _U16)
            hosts["flags"][host] |= layout.CAP_ROSE
        case ControlAction.FLAG:
            hosts["flags"][host] |= layout.SUSPECT
        case ControlAction.RELEASE:
            hosts["flags"][host] &= 0xFFFF ^ layout.SUSPECT
        case ControlAction.ROBOTS_CHANGED:
            hosts["robots_at"][host] = at + 1
        case ControlAction.CRAWL_DELAY:
            hosts["crawl_delay"][host] = CRAWL_DELAY_UNSET if value is None else min(max(int(value), 0), _U16)
