"""A recrawl of a whole data folder with drawn outcomes: what a crawl of all that is due would have come to."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meguri.embedded.campaign import reopen_campaign, view_campaign
from meguri.embedded.compacting import compact_folder
from meguri_common.runtime.partition import retain
from meguri_store.pool import run_shards
from meguri_store.recrawl import RecrawlResult, recrawl
from meguri_store.recrawl_outcomes import drawn_outcomes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from meguri_store.pool import ShardResult

__all__ = ["recrawl_folder"]


@dataclass(frozen=True)
class _Work:
    """Recrawls a shard, in any process; whoever asks for it holds the folder. None for a shard without records."""

    data: Path
    hour: int
    seed: int
    budget: float | None
    """Fetches an hour; None: as the folder's parameters have it."""

    def __call__(self, partition: int) -> RecrawlResult | None:
        campaign = view_campaign(self.data)
        try:
            loaded = campaign.look("store", partition)
            store: Any = loaded.service
            if store.base is None:
                return None
            rules = store.rules
            if self.budget is not None:
                rules = dataclasses.replace(rules, reschedule=True, budget=self.budget)
            result = recrawl(
                campaign.around.files,
                partition,
                store.base,
                drawn_outcomes(self.seed),
                rules,
                now=self.hour,
                identity=campaign.identity,
                token=campaign.around.token,
            )
            if result.made is not None:
                writer = loaded.snapshots.writer(loaded.position, loaded.snapshot, quick=False)
                for reference in result.made.references:
                    writer.keep(reference)
                loaded.snapshots.commit(
                    writer,
                    topic_id=campaign.bus.topic_id(loaded.spec.input_topic),
                    identity=campaign.identity,
                    parameters=dict(loaded.parameters),
                    logic_version=loaded.spec.logic_version,
                    clean=loaded.snapshot is not None and loaded.snapshot.clean,
                )
                again: Any = campaign.look("store", partition).service
                again.point_current()
            return result
        finally:
            campaign.close()


def recrawl_folder(
    data: Path,
    hour: int,
    *,
    seed: int = 0,
    budget: float | None = None,
    jobs: int = 1,
    on_shard: Callable[[ShardResult[RecrawlResult | None], int], None] = lambda _result, _of: None,
    now: Callable[[], float] = time.time,
) -> list[ShardResult[RecrawlResult | None]]:
    """Fold an outcome drawn from a seed into each URL that is due. Deltas are compacted first.

    The store alone is told. A shard that fails leaves the others done; started again at the same hour, those have
    nothing due.

    Args:
        data: the folder; nobody else may write to it meanwhile.
        hour: of the recrawl.
        seed: of the outcomes (see `recrawl_outcomes.drawn_outcomes`).
        budget: fetches an hour of the whole folder, to which URLs are scheduled by worth; None: as the folder's
            parameters have it.
        jobs: processes.
        on_shard: told of each shard that ends, and how many there are.
        now: clock, epoch seconds.

    Raises:
        DataFolderLocked: another living process writes to it.
        DataFolderError: there is no campaign in it.
        MeguriError, OSError: of a shard that couldn't be compacted.
    """
    for compacted in compact_folder(data, jobs=jobs, now=now):
        if compacted.error is not None:
            raise compacted.error
    campaign = reopen_campaign(data, now=now)
    try:
        campaign.bus.barrier()
        count = campaign.identity.partitions
        work = _Work(data, hour, seed, None if budget is None else budget / count)
        results = run_shards(list(range(count)), work, jobs=jobs, on_done=lambda result: on_shard(result, count))
        for result in results:
            if result.result is not None and result.result.made is not None:
                store = campaign.around.snapshots(campaign.spec("store"), result.partition)
                retain(campaign.look("store", result.partition).source, store, campaign.bus)
    finally:
        campaign.close()
    return results
