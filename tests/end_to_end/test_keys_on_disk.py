"""Runs of the program whose seen-sets are bounded: the same frontier, keys on disk, and back to memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from program import AT, here

from meguri_dedup import budget

if TYPE_CHECKING:
    from pathlib import Path

PAGES, LINKS = 60, 50


@pytest.fixture(autouse=True)
def _small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_LEAST", 20_000)
    monkeypatch.setattr(budget, "_LEAST_SLOTS", 128)


def write_events(path: Path, first: int) -> None:
    """Pages that link to fresh URLs, to those of the page before, and to one that all link to."""
    lines = []
    for page in range(first, first + PAGES):
        before = f"https://h{(page - 1) % 7}.example/{page - 1}/"
        links = [f"/{page}/{link}" for link in range(LINKS)] + [f"{before}{link}" for link in range(LINKS)] + ["/"]
        lines.append(
            {"url": f"https://h{page % 7}.example/{page}", "fetched_at": AT + page, "depth": 0, "links": links}
        )
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def exported(data: Path) -> list[Any]:
    done = here("export", "--data", data, "--format", "jsonl")
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def seen_set(data: Path) -> dict[str, Any]:
    found: dict[str, Any] = here("inspect", "--data", data, "--json").document["seen_set"]
    return found


def run(data: Path, *arguments: str | Path) -> None:
    done = here("run", "--data", data, "--partitions", "2", *arguments)
    assert done.code == 0, done.err


def test_keys_on_disk_change_nothing_but_where_they_are(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    write_events(first, 1)
    write_events(second, PAGES // 2)
    resident, bounded = tmp_path / "resident", tmp_path / "bounded"

    run(resident, first)
    run(bounded, first, "--set", "dedup.memory_bytes=1")
    assert exported(bounded) == exported(resident)
    in_memory, on_disk = seen_set(resident), seen_set(bounded)
    assert in_memory["keys_on_disk"] == in_memory["run_share"] == 0
    assert 0.5 * on_disk["keys"] < on_disk["keys_on_disk"] <= on_disk["keys"] == in_memory["keys"]
    assert on_disk["bits_per_url"] == in_memory["bits_per_url"]
    for row in (*in_memory["partitions"], *on_disk["partitions"]):
        assert 0 <= row["measured_fpr"] < 0.05
        assert row["decisions"] == row["hits"] + row["misses"]
        assert row["misses"] == row["keys"]
    assert here("inspect", "--data", bounded, "--verify").code == 0

    # The parameter is kept; the keys come back to memory when it is taken back.
    run(resident, second)
    run(bounded, second)
    assert exported(bounded) == exported(resident)
    later = seen_set(bounded)
    assert later["keys_on_disk"] > on_disk["keys_on_disk"]
    assert 0 < later["run_share"] <= later["base_share"] < 1
    run(bounded, "--set", "dedup.memory_bytes=0")
    assert seen_set(bounded)["keys_on_disk"] == 0
    assert seen_set(bounded)["keys"] == seen_set(resident)["keys"]
    run(bounded, "--set", "dedup.memory_bytes=1", second)
    run(bounded, first)
    run(resident, second)
    run(resident, first)
    assert exported(bounded) == exported(resident)


def test_a_damaged_run_is_found(tmp_path: Path) -> None:
    source, data = tmp_path / "events.jsonl", tmp_path / "data"
    write_events(source, 1)
    run(data, source, "--set", "dedup.memory_bytes=1")
    path = next(iter(sorted((data / "state" / "dedup").glob("*/run-*.keys"))))
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(bytes(content))
    done = here("inspect", "--data", data, "--verify")
    assert done.code == 4
    assert path.name in done.err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("dedup.memory_bytes=-1", "memory_bytes is a number of bytes"),
        ("dedup.memory_bytes=1.5", "it takes int values"),
        ("dedup.trust_filter=1", "it takes bool values"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(tmp_path: Path, given: str, says: str) -> None:
    done = here("run", "--data", tmp_path / "data", "--set", given)
    assert done.code == 2
    assert says in done.err
