"""Compaction: base and delta become the next generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri_store.background import Abandoned
from meguri_store.freshness_plan import level_of, plan_schedule
from meguri_store.generation import shard_folder
from meguri_store.merge import CHUNK_ROWS, Merge
from meguri_store.publish import GenerationFiles, next_sequence, write_hosts, write_meta
from meguri_store.seen_filter import filter_for
from meguri_store.url_writer import UrlWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.snapshots import FileRef
    from meguri_store.fold import FoldRules
    from meguri_store.generation import Generation, Meta
    from meguri_store.merge import Piece
    from meguri_store.oplog import OpLog
    from meguri_store.water_level import LevelState

__all__ = ["Changes", "Compacted", "compact", "publish_generation"]


@dataclass(frozen=True)
class Changes:
    """How a generation's URLs differ from those of the one before."""

    inserted: int
    updated: int
    carried: int


@dataclass(frozen=True)
class Compacted:
    """A generation that has just been published."""

    folder: str
    meta: Meta
    references: tuple[FileRef, ...]

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        return sum(reference.size for reference in self.references)

    @property
    def bits_per_url(self) -> float:
        """Bits of all its files for each URL."""
        return 8 * self.bytes / max(self.meta.urls, 1)


def compact(
    files: FileSystem,
    partition: int,
    base: Generation | None,
    log: OpLog,
    rules: FoldRules,
    *,
    offset: int,
    identity: CampaignIdentity,
    token: Callable[[], str],
    group_rows: int = CHUNK_ROWS,
    given_up: Callable[[], bool] = lambda: False,
) -> Compacted:
    """Merge base and delta into a new, durable generation of the shard.

    Memory is bounded by the delta, a row group, the filter, and 16 bytes a host. If anything fails, nothing of the
    new generation stays.

    Args:
        files: where the shard is.
        partition: the shard.
        base: the generation before; None at first.
        log: the operations since then.
        rules: parameters of the fold.
        offset: next offset of the inbox after the operations.
        identity: the campaign.
        token: a random part of a name.
        group_rows: rows of a row group.
        given_up: asked before each row group whether to stop.

    Raises:
        Abandoned: it was given up.
        CorruptGeneration: the base can't be read.
        OSError: the new one can't be written.
    """
    plan = plan_schedule(base, log, rules)
    merge = Merge(base, log, rules, group_rows, plan)
    before = base.meta.urls if base else 0
    return publish_generation(
        files,
        partition,
        _unless(given_up, merge.pieces()),
        lambda: merge.hosts(identity.group_by),
        lambda: Changes(merge.inserted, merge.updated, before - merge.updated),
        expected=before + len(merge.new.host),
        offset=offset,
        identity=identity,
        token=token,
        group_rows=group_rows,
        base=base,
        level=(lambda: plan.level) if plan else None,
    )


def _unless(given_up: Callable[[], bool], pieces: Iterator[Piece]) -> Iterator[Piece]:
    for piece in pieces:
        if given_up():
            msg = "a compaction was given up"
            raise Abandoned(msg)
        yield piece


def publish_generation(
    files: FileSystem,
    partition: int,
    rows: Iterable[pa.Table | Piece],
    hosts: Callable[[], Iterator[pa.Table]],
    changes: Callable[[], Changes],
    *,
    expected: int,
    offset: int,
    identity: CampaignIdentity,
    token: Callable[[], str],
    group_rows: int = CHUNK_ROWS,
    base: Generation | None = None,
    level: Callable[[], LevelState] | None = None,
) -> Compacted:
    """Write records, given in store order, as a new, durable generation. If anything fails, nothing of it stays.

    Args:
        files: where the shard is.
        partition: the shard.
        rows: URL records, in tables of any size; or pieces of a merge with `base`, which between them cover all
            its rows: what they leave as it was is carried over without being decoded.
        hosts: gives the host records; called when all rows have passed.
        changes: what meta.json says of them, against the generation before; called at the end.
        expected: about how many URLs there will be, for the filter's size.
        offset: next offset of the inbox after what is in the records.
        identity: the campaign.
        token: a random part of a name.
        group_rows: rows of a row group.
        base: the generation that pieces speak of.
        level: where the water stands after all that is in the records, asked at the end; None: where it stood with the
            base. What is scheduled is summed over the records.

    Raises:
        CorruptGeneration: the base can't be read.
        OSError: it can't be written.
    """
    shard = shard_folder(partition)
    files.make_folder(shard)
    sequence = next_sequence(files, shard, offset)
    made = GenerationFiles(files, shard, f"g{offset:012d}-{sequence}-{token()}")
    with made.published(), filter_for(made, base, expected) as keys:
        with made.create("urls") as sink:
            writer = UrlWriter(sink, base, keys, group_rows)
            for item in rows:
                writer.add(item)
            writer.close()
        with made.create("hosts") as sink:
            host_count = write_hosts(sink, hosts())
        keys.write()
        changed = changes()
        tau, _, reschedules = level() if level else level_of(base)
        meta = writer.summary.meta(
            partition=partition,
            offset=offset,
            sequence=sequence,
            identity=identity,
            hosts=host_count,
            inserted=changed.inserted,
            updated=changed.updated,
            carried=changed.carried,
            recent=keys.recent,
            tau=tau,
            reschedules=reschedules,
            files=made.marks(),
        )
        with made.create("meta") as sink:
            write_meta(sink, meta)
    return Compacted(made.folder, meta, tuple(made.references))
