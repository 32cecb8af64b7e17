"""Fleets of real workers under kills, pauses, rebalances, aborts, unknown outcomes and power failures."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from sim_fleet import Fleet, Mischief
from sim_setup import Simulation, problems
from sim_world import expected, generate_events

SEEDS = 40
happened: Counter[str] = Counter()


def check(seed: int, mischief: Mischief) -> list[str]:
    rng = random.Random(seed)
    sim = Simulation(seed, partitions=rng.choice([1, 3, 3, 4]), pages=rng.choice([1, 2]))
    events = generate_events(rng, rng.randint(14, 34))
    fleet = Fleet(seed, sim, mischief)
    settled = fleet.run(events)
    happened.update(fleet.happened)
    happened.update(sim.bus.struck)
    if not settled:
        return ["the fleet doesn't settle", *sorted(set(fleet.stopped))]
    return problems(sim.outcome(), expected(events))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_disturbed_fleet_ends_right(seed: int) -> None:
    assert check(seed, Mischief()) == [], f"seed {seed}"
