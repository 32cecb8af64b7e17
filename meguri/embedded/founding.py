"""First snapshots of a partition whose records did not come through the inbox.

The store's shard is there; dedup must know its keys, or the same URLs would be admitted again, and the prioritizer must
know them as admitted. Both are told from the shard's own columns, and all three snapshots stand at offset 0.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri.embedded.campaign import service_specs
from meguri_common.bus.port import Message
from meguri_common.errors import CorruptGeneration
from meguri_common.records import Status
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.snapshots import SnapshotStore
from meguri_common.wire.envelope import encode
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_store.generation import Generation
from meguri_store.publish import url_paths
from meguri_store.schema import filled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meguri.embedded.campaign import Campaign
    from meguri_canonicalizer.policy import Policy
    from meguri_common.identity import CampaignIdentity
    from meguri_common.runtime.service import Service, ServiceSpec
    from meguri_store.compact import Compacted

__all__ = ["Foundation", "foundation_of"]

_LAST_SECOND = 3599
_URL_COLUMNS = ["host_key", "url", "status", "priority", "depth", "last_crawled", "reason"]
_HOST_COLUMNS = ["host_key", "flags", "depth_cap", "host_score", "crawl_delay_set"]


@dataclass(frozen=True)
class Foundation:
    """What it takes to found partitions of a campaign, in any process: it can be pickled."""

    data: Path
    identity: CampaignIdentity
    policy: Policy
    topic_ids: dict[str, str]
    """Of each service's inbox."""
    parameters: dict[str, dict[str, Any]]
    """Those changed from the defaults, by service."""

    def files(self) -> LocalFiles:
        """The data folder."""
        return LocalFiles(self.data)

    def found(
        self,
        partition: int,
        made: Compacted | None,
        *,
        prioritizer: Service | None = None,
        counters: Any = None,
    ) -> None:
        """Write the snapshots of dedup, prioritizer and store for a generation that has just been published.

        Args:
            partition: which one.
            made: its generation; None where there are no records.
            prioritizer: its state, where more is known than the records say.
            counters: what dedup has counted, where it has.

        Raises:
            CorruptGeneration: it can't be read back, or holds a URL twice.
            OSError: a snapshot can't be written.
        """
        files = self.files()
        specs = {spec.name: spec for spec in self.specs()}
        generation = Generation.open(files, made.folder, self.identity) if made else None
        dedup: Any = self._dedup(specs["dedup"], partition, generation)
        dedup.counters = counters or dedup.counters
        self._save(specs["dedup"], partition, dedup)
        known = prioritizer or _prioritizer(specs["prioritizer"], partition, generation)
        self._save(specs["prioritizer"], partition, known)
        store = self._snapshots(specs["store"], partition)
        writer = store.writer(0, None, quick=False)
        for reference in made.references if made else ():
            writer.keep(reference)
        self._commit(store, writer, specs["store"])
        owner: Any = specs["store"].create(partition, dict(specs["store"].parameters))
        owner.load(store.reader(store.whole()[0]))
        owner.point_current()

    def specs(self) -> tuple[ServiceSpec, ...]:
        """The campaign's services."""
        return service_specs(self.identity, self.policy, self.files(), token, self.parameters)

    def _snapshots(self, spec: ServiceSpec, partition: int) -> SnapshotStore:
        folders = spec.folders(partition)
        # Nothing is swept here, so no time passes and no grace is needed.
        return SnapshotStore(self.files(), spec.name, partition, token=token, now=float, grace=0.0, folders=folders)

    def _save(self, spec: ServiceSpec, partition: int, service: Service) -> None:
        store = self._snapshots(spec, partition)
        writer = store.writer(0, None, quick=False)
        service.save(writer)
        self._commit(store, writer, spec)

    def _commit(self, store: SnapshotStore, writer: Any, spec: ServiceSpec) -> None:
        store.commit(
            writer,
            topic_id=self.topic_ids[spec.input_topic],
            identity=self.identity,
            parameters=dict(spec.parameters),
            logic_version=spec.logic_version,
            clean=True,
        )

    def _dedup(self, spec: ServiceSpec, partition: int, generation: Generation | None) -> Service:
        """Dedup's state with all keys, told as entries that nobody links to; what follows from them has happened."""
        service = spec.create(partition, dict(spec.parameters))
        spec.on_owned(service)  # beyond its bound of memory, keys go to disk while they are told
        digest = self.identity.digest()
        schema = SCHEMAS[RowKind.LINK]
        for table in _groups(generation, ["host_key", "url"]):
            stated: dict[str, Any] = {
                **dict.fromkeys(schema.names, 0),
                "url": pa.array([b""] * table.num_rows, pa.binary()),
                "host_key": table.column("host_key").chunk(0),
                "path_key": _paths(table),
            }
            rows = filled(schema, table.num_rows, stated).to_batches()[0]
            service.apply([Message(0, encode(RowKind.LINK, rows, digest), b"", 0)], Outputs(digest))
        counted: Any = service
        if generation is not None and counted.counters.urls_new != generation.meta.urls:
            found = counted.counters.urls_new
            msg = f"{generation.folder}: {generation.meta.urls} URLs have {found} different keys"
            raise CorruptGeneration(msg)
        return service


def foundation_of(campaign: Campaign) -> Foundation:
    """How to found partitions of an open campaign."""
    topics = [spec.input_topic for spec in campaign.specs]
    ids = {topic: campaign.bus.topic_id(topic) for topic in topics}
    return Foundation(campaign.data, campaign.identity, campaign.policy, ids, campaign.parameters)


def token() -> str:
    """A random part of a file name."""
    return secrets.token_hex(6)


def _prioritizer(spec: ServiceSpec, partition: int, generation: Generation | None) -> Service:
    """The prioritizer's state with all URLs as admitted, or parked, and without cash."""
    service = spec.create(partition, dict(spec.parameters))
    if generation is None:
        return service
    owner: Any = service
    owner.reserve(generation.meta.urls, generation.meta.hosts)
    for table in generation.hosts(_HOST_COLUMNS):
        column = {name: table.column(name).to_numpy() for name in _HOST_COLUMNS}
        owner.recover_hosts(
            column["host_key"],
            flags=column["flags"],
            depth_cap=column["depth_cap"],
            score=column["host_score"],
            crawl_delay=column["crawl_delay_set"],
        )
    for table in _groups(generation, _URL_COLUMNS):
        column = {name: table.column(name).to_numpy() for name in _URL_COLUMNS if name != "url"}
        crawled = column["last_crawled"].astype(np.int64)
        # Records keep the hour alone: a visit that is told of again is never taken for a new one.
        last_visit = np.where(crawled > 0, crawled * 3600 + _LAST_SECOND, 0)
        owner.recover_urls(
            column["host_key"],
            _paths(table).to_numpy(),
            depth=column["depth"],
            priority=column["priority"],
            reason=column["reason"],
            last_visit=np.minimum(last_visit, 0xFFFFFFFF).astype(np.uint32),
            excluded=column["status"] == Status.EXCLUDED_ROBOTS,
        )
    return service


def _groups(generation: Generation | None, columns: list[str]) -> Iterator[pa.Table]:
    for group in range(generation.groups if generation else 0):
        assert generation is not None, "it has row groups"
        yield generation.urls(group, columns).combine_chunks()


def _paths(table: pa.Table) -> pa.UInt64Array:
    return pa.array(url_paths(table.column("url").chunk(0)))
