"""The prioritizer as a service: the frontier topic in, deltas for the store and credits for its own topic out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meguri_common.errors import DataFolderError
from meguri_common.records import Source
from meguri_common.runtime.service import ServiceSpec
from meguri_common.topics import FRONTIER
from meguri_common.wire.columns import binary_parts, list_parts, numbers
from meguri_common.wire.envelope import decode
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_prioritizer.kernels import flags as bits
from meguri_prioritizer.kernels.state import admit_rows, apply_credits, apply_visits, judge_rows, seed_rows
from meguri_prioritizer.operators import apply_controls, apply_host_signals, apply_url_signals, budget_in_force
from meguri_prioritizer.release import ask_again, priorities, release_host
from meguri_prioritizer.state import DEFAULTS, PartitionState
from meguri_prioritizer.step import Step, batch_of
from meguri_prioritizer.views import look_at, top_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from meguri_common.bus.port import Message
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter

__all__ = ["DEFAULTS", "NAME", "Prioritizer", "prioritizer_spec"]

NAME = "prioritizer"

_OUTCOME = SCHEMAS[RowKind.OUTCOME].names
_PASSED_ON = ("url", "host_key", "path_key", "group_at", "group_len")


def prioritizer_spec(campaign_digest: int, partitions: int, parameters: Mapping[str, Any] | None = None) -> ServiceSpec:
    """How the runtime makes prioritizers.

    Args:
        campaign_digest: `CampaignIdentity.digest()`.
        partitions: of the frontier topic.
        parameters: changed ones of `DEFAULTS`.

    Raises:
        DataFolderError: an unknown parameter.
    """
    unknown = sorted((parameters or {}).keys() - DEFAULTS.keys())
    if unknown:
        msg = f"{NAME} has no parameter {unknown[0]}; there are {', '.join(sorted(DEFAULTS))}"
        raise DataFolderError(msg)
    return ServiceSpec(
        name=NAME,
        input_topic=FRONTIER,
        create=lambda partition, given: Prioritizer(partition, campaign_digest, partitions, given),
        parameters={**DEFAULTS, **(parameters or {})},
    )


class Prioritizer:
    """One partition. See `runtime.service.Service`."""

    def __init__(self, partition: int, campaign_digest: int, partitions: int, parameters: Mapping[str, Any]) -> None:
        self._campaign = campaign_digest
        self._state = PartitionState(parameters)
        self._step = Step(partition, partitions)
        self._handlers = {
            RowKind.CONTROL: self._controls,
            RowKind.HOST_SIGNAL: self._host_signals,
            RowKind.URL_SIGNAL: self._url_signals,
            RowKind.SEEDED: self._seeds,
            RowKind.ADMISSION: self._admissions,
            RowKind.VISIT: self._visits,
            RowKind.CREDIT: self._credits,
            RowKind.VOTE: self._votes,
            RowKind.RELEASE: self._releases,
        }

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        """See `Service`: each message by itself; URLs that it touched are judged at its end."""
        self._step.begin(outputs)
        for message in messages:
            kind, batch = decode(message.payload, self._campaign)
            self._judge(self._handlers[kind](batch))
            ask_again(self._state, self._step)
        self._step.end(self._state)

    def save(self, writer: SnapshotWriter) -> None:
        """See `Service`."""
        self._state.save(writer)

    def saved(self) -> None:
        """See `Service`."""
        self._state.saved()

    def load(self, reader: SnapshotReader) -> None:
        """See `Service`. Budgets are earned anew, under the parameters in force."""
        self._state.load(reader)
        hosts = self._state.hosts
        for host in range(len(hosts)):
            hosts["budget"][host] = budget_in_force(self._state, host)

    def totals(self) -> dict[str, int]:
        """Cash in units of 2^-32 and counts; minted == held + pool + sent - received + written_off over all."""
        return {name: int(value) for name, value in zip(bits.TOTALS, self._state.totals, strict=True)}

    def look(self, host_key: int, path_key: int) -> dict[str, Any] | None:
        """Everything known of a URL; None if nothing is."""
        return look_at(self._state, host_key, path_key)

    def top(self, count: int) -> list[tuple[float, int, int]]:
        """The highest priorities as (priority, host key, path key), best first."""
        return top_of(self._state, count)

    # -- kinds of rows: each gives the rows that are to be judged ------------------------------------------------

    def _controls(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        apply_controls(self._state, batch)
        return None

    def _host_signals(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        apply_host_signals(self._state, batch)
        return None

    def _url_signals(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        return apply_url_signals(self._state, batch)

    def _admissions(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        state = self._state
        rows = state.locate_urls(numbers(batch, "host_key"), numbers(batch, "path_key"))
        hosts = state.hosts.locate(numbers(batch, "host_key"))
        keep = np.empty(len(rows), np.uint8)
        urls, known = state.urls, state.hosts
        admit_rows(
            rows, hosts, numbers(batch, "depth"),
            urls["flags"], urls["marks"], urls["reason"], urls["depth"], urls["next_held"], urls["host"],
            known["flags"], known["marks"], known["count"], known["budget"], known["depth_cap"], known["held"],
            state.totals, keep,
        )  # fmt: skip
        self._admitted(batch, rows, keep, batch.column("source"), batch.column("at"))
        return None

    def _seeds(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        state = self._state
        rows = state.locate_urls(numbers(batch, "host_key"), numbers(batch, "path_key"))
        hosts = state.hosts.locate(numbers(batch, "host_key"))
        observed, new = numbers(batch, "observed_at"), numbers(batch, "new")
        later = np.fromiter(
            (state.later_seed(row, at) for row, at in zip(rows.tolist(), observed.tolist(), strict=True)),
            np.uint8,
            len(rows),
        )
        admitted = np.empty(len(rows), np.uint8)
        urls, known = state.urls, state.hosts
        before = (urls["flags"][rows] & bits.ADMITTED) != 0
        seed_rows(
            rows, hosts, observed, numbers(batch, "cash"), new, later,
            urls["cash"], urls["flags"], urls["marks"], urls["reason"], urls["depth"], urls["next_held"], urls["host"],
            known["flags"], known["marks"], known["count"], known["budget"], known["depth_cap"], known["held"],
            known["vouched_at"], state.totals, admitted,
        )  # fmt: skip
        source = np.full(len(rows), int(Source.SEED), np.uint8)
        self._admitted(batch, rows, admitted, source, batch.column("observed_at"))
        for row, at in zip(rows[before & (later != 0)].tolist(), observed[before & (later != 0)].tolist(), strict=True):
            self._step.revive(state, np.array([row], np.int64), at)
        return rows

    def _visits(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        state, step = self._state, self._step
        rows = state.locate_urls(numbers(batch, "host_key"), numbers(batch, "path_key"))
        host_keys = numbers(batch, "host_key")
        hosts = state.hosts.locate(host_keys)
        offsets, target_host = list_parts(batch.column("target_host"))
        _, target_path = list_parts(batch.column("target_path"))
        targets = int(offsets[-1] - offsets[0])
        step.credits.reserve(targets)
        step.votes.reserve(targets)
        redirects = (np.diff(binary_parts(batch.column("redirect"))[0]) > 0).astype(np.uint8)
        fresh = np.empty(len(rows), np.uint8)
        urls, known = state.urls, state.hosts
        apply_visits(
            rows, hosts, host_keys, numbers(batch, "fetched_at"), numbers(batch, "status"), numbers(batch, "error"),
            numbers(batch, "depth"), redirects, offsets, target_host, target_path,
            urls["cash"], urls["history"], urls["last_visit"], urls["flags"], urls["marks"], urls["reason"],
            urls["depth"], urls["next_held"], urls["host"],
            known["flags"], known["marks"], known["count"], known["budget"], known["held"], known["vouched_at"],
            state.totals, state.teleport, state.discount, fresh,
            step.credits.slots, step.credits["host_key"], step.credits["path_key"], step.credits["units"],
            step.credits["depth"], step.credits.count,
            step.votes.slots, step.votes["host_key"], step.votes["source_host"], step.votes.count,
        )  # fmt: skip
        # Before its admission nothing about a URL goes to the store; dedup admits a visit's URL ahead of the visit.
        told = (fresh != 0) & ((urls["flags"][rows] & bits.ADMITTED) != 0)
        outcome = batch.select(_OUTCOME)
        step.delta(RowKind.OUTCOME, outcome if told.all() else outcome.filter(told))
        return rows

    def _credits(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        state = self._state
        rows = state.locate_urls(numbers(batch, "host_key"), numbers(batch, "path_key"))
        urls, known = state.urls, state.hosts
        apply_credits(
            rows, numbers(batch, "units"), numbers(batch, "depth"),
            urls["cash"], urls["flags"], urls["marks"], urls["reason"], urls["depth"], urls["host"],
            known["marks"], known["count"], known["budget"], known["depth_cap"], state.totals,
        )  # fmt: skip
        return rows

    def _votes(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        state = self._state
        keys = numbers(batch, "host_key")
        rows = state.hosts.locate(keys)
        hosts = state.hosts
        for host in state.sources.add(keys, rows, numbers(batch, "source_host"), hosts["in_degree"]).tolist():
            hosts["marks"][host] |= bits.HOST_DIRTY
            budget = budget_in_force(state, host)
            if budget != hosts["budget"][host]:
                hosts["budget"][host] = budget
                hosts["marks"][host] |= bits.HOST_STEPPED | bits.HOST_JUDGE
        return None

    def _releases(self, batch: pa.RecordBatch) -> NDArray[np.int64] | None:
        state = self._state
        touched = []
        for host in state.hosts.locate(numbers(batch, "host_key")).tolist():
            release_host(state, self._step, host)
            touched.append(np.flatnonzero(state.urls["marks"][: len(state.urls)] & bits.RELEASED))
        return np.concatenate(touched) if touched else None

    def _admitted(
        self, batch: pa.RecordBatch, rows: NDArray[np.int64], keep: NDArray[np.uint8], source: Any, at: Any
    ) -> None:
        """Tell the store of admissions, with the priority that they have now."""
        state = self._state
        if not keep.all():
            where = np.flatnonzero(keep)
            batch, rows = batch.take(where), rows[where]
            source, at = source.take(where) if hasattr(source, "type") else source[where], at.take(where)
        if not len(rows):
            return
        priority = priorities(state, rows)
        state.urls["sent"][rows] = priority
        admitted = batch_of(
            RowKind.ADMITTED,
            **{name: batch.column(name) for name in _PASSED_ON},
            depth=state.urls["depth"][rows],
            source=source,
            at=at,
            priority=priority,
            reason=state.urls["reason"][rows],
        )
        self._step.delta(RowKind.ADMITTED, admitted)

    def _judge(self, rows: NDArray[np.int64] | None) -> None:
        if rows is None or not len(rows):
            return
        state = self._state
        urls, hosts = state.urls, state.hosts
        out_rows, out_fields = np.empty(len(rows), np.int64), np.empty(len(rows), np.uint8)
        found = judge_rows(
            rows, urls["host"], urls["cash"], urls["history"], urls["depth"], urls["flags"], urls["marks"],
            urls["sent"], state.rank, state.ranked, hosts["flags"], hosts["score"], state.totals, state.weights,
            out_rows, out_fields,
        )  # fmt: skip
        self._step.update(state, out_rows[:found], out_fields[:found])
