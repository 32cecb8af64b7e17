"""The embedded bus: one writer, free readers, and what a killed writer leaves."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.bus.port import TopicPartition
from meguri_common.errors import BusError, DataFolderError, DataFolderLocked

if TYPE_CHECKING:
    from pathlib import Path

A, B = TopicPartition("a", 0), TopicPartition("b", 0)

WRITER = """
import sys, time
from pathlib import Path
from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.bus.port import TopicPartition
bus = EmbeddedBus(Path(sys.argv[1]), topics={"a": 1, "b": 1}, now=time.time)
producer = bus.producer("p")
number = bus.watermarks(TopicPartition("a", 0))[1]
while True:
    producer.begin()
    producer.publish(TopicPartition("a", 0), b"%d" % number)
    producer.publish(TopicPartition("b", 0), b"%d" % number * 5000)
    producer.commit()
    number += 1
    if number % 10 == 0:
        bus.barrier()
        print(number, flush=True)
"""


def writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)


def look(path: Path) -> EmbeddedBus:
    return EmbeddedBus(path, topics={}, now=time.time, read_only=True)


def test_a_killed_writer_leaves_whole_transactions(tmp_path: Path) -> None:
    rng, path = random.Random(7), tmp_path / "bus.db"
    for _ in range(6):
        with writer(path) as process:
            assert process.stdout is not None
            acknowledged = int(process.stdout.readline())
            time.sleep(rng.random() * 0.2)
            process.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
        bus = look(path)
        first, second = bus.read(A, 0), bus.read(B, 0)
        assert len(first) == len(second) >= acknowledged
        assert [int(bytes(message.payload)) for message in first] == list(range(len(first)))
        bus.close()


def test_a_second_writer_is_refused_and_readers_are_free(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with writer(path) as process:
        try:
            assert process.stdout is not None
            acknowledged = int(process.stdout.readline())
            with pytest.raises(DataFolderLocked, match=str(process.pid)):
                EmbeddedBus(path, topics={"a": 1}, now=time.time)
            reader = look(path)
            assert len(reader.read(A, 0)) >= acknowledged
            with pytest.raises(BusError):
                reader.producer("p")
            reader.close()
        finally:
            process.kill()
    EmbeddedBus(path, topics={"a": 1}, now=time.time).close()


def test_topics_keep_their_partitions_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    first = EmbeddedBus(path, topics={"a": 2}, now=time.time)
    identity = first.topic_id("a")
    first.close()
    second = EmbeddedBus(path, topics={"a": 5, "b": 1}, now=time.time)
    assert (second.partitions("a"), second.partitions("b"), second.topic_id("a")) == (2, 1, identity)
    second.close()


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_bus(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bus.db"
    path.write_bytes(content)
    with pytest.raises((DataFolderError, BusError), match=r"bus\.db"):
        EmbeddedBus(path, topics={"a": 1}, now=time.time)
    assert path.read_bytes() == content


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    EmbeddedBus(path, topics={"a": 1}, now=time.time).close()
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version = 99")
    connection.close()
    for read_only in (True, False):
        with pytest.raises(DataFolderError, match="version 99"):
            EmbeddedBus(path, topics={}, now=time.time, read_only=read_only)


def test_looking_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BusError, match="opened"):
        look(tmp_path / "bus.db")
    assert list(tmp_path.iterdir()) == []


def test_trimmed_space_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    bus = EmbeddedBus(path, topics={"a": 1}, now=time.time)
    producer, sizes = bus.producer("p"), []
    for _ in range(30):
        producer.begin()
        for _ in range(4):
            producer.publish(A, os.urandom(1 << 20))
        producer.commit()
        bus.trim(A, bus.watermarks(A)[1] - 4)
        bus.barrier()
        sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
    bus.close()
    assert max(sizes[10:]) <= max(sizes[:10]) * 1.3, sizes
