"""The fleet's commands against a real broker."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import count

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from fleet_world import page_line

from meguri.__main__ import main
from meguri.fleet.cluster import Cluster
from meguri.fleet.connecting import open_bus
from meguri.fleet.reading import span
from meguri_common.bus.port import TopicPartition
from meguri_common.config import KafkaSettings, Settings, load_settings
from meguri_common.errors import DeliveryFailed, Fenced
from meguri_common.kafka import kafka_module
from meguri_common.sdk import Publisher, group_of_event, pages_partition
from meguri_common.topics import DELTAS, LEDGER, LINKS, PAGES, REJECTS
from meguri_common.wire.envelope import encode
from meguri_common.wire.schemas import SCHEMAS, RowKind

PAGES_PARTITIONS = 4
_numbers = count()


class Fleet:
    """A campaign of its own on the broker, and commands that speak to it."""

    def __init__(self, bootstrap: str, data, capfd, monkeypatch) -> None:
        self.data = data
        self._capfd = capfd
        self.env = {
            "MEGURI_KAFKA_BOOTSTRAP": bootstrap,
            "MEGURI_KAFKA_PREFIX": f"t{secrets.token_hex(4)}-{next(_numbers)}.",
            "MEGURI_DATA": str(data),
            "MEGURI_TOPICS_PAGES_PARTITIONS": str(PAGES_PARTITIONS),
            "MEGURI_TOPICS_DUE_PARTITIONS": "2",
        }
        for name, value in self.env.items():
            monkeypatch.setenv(name, value)
        self.kafka: KafkaSettings = self.settings.kafka

    @property
    def settings(self) -> Settings:
        return load_settings(env=os.environ).settings

    def run(self, *arguments: str, code: int = 0) -> str:
        """A command's standard output; its standard error where it failed as expected."""
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        self._capfd.readouterr()
        try:
            found = main([*arguments])
        finally:
            for number, handler in zip((signal.SIGTERM, signal.SIGINT), handlers, strict=True):
                signal.signal(number, handler)
        out, err = self._capfd.readouterr()
        assert found == code, err
        return out + (err if code else "")

    def json(self, *arguments: str, code: int = 0):
        out = self.run(*arguments, "--json", code=code)
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def lines(self) -> list[list[bytes]]:
        """Lines of the pages by partition."""
        bus, out = open_bus(self.settings), []
        for number in range(PAGES_PARTITIONS):
            source = TopicPartition(self.kafka.topic(PAGES), number)
            payloads = [bytes(placed.message.payload) for placed in span(bus, source, 0, 1 << 60)]
            out.append(b"".join(payloads).split(b"\n")[:-1])
        bus.close()
        return out

    def put(self, topic: str, partition: int, *payloads: bytes) -> None:
        bus = open_bus(self.settings)
        producer = bus.producer("test")
        producer.begin()
        for payload in payloads:
            producer.publish(TopicPartition(self.kafka.topic(topic), partition), payload)
        producer.commit()
        bus.close()


@pytest.fixture
def fleet(kafka_bootstrap, tmp_path, capfd, monkeypatch):
    made = Fleet(kafka_bootstrap, tmp_path / "root", capfd, monkeypatch)
    made.run("topics", "create", "--partitions", "2")
    return made


def content(lines: int, padding: int = 0) -> list[bytes]:
    return [page_line(f"h{number % 9}.example", number, padding) for number in range(lines)]


def check(fleet: Fleet, lines: list[bytes]) -> None:
    found = fleet.lines()
    assert Counter(line for part in found for line in part) == Counter(lines)
    for number, part in enumerate(found):
        assert part == [line for line in lines if pages_partition(group_of_event(line), PAGES_PARTITIONS) == number]


def test_topics_are_made_once_and_checked(fleet, tmp_path, monkeypatch):
    (made,) = fleet.json("topics", "create")
    assert {topic["topic"].removeprefix(fleet.kafka.prefix): topic["partitions"] for topic in made["topics"]} == {
        "pages": 4, "links": 2, "frontier": 2, "deltas": 2, "due": 2, "rejects": 1, "telemetry": 1, "ledger": 1,
        "skips": 1,
    }  # fmt: skip
    assert not any(topic["made"] for topic in made["topics"])
    assert "fits" in fleet.run("topics", "check")

    monkeypatch.setenv("MEGURI_TOPICS_PAGES_PARTITIONS", "5")
    monkeypatch.setenv("MEGURI_TOPICS_REJECTS_RETENTION_HOURS", "1")
    pages, rejects = fleet.kafka.topic(PAGES), fleet.kafka.topic(REJECTS)
    said = fleet.run("topics", "check", code=1)
    assert f"{pages}: partitions is 4, wanted is 5\n" in said
    assert f"{rejects}: retention.ms is 2592000000, wanted is 3600000\n" in said
    assert "partitions is 4, wanted is 5" in fleet.run("topics", "create", code=4)
    monkeypatch.undo()
    for name, value in fleet.env.items():
        monkeypatch.setenv(name, value)

    assert "made with 2 partitions" in fleet.run("topics", "create", "--partitions", "3", code=4)
    fleet.put(LINKS, 0, b"of another campaign")
    monkeypatch.setenv("MEGURI_DATA", str(tmp_path / "other"))
    assert "no campaign there" in fleet.run("topics", "check", code=4)
    assert "knows nothing of" in fleet.run("topics", "create", "--partitions", "2", code=4)
    assert not (tmp_path / "other").exists(), "a refusal leaves nothing behind"


def test_a_replication_that_cant_be_had_is_refused(fleet, monkeypatch):
    monkeypatch.setenv("MEGURI_TOPICS_REPLICATION", "3")
    monkeypatch.setenv("MEGURI_KAFKA_PREFIX", f"{fleet.kafka.prefix}more.")
    assert "replication factor" in fleet.run("topics", "create", code=4).lower()


def test_published_events_arrive_once_and_again_changes_nothing(fleet, tmp_path):
    lines = content(500, 300)
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"\n".join(lines[:300]))
    (first,) = fleet.json("publish", str(file))
    assert (first["lines"], first["already"], first["stopped"]) == (300, 0, False)
    file.write_bytes(b"\n".join(lines) + b"\n")
    (second,) = fleet.json("publish", str(file))
    assert second["lines"] == 200
    (third,) = fleet.json("publish", str(file))
    assert (third["messages"], third["lines"], third["already"]) == (0, 0, file.stat().st_size)
    check(fleet, lines)
    assert "3 events published" in fleet.run(
        "publish", "--seed", "https://example.org/", "--seed", "https://a.example/", "--vouch", "example.org"
    )
    assert "nowhere.jsonl" in fleet.run("publish", str(tmp_path / "nowhere.jsonl"), code=3)


def test_killed_in_the_middle_it_goes_on(fleet, say):
    """The first process is killed with one transaction committed and the rest to come."""
    lines = content(2300, 10_000)
    data = b"".join(line + b"\n" for line in lines)
    command = [sys.executable, "-m", "meguri", "publish", "-"]
    cluster, ledger = Cluster(fleet.kafka), fleet.kafka.topic(LEDGER)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process.stdin.write(data[: 18 << 20])
    deadline = time.monotonic() + 60
    while cluster.ends(ledger)[0][1] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    after_kill = sum(len(part) for part in fleet.lines())
    assert 0 < after_kill < len(lines)
    done = subprocess.run([*command, "--json"], input=data, stdout=subprocess.PIPE, check=True)
    second = json.loads(done.stdout)
    assert second["lines"] == len(lines) - after_kill
    assert second["already"] > 0
    check(fleet, lines)
    say("publish killed on Kafka", f"{after_kill} of {len(lines)} events were there after the kill")


def test_sigterm_stops_in_order(fleet):
    lines = content(2300, 10_000)
    data = b"".join(line + b"\n" for line in lines)
    command = [sys.executable, "-m", "meguri", "publish", "-", "--json"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(data[: 18 << 20])
    cluster, ledger = Cluster(fleet.kafka), fleet.kafka.topic(LEDGER)
    deadline = time.monotonic() + 60
    while cluster.ends(ledger)[0][1] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    first = json.loads(out)
    assert first["stopped"]
    second = json.loads(subprocess.run(command, input=data, stdout=subprocess.PIPE, check=True).stdout)
    assert first["lines"] + second["lines"] == len(lines)
    check(fleet, lines)


def test_a_publisher_that_is_fenced_while_it_publishes_hears_of_it_as_an_error_of_the_bus(fleet):
    """The client may say so while its events are served, and not only where a message is handed to it."""
    client = kafka_module()

    class Serving:
        """The real client, which hears of the newer one at its next `poll`."""

        def __init__(self, real) -> None:
            self.produce = real.produce

        def poll(self, seconds: float) -> int:
            assert seconds >= 0
            raise client.KafkaException(client.KafkaError(client.KafkaError._FENCED, "a newer one", fatal=True))

    bus = open_bus(fleet.settings)
    target = TopicPartition(fleet.kafka.topic(PAGES), 0)
    older = bus.producer("same")
    older.begin()
    older._client = Serving(older._client)
    with pytest.raises(Fenced, match="a newer one"):
        older.publish(target, b"x\n")
    newer = bus.producer("same")
    newer.begin()
    newer.publish(target, b"z\n")
    newer.commit()
    bus.close()
    assert fleet.lines()[0] == [b"z"]


def test_lag_and_waiting_for_it(fleet, tmp_path):
    (empty,) = fleet.json("lag", "--wait", "--timeout", "20")
    assert empty["drained"] is True
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"\n".join(content(50)))
    fleet.json("publish", str(file))
    (behind,) = fleet.json("lag")
    assert behind["drained"] is None
    service = behind["services"][0]
    assert (service["service"], service["instances"]) == ("canonicalizer", 0)
    assert service["lag"] == sum(place["end"] for place in service["partitions"]) > 0
    assert "no instance of canonicalizer is running" in fleet.run("lag", "--wait", "--timeout", "0.5", code=1)
    bus = open_bus(fleet.settings)
    pages = fleet.kafka.topic(PAGES)
    admin = Cluster(fleet.kafka)._admin
    client = kafka_module()
    ends = [client.TopicPartition(pages, place["partition"], place["end"]) for place in service["partitions"]]
    moved = admin.alter_consumer_group_offsets(
        [client.ConsumerGroupTopicPartitions(fleet.kafka.group("canonicalizer"), ends)]
    )
    next(iter(moved.values())).result()
    bus.close()
    (drained,) = fleet.json("lag", "--wait", "--timeout", "20")
    assert drained["drained"] is True
    assert all(each["lag"] == 0 for each in drained["services"])


def test_tail_decodes_events_and_envelopes_of_every_kind(fleet, tmp_path):
    file = tmp_path / "in.jsonl"
    lines = content(30)
    file.write_bytes(b"\n".join(lines))
    fleet.json("publish", str(file))
    shown = fleet.json("tail", "pages", "-n", "100")
    assert sum(row["count"] for row in shown) == 30
    assert all(row["headers"]["file"] == str(file) for row in shown)
    assert {event["fetched_at"] for row in shown for event in row["events"]} == set(range(30))

    envelopes = []
    for kind in RowKind:
        arrays = [pa.array([_example(field.type)], field.type) for field in SCHEMAS[kind]]
        envelopes.append(encode(kind, pa.RecordBatch.from_arrays(arrays, schema=SCHEMAS[kind]), 0xABC))
    fleet.put(DELTAS, 1, *envelopes[:8])
    fleet.put(DELTAS, 1, *envelopes[8:], b"mg\x01\x00")
    rows = fleet.json("tail", "deltas", "-n", "1000", "--partition", "1")
    assert [row["kind"] for row in rows[:-1]] == [kind.name for kind in RowKind]
    assert all(row["campaign"] == f"{0xABC:016x}" and row["count"] == 1 for row in rows[:-1])
    assert set(rows[4]["rows"][0]) == set(SCHEMAS[RowKind.LINK].names)
    assert rows[4]["rows"][0]["host_key"] == f"{7:016x}"
    assert rows[4]["rows"][0]["url"] == "https://example.org/"
    assert "no envelope" in rows[-1]["problem"]
    (one,) = fleet.json("tail", "deltas", "--partition", "1", "--from", str(rows[3]["offset"]), "-n", "1")
    assert one == rows[3]
    text = fleet.run("tail", "deltas", "-n", "3", "--rows", "1")
    assert "outcome x 1" in text
    assert (
        "no such topic" in fleet.run("tail", "nothing", code=4).lower()
        or "unknown topic" in fleet.run("tail", "nothing", code=4).lower()
    )


def _example(kind: pa.DataType):
    if pa.types.is_binary(kind):
        return b"https://example.org/"
    if pa.types.is_fixed_size_list(kind):
        return [7] * kind.list_size
    if pa.types.is_list(kind):
        return [7, 8]
    return float(np.float32(0.5)) if pa.types.is_floating(kind) else 7


def test_rejects_are_listed_and_retried(fleet):
    good, bad = page_line("a.example", 1), b'{"url":"https://a.example/","fetched_at":"soon"}'
    fleet.put(PAGES, 1, good + b"\n" + bad + b"\n")
    record = {
        "at_service": "canonicalizer", "topic": PAGES, "partition": 1, "offset": 0, "line": 1, "attempts": 1,
        "origin": {"file": "crawl.jsonl", "line": 2}, "reason": "invalid", "detail": "Expected `int`",
        "payload": msgspec.json.decode(msgspec.json.encode(bad)),
    }  # fmt: skip
    gone = {**record, "offset": 4000, "origin": None}
    fleet.put(REJECTS, 0, json.dumps(record).encode(), json.dumps(gone).encode())
    (listed,) = fleet.json("rejects", "list")
    assert (listed["fitting"], listed["by_reason"]) == (2, {"invalid": 2})
    assert [row["retried"] for row in listed["rejects"]] == [False, False]
    assert "crawl.jsonl:2" in fleet.run("rejects", "list")
    assert "0 events published anew" in fleet.run("rejects", "retry", "--reason", "future")
    (done,) = fleet.json("rejects", "retry", code=1)
    assert done["retried"] == 1
    assert [row["offset"] for row in done["gone"]] == [4000]
    (again,) = fleet.json("rejects", "retry", code=1)
    assert (again["retried"], again["already"]) == (0, 1)
    found = Counter(line for part in fleet.lines() for line in part)
    assert found == Counter({good: 1, bad: 2})
    (listed,) = fleet.json("rejects", "list", "-n", "1")
    assert len(listed["rejects"]) == 1


def test_replay_of_times_and_offsets(fleet, tmp_path):
    file = tmp_path / "in.jsonl"
    early, late = content(40)[:20], content(40)[20:]
    file.write_bytes(b"\n".join(early) + b"\n")
    fleet.json("publish", str(file))
    time.sleep(1.1)
    between = int(time.time())
    time.sleep(1.1)
    file.write_bytes(b"\n".join(early + late) + b"\n")
    fleet.json("publish", str(file))
    (done,) = fleet.json("replay", "--since", str(between))
    assert (done["lines"], done["resumed"], done["stopped"]) == (20, False, False)
    assert Counter(line for part in fleet.lines() for line in part) == Counter(early + 2 * late)
    (done,) = fleet.json("replay", "--since", "2026-01-01", "--until", str(between))
    assert done["lines"] == 20
    assert Counter(line for part in fleet.lines() for line in part) == Counter(2 * early + 2 * late)
    partition = next(number for number, part in enumerate(fleet.lines()) if part)
    (done,) = fleet.json("replay", "--partition", str(partition), "--from", "0", "--to", "1")
    assert done["messages"] == 1
    for wrong in (
        ["--since", "soon"],
        [],
        ["--from", "1"],
        ["--from", "1", "--since", "1"],
        ["--partition", "9", "--to", "1"],
    ):
        fleet.run("replay", *wrong, code=2)


def test_the_publisher_of_the_sdk(fleet):
    with Publisher.connect(fleet.kafka) as publisher:
        for number in range(200):
            publisher.page(url=f"https://h{number % 7}.example/{number}", fetched_at=number, text="x" * 2000)
        publisher.flush()
        before = fleet.lines()
        publisher.page(url="https://h1.example/last", fetched_at=1)
    after = fleet.lines()
    assert sum(map(len, before)) == 200
    assert sum(map(len, after)) == 201
    for number, part in enumerate(after):
        assert all(pages_partition(group_of_event(line), PAGES_PARTITIONS) == number for line in part)
        times = [json.loads(line)["fetched_at"] for line in part if b"/last" not in line]
        assert times == sorted(times)


def test_a_delivery_that_fails_is_raised_with_what_didnt_arrive(fleet):
    """The broker refuses messages above the topic's limit, after the client took them."""
    admin, client = Cluster(fleet.kafka)._admin, kafka_module("confluent_kafka.admin")
    small = client.ConfigEntry("max.message.bytes", "2000", incremental_operation=client.AlterConfigOpType.SET)
    kind = client.ConfigResource.Type.TOPIC
    resource = client.ConfigResource(kind, fleet.kafka.topic(PAGES), incremental_configs=[small])
    next(iter(admin.incremental_alter_configs([resource]).values())).result()
    publisher = Publisher.connect(fleet.kafka, delivery_seconds=20)
    for _ in range(100):  # brokers apply a changed setting a moment after they have acknowledged it
        publisher.page(url="https://h1.example/", fetched_at=1, text=secrets.token_hex(20_000))
        try:
            publisher.flush()
        except DeliveryFailed as problem:
            failed = problem
            break
        time.sleep(0.1)
    else:
        pytest.fail("the limit never came into force")
    assert "1 messages were not acknowledged" in str(failed)
    (message,) = failed.undelivered
    assert json.loads(message)["url"] == "https://h1.example/"
    publisher.page(url="https://h1.example/2", fetched_at=1)
    publisher.close()
    arrived = [json.loads(line)["url"] for part in fleet.lines() for line in part]
    assert arrived.count("https://h1.example/2") == 1
