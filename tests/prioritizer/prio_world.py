"""Messages of the frontier topic for tests, and a prioritizer fed with them."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meguri_common.bus.port import Message
from meguri_common.identity import CampaignIdentity
from meguri_common.records import LINK_REJECT_REASONS, NO_DEPTH
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.simulated import SimulatedFiles
from meguri_common.runtime.snapshots import SnapshotStore
from meguri_common.topics import DELTAS
from meguri_common.wire.envelope import decode, encode
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_prioritizer.service import DEFAULTS, Prioritizer

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

CAMPAIGN = 77
HOSTS = (0, 3, 1 << 40, (1 << 63) + 5, (1 << 64) - 1)
PATHS = (0, 1, 2, 1 << 50, (1 << 64) - 7)
SMALL = {
    **DEFAULTS,
    "base_budget": 2, "per_in_link": 1, "min_budget": 1, "release_batch": 2, "teleport_rate": 0.3, "discount": 0.9,
}  # fmt: skip
Rows = list[dict[str, Any]]
IDENTITY = CampaignIdentity(
    campaign="test", partitions=2, group_by="registrable", policy="", suffix_list="", url_parser=""
)


def url_row(host: int, path: int) -> dict[str, Any]:
    return {"url": b"u%d/%d" % (host, path), "host_key": host, "path_key": path, "group_at": 1, "group_len": 2}


def visit_row(host: int, path: int, at: int, targets: Sequence[tuple[int, int]] = (), **facts: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        **url_row(host, path), "fetched_at": at, "status": 200, "error": 0, "flags": 0, "depth": NO_DEPTH,
        "content_fp": 0, "simhash": 0, "etag": b"", "last_modified": 0, "redirect": b"", "retry_after": 0,
        "crawl_delay": 0xFFFF, "latency": 0, "links": len(targets), "rejected": [0] * len(LINK_REJECT_REASONS),
        "target_host": [target[0] for target in targets], "target_path": [target[1] for target in targets],
    }  # fmt: skip
    return row | facts


def seed_row(host: int, path: int, at: int, cash: int = 1 << 32, new: int = 1) -> dict[str, Any]:
    return {**url_row(host, path), "observed_at": at, "cash": cash, "new": new}


def admission_row(host: int, path: int, depth: int = NO_DEPTH, at: int = 1) -> dict[str, Any]:
    return {**url_row(host, path), "source_host": 9, "depth": depth, "source": 1, "at": at}


def control_row(host: int, action: int, at: int, value: float = math.nan, path: int = 0) -> dict[str, Any]:
    return {"at": at, "action": action, "host_key": host, "path_key": path, "value": value}


def credit_row(host: int, path: int, units: int, depth: int = NO_DEPTH) -> dict[str, Any]:
    return {"host_key": host, "path_key": path, "units": units, "depth": depth}


def message(kind: RowKind, rows: Rows, offset: int = 0) -> Message:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMAS[kind])
    return Message(offset, encode(kind, batch, CAMPAIGN), b"", 0)


def random_messages(rng: random.Random, count: int) -> list[tuple[RowKind, Rows]]:
    """A stream with everything in it, in no sensible order. Dedup's mark is kept: each URL is admitted once."""
    admitted: set[tuple[int, int]] = set()
    hosts = rng.sample(HOSTS, rng.randint(1, len(HOSTS)))
    out = []
    for step in range(count):
        kind = rng.choice([*RowKind][:3] + [RowKind.SEEDED, RowKind.RELEASE, RowKind.VOTE]
                          + [RowKind.ADMISSION, RowKind.VISIT, RowKind.CREDIT] * 3)  # fmt: skip
        rows = []
        for _ in range(rng.randint(1, 6)):
            key = (rng.choice(hosts), rng.choice(PATHS))
            at = step + rng.randint(0, 6)
            match kind:
                case RowKind.CONTROL:
                    value = rng.choice([math.nan, 0, 1, 2, 3, 30])
                    rows.append(control_row(key[0], rng.randint(1, 8), at, value, rng.choice([0, 0, key[1]])))
                case RowKind.HOST_SIGNAL:
                    rows.append({"host_key": key[0], "score": rng.choice([0.0, 0.5, 3.0]), "epoch": rng.randint(0, 5)})
                case RowKind.URL_SIGNAL:
                    rank = {"rank": rng.choice([0.0, 0.25, 2.0]), "epoch": rng.randint(0, 5)}
                    rows.append({"host_key": key[0], "path_key": key[1], **rank})
                case RowKind.SEEDED:
                    cash = rng.choice([0, 1, 1 << 32, (1 << 62) + 1])
                    rows.append(seed_row(*key, at, cash, int(key not in admitted)))
                    admitted.add(key)
                case RowKind.ADMISSION if key not in admitted or rng.random() < 0.05:
                    admitted.add(key)
                    rows.append(admission_row(*key, rng.choice([NO_DEPTH, 0, 1, 2, 3, 5, 400]), at))
                case RowKind.VISIT:
                    rows.append(_random_visit(rng, hosts, key, at))
                case RowKind.CREDIT:
                    units = rng.choice([0, 1, 1000, 1 << 30, 3 << 32])
                    rows.append(credit_row(*key, units, rng.choice([NO_DEPTH, 0, 1, 2, 4, 300, 65000])))
                case RowKind.VOTE:
                    rows.append({"host_key": key[0], "source_host": rng.choice([*HOSTS, *range(100, 130)])})
                case RowKind.RELEASE:
                    rows.append({"host_key": key[0]})
        if rows:
            out.append((kind, rows))
    return out


def _random_visit(rng: random.Random, hosts: list[int], key: tuple[int, int], at: int) -> dict[str, Any]:
    status = rng.choice([200, 200, 200, 204, 301, 308, 304, 404, 0])
    targets = list({(rng.choice(hosts), rng.choice(PATHS)) for _ in range(rng.randint(0, 8))} - {key})
    facts: dict[str, Any] = {"status": status, "depth": rng.choice([NO_DEPTH, NO_DEPTH, 0, 1, 4])}
    if status == 301:
        targets = targets[:1]
        facts["redirect"] = rng.choice([b"there", b""])
    if status == 0:
        facts["error"] = rng.choice([1, 5, 5])
    return visit_row(*key, at, targets, **facts)


def listed(outputs: Outputs) -> dict[tuple[str, int], list[tuple[RowKind, Rows]]]:
    """What a step sends: topic and partition -> batches in order."""
    out: dict[tuple[str, int], list[tuple[RowKind, Rows]]] = defaultdict(list)
    for target, payload in outputs.envelopes():
        kind, batch = decode(payload, CAMPAIGN)
        out[target.topic, target.partition].append((kind, batch.to_pylist()))
    return out


class Fed:
    """A prioritizer, and everything that it has sent."""

    def __init__(self, parameters: dict[str, Any] = SMALL, partition: int = 0, partitions: int = 2) -> None:
        self.parameters, self.partition, self.partitions = parameters, partition, partitions
        self.service = Prioritizer(partition, CAMPAIGN, partitions, parameters)
        self.sent: dict[RowKind, list[dict[str, Any]]] = defaultdict(list)
        self.to: dict[RowKind, set[tuple[int, int]]] = defaultdict(set)
        self.batches: list[tuple[RowKind, Rows]] = []
        self.files = SimulatedFiles(lambda: 0.0)
        self._tokens = 0
        self._store = SnapshotStore(self.files, "prioritizer", partition, token=self._token, now=lambda: 0.0, grace=1e9)
        self._last: Any = None

    def feed(self, *messages: tuple[RowKind, Rows]) -> None:
        """One step."""
        outputs = Outputs(CAMPAIGN)
        self.service.apply([message(kind, rows) for kind, rows in messages], outputs)
        for (topic, partition), batches in listed(outputs).items():
            for kind, rows in batches:
                self.sent[kind] += rows
                if topic == DELTAS:
                    assert partition == self.partition
                    self.batches.append((kind, rows))
                for row in rows if topic != DELTAS else ():
                    self.to[kind].add((row["host_key"], partition))

    def snapshot(self, *, quick: bool = False, confirm: bool = True) -> None:
        writer = self._store.writer(self._tokens, self._last, quick=quick)
        self.service.save(writer)
        snapshot = self._store.commit(
            writer, topic_id="t", identity=IDENTITY, parameters=self.parameters, logic_version=1
        )
        if confirm:
            self.service.saved()
            self._last = snapshot

    def restore(self) -> None:
        """Throw the memory away and go on from the last snapshot."""
        self.service = Prioritizer(self.partition, CAMPAIGN, self.partitions, self.parameters)
        self.service.load(self._store.reader(self._store.whole()[0]))

    def look(self, host: int, path: int) -> dict[str, Any]:
        return self.service.look(host, path)

    def _token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:08x}"
