"""The program killed at any moment, stopped, started twice, given more input: what comes out is the same."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from program import (
    AT,
    EXAMPLE,
    Done,
    apart,
    assert_sums,
    campaign,
    encoded,
    exported,
    finish,
    here,
    lasting,
    lines_of,
    small_crawl,
    start,
    urls_of,
    write_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KILLS = 20
STOP_SECONDS = 5.0
SEED = int(os.environ.get("MEGURI_KILL_SEED", "20260105"))


class Undisturbed:
    """A run that nobody disturbs, and what others must come to."""

    def __init__(self, source: Path, folder: Path) -> None:
        self.source = source
        apart("run", source, "--data", folder / "warm", "--json")  # compiled kernels are cached from here on
        begun = time.monotonic()
        done = self.run(folder / "data")
        self.seconds = time.monotonic() - begun
        assert done.code == 0, done.err
        self.document = done.document
        self.data = folder / "data"
        self.rows = exported(self.data)
        assert self.document["urls_total"] == len(self.rows[0]) > 0
        assert_sums(self.document)

    def run(self, data: Path) -> Done:
        return apart("run", self.source, "--data", data, "--json")

    def start(self, data: Path) -> subprocess.Popen[str]:
        return start("run", self.source, "--data", data, "--json")

    def check(self, data: Path, document: dict[str, Any]) -> None:
        """The same rows in all columns, the same counts, the same cash."""
        assert lasting(document) == lasting(self.document)
        assert exported(data) == self.rows


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Undisturbed:
    """Over the documentation crawl where it is at hand, else over the shipped example."""
    source = EXAMPLE
    with contextlib.suppress(pytest.skip.Exception):
        found = request.getfixturevalue("test_data") / "data" / "docs-crawl.jsonl.zst"
        source = found if found.is_file() else source
    return Undisturbed(source, tmp_path_factory.mktemp("undisturbed"))


def ended_within(process: subprocess.Popen[str], seconds: float) -> bool:
    with contextlib.suppress(Exception):
        process.wait(seconds)
    return process.poll() is not None


def bytes_published(data: Path) -> bool:
    """Whether a run has got to its input."""
    log = data / "bus.db-wal"
    return log.exists() and log.stat().st_size > 1 << 20


def wait_for_work(process: subprocess.Popen[str], data: Path) -> None:
    limit = time.monotonic() + 60
    while not bytes_published(data):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.01)


@pytest.mark.parametrize("quarter", range(4))
def test_killed_at_any_moment(
    undisturbed: Undisturbed, quarter: int, tmp_path: Path, say: Callable[[str, str], None]
) -> None:
    """Each run of the same command is killed at the next moment; one that ends before is compared, and a new folder
    begins. So kills strike fresh folders, half-done ones, and restarts that are finishing what others left."""
    rng = random.Random(SEED)
    print(f"seed {SEED} (MEGURI_KILL_SEED), undisturbed {undisturbed.seconds:.2f} s")  # noqa: T201 - shown if it fails
    # One moment in each twentieth of the run's life, so that all of it is struck, in any order.
    moments = [(number + rng.random()) / KILLS for number in range(KILLS)]
    rng.shuffle(moments)
    moments = moments[quarter::4]
    life = undisturbed.seconds
    folders, struck, in_folder = 0, 0, 0
    data = tmp_path / "data0"
    while moments or in_folder:
        begun = time.monotonic()
        process = undisturbed.start(data)
        if moments and not ended_within(process, moments[-1] * life):
            process.kill()
            assert finish(process).code == -signal.SIGKILL
            moments.pop()
            struck, in_folder = struck + 1, in_folder + 1
            continue
        done = finish(process)
        assert done.code == 0, f"after {in_folder} kills: {done.err}"
        if not in_folder:
            life = time.monotonic() - begun  # the machine has become less busy
        undisturbed.check(data, done.document)
        shutil.rmtree(data)
        folders, in_folder = folders + 1, 0
        assert folders < 3 * KILLS, "runs end before they can be killed"
        data = tmp_path / f"data{folders}"
    assert struck == KILLS // 4
    say(
        f"end to end, kill -9, {quarter + 1} of 4",
        f"{struck} kills, {folders} folders, seed {SEED}: all came to the undisturbed rows",
    )


def test_a_second_writer_is_refused_and_readers_are_not(undisturbed: Undisturbed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = undisturbed.start(data)
    wait_for_work(first, data)
    first.send_signal(signal.SIGSTOP)  # it lives, and can't end while it is looked at
    try:
        refused = here("run", undisturbed.source, "--data", data, "--json")
        assert refused.code == 4, refused.err
        assert str(first.pid) in refused.err
        assert not refused.out
        for command in (["stats"], ["inspect"], ["due"], ["top"], ["export"], ["inspect", "--verify"]):
            done = here(*command, "--data", data)
            assert done.code == 0, f"{command}: {done.err}"
    finally:
        first.send_signal(signal.SIGCONT)
    with stopping_reader(data) as looked:
        done = finish(first)
    assert done.code == 0, done.err
    assert looked, "nobody read"
    undisturbed.check(data, done.document)


@contextlib.contextmanager
def stopping_reader(data: Path) -> Iterator[list[int]]:
    """A process that reads all the while."""
    looked: list[int] = []
    enough = threading.Event()

    def read() -> None:
        while not enough.is_set():
            looked.append(apart("export", "--data", data).code)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield looked
    finally:
        enough.set()
        thread.join()
    assert set(looked) == {0}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_in_order(undisturbed: Undisturbed, number: int, code: int, tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = undisturbed.start(data)
    wait_for_work(process, data)
    begun = time.monotonic()
    process.send_signal(number)
    stopped = finish(process)
    seconds = time.monotonic() - begun
    assert stopped.code == code, stopped.err
    assert seconds < STOP_SECONDS
    assert "goes on from here" in stopped.err
    document = stopped.document
    assert document["stopped"]
    assert_sums(document)
    assert document["urls_total"] < undisturbed.document["urls_total"], "it was stopped in the middle"
    assert here("inspect", "--verify", "--data", data).code == 0
    done = undisturbed.run(data)
    assert done.code == 0, done.err
    undisturbed.check(data, done.document)


def test_a_signal_stops_a_run_that_waits_for_a_pipe(undisturbed: Undisturbed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    process = start("run", "-", "--data", data, "--json", stdin=subprocess.PIPE)
    assert process.stdin is not None
    content = b"".join(lines_of(undisturbed.source))[: 3 << 20]  # not all of it, so that the pipe stays open
    process.stdin.buffer.write(content)
    process.stdin.flush()
    wait_for_work(process, data)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    seconds = time.monotonic() - begun
    stopped = finish(process)
    assert code == 143, stopped.err
    assert seconds < STOP_SECONDS
    assert stopped.document["stopped"]
    done = undisturbed.run(data)
    assert done.code == 0, done.err
    undisturbed.check(data, done.document)


def test_the_same_input_again_changes_nothing(undisturbed: Undisturbed, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(undisturbed.data, data, symlinks=True)
    elsewhere = shutil.copy(undisturbed.source, tmp_path / "under-another-name.jsonl.zst")
    unpacked = write_lines(tmp_path / "unpacked.jsonl", lines_of(undisturbed.source))
    for again in (undisturbed.source, elsewhere, unpacked):
        done = here("run", again, "--data", data, "--json")
        assert done.code == 0, done.err
        this_run = done.document["this_run"]
        counts = {name: count for name, count in this_run.items() if name not in {"seconds", "cpu_seconds"}}
        assert not any(counts.values()), counts
        undisturbed.check(data, done.document)


def parts(folder: Path) -> tuple[Path, Path]:
    lines = [encoded(event) for event in small_crawl()]
    return write_lines(folder / "a.jsonl", lines[:20]), write_lines(folder / "b.jsonl", lines[20:])


def test_more_input_later_equals_all_at_once(tmp_path: Path) -> None:
    first, second = parts(tmp_path)
    campaign(tmp_path / "later", first, partitions=3)
    later = campaign(tmp_path / "later", second)
    once = campaign(tmp_path / "once", first, second, partitions=3)
    assert lasting(later) == lasting(once)
    assert exported(tmp_path / "later") == exported(tmp_path / "once")
    assert later["this_run"]["pages"] == once["pages"] - campaign(tmp_path / "first", first, partitions=3)["pages"]


def test_an_input_that_grew_goes_on_behind(tmp_path: Path) -> None:
    first, second = parts(tmp_path)
    growing = tmp_path / "growing.jsonl"
    growing.write_bytes(first.read_bytes())
    campaign(tmp_path / "data", growing, partitions=3)
    growing.write_bytes(first.read_bytes() + second.read_bytes())
    grown = campaign(tmp_path / "data", growing)
    once = campaign(tmp_path / "once", first, second, partitions=3)
    assert lasting(grown) == lasting(once)
    assert exported(tmp_path / "data") == exported(tmp_path / "once")
    assert grown["this_run"]["pages"] == once["pages"] - campaign(tmp_path / "first", first, partitions=3)["pages"]


def test_an_input_whose_last_line_grew(tmp_path: Path) -> None:
    """Read while somebody was writing it: the half line is rejected, and rightly not taken as read later on."""
    line = encoded({"url": "http://a.example/", "fetched_at": AT, "links": ["/x"]})
    growing = tmp_path / "growing.jsonl"
    growing.write_bytes(line + line.replace(b"/x", b"/y")[:-9])
    half = campaign(tmp_path / "data", growing, partitions=2)
    assert (half["pages"], half["events_rejected"]) == (1, 1)
    growing.write_bytes(line + line.replace(b"a.example", b"b.example"))
    whole = campaign(tmp_path / "data", growing)
    assert (whole["pages"], whole["events_rejected"]) == (2, 1)
    assert_sums(whole)


def test_two_inputs_that_begin_alike(tmp_path: Path) -> None:
    """What they share is known by its content; where they part, both go on."""
    shared = encoded(*small_crawl()[8:20])
    tails = [encoded({"url": f"http://{name}.example/", "fetched_at": AT, "links": ["/only"]}) for name in "xy"]
    paths = [write_lines(tmp_path / f"{number}.jsonl", [shared, tail]) for number, tail in enumerate(tails)]
    document = campaign(tmp_path / "data", *paths, partitions=2)
    urls = set(urls_of(tmp_path / "data"))
    assert {"http://x.example/only", "http://y.example/only"} <= urls
    assert_sums(document)


def test_killed_between_two_inputs_and_started_with_the_second_only(undisturbed: Undisturbed, tmp_path: Path) -> None:
    """What was published of the first is finished all the same."""
    first, second = parts(tmp_path)
    data = tmp_path / "data"
    process = start("run", undisturbed.source, "--data", data, "--json")
    wait_for_work(process, data)
    process.kill()
    finish(process)
    half = campaign(data, second)
    assert_sums(half)
    done = here("run", undisturbed.source, first, "--data", data, "--json")
    assert done.code == 0, done.err
    assert_sums(done.document)
    alone = campaign(tmp_path / "alone", undisturbed.source, first, second)
    assert urls_of(data) == urls_of(tmp_path / "alone")
    for name in ("pages", "links", "links_rejected", "urls_total", "cash_total"):
        assert done.document[name] == alone[name]
