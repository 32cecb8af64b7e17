"""Rows for the store, a shard with its snapshots, and a plain twin of both that keeps dicts and folds one by one."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa

from meguri_common.bus.port import Message
from meguri_common.identity import CampaignIdentity
from meguri_common.keys import host_key, path_key
from meguri_common.records import CRAWL_DELAY_UNSET, NO_DEPTH, Status, UpdateField
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.snapshots import SnapshotStore
from meguri_common.wire.envelope import encode
from meguri_common.wire.schemas import SCHEMAS, RowKind
from meguri_store.queries import Shard
from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA
from meguri_store.service import CompactionRules, Store

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = CampaignIdentity(
    campaign="test", partitions=1, group_by="registrable", policy="p", suffix_list="s", url_parser="u"
)
PARAMETERS = {"flat_gap": 168, "max_retries": 5}
HOUR = 3600
START = 490_000 * HOUR

Op = tuple[RowKind, dict[str, Any]]


def url_of(host: str, page: str) -> bytes:
    return f"https://www.{host}/{page}".encode()


def keys_of(url: bytes) -> dict[str, int]:
    group = url.split(b"/")[2].removeprefix(b"www.")
    return {"host_key": host_key(group), "path_key": path_key(url)}


def admitted(url: bytes, *, at: int = START, priority: float = 0.5, depth: int = 1, reason: int = 0) -> Op:
    group = url.split(b"/")[2].removeprefix(b"www.")
    return RowKind.ADMITTED, {
        "url": url,
        **keys_of(url),
        "group_at": url.index(group),
        "group_len": len(group),
        "depth": depth,
        "source": 1,
        "at": at,
        "priority": priority,
        "reason": int(reason),
    }


def update(url: bytes, fields: int, *, priority: float = 0.0, depth: int = 0, at: int = START) -> Op:
    return RowKind.UPDATE, {
        **keys_of(url),
        "fields": int(fields),
        "priority": priority,
        "depth": depth,
        "at": at,
    }


def visit(url: bytes, *, at: int = START, status: int = 200, **facts: Any) -> Op:
    row = {
        "fetched_at": at,
        "status": status,
        "error": 0,
        "flags": 0,
        "depth": NO_DEPTH,
        "content_fp": 0,
        "simhash": 0,
        "etag": b"",
        "last_modified": 0,
        "redirect": b"",
        "retry_after": 0,
        "crawl_delay": CRAWL_DELAY_UNSET,
        "latency": 0,
    }
    assert not facts.keys() - row.keys()
    return RowKind.OUTCOME, {**keys_of(url), **row, **facts}


def host(name: str, **facts: Any) -> Op:
    row = {
        "flags": 0,
        "url_budget": 0,
        "url_count": 0,
        "depth_cap": 0,
        "host_score": 0.0,
        "crawl_delay": CRAWL_DELAY_UNSET,
    }
    assert not facts.keys() - row.keys()
    return RowKind.HOST, {"host_key": host_key(name.encode()), **row, **facts}


def batches(ops: list[Op]) -> list[tuple[RowKind, pa.RecordBatch]]:
    """Consecutive operations of a kind, together."""
    return [
        (kind, pa.RecordBatch.from_pylist([row for _, row in group], SCHEMAS[kind]))
        for kind, group in itertools.groupby(ops, key=lambda op: op[0])
    ]


def messages(ops: list[Op], start: int = 0) -> list[Message]:
    """Consecutive operations of a kind travel in one envelope."""
    campaign = IDENTITY.digest()
    return [Message(start + at, encode(kind, batch, campaign), b"", 0) for at, (kind, batch) in enumerate(batches(ops))]


class QuickFiles(LocalFiles):
    """Without the fsyncs, which nothing here can observe."""

    def sync(self, file: BinaryIO) -> None:
        file.flush()

    def sync_folder(self, path: str) -> None:
        assert self.is_folder(path)

    def make_folder(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)


class World:
    """A shard, with its snapshots below a folder; dies and restores on demand."""

    def __init__(
        self,
        root: Path,
        *,
        rules: CompactionRules | None = None,
        files: Any = None,
        parameters: dict[str, Any] | None = None,
        jobs: Any = None,
    ) -> None:
        self.jobs = jobs
        self.now = 0.0
        self.files = files or QuickFiles(root)
        self.rules = rules or CompactionRules(rows=1 << 40, group_rows=4)
        self.parameters = parameters or PARAMETERS
        self.random = random.Random(7)
        self.offset = 0
        self.store = self.fresh()
        self.snapshots = SnapshotStore(
            self.files,
            "store",
            0,
            token=self.token,
            now=lambda: self.now,
            grace=60.0,
            folders=("store/shard-00000",),
        )
        self.last = None

    def token(self) -> str:
        return f"{self.random.getrandbits(32):08x}"

    def fresh(self) -> Store:
        return Store(
            0, IDENTITY, self.files, self.token, self.parameters, self.rules, jobs=self.jobs, now=lambda: self.now
        )

    def feed(self, ops: list[Op]) -> None:
        found = messages(ops, self.offset)
        self.store.apply(found, Outputs(IDENTITY.digest()))
        self.offset += len(found)

    def snapshot(self, *, compact: bool = False, quick: bool = False) -> None:
        if compact:
            self.store.request_compaction()
        writer = self.snapshots.writer(self.offset, self.last, quick=quick)
        self.store.save(writer)
        self.last = self.snapshots.commit(
            writer, topic_id="t", identity=IDENTITY, parameters=self.parameters, logic_version=1
        )
        self.store.saved()

    def restore(self) -> None:
        """Throw the memory away and take the newest whole snapshot; what came after it is the caller's to feed."""
        whole = self.snapshots.whole()
        self.store = self.fresh()
        self.last, self.offset = None, 0
        if whole:
            self.last, self.offset = whole[0], whole[0].offset
            self.store.load(self.snapshots.reader(whole[0]))

    def shard(self) -> Shard:
        return Shard(self.store.base, self.store.log, self.store.rules, IDENTITY.group_by)

    def urls(self) -> list[dict[str, Any]]:
        return [record for chunk in self.shard().records() for record in chunk.to_pylist()]

    def hosts(self) -> list[dict[str, Any]]:
        return [record for chunk in self.shard().hosts() for record in chunk.to_pylist()]


def rate_of(record: dict[str, Any]) -> float:
    """Changes an hour as the counters tell, in single precision."""
    gaps, hours = record["crawl_count"] - 1, record["last_crawled"] - record["first_seen"]
    if gaps < 1 or hours <= 0:
        return float(np.float32(1 / 8760))
    gap = hours / gaps

    def rate(unchanged: int, of: int) -> float:
        return -math.log((unchanged + 0.5) / (of + 1)) / gap

    overall = rate(max(gaps - record["change_count"], 0), gaps)
    streak = record["no_change_streak"]
    if streak:
        trust = math.exp(-streak / 8)
        overall = min(overall, trust * overall + (1 - trust) * rate(streak, streak))
    return float(np.float32(min(max(overall, 1 / 8760), 4)))


def fold_one(record: dict[str, Any], visit: dict[str, Any]) -> str:
    """Fold a visit into a record, in place; gives crawl, failure or neither."""
    kind = _fold_by_table(record, visit)
    if kind == "crawl" and record["status"] == Status.CRAWLED:
        record["lambda"] = rate_of(record)
    return kind


def _fold_by_table(record: dict[str, Any], visit: dict[str, Any]) -> str:  # noqa: PLR0911 - a table has many cells
    """Cell by cell of the outcome table."""
    hour = visit["fetched_at"] // HOUR
    status, flags = visit["status"], visit["flags"]
    gone = record["status"] == Status.GONE
    record["http_status"] = status
    before = dict(record)

    def settle(state: Status, due: int) -> None:
        record["status"], record["next_due"], record["reason"] = int(state), min(due, 2**32 - 1), 0

    def count(name: str, most: int) -> None:
        record[name] = min(record[name] + 1, most)

    def crawl() -> None:
        record["retry_count"] = 0
        record["first_seen"] = record["first_seen"] or hour
        record["last_crawled"] = hour
        count("crawl_count", 2**32 - 1)
        record["etag"] = visit["etag"] or record["etag"]
        record["last_modified"] = visit["last_modified"] or record["last_modified"]
        settle(Status.CRAWLED, hour + 168)

    def failure() -> str:
        count("error_count", 0xFFFF)
        count("retry_count", 0xFF)
        if record["retry_count"] >= 5 or gone:
            settle(Status.GONE, 0)
            return "failure"
        wait = min(2 ** (record["retry_count"] - 1), 168)
        if visit["retry_after"]:
            whole_hours = 0
            while hour * HOUR + whole_hours * HOUR < visit["fetched_at"] + visit["retry_after"] and whole_hours < 168:
                whole_hours += 1
            wait = max(wait, whole_hours)
        settle(Status.DUE_RECRAWL if before["crawl_count"] else Status.SCHEDULED, hour + wait)
        return "failure"

    if status == 0 and visit["error"] == 5:
        settle(Status.GONE if gone else Status.EXCLUDED_ROBOTS, 0)
        return "neither"
    if status == 0:
        return failure()
    if status == 304 or flags & 1:
        crawl()
        count("no_change_streak", 0xFFFF)
    elif status in (301, 302, 303, 307, 308) and flags & 4:
        return failure()
    elif 100 <= status < 200 or 300 <= status < 400:
        crawl()
        target = visit["redirect"] if status in (301, 302, 303, 307, 308) else b""
        record["redirect"] = target.decode() or None
    elif status == 410:
        count("error_count", 0xFFFF)
        settle(Status.GONE, 0)
        return "failure"
    elif status >= 400:
        return failure()
    else:
        crawl()
        record["redirect"] = None
        fp, old = visit["content_fp"], record["content_fp"]
        if flags & 16:
            settle(Status.GONE, 0)
            return "crawl"
        if fp == 0 or flags & 8:
            return "crawl"
        if old == fp:
            count("no_change_streak", 0xFFFF)
            return "crawl"
        near = record["simhash"] and visit["simhash"] and (record["simhash"] ^ visit["simhash"]).bit_count() <= 3
        if old and near:
            count("no_change_streak", 0xFFFF)
        elif old:
            count("change_count", 2**32 - 1)
            record["no_change_streak"] = 0
            record["last_changed"] = hour
        record["content_fp"], record["simhash"] = fp, visit["simhash"]
        return "crawl"
    if gone:
        settle(Status.GONE, 0)
    return "crawl"


class PlainStore:
    """Records as dicts, changed one operation after another."""

    def __init__(self) -> None:
        self.records: dict[tuple[int, int], dict[str, Any]] = {}
        self.host_records: dict[int, dict[str, Any]] = {}

    def _host(self, key: int) -> dict[str, Any]:
        blank = {field.name: None if field.nullable else 0 for field in HOST_SCHEMA}
        blank |= {"host_key": key, "host_group": "", "host_score": 0.0, "crawl_delay": 100}
        blank |= {"crawl_delay_set": CRAWL_DELAY_UNSET, "crawl_delay_stated": CRAWL_DELAY_UNSET}
        return self.host_records.setdefault(key, blank)

    def apply(self, ops: list[Op]) -> None:
        for kind, row in ops:
            getattr(self, kind.name.lower())(row)

    def admitted(self, row: dict[str, Any]) -> None:
        owner = self._host(row["host_key"])
        if not owner["host_group"]:
            begin = row["group_at"]
            owner["host_group"] = row["url"][begin : begin + row["group_len"]].decode()
            owner["registrable_domain"] = owner["host_group"]
        if (row["host_key"], row["path_key"]) in self.records:
            return
        record = {field.name: None if field.nullable else 0 for field in URL_SCHEMA}
        record |= {name: row[name] for name in ("host_key", "priority", "depth", "source", "reason")}
        record |= {"url": row["url"].decode(), "lambda": 0.0, "first_seen": row["at"] // HOUR}
        record["status"] = int(Status.TRAPPED if row["reason"] else Status.SCHEDULED)
        record["next_due"] = 0 if row["reason"] else max(row["at"] // HOUR, 1)
        self.records[row["host_key"], row["path_key"]] = record

    def update(self, row: dict[str, Any]) -> None:
        record = self.records.get((row["host_key"], row["path_key"]))
        if record is None:
            return
        if row["fields"] & UpdateField.PRIORITY:
            record["priority"] = row["priority"]
        if row["fields"] & UpdateField.DEPTH:
            record["depth"] = row["depth"]
        released = row["fields"] & UpdateField.RELEASE and record["status"] == Status.TRAPPED
        revived = row["fields"] & UpdateField.REVIVE and record["status"] in (Status.GONE, Status.EXCLUDED_ROBOTS)
        if released or revived:
            record |= {
                "status": int(Status.SCHEDULED),
                "reason": 0,
                "next_due": max(row["at"] // HOUR, record["first_seen"], 1),
            }
        if revived:
            record["retry_count"] = 0

    def host(self, row: dict[str, Any]) -> None:
        owner = self._host(row["host_key"])
        owner |= {name: row[name] for name in ("flags", "url_budget", "url_count", "depth_cap", "host_score")}
        owner["crawl_delay_set"] = row["crawl_delay"]
        self._delay(owner)

    def outcome(self, row: dict[str, Any]) -> None:
        record = self.records.get((row["host_key"], row["path_key"]))
        if record is None:
            return
        kind = fold_one(record, row)
        owner = self._host(row["host_key"])
        owner["crawl_total"] += kind == "crawl"
        owner["error_total"] += kind == "failure"
        if row["latency"]:
            mean = owner["avg_latency"]
            owner["avg_latency"] = (7 * mean + row["latency"] + 4) // 8 if mean else row["latency"]
        if row["crawl_delay"] != CRAWL_DELAY_UNSET:
            owner["crawl_delay_stated"] = row["crawl_delay"]
        self._delay(owner)

    @staticmethod
    def _delay(owner: dict[str, Any]) -> None:
        stated = [owner[name] for name in ("crawl_delay_set", "crawl_delay_stated")]
        owner["crawl_delay"] = next((delay for delay in stated if delay != CRAWL_DELAY_UNSET), 100)

    def urls(self) -> list[dict[str, Any]]:
        return sorted(self.records.values(), key=lambda record: (record["host_key"], record["url"]))

    def hosts(self) -> list[dict[str, Any]]:
        rows = self.urls()
        found = sorted(self.host_records.values(), key=lambda record: record["host_key"])
        for owner in found:
            owner["first_row"] = sum(row["host_key"] < owner["host_key"] for row in rows)
        return found
