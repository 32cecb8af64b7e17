"""Each guard of the one rule, taken out: the simulations must notice within 50 seeds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import test_embedded_simulation as embedded
import test_fleet_simulation as fleets
from sim_embedded import Mischief as EmbeddedMischief
from sim_embedded import small_bundles
from sim_fleet import Mischief as FleetMischief

from meguri.embedded import driver as driver_module
from meguri_common.bus.port import Commit
from meguri_common.bus.simulated import Faults
from meguri_common.errors import BusError, CorruptSnapshot, ParametersChanged, RestoreRefused
from meguri_common.runtime import partition as partition_module
from meguri_common.runtime import restore as restore_module
from meguri_common.runtime import worker as worker_module
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.partition import COMMIT_MARK
from meguri_prioritizer import service as prioritizer_module
from meguri_prioritizer.layout import URL, VISITED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meguri_common.bus.port import Batch
    from meguri_common.runtime.partition import LoadedPartition, Surroundings

MOST_SEEDS = 50


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_bundles(monkeypatch)


def first_failing(check: Callable[[int], list[str]]) -> int | None:
    """The first seed that notices, by a wrong end or by a refusal on the way there."""
    for seed in range(MOST_SEEDS):
        try:
            if check(seed):
                return seed
        except (RestoreRefused, ParametersChanged, CorruptSnapshot):
            return seed
    return None


def fleet(mischief: Callable[[], FleetMischief] = FleetMischief) -> Callable[[int], list[str]]:
    return lambda seed: fleets.check(seed, mischief())


def killed(rate: float = 0.02, **faults: float) -> Callable[[int], list[str]]:
    return lambda seed: embedded.check(seed, EmbeddedMischief(kill=rate, faults=Faults(**faults)))


def notice(check: Callable[[int], list[str]]) -> None:
    assert first_failing(check) is not None, f"nothing noticed within {MOST_SEEDS} seeds"


def test_outputs_of_a_reread_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def publish_too(loaded: LoadedPartition, committed: int, around: Surroundings) -> None:
        while loaded.position < committed:
            messages = around.bus.read(loaded.source, loaded.position, end=committed)
            if not messages:
                loaded.position = committed
                return
            outputs = Outputs(around.identity.digest())
            loaded.service.apply(messages, outputs)
            producer = around.bus.producer("again")
            producer.begin()
            for target, payload in outputs.envelopes():
                producer.publish(target, payload)
            producer.commit()
            loaded.position = messages[-1].offset + 1

    monkeypatch.setattr(restore_module, "_read_again", publish_too)
    notice(fleet())
    notice(killed())


def test_snapshot_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_early(self: Any, batches: Sequence[Batch]) -> bool:
        taken = [self._loaded.pop(batch.source.partition) for batch in batches]
        self._producer.begin()
        outputs = Outputs(self._around.identity.digest())
        for loaded, batch in zip(taken, batches, strict=True):
            loaded.service.apply(batch.messages, outputs)
            loaded.position = batch.position
            if self.spec.stateful and self._wants_snapshot(loaded):
                worker_module.take_snapshot(loaded, self._around)
        for target, payload in outputs.envelopes():
            self._producer.publish(target, payload)
        commits = {batch.source.partition: Commit(batch.position, COMMIT_MARK) for batch in batches}
        self._producer.commit_offsets(self._member, commits)
        self._producer.commit()
        self._loaded.update({loaded.number: loaded for loaded in taken})
        return True

    monkeypatch.setattr(worker_module.Worker, "_transact", too_early)
    notice(fleet())


def test_snapshot_after_the_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = partition_module.take_snapshot

    def without_barrier(loaded: LoadedPartition, around: Surroundings, **options: Any) -> None:
        honest(loaded, around, **{**options, "barrier": lambda: None})

    for module in (worker_module, restore_module, driver_module):
        monkeypatch.setattr(module, "take_snapshot", without_barrier)
    monkeypatch.setattr(driver_module.RoundDriver, "snapshot_all", _snapshot_all_without_barrier)
    notice(fleet(lambda: FleetMischief(power=0.002)))
    notice(killed())


def _snapshot_all_without_barrier(self: Any, *, quick: bool) -> None:
    for loaded in self._loaded.values():
        if loaded.spec.stateful:
            driver_module.take_snapshot(loaded, self._around, quick=quick, clean=True)


def test_stale_visit_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = prioritizer_module.apply_visits

    def fold_all(*arguments: Any) -> None:
        (urls,) = (argument for argument in arguments if getattr(argument, "dtype", None) == URL)
        urls["flags"] &= np.uint16(~VISITED & 0xFFFF)
        honest(*arguments)

    monkeypatch.setattr(prioritizer_module, "apply_visits", fold_all)
    notice(fleet())
    notice(killed(0.0))


def test_memory_dropped_after_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = worker_module.Worker._transact

    def keep(self: Any, batches: Sequence[Batch]) -> bool:
        before = {batch.source.partition: self._loaded[batch.source.partition] for batch in batches}
        try:
            return honest(self, batches)
        except BusError:
            # As if the memory were still the state of the committed offset.
            self._loaded.update(before)
            raise

    monkeypatch.setattr(worker_module.Worker, "_transact", keep)
    notice(fleet())


def test_fencing() -> None:
    def unfenced() -> FleetMischief:
        faults = Faults(abort=0.05, unknown=0.08, timeout=20_000, fencing=False)
        return FleetMischief(pause=0.01, pause_steps=600, rebalance=0.004, faults=faults)

    notice(fleet(unfenced))


def test_a_changed_parameter_is_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_memory_only(loaded: LoadedPartition, _around: Surroundings, **_options: Any) -> None:
        assert loaded.spec.stateful

    def where_one_changes(seed: int) -> list[str]:
        runs, *_ = embedded.script(seed)
        return killed()(seed) if len(runs) > 1 and runs[1].parameters else []

    monkeypatch.setattr(restore_module, "take_snapshot", in_memory_only)
    notice(where_one_changes)


def test_the_drivers_place(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = driver_module.RoundDriver._finish_round

    def from_the_start(self: Any) -> bool:
        get = self._bus.get
        self._bus.get = lambda key: None if key == "driver/place" else get(key)
        try:
            return honest(self)
        finally:
            self._bus.get = get

    monkeypatch.setattr(driver_module.RoundDriver, "_finish_round", from_the_start)
    notice(lambda seed: embedded.check_large_rounds(seed, embedded.between_steps()))


def test_the_simulations_find_nothing_where_nothing_is_taken_out() -> None:
    rng = random.Random(99)
    for seed in rng.sample(range(1000, 2000), 3):
        assert embedded.check_large_rounds(seed, embedded.between_steps()) == [], seed
        assert fleet()(seed) == [], seed
        assert killed()(seed) == [], seed
