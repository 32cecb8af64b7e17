"""A campaign from a list of URLs: canonicalised, sorted, written as first generations, known to every service."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from meguri.embedded.campaign import open_campaign
from meguri.embedded.founding import foundation_of, token
from meguri.embedded.inputs import open_input
from meguri.embedded.url_lists import ListReader, Refused
from meguri_common.errors import InputUnreadable
from meguri_common.records import hours
from meguri_prioritizer.budget import update_budget
from meguri_store.bulk_load import DEFAULT_MEMORY, BulkLoad, Stamps, build_shard
from meguri_store.pool import run_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from meguri.embedded.campaign import Campaign
    from meguri.embedded.founding import Foundation
    from meguri.embedded.inputs import InputStream
    from meguri_store.compact import Compacted
    from meguri_store.external_sort import SortedRuns
    from meguri_store.pool import ShardResult

__all__ = ["BuildOptions", "Built", "build_folder", "host_facts"]

_BUDGET = ("base_budget", "per_in_link", "min_budget", "max_budget")


@dataclass(frozen=True)
class BuildOptions:
    """What a build is told beside its inputs."""

    partitions: int | None = None
    policy: Path | None = None
    now: int | None = None
    """Hour of the stamps; None: the clock's."""
    memory: int = DEFAULT_MEMORY
    """Bytes of the sort buffer."""
    jobs: int = 1
    """Processes that build shards."""
    on_input: Callable[[InputStream | None], None] = lambda _stream: None
    """Told of each input that is opened; None: of the end of the last."""
    on_rows: Callable[[int], None] = lambda _rows: None
    """Told how many URLs have been taken in so far."""
    on_shard: Callable[[ShardResult[Compacted], int], None] = lambda _result, _of: None
    """Told of each shard that ends, and how many there are."""


@dataclass
class Built:
    """What a build came to."""

    data: str
    partitions: int
    now: int
    lines: int = 0
    refused: Refused = field(default_factory=Refused)
    repeats: int = 0
    urls: int = 0
    hosts: int = 0
    bytes: int = 0
    """Of the store's files."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    failed: list[ShardResult[Compacted]] = field(default_factory=list)
    """Shards that could not be built: the folder is unfinished."""

    @property
    def bytes_per_url(self) -> float:
        """Of the store's files."""
        return self.bytes / self.urls if self.urls else 0.0


@dataclass(frozen=True)
class _ShardWork:
    """Builds and founds one partition, in any process."""

    foundation: Foundation
    folder: str
    runs: SortedRuns
    stamps: Stamps

    def __call__(self, partition: int) -> Compacted:
        files, identity = self.foundation.files(), self.foundation.identity
        made = build_shard(files, identity, self.folder, self.runs, partition, stamps=self.stamps, token=token)
        self.foundation.found(partition, made)
        return made


def build_folder(
    data: Path, inputs: Sequence[str], options: BuildOptions, now: Callable[[], float] = time.time
) -> Built:
    """Make a data folder of lists of URLs.

    All or nothing: a folder of which an input couldn't be read, or a shard couldn't be built, is left unfinished, and
    nobody takes it for a campaign; the same build starts over in it.

    Args:
        data: the folder; new, empty, or left unfinished by a build.
        inputs: paths, `-` for standard input.
        options: see there.
        now: clock, epoch seconds.

    Raises:
        InputUnreadable: an input can't be read.
        DataFolderError: the folder holds something else already.
        PolicyError: the policy can't be compiled.
        OSError: the disk refuses.
    """
    began, cpu_began = time.monotonic(), time.process_time()
    for name in inputs:
        open_input(name).close()  # a mistyped name makes no folder
    campaign = open_campaign(data, partitions=options.partitions, policy=options.policy, making="build", now=now)
    try:
        hour = options.now if options.now is not None else hours(int(now()))
        built = Built(str(data), campaign.identity.partitions, hour)
        facts = host_facts(campaign)
        stamps = Stamps(hour, url_budget=facts["url_budget"], depth_cap=facts["depth_cap"])
        with BulkLoad(campaign.around.files, campaign.identity, token=token, memory=options.memory) as load:
            _read(campaign, load, inputs, stamps, options, built)
            runs = load.finish()
            partitions = runs.partitions()
            work = _ShardWork(foundation_of(campaign), load.folder, runs, stamps)
            done = partial(_told, options, len(partitions))
            results = run_shards(partitions, work, jobs=options.jobs, on_done=done)
        for result in results:
            if result.result is None:
                built.failed.append(result)
                continue
            built.urls += result.result.meta.urls
            built.hosts += result.result.meta.hosts
            built.bytes += result.result.bytes
        built.repeats = load.rows - built.urls
        if not built.failed:
            for partition in set(range(campaign.identity.partitions)) - set(partitions):
                work.foundation.found(partition, None)
            campaign.finish()
    finally:
        campaign.close()
    built.seconds, built.cpu_seconds = time.monotonic() - began, time.process_time() - cpu_began
    return built


def _told(options: BuildOptions, count: int, result: ShardResult[Compacted]) -> None:
    options.on_shard(result, count)


def _read(
    campaign: Campaign, load: BulkLoad, inputs: Sequence[str], stamps: Stamps, options: BuildOptions, built: Built
) -> None:
    reader = ListReader(campaign.policy, stamps)
    for name in inputs:
        stream = open_input(name)
        options.on_input(stream)
        try:
            for rows in reader.rows(name, stream.chunks()):
                load.add(rows)
                options.on_rows(load.rows)
        except InputUnreadable as problem:
            msg = f"{problem}. The data folder is unfinished: mend the input and start the same build again."
            raise InputUnreadable(msg) from problem
        finally:
            stream.close()
    options.on_input(None)
    built.lines, built.refused = reader.lines, reader.refused


def host_facts(campaign: Campaign) -> dict[str, int]:
    """What holds of all new hosts of a campaign: the budget of one that nobody links to, the depth cap."""
    given = campaign.spec("prioritizer").parameters
    budget = update_budget(0, **{name: given[name] for name in _BUDGET})
    return {"url_budget": budget, "depth_cap": given["depth_cap"]}
