"""One partition of the dedup service: links in, admissions of new URLs out, and the counts of all links."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.errors import CorruptSnapshot, EnvelopeError
from meguri_common.records import LINK_REJECT_REASONS, Source
from meguri_common.runtime.chain import TableSource, load_tables, save_tables
from meguri_common.runtime.service import ServiceSpec
from meguri_common.topics import FRONTIER, LINKS
from meguri_common.wire.columns import numbers
from meguri_common.wire.envelope import decode
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_dedup.seen_set import SeenSet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from meguri_common.bus.port import Message
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.service import Parameters
    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter

__all__ = ["DEFAULTS", "LOGIC_VERSION", "Counters", "Dedup", "dedup_spec"]

DEFAULTS: dict[str, Any] = {"capacity": 65_536, "fp_rate": 0.01}
"""Parameters: the filter's first size in keys, and its false-positive rate."""

LOGIC_VERSION = 1

_KEYS = "keys"
_KEY_SCHEMA = pa.schema([("host_key", pa.uint64()), ("path_key", pa.uint64())])
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

    def __init__(self, partition: int, campaign_digest: int, parameters: Mapping[str, Any]) -> None:
        """Make empty state.

        Raises:
            ValueError: a parameter that is unknown or out of range.
        """
        unknown = sorted(set(parameters) - set(DEFAULTS))
        if unknown:
            msg = f"dedup has no parameter {', '.join(unknown)}: it has {', '.join(DEFAULTS)}"
            raise ValueError(msg)
        self._partition = partition
        self._campaign = campaign_digest
        self._seen = SeenSet(**{**DEFAULTS, **parameters})
        self._exported = 0
        self.counters = Counters()
        self._handlers: dict[RowKind, Callable[[pa.RecordBatch, Outputs], None]] = {
            RowKind.SEED: self._seeds,
            RowKind.LINK: self._links,
            RowKind.VISIT: self._visits,
        }

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        """See `runtime.service.Service`.

        Raises:
            EnvelopeError: a message that isn't an envelope of this campaign, or holds rows that don't belong here.
        """
        for message in messages:
            kind, batch = decode(message.payload, self._campaign)
            if kind in _PASSED:
                outputs.add(FRONTIER, self._partition, kind, batch)
            elif kind in self._handlers:
                self._handlers[kind](batch, outputs)
            else:
                msg = f"message {message.offset} of {LINKS}[{self._partition}] holds {kind.name} rows: not for dedup"
                raise EnvelopeError(msg)

    def save(self, writer: SnapshotWriter) -> None:
        """See `runtime.service.Service`: keys are only ever added, so that what changed is what came last."""
        self._exported = self._seen.unsaved
        save_tables(writer, [TableSource(_KEYS, len(self._seen), self._exported, self._export)])
        writer.scalars["counters"] = asdict(self.counters)

    def saved(self) -> None:
        """See `runtime.service.Service`."""
        self._seen.mark_saved(self._exported)
        self._exported = 0

    def load(self, reader: SnapshotReader) -> None:
        """See `runtime.service.Service`; the filter is made anew from the keys.

        Raises:
            CorruptSnapshot: a file that is missing or altered, or keys that repeat.
        """
        rows = 0
        for batch in load_tables(reader, _KEYS):
            self._seen.insert_batch(numbers(batch, "host_key"), numbers(batch, "path_key"))
            self._seen.mark_saved(self._seen.unsaved)
            rows += batch.num_rows
        if rows != len(self._seen):
            msg = f"dedup partition {self._partition}: the snapshot has {rows} keys, {len(self._seen)} of them distinct"
            raise CorruptSnapshot(msg)
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

    def _links(self, batch: pa.RecordBatch, outputs: Outputs) -> None:
        fresh = self._fresh(batch)
        count = numbers(batch, "count")
        discoveries = int(np.count_nonzero(count[fresh]))
        self.counters.links_new += discoveries
        self.counters.links_known += int(count.sum(dtype=np.uint64)) - discoveries
        if fresh.size:
            rows = batch.select(SCHEMAS[RowKind.ADMISSION].names)
            self._admit(rows if fresh.size == batch.num_rows else rows.take(pa.array(fresh)), outputs)

    def _seeds(self, batch: pa.RecordBatch, outputs: Outputs) -> None:
        fresh = self._fresh(batch)
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

    def _visits(self, batch: pa.RecordBatch, outputs: Outputs) -> None:
        fresh = self._fresh(batch)
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

    def _fresh(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Numbers of the rows whose key wasn't seen before; from here on it is."""
        return np.flatnonzero(~self._seen.merge(numbers(batch, "host_key"), numbers(batch, "path_key")))

    def _admit(self, rows: pa.RecordBatch, outputs: Outputs) -> None:
        self.counters.urls_new += rows.num_rows
        outputs.add(FRONTIER, self._partition, RowKind.ADMISSION, rows)

    def _export(self, changed: bool) -> pa.RecordBatch:
        host, path = self._seen.unsaved_keys() if changed else self._seen.keys()
        return pa.RecordBatch.from_arrays([pa.array(host), pa.array(path)], schema=_KEY_SCHEMA)


def dedup_spec(identity_digest: int, parameters: Mapping[str, Any] | None = None) -> ServiceSpec:
    """How the runtime makes and feeds dedup; parameters that aren't given are `DEFAULTS`."""

    def create(partition: int, given: Parameters) -> Dedup:
        return Dedup(partition, identity_digest, given)

    return ServiceSpec(
        name="dedup",
        input_topic=LINKS,
        create=create,
        logic_version=LOGIC_VERSION,
        parameters={**DEFAULTS, **(parameters or {})},
    )
