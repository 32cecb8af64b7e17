"""A data folder that can't take what is written, or isn't as it was left: refused with the file named, or right."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

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
    here,
    lasting,
    small_crawl,
    write_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFUSED = 4
PARTITIONS = 2
FRESH = encoded(
    {"url": "http://www.h0.example/fresh", "fetched_at": AT + 5000, "links": ["/more"]},
    {"url": "http://vouched.example/fresh", "fetched_at": AT + 5000, "links": ["http://other.example/more"]},
)


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of a few bytes; gives what mounts it anew with other options. Needs root."""
    at.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", at], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"can't mount a small file system: {mounted.stderr.strip()}")

    def again(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", at], check=True)

    try:
        yield again
    finally:
        subprocess.run(["umount", "--lazy", at], check=True)


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A campaign, left alone: its folder, what it holds, with fresh input too; and its events in one run."""
    folder = tmp_path_factory.mktemp("crawl")
    lines = [encoded(event) for event in small_crawl()]
    source = write_lines(folder / "crawl.jsonl", lines)
    fresh = write_lines(folder / "fresh.jsonl", [FRESH])
    # In three runs, so that the logs don't reach back to the beginning any more.
    for end in (15, 30, len(lines)):
        campaign(folder / "data", write_lines(folder / f"{end}.jsonl", lines[:end]), partitions=PARTITIONS)
    rows = exported(folder / "data")
    once = campaign(folder / "once", source, partitions=PARTITIONS)
    shutil.copytree(folder / "data", folder / "on", symlinks=True)
    went_on = campaign(folder / "on", fresh)
    return SimpleNamespace(
        source=source,
        fresh=fresh,
        data=folder / "data",
        rows=rows,
        once=once,
        once_rows=exported(folder / "once"),
        went_on=went_on,
        went_on_rows=exported(folder / "on"),
    )


@pytest.fixture
def copied(crawl: SimpleNamespace, tmp_path: Path) -> Path:
    """Its folder, to be harmed."""
    shutil.copytree(crawl.data, tmp_path / "data", symlinks=True)
    return tmp_path / "data"


def check_refused(done: Done, *names: str | Path) -> None:
    """One line that names one of the files, and the documented code."""
    assert done.code == REFUSED, (done.code, done.err)
    assert not done.out
    assert any(str(name) in done.err for name in names), done.err
    assert "Traceback" not in done.err
    assert len(done.err.strip().splitlines()) == 1, done.err


# -- a full disk


def test_a_disk_that_fills_up(crawl: SimpleNamespace, tmp_path: Path, say: Callable[[str, str], None]) -> None:
    """Refused wherever it struck; with more space the same command comes to the same rows."""
    struck: Counter[str] = Counter()
    with small_disk(tmp_path / "disk", "64k") as remount:
        for kib in (64, 600, *range(1100, 4000, 20)):
            data = tmp_path / "disk" / str(kib)
            remount(f"size={kib}k")
            run = partial(here, "run", crawl.source, "--data", data, "--partitions", PARTITIONS, "--json")
            refused = run()
            if refused.code == 0:
                break
            check_refused(refused, data)
            struck[Path(refused.err.removeprefix(f"meguri: {data}/").split(":")[0]).parts[0]] += 1
            remount("size=64m")
            done = run()
            assert done.code == 0, done.err
            assert exported(data) == crawl.once_rows
            assert lasting(done.document) == lasting(crawl.once)
            assert here("inspect", "--verify", "--data", data).code == 0
            shutil.rmtree(data)
    assert set(struck) == {"bus.db", "state", "store"}, "the disk filled up at every kind of file"
    say("end to end, full disk", f"refused and gone on from: {dict(struck)}")


def test_a_disk_that_fills_up_again_and_again(tmp_path: Path, say: Callable[[str, str], None]) -> None:
    """A little space at a time, as a process of its own, until it is enough."""
    with small_disk(tmp_path / "disk", "2m") as remount:
        data = tmp_path / "disk" / "data"
        failures = 0
        for mib in (2, 5, 9, 14, 200):
            remount(f"size={mib}m")
            done = here("run", EXAMPLE, "--data", data, "--json")
            if done.code == 0:
                break
            check_refused(done, data)
            failures += 1
        assert done.code == 0, done.err
        assert failures >= 2
        rows = exported(data)
    undisturbed = campaign(tmp_path / "undisturbed", EXAMPLE)
    assert rows == exported(tmp_path / "undisturbed")
    assert lasting(done.document) == lasting(undisturbed)
    say("end to end, full disk, a larger run", f"refused {failures} times on the way to the undisturbed rows")


@pytest.mark.parametrize("kib", [8, 40, 300])
def test_files_that_may_not_grow(kib: int, crawl: SimpleNamespace, tmp_path: Path) -> None:
    """The limit of a process (ulimit -f) strikes in other places than a full disk, and needs no root."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kib << 10, kib << 10))

    data = tmp_path / "data"
    command = ["run", crawl.source, "--data", data, "--partitions", str(PARTITIONS), "--json"]
    check_refused(apart(*command, preexec_fn=limit), data)
    done = here(*command)
    assert done.code == 0, done.err
    assert exported(data) == crawl.once_rows


# -- a folder that may not be written


def test_a_read_only_disk(crawl: SimpleNamespace, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64m") as remount:
        shutil.copytree(crawl.data, tmp_path / "disk" / "data", symlinks=True)
        (tmp_path / "disk" / "empty").mkdir()
        remount("ro")
        for name in ("data", "empty", "new"):
            done = here("run", crawl.fresh, "--data", tmp_path / "disk" / name)
            check_refused(done, tmp_path / "disk" / name)
        remount("rw")
        done = here("run", crawl.fresh, "--data", tmp_path / "disk" / "data")
        assert done.code == 0, done.err
        assert exported(tmp_path / "disk" / "data") == crawl.went_on_rows


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(crawl: SimpleNamespace, copied: Path) -> None:
    copied.chmod(0o500)
    try:
        check_refused(here("run", crawl.fresh, "--data", copied), copied)
    finally:
        copied.chmod(0o700)


def test_a_folder_that_is_none(crawl: SimpleNamespace, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "file", [b"x"])
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    write_lines(foreign / "letter.txt", [b"x"])
    for data in (file, file / "below", foreign):
        check_refused(here("run", crawl.source, "--data", data), data)
    assert sorted(entry.name for entry in foreign.iterdir()) == ["letter.txt"]


def test_another_number_of_partitions(crawl: SimpleNamespace, copied: Path) -> None:
    check_refused(here("run", crawl.fresh, "--data", copied, "--partitions", "3"), copied)
    assert exported(copied) == crawl.rows


# -- damage


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def scribble(path: Path) -> None:
    """Other bytes in the middle; the size stays."""
    blob = bytearray(path.read_bytes())
    middle = len(blob) // 2
    blob[middle : middle + 64] = bytes(byte ^ 0x5A for byte in blob[middle : middle + 64])
    path.write_bytes(blob)


def replace_all(path: Path) -> None:
    path.write_bytes(b"\x5a" * path.stat().st_size)


HARMS = (halve, empty, scribble, replace_all, Path.unlink)


def files_of(data: Path, *patterns: str) -> list[Path]:
    found = sorted(path for pattern in patterns for path in data.glob(pattern) if path.is_file())
    assert found, patterns
    return found


@pytest.mark.parametrize("harm", [halve, empty, replace_all, Path.unlink])
def test_a_damaged_bus(harm: Callable[[Path], None], crawl: SimpleNamespace, copied: Path) -> None:
    harm(copied / "bus.db")
    before = {path: path.read_bytes() for path in files_of(copied, "state/**/*", "store/**/*")}
    check_refused(here("run", crawl.fresh, "--data", copied), copied / "bus.db")
    assert {path: path.read_bytes() for path in before} == before, "what could help to restore it is left alone"


def test_a_bus_of_another_program(crawl: SimpleNamespace, copied: Path) -> None:
    import sqlite3  # noqa: PLC0415 - this case alone

    (copied / "bus.db").unlink()
    other = sqlite3.connect(copied / "bus.db")
    other.execute("create table letters (body text)")
    other.commit()
    other.close()
    check_refused(here("run", crawl.fresh, "--data", copied), copied / "bus.db")


def test_pages_of_the_bus_scribbled_over(crawl: SimpleNamespace, copied: Path) -> None:
    """Found as soon as they are read; all of them by --verify."""
    path = copied / "bus.db"
    blob = bytearray(path.read_bytes())
    for at in range(len(blob) // 2, len(blob), 16 << 10):
        blob[at : at + 1024] = b"\x5a" * 1024
    path.write_bytes(blob)
    check_refused(here("inspect", "--verify", "--data", copied), path)
    done = here("run", crawl.fresh, "--data", copied)
    if done.code:
        check_refused(done, path)


PARTS = {
    "dedup": ["state/dedup/**/*"],
    "prioritizer": ["state/prioritizer/**/*"],
    "the store's snapshots": ["state/store/**/*"],
    "generations": ["store/shard-*/g*/*"],
    "the store's manifest": ["store/store.json"],
}


@pytest.mark.parametrize("part", list(PARTS))
@pytest.mark.parametrize("harm", HARMS, ids=[harm.__name__ for harm in HARMS])
def test_damaged_files(part: str, harm: Callable[[Path], None], crawl: SimpleNamespace, copied: Path) -> None:
    """All files of a part: refused with one of them named. What a start doesn't read, --verify finds."""
    harmed = files_of(copied, *PARTS[part])
    names = [path.name for path in harmed] + [str(path.parent.relative_to(copied)) for path in harmed]
    for path in harmed:
        harm(path)
    verified = here("inspect", "--verify", "--data", copied)
    refused = here("run", crawl.fresh, "--data", copied, "--json")
    check_settled(refused, verified, names, crawl, copied)


@pytest.mark.parametrize("harm", HARMS, ids=[harm.__name__ for harm in HARMS])
def test_a_damaged_file(harm: Callable[[Path], None], crawl: SimpleNamespace, tmp_path: Path) -> None:
    """Each file alone, one kind of each service: refused, or made good from what else is there."""
    kinds: dict[tuple[str, ...], Path] = {}
    for path in files_of(crawl.data, "state/**/*", "store/shard-*/g*/*"):
        service, kind = path.relative_to(crawl.data).parts[1], path.name.split("-")[0].split(".")[0]
        kinds.setdefault((service.split("-")[0], kind), path.relative_to(crawl.data))
    assert len(kinds) > 6
    for number, path in enumerate(kinds.values()):
        data = tmp_path / f"data{number}"
        shutil.copytree(crawl.data, data, symlinks=True)
        harm(data / path)
        verified = here("inspect", "--verify", "--data", data)
        done = here("run", crawl.fresh, "--data", data, "--json")
        check_settled(done, verified, [path.name, str(path.parent)], crawl, data)


def check_settled(done: Done, verified: Done, names: list[str], crawl: SimpleNamespace, data: Path) -> None:
    """Refused by name; or the right rows came out, the damage being made good; or nothing but --verify can tell."""
    if done.code == REFUSED:
        check_refused(done, *names)
        return
    assert done.code == 0, done.err
    if exported(data) == crawl.went_on_rows:
        assert_sums(done.document)
        return
    # Content isn't checked at a start, sizes are: what passes there is found by --verify.
    check_refused(verified, *names)


def test_the_link_for_other_tools_is_set_again(crawl: SimpleNamespace, copied: Path) -> None:
    for link in copied.glob("store/shard-*/current"):
        link.unlink()
    assert here("run", "--data", copied).code == 0
    links = sorted(copied.glob("store/shard-*/current"))
    assert len(links) == PARTITIONS
    assert all((link / "urls.parquet").is_file() for link in links)
    assert exported(copied) == crawl.rows
