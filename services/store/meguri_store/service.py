"""The store as a service: a partition's records, in a generation on disk and a delta in memory.

Intake never reads the base. What comes in is kept as it came; generations, queries and counts merge on read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meguri_common.errors import EnvelopeError
from meguri_common.records import Status, UpdateField
from meguri_common.runtime.service import Parameters, ServiceSpec
from meguri_common.topics import DELTAS
from meguri_common.wire.columns import numbers
from meguri_common.wire.envelope import decode
from meguri_common.wire.schemas import RowKind
from meguri_store.delta_file import is_delta, plan_delta, read_deltas, write_delta
from meguri_store.freshness_rules import DEFAULTS, fold_rules
from meguri_store.generation import FILES, Generation, shard_folder
from meguri_store.oplog import KINDS, OpLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meguri_common.bus.port import Message
    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.service import Service
    from meguri_common.runtime.snapshots import FileRef, SnapshotReader, SnapshotWriter

__all__ = ["SERVICE", "CompactionRules", "Store", "Totals", "fold_rules", "load_shard", "store_spec"]

SERVICE = "store"
LOGIC_VERSION = 2


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """When a snapshot is a new generation rather than another delta file. Doesn't shape the records."""

    rows: int = 262_144
    """Operations below which the delta is left alone."""
    share: float = 0.5
    """Share of the base's rows that the delta must have reached."""
    group_rows: int = 131_072
    """Rows of a row group."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts that need no look at the base's rows.

    They take it that a URL is admitted once, and a parked one released once, as those who send it see to; a parked
    one that was visited all the same counts as parked until the next generation.
    """

    rows: int
    """URLs."""
    hosts: int
    """Hosts."""
    trapped: int
    """Parked URLs."""
    delta_rows: int
    """Operations since the last generation."""
    delta_bytes: int
    """Memory that they take."""


def load_shard(
    files: FileSystem, references: Sequence[FileRef], identity: CampaignIdentity
) -> tuple[Generation | None, tuple[FileRef, ...]]:
    """The generation that a snapshot names, and its files; None where there is none yet."""
    held = tuple(reference for reference in references if reference.role in FILES)
    if not held:
        return None, ()
    return Generation.open(files, held[0].path.rpartition("/")[0], identity), held


class Store:
    """One shard of the store, as the service of its partition."""

    def __init__(
        self,
        partition: int,
        identity: CampaignIdentity,
        files: FileSystem,
        token: Callable[[], str],
        parameters: Parameters,
        compaction: CompactionRules = CompactionRules(),
    ) -> None:
        """An empty shard.

        Args:
            partition: which one.
            identity: the campaign.
            files: where shards are kept.
            token: a random part of a file name.
            parameters: by name, see `freshness_rules`.
            compaction: when to compact.
        """
        self.partition = partition
        self.rules = fold_rules(parameters)
        self.base: Generation | None = None
        self.log = OpLog()
        self.identity = identity
        self._campaign = identity.digest()
        self._files = files
        self._token = token
        self._compaction = compaction
        self._asked = False
        self._base_hosts: np.typing.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._saving: tuple[Generation, int] | None = None
        """A generation that the last `save` made, and the operations in it."""
        self._taken = dict.fromkeys(KINDS, 0)
        """Rows taken in since the state was loaded, by kind."""

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:  # noqa: ARG002 - the store sends nothing
        """Take in what changed.

        Raises:
            EnvelopeError: a message can't be decoded, or holds rows that aren't the store's.
        """
        for message in messages:
            kind, batch = decode(message.payload, self._campaign)
            if kind not in KINDS:
                msg = f"message {message.offset} of {DELTAS}[{self.partition}] holds {kind.name} rows"
                raise EnvelopeError(msg)
            self.log.append(kind, batch)
            self._taken[kind] += batch.num_rows

    def wants_compaction(self) -> bool:
        """Whether the delta has grown to its share of the base."""
        base_rows = self.base.meta.urls if self.base else 0
        return self.log.count >= max(self._compaction.rows, base_rows * self._compaction.share)

    def request_compaction(self) -> None:
        """Let the next `save` compact whatever the size; nothing happens to a shard without changes."""
        self._asked = True

    def save(self, writer: SnapshotWriter) -> None:
        """Write a new generation, or a delta file with the operations since the last snapshot."""
        self._saving = None
        if self.log.count and not writer.quick and (self._asked or self.wants_compaction()):
            self._compact(writer)
            return
        for reference in writer.previous:
            if reference.role in FILES:
                writer.keep(reference)
        before = [reference for reference in writer.previous if is_delta(reference)]
        saved_rows = sum(reference.rows for reference in before)
        if saved_rows == self.log.count:
            for reference in before:
                writer.keep(reference)
            return
        plan = plan_delta(before)
        for reference in plan.kept:
            writer.keep(reference)
        size = write_delta(writer, self.partition, self.log, plan)
        writer.changed_bytes += size * (self.log.count - saved_rows) // (self.log.count - plan.start)

    def _compact(self, writer: SnapshotWriter) -> None:
        from meguri_store.compact import compact  # noqa: PLC0415 - imports numba, which a look-up does without

        made = compact(
            self._files,
            self.partition,
            self.base,
            self.log,
            self.rules,
            offset=writer.offset,
            identity=self.identity,
            token=self._token,
            group_rows=self._compaction.group_rows,
        )
        for reference in made.references:
            writer.keep(reference)
        writer.generation_bytes += made.bytes
        self._saving = (Generation.open(self._files, made.folder, self.identity), self.log.count)

    def saved(self) -> None:
        """Go on from the generation that the last `save` made, if it made one."""
        if self._saving is None:
            return
        generation, count = self._saving
        self._saving = None
        self._asked = False
        self.log = self.log.since(count)
        self._adopt(generation)
        self.point_current()

    def load(self, reader: SnapshotReader) -> None:
        """Take over a snapshot: its generation and the operations in its delta files.

        Raises:
            CorruptGeneration, CorruptSnapshot: its files aren't what it says.
            CampaignMismatch: it belongs to another campaign.
        """
        generation, _ = load_shard(self._files, reader.files, self.identity)
        self.log = read_deltas(reader)
        if generation is not None:
            self._adopt(generation)

    def _adopt(self, generation: Generation) -> None:
        self.base = generation
        keys = [table.column("host_key").to_numpy() for table in generation.hosts(["host_key"])]
        self._base_hosts = np.concatenate([*keys, np.zeros(0, np.uint64)])

    def point_current(self) -> None:
        """Let other tools find the generation in force: only its owner does, at a start and when it publishes."""
        if self.base is not None:
            self._files.point(f"{shard_folder(self.partition)}/current", self.base.folder.rpartition("/")[2])

    def totals(self) -> Totals:
        """Counts, from the generation's own and a look at the delta."""
        _, admitted = self.log.table(RowKind.ADMITTED)
        _, hosts = self.log.table(RowKind.HOST)
        _, updates = self.log.table(RowKind.UPDATE)
        mentioned = np.unique(np.concatenate([numbers(admitted, "host_key"), numbers(hosts, "host_key")]))
        unheard = ~np.isin(mentioned, self._base_hosts, assume_unique=True)
        parked = np.count_nonzero(numbers(admitted, "reason"))
        released = np.count_nonzero(numbers(updates, "fields") & UpdateField.RELEASE)
        meta = self.base.meta if self.base else None
        return Totals(
            rows=admitted.num_rows + (meta.urls if meta else 0),
            hosts=int(np.count_nonzero(unheard)) + len(self._base_hosts),
            trapped=int(parked - released) + (meta.by_status[Status.TRAPPED] if meta else 0),
            delta_rows=self.log.count,
            delta_bytes=self.log.bytes,
        )

    def stats(self) -> dict[str, dict[str, float]]:
        """Telemetry: `counters`, totals of the shard; `passed`, rows since it was loaded; `gauges`."""
        totals = self.totals()
        return {
            "counters": {"urls": totals.rows, "hosts": totals.hosts},
            "passed": {
                "visits": self._taken[RowKind.OUTCOME],
                "operations": sum(self._taken.values()),
            },
            "gauges": {
                "parked": totals.trapped,
                "delta_rows": totals.delta_rows,
                "delta_bytes": totals.delta_bytes,
                "generation_urls": self.base.meta.urls if self.base else 0,
                "generation_bytes": sum(mark.size for mark in self.base.meta.files.values()) if self.base else 0,
            },
        }


def _wants_compaction(service: Service) -> bool:
    assert isinstance(service, Store), "the spec makes stores"
    return service.wants_compaction()


def _point_current(service: Service) -> None:
    assert isinstance(service, Store), "the spec makes stores"
    service.point_current()


def store_spec(
    identity: CampaignIdentity,
    files: FileSystem,
    token: Callable[[], str],
    parameters: Parameters | None = None,
    compaction: CompactionRules = CompactionRules(),
) -> ServiceSpec:
    """How the runtime makes the store's shards; see `Store`."""
    given = {**DEFAULTS, **(parameters or {})}
    fold_rules(given)
    return ServiceSpec(
        name=SERVICE,
        input_topic=DELTAS,
        create=lambda partition, held: Store(partition, identity, files, token, held, compaction),
        logic_version=LOGIC_VERSION,
        parameters=given,
        folders=lambda partition: (shard_folder(partition),),
        wants_snapshot=_wants_compaction,
        on_owned=_point_current,
    )
