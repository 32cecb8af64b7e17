"""A campaign over another number of partitions: every service's state moved, exactly, into a new data folder.

The old folder stays as it is, but that its deltas are compacted. The new one is a campaign of its own, whose topics
begin anew; what it must know of the past (which inputs were published, parameters, rejects) goes along.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from meguri.embedded.campaign import open_campaign, reopen_campaign
from meguri.embedded.compacting import compact_folder
from meguri.embedded.founding import foundation_of, token
from meguri_common.bus.port import TopicPartition
from meguri_common.errors import DataFolderError
from meguri_common.topics import REJECTS
from meguri_store.import_records import GivenHosts, RecordStream, import_shard
from meguri_store.manifest import make_manifest
from meguri_store.resize import hosts_between, records_between
from meguri_store.water_level import LevelState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from meguri.embedded.campaign import Campaign
    from meguri_common.runtime.partition import LoadedPartition
    from meguri_store.compact import Compacted
    from meguri_store.generation import Generation
    from meguri_store.manifest import ShardRange

__all__ = ["Resized", "resize_folder"]

_CARRIED = ("ledger/", "campaign/spent", "campaign/parameters")
"""Rows of the bus that hold of the new campaign, too."""
_READ_BYTES = 8 << 20


@dataclass
class Resized:
    """What a resize came to."""

    data: str
    before: int
    partitions: int
    urls: int = 0
    hosts: int = 0
    bytes: int = 0
    seconds: float = 0.0


def resize_folder(
    data: Path,
    out: Path,
    partitions: int,
    *,
    jobs: int = 1,
    on_shard: Callable[[int, int], None] = lambda _shard, _of: None,
    now: Callable[[], float] = time.time,
) -> Resized:
    """Make a data folder with another number of partitions of one that is drained.

    Args:
        data: the old folder; nobody else may write to it meanwhile.
        out: the new one; new, empty, or left unfinished by a resize.
        partitions: of the new one.
        jobs: processes that compact the old one first.
        on_shard: told of each new shard that is written, and how many there are.
        now: clock, epoch seconds.

    Raises:
        DataFolderError: the old folder isn't drained, or the new one holds something else.
        CampaignMismatch: see `open_campaign`.
        OSError: the disk refuses.
    """
    began = time.monotonic()
    for result in compact_folder(data, jobs=jobs, now=now):
        if result.error is not None:
            raise result.error
    old = reopen_campaign(data, now=now)
    try:
        _check_drained(old)
        new = open_campaign(out, partitions=partitions, like=old, making="resize", now=now)
        try:
            resized = Resized(str(out), old.identity.partitions, partitions)
            _carry_rows(old, new)
            move = _Move(old, new)
            for number in range(partitions):
                made = move.partition(number)
                on_shard(number, partitions)
                if made is not None:
                    resized.urls += made.meta.urls
                    resized.hosts += made.meta.hosts
                    resized.bytes += made.bytes
            move.check()
            new.finish()
        finally:
            new.close()
    finally:
        old.close()
    resized.seconds = time.monotonic() - began
    return resized


class _Move:
    """Partitions of the new campaign, one after another, and what they need of the old one."""

    def __init__(self, old: Campaign, new: Campaign) -> None:
        self._old = old
        self._new = new
        self._foundation = foundation_of(new)
        self._specs = {spec.name: spec for spec in self._foundation.specs()}
        self._old_ranges = make_manifest(old.identity).shards
        self._new_ranges = make_manifest(new.identity).shards
        self._loaded: OrderedDict[tuple[str, int], LoadedPartition] = OrderedDict()
        self._before: dict[str, int] = {}
        self._after: dict[str, int] = {}

    def partition(self, number: int) -> Compacted | None:
        """Make a new partition; gives its generation, if it has records."""
        mine = self._new_ranges[number]
        sources = [shard for shard in self._old_ranges if _overlap(shard, mine)]
        made = self._shard(mine, sources)
        prioritizer: Any = self._specs["prioritizer"].create(number, dict(self._specs["prioritizer"].parameters))
        for shard in sources:
            # What can't be divided goes with the end of the old range.
            prioritizer.take_over(self._look("prioritizer", shard.index), mine.host_lo, mine.host_hi, shard.host_hi)
        self._count(self._after, prioritizer.totals())
        ended = [shard for shard in sources if mine.host_lo <= shard.host_hi <= mine.host_hi]
        for shard in ended:
            self._count(self._before, self._look("prioritizer", shard.index).totals())
        counters = _sum_of([self._look("dedup", shard.index).counters for shard in ended])
        if counters is None:
            empty: Any = self._specs["dedup"].create(number, dict(self._specs["dedup"].parameters))
            counters = empty.counters
        self._foundation.found(number, made, prioritizer=prioritizer, counters=counters)
        return made

    def check(self) -> None:
        """Nothing may have been lost or made on the way.

        Raises:
            DataFolderError: something was: the old folder contradicts itself.
        """
        in_flight = self._before.get("sent", 0) - self._before.get("received", 0)
        if in_flight:
            msg = f"{self._old.data}: {in_flight} units of cash are on their way, though nothing is to be read"
            raise DataFolderError(msg)
        if self._before != self._after:
            msg = f"{self._old.data}: cash and counts are {self._before} before and {self._after} after the move"
            raise DataFolderError(msg)

    def _shard(self, mine: ShardRange, sources: list[ShardRange]) -> Compacted | None:
        bases = [self._look("store", shard.index).base for shard in sources]
        generations = [base for base in bases if base is not None]
        records = RecordStream(records_between(generations, mine.host_lo, mine.host_hi), len(self._new_ranges))
        tables = list(hosts_between(generations, mine.host_lo, mine.host_hi))
        if not tables:
            return None
        return import_shard(
            self._new.around.files,
            self._new.identity,
            mine.index,
            records.of(mine.index),
            GivenHosts(iter(tables)),
            token=token,
            level=_level(generations),
        )

    def _look(self, service: str, number: int) -> Any:
        """An old partition's state; the last few are kept."""
        key = (service, number)
        if key not in self._loaded:
            loaded = self._loaded[key] = self._old.look(service, number)
            if service == "dedup":
                self._check_keys(number, loaded.service)
            while len(self._loaded) > len(self._specs):
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(key)
        return self._loaded[key].service

    def _check_keys(self, number: int, dedup: Any) -> None:
        """Dedup's keys are made anew of the records: they must be as many."""
        keys = int(dedup.stats()["gauges"]["keys"])
        base = self._look("store", number).base
        urls = base.meta.urls if base else 0
        if keys != urls:
            msg = f"{self._old.data}: dedup knows {keys} keys in partition {number}, the store has {urls} URLs"
            raise DataFolderError(msg)

    @staticmethod
    def _count(sums: dict[str, int], totals: dict[str, int]) -> None:
        for name, value in totals.items():
            sums[name] = sums.get(name, 0) + value


def _check_drained(campaign: Campaign) -> None:
    """Refuse a folder in which something is on its way.

    Raises:
        DataFolderError: names what, and the way out.
    """
    bus = campaign.bus
    way_out = f"Let it come to rest first: meguri run --data {campaign.data} (without input)"
    for spec in campaign.specs:
        for number in range(bus.partitions(spec.input_topic)):
            source = TopicPartition(spec.input_topic, number)
            commit = bus.committed(spec.name, source)
            end = bus.watermarks(source)[1]
            if end > (commit.offset if commit else 0):
                msg = f"{campaign.data}: {spec.name} has {end - (commit.offset if commit else 0)} messages to read"
                raise DataFolderError(f"{msg} in {source}. {way_out}.")


def _carry_rows(old: Campaign, new: Campaign) -> None:
    """What the new campaign must know of what was published, and the rejects, whose number is a count."""
    rejects = TopicPartition(REJECTS, 0)
    if new.bus.watermarks(rejects)[1]:
        return  # a resize that was killed had come so far
    producer = new.bus.producer("campaign")
    producer.begin()
    for prefix in _CARRIED:
        for key, value in old.bus.scan(prefix):
            producer.put(key, value)
    at, end = old.bus.watermarks(rejects)
    while at < end:
        messages = old.bus.read(rejects, at, end=end, max_bytes=_READ_BYTES)
        for message in messages:
            producer.publish(rejects, bytes(message.payload))
        at = messages[-1].offset + 1 if messages else end
    producer.commit()
    producer.close()


def _level(generations: list[Generation]) -> LevelState:
    """Where the water stands in a shard made of others: as high as on average in them, weighted by their URLs."""
    urls = sum(generation.meta.urls for generation in generations)
    if not urls:
        return LevelState()
    # A weighted mean of equal heights is that height, to the bit.
    heights = {generation.meta.tau for generation in generations}
    mean = sum(generation.meta.tau * generation.meta.urls for generation in generations) / urls
    return LevelState(heights.pop() if len(heights) == 1 else mean, 0, generations[-1].meta.reschedules)


def _overlap(one: ShardRange, other: ShardRange) -> bool:
    return one.host_lo <= other.host_hi and other.host_lo <= one.host_hi


def _sum_of(counters: list[Any]) -> Any:
    """Counters of one kind, added up; None if there are none."""
    if not counters:
        return None
    sums = {}
    for field in fields(counters[0]):
        values = [getattr(each, field.name) for each in counters]
        lists = isinstance(values[0], list)
        sums[field.name] = [sum(column) for column in zip(*values, strict=True)] if lists else sum(values)
    return type(counters[0])(**sums)
