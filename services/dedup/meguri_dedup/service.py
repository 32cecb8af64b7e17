"""One partition of the dedup service: links in, admissions of new URLs out, and the counts of all links."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.errors import EnvelopeError
from meguri_common.records import LINK_REJECT_REASONS, Source
from meguri_common.runtime.service import ServiceSpec
from meguri_common.topics import FRONTIER, LINKS
from meguri_common.wire.columns import numbers
from meguri_common.wire.envelope import decode
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_dedup.run_file import RunFolder, verify_run
from meguri_dedup.saving import load_seen, save_seen
from meguri_dedup.seen_set import SeenSet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from meguri_common.bus.port import Message
    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.service import Parameters, Service
    from meguri_common.runtime.snapshots import FileRef, SnapshotReader, SnapshotWriter

__all__ = ["DEFAULTS", "LOGIC_VERSION", "SERVICE", "Counters", "Dedup", "dedup_spec", "verify_keys"]

SERVICE = "dedup"
DEFAULTS: dict[str, Any] = {"capacity": 65_536, "fp_rate": 0.01, "memory_bytes": 256 << 20, "trust_filter": False}
"""Parameters: the filter's first size in keys, and its false-positive rate; memory of a partition's seen-set, beyond
which keys go to disk (0: none do); whether the filter's "maybe" is taken for "seen"."""

LOGIC_VERSION = 1

_MERGED_ROWS = 65_536
"""Rows after which messages that came together are decided on: the more at once, the fewer passes over runs."""
_URL_COLUMNS = ["url", "host_key", "path_key", "group_at", "group_len"]
_PASSED = (RowKind.CONTROL, RowKind.HOST_SIGNAL, RowKind.URL_SIGNAL)


@dataclass
class Counters:
    """What the partition has counted: links == sum(rejected) + links_new + links_known over all partitions.

    A page's links and rejected ones are counted where the page is, new and known ones where the target is.
    """

    pages: int = 0
    """Visits, whatever becomes of them."""
    links: int = 0
    """Authored links of the pages, rejected ones and repeats included."""
    rejected: list[int] = field(default_factory=lambda: [0] * len(LINK_REJECT_REASONS))
    """Links that couldn't be used, by position in `records.LINK_REJECT_REASONS`."""
    links_new: int = 0
    """Links that discovered a URL."""
    links_known: int = 0
    """Links to URLs that were known by then."""
    urls_new: int = 0
    """URLs admitted, whatever led to them."""


class Dedup:
    """The state of a partition: the set of URLs seen, and counters."""

    def __init__(
        self, partition: int, campaign_digest: int, parameters: Mapping[str, Any], folder: RunFolder | None = None
    ) -> None:
        """Make empty state; only its owner writes runs (`own`).

        Raises:
            ValueError: a parameter that is unknown or out of range.
            TypeError: one of another type.
        """
        self._partition = partition
        self._campaign = campaign_digest
        self._seen = SeenSet(**_checked(parameters, folder), folder=folder)
        self._seen.may_write = False
        self._exported = 0
        self._spills_saved = 0
        self.counters = Counters()
        self._handlers: dict[RowKind, Callable[[pa.RecordBatch, NDArray[np.int64], Outputs], None]] = {
            RowKind.SEED: self._seeds,
            RowKind.LINK: self._links,
            RowKind.VISIT: self._visits,
        }

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        """See `runtime.service.Service`.

        Raises:
            EnvelopeError: a message that isn't an envelope of this campaign, or holds rows that don't belong here.
            OSError: keys couldn't be written to disk.
        """
        decoded: list[tuple[RowKind, pa.RecordBatch]] = []
        rows = 0
        for message in messages:
            kind, batch = decode(message.payload, self._campaign)
            if kind not in self._handlers and kind not in _PASSED:
                msg = f"message {message.offset} of {LINKS}[{self._partition}] holds {kind.name} rows: not for dedup"
                raise EnvelopeError(msg)
            decoded.append((kind, batch))
            rows += batch.num_rows
            if rows >= _MERGED_ROWS:
                self._take(decoded, outputs)
                decoded, rows = [], 0
        self._take(decoded, outputs)

    def own(self) -> None:
        """From now on keys that memory has no room for are written to disk: this is the process that may."""
        self._seen.may_write = True

    def wants_snapshot(self) -> bool:
        """Whether there are runs that no snapshot names: they are to be named soon, before somebody sweeps them."""
        return self._seen.spills != self._spills_saved

    def skip(self, message: Message) -> int:  # noqa: ARG002 - see below
        """Pass over a message: its links aren't counted, its URLs stay unknown; there is no cash in it."""
        return 0

    def save(self, writer: SnapshotWriter) -> None:
        """See `runtime.service.Service`: keys are only ever added, so that what changed is what came last."""
        self._exported = save_seen(self._seen, writer)
        writer.scalars["counters"] = asdict(self.counters)

    def saved(self) -> None:
        """See `runtime.service.Service`."""
        self._seen.mark_saved(self._exported)
        self._seen.runs_saved()
        self._spills_saved = self._seen.spills
        self._exported = 0

    def load(self, reader: SnapshotReader) -> None:
        """See `runtime.service.Service`; the filter is made anew from the keys.

        Raises:
            CorruptSnapshot: a file that is missing or altered, or keys that repeat.
            CampaignMismatch: keys of another campaign or partition.
        """
        load_seen(self._seen, reader)
        self._spills_saved = self._seen.spills
        self.counters = Counters(**reader.scalars["counters"])

    def look(self, host_key: int, path_key: int) -> dict[str, bool]:
        """What is known about a URL: `seen`, exactly, and `maybe`, the filter's answer."""
        return {
            "seen": self._seen.contains(host_key, path_key),
            "maybe": self._seen.maybe_contains(host_key, path_key),
        }

    def stats(self) -> dict[str, dict[str, float]]:
        """Telemetry: `counters`, totals of the partition, and `gauges`, the figures of `SeenSet.stats`."""
        counters: dict[str, float] = {
            name: value for name, value in asdict(self.counters).items() if name != "rejected"
        }
        for reason, count in zip(LINK_REJECT_REASONS, self.counters.rejected, strict=True):
            counters[f"rejected_{reason}"] = count
        return {"counters": counters, "gauges": self._seen.stats()}

    def _take(self, decoded: Sequence[tuple[RowKind, pa.RecordBatch]], outputs: Outputs) -> None:
        """Decide on the rows of some messages, one after another, and hand on what follows."""
        about_urls = [batch for kind, batch in decoded if kind in self._handlers]
        host, path = (_joined([numbers(batch, name) for batch in about_urls]) for name in ("host_key", "path_key"))
        seen, at = self._seen.merge(host, path) if about_urls else np.zeros(0, np.bool_), 0
        for kind, batch in decoded:
            if kind in self._handlers:
                fresh = np.flatnonzero(~seen[at : at + batch.num_rows])
                self._handlers[kind](batch, fresh, outputs)
                at += batch.num_rows
            else:
                outputs.add(FRONTIER, self._partition, kind, batch)

    def _links(self, batch: pa.RecordBatch, fresh: NDArray[np.int64], outputs: Outputs) -> None:
        count = numbers(batch, "count")
        discoveries = int(np.count_nonzero(count[fresh]))
        self.counters.links_new += discoveries
        self.counters.links_known += int(count.sum(dtype=np.uint64)) - discoveries
        if fresh.size:
            rows = batch.select(SCHEMAS[RowKind.ADMISSION].names)
            self._admit(rows if fresh.size == batch.num_rows else rows.take(pa.array(fresh)), outputs)

    def _seeds(self, batch: pa.RecordBatch, fresh: NDArray[np.int64], outputs: Outputs) -> None:
        new = np.zeros(batch.num_rows, np.uint8)
        new[fresh] = 1
        self.counters.urls_new += fresh.size
        columns = [*batch.columns, pa.array(new)]
        outputs.add(
            FRONTIER,
            self._partition,
            RowKind.SEEDED,
            pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[RowKind.SEEDED]),
        )

    def _visits(self, batch: pa.RecordBatch, fresh: NDArray[np.int64], outputs: Outputs) -> None:
        rejected = batch.column("rejected").flatten().to_numpy().reshape(-1, len(LINK_REJECT_REASONS))
        totals = rejected.sum(axis=0, dtype=np.uint64).tolist()
        self.counters.pages += batch.num_rows
        self.counters.links += int(numbers(batch, "links").sum(dtype=np.uint64))
        self.counters.rejected = [a + b for a, b in zip(self.counters.rejected, totals, strict=True)]
        if fresh.size:
            depth = numbers(batch, "depth")[fresh]
            columns = [
                *batch.select(_URL_COLUMNS).take(pa.array(fresh)).columns,
                pa.array(np.zeros(fresh.size, np.uint64)),
                pa.array(depth),
                pa.array(np.where(depth == 0, Source.SEED, Source.MANUAL).astype(np.uint8)),
                pa.array(numbers(batch, "fetched_at")[fresh]),
            ]
            self._admit(pa.RecordBatch.from_arrays(columns, schema=SCHEMAS[RowKind.ADMISSION]), outputs)
        outputs.add(FRONTIER, self._partition, RowKind.VISIT, batch)

    def _admit(self, rows: pa.RecordBatch, outputs: Outputs) -> None:
        self.counters.urls_new += rows.num_rows
        outputs.add(FRONTIER, self._partition, RowKind.ADMISSION, rows)


def verify_keys(files: FileSystem, folder: str, campaign: int, partition: int, references: Sequence[FileRef]) -> int:
    """Read all runs that a snapshot of a partition names; gives their rows.

    Raises:
        CorruptSnapshot: one is missing, cut short, altered, or out of order.
        CampaignMismatch: one is of another campaign or partition.
    """
    runs = RunFolder(files, folder, campaign, partition, str)
    return sum(verify_run(runs, reference) for reference in references)


def dedup_spec(
    identity_digest: int,
    parameters: Mapping[str, Any] | None = None,
    *,
    files: FileSystem | None = None,
    token: Callable[[], str] = str,
) -> ServiceSpec:
    """How the runtime makes and feeds dedup.

    Args:
        identity_digest: of the campaign.
        parameters: those that aren't given are `DEFAULTS`.
        files: where keys go that memory has no room for, beside the snapshots; without it, `memory_bytes` is 0.
        token: a random part of a file name.
    """
    unbounded = {"memory_bytes": 0} if files is None else {}

    def create(partition: int, given: Parameters) -> Dedup:
        folder = None
        if files is not None:
            folder = RunFolder(files, f"state/{SERVICE}/p{partition:05d}", identity_digest, partition, token)
        return Dedup(partition, identity_digest, given, folder)

    return ServiceSpec(
        name=SERVICE,
        input_topic=LINKS,
        create=create,
        logic_version=LOGIC_VERSION,
        parameters={**DEFAULTS, **unbounded, **(parameters or {})},
        wants_snapshot=lambda service: _dedup(service).wants_snapshot(),
        on_owned=lambda service: _dedup(service).own(),
    )


def _dedup(service: Service) -> Dedup:
    assert isinstance(service, Dedup), "the spec makes these"
    return service


def _checked(parameters: Mapping[str, Any], folder: RunFolder | None) -> dict[str, Any]:
    unknown = sorted(set(parameters) - set(DEFAULTS))
    if unknown:
        msg = f"dedup has no parameter {', '.join(unknown)}: it has {', '.join(DEFAULTS)}"
        raise ValueError(msg)
    for name, value in parameters.items():
        wanted = type(DEFAULTS[name])
        if isinstance(value, bool) != (wanted is bool) or not isinstance(value, (int, wanted)):
            msg = f"dedup.{name} is {value!r}: it takes {wanted.__name__} values"
            raise TypeError(msg)
    given = {**DEFAULTS, **parameters}
    if folder is None and "memory_bytes" not in parameters:
        given["memory_bytes"] = 0
    return given


def _joined(columns: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    if len(columns) == 1:
        return columns[0]
    return np.concatenate([*columns, np.zeros(0, np.uint64)])
