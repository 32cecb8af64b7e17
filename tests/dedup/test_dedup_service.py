"""The dedup service against a plain-Python twin: same rows out, same counts, in any grouping, across snapshots."""

from __future__ import annotations

import itertools
import re

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meguri_common.bus.port import Message
from meguri_common.errors import CorruptSnapshot, EnvelopeError
from meguri_common.identity import CampaignIdentity
from meguri_common.records import LINK_REJECT_REASONS, NO_DEPTH
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.snapshots import SnapshotStore
from meguri_common.topics import FRONTIER, LINKS
from meguri_common.wire.envelope import decode, encode
from meguri_common.wire.schemas import ORDER, SCHEMAS, RowKind
from meguri_dedup.service import DEFAULTS, Dedup, dedup_spec

CAMPAIGN = 0x1234_5678_9ABC_DEF0
PARTITION = 3
PASSED = (RowKind.CONTROL, RowKind.HOST_SIGNAL, RowKind.URL_SIGNAL)
ADMISSION_COLUMNS = SCHEMAS[RowKind.ADMISSION].names


class Twin:
    """What dedup does, over dicts and a set."""

    def __init__(self):
        self.seen = set()
        self.out = {}
        self.counts = {
            "pages": 0,
            "links": 0,
            "rejected": [0] * len(LINK_REJECT_REASONS),
            "links_new": 0,
            "links_known": 0,
            "urls_new": 0,
        }

    def new(self, row):
        key = row["host_key"], row["path_key"]
        new = key not in self.seen
        self.seen.add(key)
        self.counts["urls_new"] += new
        return new

    def send(self, kind, row):
        self.out.setdefault(kind, []).append(row)

    def take(self, kind, row):
        if kind is RowKind.SEED:
            self.send(RowKind.SEEDED, row | {"new": int(self.new(row))})
            return
        if kind is RowKind.LINK:
            new = self.new(row)
            discovery = int(new and row["count"] > 0)
            self.counts["links_new"] += discovery
            self.counts["links_known"] += row["count"] - discovery
            if new:
                self.send(RowKind.ADMISSION, {name: row[name] for name in ADMISSION_COLUMNS})
            return
        if kind is RowKind.VISIT:
            self.counts["pages"] += 1
            self.counts["links"] += row["links"]
            self.counts["rejected"] = [a + b for a, b in zip(self.counts["rejected"], row["rejected"], strict=True)]
            if self.new(row):
                found = {name: row.get(name) for name in ADMISSION_COLUMNS}
                found |= {"source_host": 0, "source": 0 if row["depth"] == 0 else 4, "at": row["fetched_at"]}
                self.send(RowKind.ADMISSION, found)
        self.send(kind, row)


def url_columns(draw):
    url = draw(st.integers(0, 11))
    host = [0, 1, (1 << 64) - 1][url % 3]
    return {"url": b"http://h/%d" % url, "host_key": host, "path_key": url // 3, "group_at": 7, "group_len": url % 3}


def plain_value(draw, field):
    if pa.types.is_floating(field.type):
        return draw(st.sampled_from([0.0, 0.5, -2.0]))
    if pa.types.is_binary(field.type):
        return draw(st.binary(max_size=5))
    if pa.types.is_fixed_size_list(field.type):
        return [draw(st.integers(0, 3)) for _ in range(field.type.list_size)]
    if pa.types.is_list(field.type):
        return draw(st.lists(st.integers(0, 9), max_size=2))
    return draw(st.integers(0, 2 ** min(field.type.bit_width, 64) - 1))


@st.composite
def streams(draw):
    """Messages as (kind, rows)."""
    messages = []
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from([RowKind.LINK, RowKind.VISIT, RowKind.SEED, *PASSED]))
        rows = []
        for _ in range(draw(st.integers(1, 5))):
            row = {field.name: plain_value(draw, field) for field in SCHEMAS[kind]}
            row |= {name: value for name, value in url_columns(draw).items() if name in row}
            if kind is RowKind.LINK:
                row["count"] = draw(st.sampled_from([0, 0, 1, 2, 2**32 - 1]))
            if kind is RowKind.VISIT:
                row["depth"] = draw(st.sampled_from([0, 1, NO_DEPTH]))
            rows.append(row)
        messages.append((kind, rows))
    return messages


def message(offset, kind, rows):
    return Message(offset, encode(kind, pa.RecordBatch.from_pylist(rows, schema=SCHEMAS[kind]), CAMPAIGN), b"", 0)


def groups(items, sizes):
    ends = [0, *(min(end, len(items)) for end in itertools.accumulate(sizes)), len(items)]
    return [items[start:end] for start, end in itertools.pairwise(ends)]


def run(service, messages):
    """Apply as one step; rows sent, by kind."""
    outputs = Outputs(CAMPAIGN)
    service.apply([message(offset, *each) for offset, each in enumerate(messages)], outputs)
    sent, ranks = {}, []
    for target, payload in outputs.envelopes():
        assert (target.topic, target.partition) == (FRONTIER, PARTITION)
        kind, batch = decode(payload, CAMPAIGN)
        sent.setdefault(kind, []).extend(batch.to_pylist())
        ranks.append(ORDER[kind])
    assert ranks == sorted(ranks)
    return sent


def fresh():
    return Dedup(PARTITION, CAMPAIGN, {"capacity": 5})


def keys_of(service):
    host, path = service._seen.keys()
    return sorted(zip(host.tolist(), path.tolist(), strict=True))


def state_of(service):
    return keys_of(service), vars(service.counters)


def store_at(folder):
    names = itertools.count()
    return SnapshotStore(
        LocalFiles(folder), "dedup", PARTITION, token=lambda: f"{next(names):04x}", now=lambda: 0.0, grace=1e9
    )


IDENTITY = CampaignIdentity(campaign="test", partitions=4, group_by="host", policy="", suffix_list="", url_parser="")


def snapshot(store, service, offset, previous, *, quick=False):
    writer = store.writer(offset, previous, quick=quick)
    service.save(writer)
    return store.commit(writer, topic_id="t", identity=IDENTITY, parameters=dict(DEFAULTS), logic_version=1)


def restored(store, taken):
    service = fresh()
    service.load(store.reader(taken))
    return service


@settings(deadline=None, max_examples=150)
@given(streams(), st.lists(st.integers(1, 4), max_size=8))
def test_agrees_with_the_twin_in_any_grouping(messages, sizes):
    twin, service = Twin(), fresh()
    sent = {}
    for step in groups(messages, sizes):
        for kind, rows in run(service, step).items():
            sent.setdefault(kind, []).extend(rows)
    for kind, rows in messages:
        for row in rows:
            twin.take(kind, row)
    assert sent == twin.out
    assert state_of(service) == (sorted(twin.seen), twin.counts)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    streams(),
    st.lists(st.integers(1, 3), max_size=8),
    st.lists(st.sampled_from(["save", "save quickly", "lose the save", "restart"]), min_size=8, max_size=8),
)
def test_snapshots_in_the_middle_change_nothing(tmp_path_factory, messages, sizes, events):
    """Steps with saves between; a restart goes back to the last durable save and takes the steps since again."""
    store = store_at(tmp_path_factory.mktemp("state"))
    service, straight = fresh(), fresh()
    steps = groups(messages, sizes)
    last, since = None, []
    for step, event in zip(steps, itertools.cycle(events)):
        assert run(service, step) == run(straight, step)
        since.append(step)
        if event == "lose the save":
            service.save(store.writer(0, last, quick=False))
        elif event == "restart":
            service = restored(store, last) if last else fresh()
            for again in since:
                run(service, again)
        else:
            last = snapshot(store, service, len(steps), last, quick=event == "save quickly")
            service.saved()
            since = []
            assert state_of(restored(store, last)) == state_of(straight)
        assert state_of(service) == state_of(straight)


def link_rows(numbers, count=1):
    return [
        {
            "url": b"u%d" % number,
            "host_key": 1,
            "path_key": number,
            "group_at": 0,
            "group_len": 1,
            "source_host": 9,
            "depth": 2,
            "source": 1,
            "count": count,
            "at": 100,
        }
        for number in numbers
    ]


def test_snapshots_are_incremental(tmp_path):
    store, service, last = store_at(tmp_path), fresh(), None
    steps = 60
    for step in range(steps):
        run(service, [(RowKind.LINK, link_rows(range(step * 100, step * 100 + 100)))])
        last = snapshot(store, service, step, last)
        service.saved()
    state = steps * 100 * 16
    assert store.bytes_written < 3 * 2 * state + 3 * steps * 2000  # 2,000: manifest and frame of a file
    assert state_of(restored(store, last)) == state_of(service)
    assert run(restored(store, last), [(RowKind.LINK, link_rows(range(steps * 100)))]) == {}


def test_snapshot_with_a_key_twice_is_refused(tmp_path):
    store, service = store_at(tmp_path), fresh()
    run(service, [(RowKind.LINK, link_rows(range(5)))])
    writer = store.writer(1, None, quick=False)
    service.save(writer)
    writer.kept.append(writer.kept[0])
    taken = store.commit(writer, topic_id="t", identity=IDENTITY, parameters={}, logic_version=1)
    with pytest.raises(CorruptSnapshot, match="10 keys, 5 of them distinct"):
        restored(store, taken)


def test_large_batches_keep_rows_in_order():
    service = fresh()
    numbers = [number * 7919 % 5000 for number in range(20_000)]
    sent = run(service, [(RowKind.LINK, link_rows(numbers, count=2))])
    assert [row["path_key"] for row in sent[RowKind.ADMISSION]] == list(dict.fromkeys(numbers))
    assert all(row["url"] == b"u%d" % row["path_key"] for row in sent[RowKind.ADMISSION])
    assert vars(service.counters) | {"rejected": None} == {
        "pages": 0,
        "links": 0,
        "rejected": None,
        "links_new": 5000,
        "links_known": 35_000,
        "urls_new": 5000,
    }


def test_look_and_stats():
    service = dedup_spec(CAMPAIGN, {"fp_rate": 1e-6}).create(PARTITION, {"fp_rate": 1e-6})
    run(service, [(RowKind.LINK, link_rows([1, 2, 1], count=3))])
    assert service.look(1, 1) == {"seen": True, "maybe": True}
    assert service.look(1, 3) == {"seen": False, "maybe": False}
    stats = service.stats()
    assert stats["counters"]["links_new"] == 2
    assert stats["counters"]["links_known"] == 7
    assert {f"rejected_{reason}" for reason in LINK_REJECT_REASONS} <= set(stats["counters"])
    assert (stats["gauges"]["keys"], stats["gauges"]["base_probes"]) == (2, 1)


def test_rows_that_do_not_belong_here_are_refused():
    row = {"host_key": 1}
    with pytest.raises(EnvelopeError, match=re.escape(f"message 0 of {LINKS}[3] holds RELEASE rows")):
        run(fresh(), [(RowKind.RELEASE, [row])])


def test_parameters_are_checked():
    assert dedup_spec(1, {"capacity": 7}).parameters == {
        "capacity": 7,
        "fp_rate": 0.01,
        "memory_bytes": 0,
        "trust_filter": False,
    }
    with pytest.raises(ValueError, match="no parameter fprate"):
        dedup_spec(1).create(0, {"fprate": 0.1})
    with pytest.raises(ValueError, match="at least 1"):
        dedup_spec(1).create(0, {"capacity": 0})
