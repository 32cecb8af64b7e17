"""Fleets of real workers under kills, pauses, rebalances, aborts, unknown outcomes and power failures."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from sim_fleet import Fleet, Mischief
from sim_setup import Simulation, problems
from sim_world import expected, generate_events

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES, BATCH = 8, 20
FAULTS = (
    "kill",
    "pause",
    "lost while paused",
    "rebalance",
    "power failure",
    "aborted",
    "unknown outcome: committed",
    "unknown outcome: aborted",
    "fenced by generation",
)


def check(seed: int, mischief: Mischief, happened: Counter[str] | None = None) -> list[str]:
    """What is wrong with a fleet's campaign after it has settled."""
    rng = random.Random(seed)
    sim = Simulation(seed, partitions=rng.choice([1, 3, 3, 4]), pages=rng.choice([1, 2]))
    events = generate_events(rng, rng.randint(14, 34))
    fleet = Fleet(seed, sim, mischief)
    settled = fleet.run(events)
    if happened is not None:
        happened.update(fleet.happened)
        happened.update(sim.bus.struck)
    if not settled:
        return ["the fleet doesn't settle", *sorted(set(fleet.stopped))]
    return problems(sim.outcome(), expected(events))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_disturbed_fleets_end_right(batch: int, say: Callable[[str, str], None]) -> None:
    happened: Counter[str] = Counter()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        assert check(seed, Mischief(), happened) == [], f"seed {seed}"
    say(f"fleet, seeds {batch * BATCH} to {seed}", str(dict(sorted(happened.items()))))
    missing = [fault for fault in FAULTS if not happened[fault]]
    assert not missing, f"never happened: {missing}"
