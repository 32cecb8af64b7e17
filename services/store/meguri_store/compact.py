"""Compaction: base and delta become the next generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri_store.generation import shard_folder
from meguri_store.merge import CHUNK_ROWS, Merge
from meguri_store.publish import (
    GenerationFiles,
    RowGroups,
    UrlSummary,
    next_sequence,
    write_hosts,
    write_meta,
    write_urls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.files import FileSystem
    from meguri_common.runtime.snapshots import FileRef
    from meguri_store.fold import FoldRules
    from meguri_store.generation import Generation, Meta
    from meguri_store.oplog import OpLog

__all__ = ["Compacted", "compact"]


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

    Raises:
        CorruptGeneration: the base can't be read.
        OSError: the new one can't be written.
    """
    shard = shard_folder(partition)
    files.make_folder(shard)
    sequence = next_sequence(files, shard, offset)
    made = GenerationFiles(files, shard, f"g{offset:012d}-{sequence}-{token()}")
    merge = Merge(base, log, rules, group_rows)
    before = base.meta.urls if base else 0
    summary = UrlSummary(before + len(merge.new.host))

    def groups() -> Iterator[pa.Table]:
        cut = RowGroups(group_rows)
        for chunk in merge.rows():
            for group in cut.add(chunk):
                summary.add(group)
                yield group
        for group in cut.rest():
            summary.add(group)
            yield group

    with made.published():
        with made.create("urls") as sink:
            write_urls(sink, groups())
        with made.create("hosts") as sink:
            hosts = write_hosts(sink, merge.hosts(identity.group_by))
        with made.create("filter") as sink:
            sink.write(summary.filter.marshal())
        meta = summary.meta(
            partition=partition,
            offset=offset,
            sequence=sequence,
            identity=identity,
            hosts=hosts,
            inserted=merge.inserted,
            updated=merge.updated,
            carried=before - merge.updated,
            files=made.marks(),
        )
        with made.create("meta") as sink:
            write_meta(sink, meta)
    return Compacted(made.folder, meta, tuple(made.references))
