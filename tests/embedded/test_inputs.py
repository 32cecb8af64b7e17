"""Compressed inputs are read whole or refused, never cut silently."""

from __future__ import annotations

import gzip
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
import zstandard

from meguri.embedded.inputs import InputStopped, open_input
from meguri_common.errors import InputUnreadable

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = b"".join(b'{"line": %d}\n' % number for number in range(50_000))


def read(path: Path) -> bytes:
    stream = open_input(str(path))
    try:
        return b"".join(stream.chunks())
    finally:
        stream.close()


def zstd(*parts: bytes) -> bytes:
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in parts)


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("a.jsonl", CONTENT),
        ("a.jsonl.zst", zstd(CONTENT)),
        ("two-frames.jsonl.zst", zstd(CONTENT[:1000], CONTENT[1000:])),
        ("a.jsonl.gz", gzip.compress(CONTENT)),
        ("two-members.gz", gzip.compress(CONTENT[:1000]) + gzip.compress(CONTENT[1000:])),
        ("named-plain.jsonl", zstd(CONTENT)),
    ],
)
def test_whole_inputs(tmp_path: Path, name: str, stored: bytes) -> None:
    (tmp_path / name).write_bytes(stored)
    assert read(tmp_path / name) == CONTENT


@pytest.mark.parametrize("stored", [CONTENT[:100], zstd(CONTENT[:5000]), gzip.compress(CONTENT[:5000])])
def test_a_pipe_that_gives_a_byte_at_a_time(tmp_path: Path, stored: bytes) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def give() -> None:
        with pipe.open("wb", buffering=0) as end:
            for place in range(len(stored)):
                end.write(stored[place : place + 1])

    giving = threading.Thread(target=give)
    giving.start()
    content = read(pipe)
    giving.join()
    assert content == CONTENT[: len(content)]
    assert len(content) == (100 if stored == CONTENT[:100] else 5000)


def test_a_silent_pipe_is_left_when_asked_to_stop(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR)
    os.write(end, CONTENT[:150])
    began, stop_after = time.monotonic(), 0.6
    stream = open_input(str(pipe), lambda: time.monotonic() - began > stop_after)
    chunks = stream.chunks()
    assert next(chunks) + next(chunks) == CONTENT[:150]
    with pytest.raises(InputStopped, match="150 bytes"):
        next(chunks)
    os.close(end)
    stream.close()


@pytest.mark.parametrize("cut", [1, 3, 10, 1000])
@pytest.mark.parametrize("kind", ["zst", "gz"])
def test_cut_inside_a_frame(tmp_path: Path, kind: str, cut: int) -> None:
    stored = zstd(CONTENT) if kind == "zst" else gzip.compress(CONTENT)
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(stored[:-cut])
    with pytest.raises(InputUnreadable, match=r"a\.jsonl.*inside a"):
        read(path)


def test_cut_inside_the_second_frame(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstd(CONTENT, CONTENT)[:-5])
    with pytest.raises(InputUnreadable, match="inside a zstd frame"):
        read(path)


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.jsonl.gz"])
def test_not_what_the_name_says(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"plain text\n")
    with pytest.raises(InputUnreadable, match=r"a\.jsonl"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.jsonl.gz"])
def test_empty(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert read(tmp_path / name) == b""


def test_missing_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match="No such file"):
        open_input(str(tmp_path / "none.jsonl"))
    with pytest.raises(InputUnreadable, match="directory"):
        open_input(str(tmp_path))
