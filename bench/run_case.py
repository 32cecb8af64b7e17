"""One run of `meguri run` over one file in a process of its own, so that its peak of memory is its own.

Prints a JSON object: CPU seconds by stage, sizes of batches, marginal cost along the run, bytes of snapshots, memory.
Started by `bench/run.py`. Arguments: the file, and bytes of inbox between two snapshots where not the usual.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from run_stages import MEASURING, StageClock

from meguri.embedded import campaign as campaigns
from meguri.embedded import run as runs
from meguri.embedded.driver import RoundDriver
from meguri.embedded.inputs import open_input
from meguri_common.runtime.files import LocalFiles
from meguri_common.runtime.snapshots import SnapshotWriter
from meguri_common.wire.columns import numbers
from meguri_common.wire.envelope import decode
from meguri_common.wire.schemas import RowKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meguri_common.bus.port import Message

_WARM_LINES = 60
_PARTS = 8


class Watcher:
    """Told of each step: counts rounds, steps and sizes, and notes how far the run is at what cost."""

    def __init__(self, clock: StageClock, digest: int) -> None:
        self._clock = clock
        self._digest = digest
        self.steps: Counter[str] = Counter()
        self.pages: list[int] = []
        """Of each step of the canonicalizer."""
        self.links: list[int] = []
        """Authored links, likewise."""
        self.rows: list[int] = []
        """Of each envelope."""
        self.bytes: list[int] = []
        self.marks: list[tuple[int, float, int]] = []
        """Links so far, CPU seconds so far, memory then: at the end of each round."""

    def on_step(self, service: str, _partition: int, messages: Sequence[Message]) -> None:
        """See `RunOptions.on_step`."""
        with self._clock.stage(MEASURING):
            self.steps[service] += 1
            if service == "canonicalizer":
                self.mark()
                self.pages.append(sum(bytes(message.payload).count(b"\n") for message in messages))
                self.links.append(0)
                return
            for message in messages:
                kind, batch = decode(message.payload, self._digest)
                self.rows.append(batch.num_rows)
                self.bytes.append(memoryview(message.payload).nbytes)
                if service == "dedup" and kind is RowKind.VISIT:
                    self.links[-1] += int(numbers(batch, "links").sum(dtype=np.uint64))

    def mark(self) -> None:
        """Note what has been spent."""
        self.marks.append((sum(self.links), self._clock.total(), memory("VmRSS")))

    def marginal(self) -> list[float]:
        """Microseconds a link in each eighth of the links."""
        links, seconds, _ = (np.array(column, np.float64) for column in zip(*self.marks, strict=True))
        at = np.interp(np.linspace(0, links[-1], _PARTS + 1), links, seconds)
        return [float(cost) for cost in np.diff(at) * 1e6 * _PARTS / links[-1]]


class Nowhere(LocalFiles):
    """Files that are thrown away, for `SnapshotWriter`: what is written to them only counts."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))

    def create(self, path: str) -> BinaryIO:  # noqa: ARG002 - the port's signature
        """Give a file that keeps nothing."""
        return self.root.open("wb")

    def sync(self, file: BinaryIO) -> None:
        """Sync nothing."""

    def rename(self, source: str, target: str) -> None:
        """Rename nothing."""

    def sync_folder(self, path: str) -> None:
        """Sync nothing."""


def memory(field: str) -> int:
    """Bytes of a field of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    msg = f"/proc/self/status has no {field}"
    raise RuntimeError(msg)


def spread(values: Sequence[int]) -> dict[str, float]:
    """Smallest, median and largest."""
    return {"min": min(values), "median": float(np.median(values)), "max": max(values)}


def written(driver: RoundDriver, service: str) -> dict[str, int]:
    """Bytes of a service's snapshots, and what they are measured by."""
    partitions = driver.partitions(service)
    full = 0
    for loaded in partitions:
        writer = SnapshotWriter(Nowhere(), "nowhere", loaded.position, (), False, lambda: "0")
        loaded.service.save(writer)
        full += writer.written
    return {
        "written": sum(loaded.snapshots.bytes_written for loaded in partitions),
        "generations": sum(loaded.snapshots.generation_bytes for loaded in partitions),
        "changed": sum(loaded.snapshots.changed_bytes for loaded in partitions),
        "final": full,
    }


def warm_up(path: Path, folder: Path) -> None:
    """Two tiny runs into one folder: kernels are loaded, and a store merged."""
    stream = open_input(str(path))
    head = b""
    for chunk in stream.chunks():
        head += chunk
        if head.count(b"\n") > 2 * _WARM_LINES:
            break
    stream.close()
    lines = head.splitlines(keepends=True)[: 2 * _WARM_LINES]
    for number, part in enumerate((lines[:_WARM_LINES], lines[_WARM_LINES:])):
        piece = folder / f"warm-{number}.jsonl"
        piece.write_bytes(b"".join(part))
        opened = campaigns.open_campaign(folder / "warm")
        runs.run_inputs(opened, [str(piece)], runs.RunOptions())
        opened.close()


def measure(path: Path, folder: Path) -> dict[str, Any]:
    """Run the file and give all figures."""
    clock = StageClock()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    floor = memory("VmRSS")
    begun = time.monotonic()
    with clock.watch():
        opened = campaigns.open_campaign(folder / "data")
        watcher = Watcher(clock, opened.identity.digest())
        options = runs.RunOptions(on_step=watcher.on_step, on_input=_at_the_end(watcher.mark))
        result = runs.run_inputs(opened, [str(path)], options)
    wall = time.monotonic() - begun
    driver = result.driver
    assert driver is not None, "a run has a driver"
    peak = memory("VmHWM")
    out = {
        "links": result.totals.links,
        "pages": result.totals.pages,
        "urls": result.totals.urls_total,
        "rejected": result.totals.events_rejected,
        "cash": result.totals.cash_minted,
        "store_bytes": result.totals.store_bytes,
        "cpu": clock.total(),
        "wall": wall,
        "stages": {stage: seconds for stage, seconds in clock.seconds().items() if stage != MEASURING},
        "steps": dict(watcher.steps),
        "pages_a_step": spread(watcher.pages),
        "links_a_step": spread(watcher.links),
        "rows_an_envelope": spread(watcher.rows),
        "bytes_an_envelope": spread(watcher.bytes),
        "envelopes": len(watcher.rows),
        "marginal": watcher.marginal(),
        "memory": {"floor": floor, "peak": peak, "rounds": [mark[2] for mark in watcher.marks]},
        "snapshots": {name: written(driver, name) for name in ("dedup", "prioritizer", "store")},
    }
    opened.close()
    return out


def _at_the_end(mark: Callable[[], None]) -> Callable[[object], None]:
    def on_input(stream: object) -> None:
        if stream is None:
            mark()

    return on_input


def main() -> None:
    """Run it."""
    path = Path(sys.argv[1])
    if len(sys.argv) > 2:
        # A run isn't asked for this: who runs a campaign need not care.
        vars(runs).update(RoundDriver=partial(RoundDriver, snapshot_after=int(sys.argv[2])))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        warm_up(path, Path(folder))
        print(json.dumps(measure(path, Path(folder))))


if __name__ == "__main__":
    main()
