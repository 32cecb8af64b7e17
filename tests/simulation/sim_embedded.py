"""The embedded driver over the simulated bus and files, killed or without power at any of its calls."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim_setup import Simulation

from meguri.embedded import bundles
from meguri.embedded.driver import RoundDriver
from meguri.embedded.ingest import Ingest, operator_events
from meguri_common.bus.simulated import Faults
from meguri_common.errors import Fenced, OutcomeUnknown, TransactionAborted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_KILLS = 20
"""Of a run; after them it is left in peace, so that it ends."""


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Run:
    """One call of the program: inputs, options, parameters."""

    inputs: Sequence[bytes]
    seeds: Sequence[str] = ()
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Mischief:
    """How often what happens, a call of bus or files."""

    kill: float = 0.0
    power: float = 0.5
    """Share of the kills that are power failures."""
    only_at: str = ""
    """Kill at this operation alone."""
    cut_after: int = 700
    """Bytes of pages in a round."""
    faults: Faults = field(default_factory=Faults)


class EmbeddedCampaign:
    """Runs of the program over one data folder, each started again until it completes."""

    def __init__(self, seed: int, partitions: int, mischief: Mischief) -> None:
        self.sim = Simulation(seed, partitions)
        self.rng = random.Random(seed * 31 + 7)
        self.mischief = mischief
        self.happened: Counter[str] = Counter()
        self._kills = 0
        self.sim.bus.before = lambda operation, _instance: self._maybe_kill(operation)
        self.sim.files.before = self._maybe_kill

    def run(self, runs: Sequence[Run]) -> dict[str, Any]:
        """All runs, to their ends; what came of them."""
        for run in runs:
            self._kills = 0
            self.sim.specs = self.sim.make_specs(run.parameters)
            while not self._attempt(run):
                self.sim.clock += 1
        return self.sim.outcome()

    def _maybe_kill(self, operation: str) -> None:
        if self.mischief.only_at not in {"", operation}:
            return
        if self._kills < MOST_KILLS and self.rng.random() < self.mischief.kill:
            self._kills += 1
            self.happened["killed"] += 1
            self.happened[f"killed at {operation}"] += 1
            raise Killed(operation)

    def _attempt(self, run: Run) -> bool:
        calm = self._kills >= MOST_KILLS
        self.sim.bus.faults = Faults() if calm else self.mischief.faults
        try:
            self._process(run)
        except Killed:
            self.sim.bus.kill("driver")
            if self.rng.random() < self.mischief.power:
                self.happened["power failure"] += 1
                self.sim.bus.power_failure()
                self.sim.files.power_failure()
            return False
        except (TransactionAborted, OutcomeUnknown, Fenced) as problem:
            # The embedded program ends on a bus that fails; it is started again.
            self.happened[type(problem).__name__] += 1
            self._kills += 1
            self.sim.bus.kill("driver")
            return False
        return True

    def _process(self, run: Run) -> None:
        around = self.sim.around("driver")
        bus: Any = around.bus
        driver = RoundDriver(
            list(self.sim.specs.values()),
            bus,
            around,
            cut_after=self.mischief.cut_after,
            snapshot_after=self.rng.choice([1, 2000, 10_000]),
        )
        driver.start()
        driver.drain()
        ingest = Ingest(driver, bus, lambda: self.sim.clock, lambda: False)
        ingest.events("(options)", operator_events(run.seeds, ()))
        for content in run.inputs:
            ingest._publish("input", _pieces(content))
        ingest.finish()
        for loaded in driver.partitions("store"):
            service: Any = loaded.service
            service.request_compaction()
        driver.snapshot_all(quick=False)
        driver.close()


def _pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), 300):
        yield content[start : start + 300]


def small_bundles(monkeypatch: Any) -> None:
    """Make bundles of a few lines."""
    monkeypatch.setattr(bundles, "BUNDLE_BYTES", 300)


__all__ = ["EmbeddedCampaign", "Mischief", "Run", "small_bundles"]
