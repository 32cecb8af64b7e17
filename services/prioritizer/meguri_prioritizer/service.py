"""The prioritizer as a service: the frontier topic in, deltas for the store and credits for its own topic out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.errors import EnvelopeError
from meguri_common.records import Source
from meguri_common.runtime.service import ServiceSpec
from meguri_common.topics import FRONTIER
from meguri_common.wire.columns import binary_parts, list_parts, numbers
from meguri_common.wire.envelope import decode
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_prioritizer import layout, saving
from meguri_prioritizer.kernels.admission import admit_rows, apply_credits, seed_rows
from meguri_prioritizer.kernels.priority import judge_rows
from meguri_prioritizer.kernels.visits import apply_visits
from meguri_prioritizer.operators import apply_controls, apply_host_signals, apply_url_signals
from meguri_prioritizer.parameters import DEFAULTS, checked
from meguri_prioritizer.recovery import recover_hosts, recover_urls
from meguri_prioritizer.release import ask_again, release_host
from meguri_prioritizer.resize import take_over
from meguri_prioritizer.state import PartitionState
from meguri_prioritizer.step import Step, batch_of
from meguri_prioritizer.views import look_at, stats_of, top_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from meguri_common.bus.port import Message
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter

__all__ = ["DEFAULTS", "LOGIC_VERSION", "NAME", "Prioritizer", "prioritizer_spec"]

NAME = "prioritizer"
LOGIC_VERSION = 1

_OUTCOME = SCHEMAS[RowKind.OUTCOME].names
_UPDATE = SCHEMAS[RowKind.UPDATE]
_PASSED_ON = ("url", "host_key", "path_key", "group_at", "group_len")
_REDIRECTS = (301, 302, 303, 307, 308)
_NOTHING = np.zeros(0, np.int64)


def prioritizer_spec(campaign_digest: int, partitions: int, parameters: Mapping[str, Any] | None = None) -> ServiceSpec:
    """How the runtime makes prioritizers.

    Args:
        campaign_digest: `CampaignIdentity.digest()`.
        partitions: of the frontier topic.
        parameters: changed ones of `DEFAULTS`.

    Raises:
        ValueError: a parameter that is unknown or out of range.
    """
    return ServiceSpec(
        name=NAME,
        input_topic=FRONTIER,
        create=lambda partition, given: Prioritizer(partition, campaign_digest, partitions, given),
        logic_version=LOGIC_VERSION,
        parameters=checked(parameters or {}),
    )


class Prioritizer:
    """One partition. See `runtime.service.Service`."""

    def __init__(self, partition: int, campaign_digest: int, partitions: int, parameters: Mapping[str, Any]) -> None:
        """Empty state.

        Raises:
            ValueError: a parameter that is unknown or out of range.
        """
        self._partition = partition
        self._campaign = campaign_digest
        self._state = PartitionState(parameters, partitions)
        self._step = Step(partition, partitions)
        self._handlers: dict[RowKind, Callable[[pa.RecordBatch], NDArray[np.int64]]] = {
            RowKind.CONTROL: lambda batch: apply_controls(self._state, batch),
            RowKind.HOST_SIGNAL: self._host_signals,
            RowKind.URL_SIGNAL: lambda batch: apply_url_signals(self._state, batch),
            RowKind.SEEDED: self._seeds,
            RowKind.ADMISSION: self._admissions,
            RowKind.VISIT: self._visits,
            RowKind.CREDIT: self._credits,
            RowKind.VOTE: self._votes,
            RowKind.RELEASE: self._releases,
        }

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        """See `Service`: each message by itself; URLs that it touched are judged at its end.

        Raises:
            EnvelopeError: a message that isn't an envelope of this campaign, or holds rows that don't belong here.
        """
        self._step.begin(outputs)
        for message in messages:
            kind, batch = self._decode(message)
            self._judge(self._handlers[kind](batch))
            ask_again(self._state, self._step)
        self._step.end(self._state)

    def skip(self, message: Message) -> int:
        """Pass over a message on an operator's word: credits in it are written off. Gives their units.

        Raises:
            EnvelopeError: it can't be decoded, so that nobody can tell what was in it.
        """
        kind, batch = self._decode(message)
        if kind != RowKind.CREDIT:
            return 0
        units = numbers(batch, "units").sum()
        self._state.totals[layout.RECEIVED] += units
        self._state.totals[layout.WRITTEN_OFF] += units
        return int(units)

    def save(self, writer: SnapshotWriter) -> None:
        """See `Service`."""
        saving.save(self._state, writer)

    def saved(self) -> None:
        """See `Service`."""
        saving.mark_saved(self._state)

    def load(self, reader: SnapshotReader) -> None:
        """See `Service`. Budgets are earned anew, under the parameters in force.

        Raises:
            CorruptSnapshot: a file that is missing or altered, or rows that are missing.
        """
        saving.load(self._state, reader)

    def recover_urls(self, host_key: NDArray[np.uint64], path_key: NDArray[np.uint64], **columns: NDArray[Any]) -> None:
        """Take over URLs that are in the store without having come through the inbox; see `recovery.recover_urls`.

        Only into a state that has met no message yet, and only to be saved and loaded again.
        """
        recover_urls(self._state, host_key, path_key, **columns)

    def recover_hosts(self, host_key: NDArray[np.uint64], **columns: NDArray[Any]) -> None:
        """Take over hosts likewise; see `recovery.recover_hosts`."""
        recover_hosts(self._state, host_key, **columns)

    def take_over(self, other: Prioritizer, low: int, high: int, last: int) -> None:
        """Add what another partition has of the hosts from `low` to `high`; see `resize.take_over`."""
        take_over(self._state, other._state, low, high, last)

    def reserve(self, urls: int, hosts: int) -> None:
        """Make room for as many rows, at once and exactly."""
        self._state.urls.reserve(urls)
        self._state.hosts.reserve(hosts)

    def totals(self) -> dict[str, int]:
        """Cash in units of 2^-32, and counts.

        Over all partitions minted == held + pool + sent - received + written_off. Beside them known, visits and
        stale (visits), mints_refused, admissions_repeated (which must be 0).
        """
        return dict(zip(layout.TOTALS, self._state.totals.tolist(), strict=True))

    def stats(self) -> dict[str, dict[str, float]]:
        """Telemetry: `counters`, and `gauges`."""
        return stats_of(self._state)

    def look(self, host_key: int, path_key: int) -> dict[str, Any]:
        """Everything known of a URL, each term of its priority included; of an unknown one, the floor."""
        return look_at(self._state, host_key, path_key)

    def top(self, count: int) -> list[tuple[float, int, int]]:
        """The admitted URLs of highest priority as (priority, host key, path key), best first, then by key."""
        return top_of(self._state, count)

    def _decode(self, message: Message) -> tuple[RowKind, pa.RecordBatch]:
        kind, batch = decode(message.payload, self._campaign)
        if kind not in self._handlers:
            where = f"message {message.offset} of {FRONTIER}[{self._partition}]"
            msg = f"{where} holds {kind.name} rows: not for the prioritizer"
            raise EnvelopeError(msg)
        return kind, batch

    # -- kinds of rows: each gives the rows that are to be judged ------------------------------------------------

    def _host_signals(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        apply_host_signals(self._state, batch)
        return _NOTHING

    def _admissions(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        state = self._state
        rows = state.locate(numbers(batch, "host_key"), numbers(batch, "path_key"))
        state.reserve_held(len(rows))
        kept = np.empty(len(rows), np.uint8)
        admitted = admit_rows(
            rows, numbers(batch, "depth"), state.urls.records, state.hosts.records, state.held, state.held_meta,
            state.queue, state.queued, state.totals, kept,
        )  # fmt: skip
        if admitted < len(rows):
            where = np.flatnonzero(kept)
            batch, rows = batch.take(pa.array(where)), rows[where]
        self._admitted(batch, rows, batch.column("source"), batch.column("at"))
        return _NOTHING

    def _seeds(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        state = self._state
        rows = state.locate(numbers(batch, "host_key"), numbers(batch, "path_key"))
        state.reserve_held(len(rows))
        extra_rows = state.extras.locate(rows.astype(np.uint64))
        observed_at = numbers(batch, "observed_at")
        kept, revived = np.empty(len(rows), np.uint8), np.empty(len(rows), np.uint8)
        admitted = seed_rows(
            rows, extra_rows, observed_at, numbers(batch, "cash"), numbers(batch, "new"), state.mint_limit,
            state.extras.records, state.urls.records, state.hosts.records, state.held, state.held_meta,
            state.queue, state.queued, state.totals, kept, revived,
        )  # fmt: skip
        if admitted:
            where = np.flatnonzero(kept)
            new = batch.take(pa.array(where))
            source = np.full(admitted, int(Source.SEED), np.uint8)
            self._admitted(new, rows[where], source, new.column("observed_at"))
        again = np.flatnonzero(revived)
        self._step.revive(state, rows[again], observed_at[again])
        return rows

    def _visits(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        state, step = self._state, self._step
        host_keys = numbers(batch, "host_key")
        rows = state.locate(host_keys, numbers(batch, "path_key"))
        state.reserve_held(len(rows))
        offsets, target_host = list_parts(batch.column("target_host"))
        _, target_path = list_parts(batch.column("target_path"))
        targets = int(offsets[-1] - offsets[0])
        step.credits.reserve(targets)
        step.votes.reserve(targets)
        status = numbers(batch, "status")
        has_target = (np.diff(binary_parts(batch.column("redirect"))[0]) > 0) & (np.diff(offsets) > 0)
        told = np.empty(len(rows), np.bool_)
        apply_visits(
            rows, host_keys, numbers(batch, "fetched_at"), status, numbers(batch, "error"), numbers(batch, "depth"),
            has_target & np.isin(status, _REDIRECTS), offsets, target_host, target_path,
            state.teleport, state.discount, state.mint_limit,
            state.urls.records, state.hosts.records, state.held, state.held_meta, state.queue, state.queued,
            state.totals, told,
            step.credits.slots, step.credits.records, step.credits.count,
            step.votes.slots, step.votes.records, step.votes.count,
        )  # fmt: skip
        # Before its admission nothing about a URL goes to the store; dedup admits a visit's URL ahead of the visit.
        outcome = batch.select(_OUTCOME)
        step.delta(RowKind.OUTCOME, outcome if told.all() else outcome.filter(pa.array(told)))
        return rows

    def _credits(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        state = self._state
        rows = state.locate(numbers(batch, "host_key"), numbers(batch, "path_key"))
        apply_credits(
            rows, numbers(batch, "units"), numbers(batch, "depth"), state.urls.records, state.hosts.records,
            state.queue, state.queued, state.totals,
        )  # fmt: skip
        return rows

    def _votes(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        state = self._state
        rows = state.locate_hosts(numbers(batch, "host_key"))
        sources = numbers(batch, "source_host")
        state.sources.add(rows, sources, state.hosts.records, state.budget_rule, state.queue, state.queued)
        return _NOTHING

    def _releases(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        state = self._state
        hosts = state.locate_hosts(numbers(batch, "host_key")).tolist()
        return np.concatenate([_NOTHING, *(release_host(state, self._step, host) for host in hosts)])

    def _admitted(self, batch: pa.RecordBatch, rows: NDArray[np.int64], source: Any, at: Any) -> None:
        """Tell the store of admissions, with the priority that they have now."""
        if not len(rows):
            return
        state = self._state
        priority = state.priorities(rows)
        urls = state.urls.records
        urls["sent"][rows] = priority
        admitted = batch_of(
            RowKind.ADMITTED,
            **{name: batch.column(name) for name in _PASSED_ON},
            depth=urls["depth"][rows],
            source=source,
            at=at,
            priority=priority,
            reason=(urls["flags"][rows] >> layout.REASON_SHIFT).astype(np.uint8),
        )
        self._step.delta(RowKind.ADMITTED, admitted)

    def _judge(self, rows: NDArray[np.int64]) -> None:
        if not len(rows):
            return
        state, extras = self._state, self._state.extras
        size = len(rows)
        out = {name: np.empty(size, _UPDATE.field(name).type.to_pandas_dtype()) for name in _UPDATE.names[:-1]}
        found = judge_rows(
            rows, state.urls.records, state.hosts.records, extras.slots, extras.records, extras.count, state.totals,
            state.weights, state.powers, *out.values(),
        )  # fmt: skip
        if found:
            columns = {name: column[:found] for name, column in out.items()}
            self._step.delta(RowKind.UPDATE, batch_of(RowKind.UPDATE, **columns, at=np.zeros(found, np.uint32)))
