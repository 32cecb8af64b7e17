"""The store as a service: a partition's records, in a generation on disk and a delta in memory.

Intake never reads the base. What comes in is kept as it came; generations, queries and counts merge on read.
"""

from __future__ import annotations

import logging
import math
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
from meguri_store.background import Abandoned
from meguri_store.delta_chain import DeltaChain
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
    from meguri_store.background import Job, Jobs

__all__ = ["SERVICE", "CompactionRules", "Store", "Totals", "fold_rules", "load_shard", "store_spec"]

_log = logging.getLogger(__name__)

SERVICE = "store"
LOGIC_VERSION = 2
_PATIENCE = 4
"""Intake waits for a compaction when what came since it began would be enough for so many others."""
_OLD_SHARE = 100


@dataclass(frozen=True, slots=True)
class CompactionRules:
    """When a snapshot is a new generation rather than another delta file. Doesn't shape the records."""

    rows: int = 262_144
    """Operations below which the delta is left alone."""
    share: float = 0.5
    """Share of the base's rows that the delta must have reached."""
    bytes: int = 256 << 20
    """Memory of the delta that is enough, whatever its share."""
    age: float = math.inf
    """Seconds since the last compaction after which one hundredth of the base's rows is enough."""
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


@dataclass(frozen=True)
class Prepared:
    """A generation that a snapshot may name."""

    generation: Generation
    references: tuple[FileRef, ...]
    count: int
    """Operations of the log that it holds."""
    hosts: np.typing.NDArray[np.uint64]
    """Its host keys, in order."""


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
        *,
        jobs: Jobs | None = None,
        now: Callable[[], float] = float,
    ) -> None:
        """An empty shard.

        Args:
            partition: which one.
            identity: the campaign.
            files: where shards are kept.
            token: a random part of a file name.
            parameters: by name, see `freshness_rules`.
            compaction: when to compact.
            jobs: who compacts, beside the intake; by default a snapshot that is due for it does.
            now: clock for the age of a delta, seconds.
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
        self._asked = self._answering = False
        self._base_hosts: np.typing.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._deltas = DeltaChain(partition)
        self._saving: Prepared | None = None
        """The generation that the last `save` made or named, where there is one."""
        self._saved = 0, 0
        """Operations that the last `save` made durable, and the inbox offset after them."""
        self._jobs = jobs
        self._job: Job[Prepared] | None = None
        self._job_start = 0, 0
        """Operations and bytes of the delta that the job works on."""
        self._now = now
        self._begun = now()
        self._held_off = 0
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

    def skip(self, message: Message) -> int:  # noqa: ARG002 - see below
        """Pass over a message: what it said of URLs and hosts isn't known here; there is no cash in it."""
        return 0

    def wants_compaction(self) -> bool:
        """Whether a snapshot is due: the delta has grown to its bounds, or a compaction in the background has ended."""
        job = self._job
        return self._grown(self.log.count, self.log.bytes) if job is None else job.ended() or self._overgrown(job)

    def _grown(self, operations: int, nbytes: int) -> bool:
        """Whether so many operations, of so many bytes, are to be compacted."""
        base_rows = self.base.meta.urls if self.base else 0
        rules = self._compaction
        if operations < max(self._held_off, 1):
            return False
        if operations >= rules.rows and (operations >= base_rows * rules.share or nbytes >= rules.bytes):
            return True
        return operations * _OLD_SHARE >= base_rows and self._now() - self._begun >= rules.age

    def _overgrown(self, job: Job[Prepared]) -> bool:
        """Whether so much has come in since a compaction began that intake has to wait for it."""
        since = self.log.count - self._job_start[0], self.log.bytes - self._job_start[1]
        return not job.ended() and self._grown(since[0] // _PATIENCE, since[1] // _PATIENCE)

    def request_compaction(self) -> None:
        """Let the next `save` compact whatever the size; nothing happens to a shard without changes."""
        self._asked = True

    def save(self, writer: SnapshotWriter) -> None:
        """Write a new generation, or a delta file with the operations since the last snapshot.

        With a compactor it is always a delta file, beside which a generation made in the background may be named, but
        where a compaction was requested.
        """
        self._saving = None
        self._saved = (self.log.count, writer.offset)
        self._answering = self._asked and not writer.quick
        prepared = self._finished(wait=not writer.quick)
        if self.log.count and not writer.quick and (self._asked or (self._jobs is None and self.wants_compaction())):
            self._give_up()
            prepared = self._prepare(self.log, self.base, writer.offset)
        if prepared is None:
            for reference in writer.previous:
                if reference.role in FILES:
                    writer.keep(reference)
        else:
            for reference in prepared.references:
                writer.keep(reference)
            writer.generation_bytes += sum(reference.size for reference in prepared.references)
        self._deltas.write(writer, self.log, prepared.count if prepared else 0)
        self._saving = prepared

    def _prepare(
        self, log: OpLog, base: Generation | None, offset: int, given_up: Callable[[], bool] = lambda: False
    ) -> Prepared:
        """Make the generation after `base` and the operations of `log`."""
        from meguri_store.compact import compact  # noqa: PLC0415 - imports numba, which a look-up does without

        made = compact(
            self._files,
            self.partition,
            base,
            log,
            self.rules,
            offset=offset,
            identity=self.identity,
            token=self._token,
            group_rows=self._compaction.group_rows,
            given_up=given_up,
        )
        generation = Generation.open(self._files, made.folder, self.identity)
        return Prepared(generation, made.references, log.count, _host_keys(generation))

    def _start(self) -> None:
        """Begin a compaction of what the last snapshot holds, in the background."""
        assert self._jobs is not None, "only with a compactor"
        count, offset = self._saved
        log, folder = self.log.until(count), self.base.folder if self.base else None

        def work(given_up: Callable[[], bool]) -> Prepared:
            # Readers of the base in other threads have files of their own.
            base = Generation.open(self._files, folder, self.identity) if folder else None
            return self._prepare(log, base, offset, given_up)

        self._job, self._job_start = self._jobs.submit(work), (count, log.bytes)

    def _finished(self, *, wait: bool) -> Prepared | None:
        """What the compaction in the background has made, if it has ended well.

        Raises:
            CorruptGeneration: it couldn't read its base.
        """
        job = self._job
        if job is not None and wait and self._overgrown(job):
            _log.warning("shard %d: intake waits for a compaction, the delta grows faster", self.partition)
            job.wait()
        if job is None or not job.ended():
            return None
        try:
            return job.result()
        except (OSError, Abandoned) as problem:
            _log.warning("shard %d: a compaction failed, its delta stays: %s", self.partition, problem)
        except BaseException:
            self._fail()
            raise
        self._fail()
        return None

    def _fail(self) -> None:
        """Try again when the delta has grown by a quarter."""
        self._job = None
        self._held_off = self.log.count + self.log.count // 4

    def _give_up(self) -> None:
        """Want no result of the compaction in the background, if there is one; what it has begun it clears away."""
        if self._job is not None:
            self._job.give_up()
            self._job = None

    def saved(self) -> None:
        """Go on from the generation that the last `save` made or named, if there was one; begin the next one if due."""
        count, offset = self._saved
        prepared, self._saving = self._saving, None
        self._deltas.written()
        self._asked = self._asked and not self._answering
        if prepared is not None:
            self._job = None
            self._held_off = 0
            self._begun = self._now()
            self.log = self.log.since(prepared.count)
            self._saved = count - prepared.count, offset
            self.base, self._base_hosts = prepared.generation, prepared.hosts
            self.point_current()
        if self._jobs is not None and self._job is None and self._grown(self._saved[0], self.log.bytes):
            self._start()

    def load(self, reader: SnapshotReader) -> None:
        """Take over a snapshot: its generation and the operations in its delta files.

        Raises:
            CorruptGeneration, CorruptSnapshot: its files aren't what it says.
            CampaignMismatch: it belongs to another campaign.
        """
        generation, _ = load_shard(self._files, reader.files, self.identity)
        self.log = self._deltas.read(reader)
        if generation is not None:
            self.base, self._base_hosts = generation, _host_keys(generation)

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


def _host_keys(generation: Generation) -> np.typing.NDArray[np.uint64]:
    keys = [table.column("host_key").to_numpy() for table in generation.hosts(["host_key"])]
    return np.concatenate([*keys, np.zeros(0, np.uint64)])


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
    *,
    jobs: Jobs | None = None,
    now: Callable[[], float] = float,
) -> ServiceSpec:
    """How the runtime makes the store's shards; see `Store`."""
    given = {**DEFAULTS, **(parameters or {})}
    fold_rules(given)
    return ServiceSpec(
        name=SERVICE,
        input_topic=DELTAS,
        create=lambda partition, held: Store(partition, identity, files, token, held, compaction, jobs=jobs, now=now),
        logic_version=LOGIC_VERSION,
        parameters=given,
        folders=lambda partition: (shard_folder(partition),),
        wants_snapshot=_wants_compaction,
        on_owned=_point_current,
    )
