"""Compaction of a folder that nobody runs: shards with a delta get a new generation, the others stay as they are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meguri.embedded.campaign import reopen_campaign, view_campaign
from meguri_common.bus.port import TopicPartition
from meguri_common.runtime.partition import retain
from meguri_store.delta_file import is_delta
from meguri_store.pool import ShardResult, run_shards
from meguri_store.service import load_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from meguri.embedded.campaign import Campaign
    from meguri_store.generation import Generation

__all__ = ["ShardCompacted", "compact_folder"]


@dataclass(frozen=True)
class ShardCompacted:
    """A shard as it is now."""

    changed: bool
    """Whether it had a delta, and so has a new generation."""
    urls: int = 0
    hosts: int = 0
    inserted: int = 0
    """URLs that the generation before didn't have."""
    updated: int = 0
    """URLs about which the delta said something."""
    carried: int = 0
    bytes: int = 0
    """Of the generation's files."""


@dataclass(frozen=True)
class _Work:
    """Compacts a shard, in any process; whoever asks for it holds the folder."""

    data: Path

    def __call__(self, partition: int) -> ShardCompacted:
        campaign = view_campaign(self.data)
        try:
            loaded = campaign.look("store", partition)
            store: Any = loaded.service
            if not store.log.count:
                return _described(store.base, changed=False)
            store.request_compaction()
            writer = loaded.snapshots.writer(loaded.position, loaded.snapshot, quick=False)
            store.save(writer)
            loaded.snapshots.commit(
                writer,
                topic_id=campaign.bus.topic_id(loaded.spec.input_topic),
                identity=campaign.identity,
                parameters=dict(loaded.parameters),
                logic_version=loaded.spec.logic_version,
                # It stands for the commit if the snapshot that it continues did.
                clean=not loaded.moved and loaded.snapshot is not None and loaded.snapshot.clean,
            )
            store.saved()
            return _described(store.base, changed=True)
        finally:
            campaign.close()


def compact_folder(
    data: Path,
    *,
    jobs: int = 1,
    on_shard: Callable[[ShardResult[ShardCompacted], int], None] = lambda _result, _of: None,
    now: Callable[[], float] = time.time,
) -> list[ShardResult[ShardCompacted]]:
    """Compact every shard that has a delta. A shard that fails leaves the others done, and can be compacted again.

    Args:
        data: the folder; nobody else may write to it meanwhile.
        jobs: processes.
        on_shard: told of each shard that ends, and how many there are.
        now: clock, epoch seconds.

    Raises:
        DataFolderLocked: another living process writes to it.
        DataFolderError: there is no campaign in it.
    """
    campaign = reopen_campaign(data, now=now)
    try:
        # What a run before had committed is durable before anything is built upon it.
        campaign.bus.barrier()
        spec = campaign.spec("store")
        count = campaign.identity.partitions
        waiting = [partition for partition in range(count) if _may_have_changed(campaign, partition)]
        results = run_shards(waiting, _Work(data), jobs=jobs, on_done=lambda result: on_shard(result, count))
        for partition in sorted(set(range(count)) - set(waiting)):
            results.append(ShardResult(partition, _as_it_is(campaign, partition)))
            on_shard(results[-1], count)
        results.sort(key=lambda result: result.partition)
        for result in results:
            if result.result is not None and result.result.changed:
                loaded = campaign.look("store", result.partition)
                retain(loaded.source, campaign.around.snapshots(spec, result.partition), campaign.bus)
    finally:
        campaign.close()
    return results


def _may_have_changed(campaign: Campaign, partition: int) -> bool:
    """Whether there is something behind the shard's generation, as far as that is seen without reading it."""
    spec = campaign.spec("store")
    whole = campaign.around.snapshots(spec, partition).whole()
    commit = campaign.bus.committed(spec.name, TopicPartition(spec.input_topic, partition))
    if not whole:
        return commit is not None
    return any(map(is_delta, whole[0].files)) or (commit is not None and commit.offset > whole[0].offset)


def _as_it_is(campaign: Campaign, partition: int) -> ShardCompacted:
    whole = campaign.around.snapshots(campaign.spec("store"), partition).whole()
    base, _ = load_shard(campaign.around.files, whole[0].files if whole else (), campaign.identity)
    return _described(base, changed=False)


def _described(base: Generation | None, *, changed: bool) -> ShardCompacted:
    if base is None:
        return ShardCompacted(changed)
    meta = base.meta
    size = sum(mark.size for mark in meta.files.values())
    return ShardCompacted(changed, meta.urls, meta.hosts, meta.inserted, meta.updated, meta.carried, size)
