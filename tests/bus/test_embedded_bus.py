"""The embedded bus: one writer, free readers, what a killed writer leaves, and what a failing disk does."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import meguri_common.bus.embedded
import meguri_common.bus.sqlite_file
from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.bus.port import Commit, TopicPartition
from meguri_common.errors import BusError, DataFolderError, DataFolderLocked, OutcomeUnknown, TransactionAborted

A, B = TopicPartition("a", 0), TopicPartition("b", 0)

WRITER = """
import sys, time
from pathlib import Path
from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.bus.port import Commit, TopicPartition
A, B = TopicPartition("a", 0), TopicPartition("b", 0)
bus = EmbeddedBus(Path(sys.argv[1]), topics={"a": 1, "b": 1}, now=time.time)
producer, member = bus.producer("p"), bus.join("g", "a")
member.poll()
number = bus.watermarks(A)[1]
while True:
    producer.begin()
    producer.publish(A, b"%d" % number)
    producer.publish(B, b"%d " % number * 20000)
    producer.commit_offsets(member, {0: Commit(number)})
    producer.put("row", b"%d" % number)
    producer.commit()
    number += 1
    if number % 5 == 0:
        bus.barrier()
        print(number, flush=True)
    if number % 20 == 0:
        bus.trim(B, number - 10)
"""


def writer(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)


def make(path: Path) -> EmbeddedBus:
    return EmbeddedBus(path, topics={"a": 1, "b": 1}, now=time.time)


def look(path: Path) -> EmbeddedBus:
    return EmbeddedBus(path, topics={}, now=time.time, read_only=True)


def publish(bus: EmbeddedBus, *payloads: bytes, rows: dict[str, bytes] | None = None) -> None:
    producer = bus.producer("p")
    producer.begin()
    for payload in payloads:
        producer.publish(A, payload)
    for key, value in (rows or {}).items():
        producer.put(key, value)
    producer.commit()


def check_whole(bus: EmbeddedBus) -> int:
    """Messages, offsets and rows of the writer's transactions belong together; gives how many there are."""
    first, second = bus.read(A, 0), bus.read(B, bus.watermarks(B)[0])
    assert [int(bytes(message.payload)) for message in first] == list(range(len(first)))
    assert bus.watermarks(A)[1] == bus.watermarks(B)[1] == len(first)
    assert [bytes(message.payload) for message in second] == [
        b"%d " % number * 20000 for number in range(len(first))[-len(second) :]
    ]
    assert len(second) >= min(len(first), 10)
    assert bus.committed("g", A) == Commit(len(first) - 1)
    assert bus.get("row") == b"%d" % (len(first) - 1)
    return len(first)


def test_a_killed_writer_leaves_whole_transactions(tmp_path: Path) -> None:
    rng, path = random.Random(7), tmp_path / "bus.db"
    for life in range(8):
        with writer(path) as process:
            assert process.stdout is not None
            acknowledged = int(process.stdout.readline())
            time.sleep(rng.random() * 0.3)
            process.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
        if life % 3 == 0:
            # The log's index is only memory: it is made again.
            (tmp_path / "bus.db-shm").unlink()
        if life % 2 == 0:
            with closing(look(path)) as bus:
                assert check_whole(bus) >= acknowledged
    with closing(make(path)) as bus:
        assert check_whole(bus) >= acknowledged


def test_a_second_writer_is_refused_and_readers_are_free(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with writer(path) as process:
        try:
            assert process.stdout is not None
            acknowledged = int(process.stdout.readline())
            with pytest.raises(DataFolderLocked, match=str(process.pid)):
                EmbeddedBus(path, topics={"a": 1}, now=time.time)
            with closing(look(path)) as reader:
                for _ in range(10):
                    found = len(reader.read(A, 0))
                    assert found >= acknowledged
                    acknowledged = max(found, int(process.stdout.readline()))
            assert process.poll() is None
        finally:
            process.kill()
    make(path).close()


def test_a_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with closing(make(path)), pytest.raises(DataFolderLocked, match=str(os.getpid())):
        make(path)
    make(path).close()


def test_a_reader_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with closing(make(path)) as bus:
        publish(bus, b"x", rows={"row": b"1"})
    content = path.read_bytes()
    with closing(look(path)) as reader:
        assert (len(reader.read(A, 0, max_bytes=1)), reader.get("row")) == (1, b"1")
        for write in (
            lambda: reader.producer("p"),
            lambda: reader.join("g", "a"),
            reader.barrier,
            lambda: reader.trim(A, 1),
        ):
            with pytest.raises(BusError, match="opened to look"):
                write()
        # It holds no lock, and what comes later is seen.
        with closing(make(path)) as bus:
            publish(bus, b"y")
            assert len(reader.read(A, 0)) == 2
            bus.trim(A, 1)
            with pytest.raises(BusError, match="offset 0 is gone"):
                reader.read(A, 0)
    assert content[:16] == path.read_bytes()[:16]


def test_looking_at_a_missing_file_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BusError, match=r"bus\.db: can't be opened"):
        look(tmp_path / "bus.db")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(DataFolderError, match=r"No such file"):
        make(tmp_path / "none" / "bus.db")


def test_after_closing(tmp_path: Path) -> None:
    bus = make(tmp_path / "bus.db")
    bus.close()
    bus.close()
    with pytest.raises(BusError, match="closed"):
        bus.read(A, 0)


def test_topics_keep_their_partitions_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with closing(EmbeddedBus(path, topics={"a": 2}, now=time.time, token=lambda: "first")) as bus:
        assert bus.topic_id("a") == "first"
    with closing(EmbeddedBus(path, topics={"a": 5, "b": 1}, now=time.time, token=lambda: "second")) as bus:
        assert (bus.partitions("a"), bus.partitions("b")) == (2, 1)
        assert (bus.topic_id("a"), bus.topic_id("b")) == ("first", "second")


def test_a_folder_made_anew_has_other_topic_ids(tmp_path: Path) -> None:
    made = []
    for _ in range(2):
        with closing(make(tmp_path / "bus.db")) as bus:
            made.append(bus.topic_id("a"))
        (tmp_path / "bus.db").unlink()
    assert made[0] != made[1]


@pytest.mark.parametrize("partitions", [0, (1 << 16) + 1])
def test_impossible_numbers_of_partitions(tmp_path: Path, partitions: int) -> None:
    with pytest.raises(DataFolderError, match="partitions"):
        EmbeddedBus(tmp_path / "bus.db", topics={"a": partitions}, now=time.time)
    make(tmp_path / "bus.db").close()


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("content", [b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 5000, b"x" * 600])
def test_a_file_that_is_no_bus(tmp_path: Path, content: bytes, read_only: bool) -> None:
    path = tmp_path / "bus.db"
    path.write_bytes(content)
    with pytest.raises(DataFolderError, match=r"bus\.db: not a bus file"):
        EmbeddedBus(path, topics={"a": 1}, now=time.time, read_only=read_only)
    assert path.read_bytes() == content
    path.unlink()
    make(path).close()


def test_another_programs_database(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table theirs (x)")
    for read_only in (True, False):
        with pytest.raises(DataFolderError, match="not a bus file"):
            EmbeddedBus(path, topics={"a": 1}, now=time.time, read_only=read_only)


def test_an_empty_file_is_a_start_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    path.touch()
    with pytest.raises(DataFolderError):
        look(path)
    with closing(make(path)) as bus:
        publish(bus, b"x")


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    make(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma user_version = 99")
    for read_only in (True, False):
        with pytest.raises(DataFolderError, match="version 99"):
            EmbeddedBus(path, topics={}, now=time.time, read_only=read_only)


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with closing(make(path)) as bus:
        publish(bus, *[b"x" * 5000] * 200)
    with path.open("r+b") as file:
        file.seek(20 << 14)
        file.write(os.urandom(30 << 14))
    with closing(make(path)) as bus, pytest.raises(DataFolderError, match=r"bus\.db.*damaged"):
        bus.read(A, 0)


def test_a_full_disk_aborts_and_what_was_committed_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with closing(make(path)) as bus:
        publish(bus, b"kept")
        bus._file.connection.execute("pragma max_page_count = 60")
        with pytest.raises(TransactionAborted, match=r"bus\.db: the disk is full"):
            publish(bus, b"small", bytes(2 << 20), rows={"row": b"x"})
        assert [bytes(message.payload) for message in bus.read(A, 0)] == [b"kept"]
        assert bus.get("row") is None
        publish(bus, b"fits")
        bus.barrier()
    with closing(look(path)) as bus:
        assert [bytes(message.payload) for message in bus.read(A, 0)] == [b"kept", b"fits"]


FAILING = """
import resource, sys, time
from pathlib import Path
from meguri_common.bus.embedded import EmbeddedBus
from meguri_common.bus.port import TopicPartition
from meguri_common.errors import BusError
A = TopicPartition("a", 0)
bus = EmbeddedBus(Path(sys.argv[1]), topics={"a": 1, "b": 1}, now=time.time)
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
producer = bus.producer("p")
problems = []
for number in range(12):
    try:
        producer = bus.producer("p")
        producer.begin()
        producer.publish(A, b"%d" % number * (400 << 10))
        producer.commit()
        print("committed", number)
    except BusError as problem:
        print(type(problem).__name__, str(problem).splitlines()[0])
"""


def test_a_failing_disk_stops_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    done = subprocess.run([sys.executable, "-c", FAILING, str(path)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    committed = [line for line in lines if line.startswith("committed")]
    refused = lines[len(committed) :]
    assert 0 < len(committed) < 12, lines
    assert lines[: len(committed)] == committed, "nothing is written after a commit that failed"
    assert refused[0].startswith(OutcomeUnknown.__name__), lines
    assert all("bus.db" in line for line in refused)
    assert all("Start again" in line for line in refused[1:])
    with closing(make(path)) as bus:
        assert len(bus.read(A, 0)) in {len(committed), len(committed) + 1}
        publish(bus, b"goes on")


def test_the_last_offset(tmp_path: Path) -> None:
    path, last = tmp_path / "bus.db", (1 << 40) - 1
    make(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("update ends set first = ?, next = ?", (last, last))
        connection.commit()
    with closing(make(path)) as bus:
        with pytest.raises(TransactionAborted, match="all 1099511627776 offsets"):
            publish(bus, b"last", b"one too many")
        publish(bus, b"last")
        assert [(message.offset, message.payload) for message in bus.read(A, last)] == [(last, b"last")]
        assert bus.read(B, last) == []
        bus.trim(A, last + 1)
        assert bus.watermarks(A) == (last + 1, last + 1)


def test_a_bounded_read_fetches_no_more_than_it_gives(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    with closing(make(path)) as bus:
        publish(bus, b"small", bytes(32 << 20))

    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])

    with closing(look(path)) as bus:
        before = bytes_read()
        assert [bytes(message.payload) for message in bus.read(A, 0, max_bytes=1)] == [b"small"]
        assert bytes_read() - before < 1 << 20
        assert len(bus.read(A, 0, max_bytes=6)) == 2
        assert bytes_read() - before > 32 << 20


def test_trimmed_space_is_used_again(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    bus = make(path)
    sizes = []
    for _ in range(30):
        publish(bus, *(os.urandom(1 << 20) for _ in range(4)))
        bus.trim(A, bus.watermarks(A)[1] - 4)
        bus.barrier()
        sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
    bus.close()
    assert max(sizes[15:]) <= max(sizes[:15]) * 1.1, sizes


def test_a_trim_deletes_a_bounded_part_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meguri_common.bus.embedded, "_TRIM_BYTES", 250)
    with closing(make(tmp_path / "bus.db")) as bus:
        publish(bus, *[b"x" * 100] * 10)

        def rows() -> int:
            return bus._file.connection.execute("select count(*) from messages").fetchone()[0]

        left = []
        for before in (8, 8, 0, 8):
            bus.trim(A, before)
            left.append(rows())
            assert bus.watermarks(A) == (8, 10)
            assert len(bus.read(A, 8)) == 2
        assert left == [7, 4, 2, 2]


def test_a_reader_that_stays_in_a_read_does_not_let_the_log_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meguri_common.bus.sqlite_file, "WAL_LIMIT", 4 << 20)
    path, log = tmp_path / "bus.db", tmp_path / "bus.db-wal"
    with closing(make(path)) as bus, closing(look(path)) as reader:
        with reader._file.view() as connection:
            connection.execute("select count(*) from messages").fetchall()
            for _ in range(12):
                publish(bus, os.urandom(4 << 20))
            assert log.stat().st_size > 40 << 20
            assert reader.watermarks(A) == (0, 0)
        bus.barrier()
        assert log.stat().st_size < 1 << 20
        assert reader.watermarks(A) == (0, 12)


def test_a_copy_of_the_files_at_a_barrier_is_whole(tmp_path: Path) -> None:
    with closing(make(tmp_path / "bus.db")) as bus:
        publish(bus, b"x" * 100_000, rows={"row": b"1"})
        bus.barrier()
        (tmp_path / "copy").mkdir()
        for name in ("bus.db", "bus.db-wal"):
            shutil.copy(tmp_path / name, tmp_path / "copy" / name)
    with closing(look(tmp_path / "copy" / "bus.db")) as bus:
        assert [len(message.payload) for message in bus.read(A, 0)] == [100_000]
        assert bus.get("row") == b"1"
