"""The embedded driver, killed and without power at any call: the whole export is that of an undisturbed run."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sim_embedded import EmbeddedCampaign, Mischief, Run, small_bundles
from sim_setup import problems
from sim_world import expected, generate_events, generate_parking_events, lines, url

from meguri_common.bus.simulated import Faults

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES, BATCH = 8, 12
FAULTS = ("killed", "power failure", "killed at file.write", "killed at bus.read", "OutcomeUnknown")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_bundles(monkeypatch)


def script(seed: int) -> tuple[list[Run], list[dict[str, Any]], int]:
    """Two inputs, given in one call or two, sometimes with seeds, sometimes with a changed parameter in between."""
    rng = random.Random(seed)
    events = generate_events(rng, rng.randint(12, 40))
    cut = rng.randint(4, len(events) - 4)
    # An input that begins like one already published goes on behind it; these two are to be different inputs.
    mark = {"type": "signal", "epoch": seed, "hosts": [], "urls": []}
    first, second = lines(events[:cut]), lines([mark, *events[cut:]])
    seeds = [url(rng.randrange(6), rng.randrange(4)) for _ in range(2)] if rng.random() < 0.5 else []
    changed = {"prioritizer": {"teleport_rate": 0.4, "discount": 0.9}} if rng.random() < 0.3 else {}
    runs = (
        [Run([first], seeds), Run([first, second], seeds, changed)]
        if rng.random() < 0.6
        else [Run([first, second], seeds)]
    )
    with_seeds = [{"type": "seed", "urls": [address], "observed_at": 0, "cash": 1.0} for address in seeds]
    return runs, with_seeds + events, rng.choice([1, 3, 3])


def between_steps() -> Mischief:
    """Kills right after a step has committed, in rounds of whole inputs."""
    return Mischief(kill=0.3, power=0.0, only_at="producer.committed", cut_after=1 << 30)


def check(seed: int, mischief: Mischief, happened: Counter[str] | None = None) -> list[str]:
    return compare(seed, *script(seed), mischief, happened)


def check_large_rounds(seed: int, mischief: Mischief) -> list[str]:
    """Whole inputs in one round, much of them parked: the order of steps decides which URLs are released first."""
    events = generate_parking_events(random.Random(seed), 40)
    return compare(seed, [Run([lines(events)])], events, 3, mischief)


def compare(
    seed: int,
    runs: list[Run],
    events: list[dict[str, Any]],
    partitions: int,
    mischief: Mischief,
    happened: Counter[str] | None = None,
) -> list[str]:
    """What is wrong with a disturbed campaign: in itself, and against an undisturbed one."""
    undisturbed = EmbeddedCampaign(seed, partitions, Mischief(cut_after=mischief.cut_after)).run(runs)
    campaign = EmbeddedCampaign(seed, partitions, mischief)
    disturbed = campaign.run(runs)
    if happened is not None:
        happened.update(campaign.happened)
        happened.update(campaign.sim.bus.struck)
    bad = problems(disturbed, expected(events))
    return bad + [f"{part} differ" for part in undisturbed if undisturbed[part] != disturbed[part]]


@pytest.mark.parametrize("batch", range(BATCHES))
def test_killed_runs_end_like_undisturbed_ones(batch: int, say: Callable[[str, str], None]) -> None:
    happened: Counter[str] = Counter()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        rate = random.Random(seed * 17).choice([0.002, 0.01, 0.03])
        mischief = Mischief(kill=rate, faults=Faults(abort=0.01, unknown=0.02))
        assert check(seed, mischief, happened) == [], f"seed {seed}"
    say(f"embedded, seeds {batch * BATCH} to {seed}", str(dict(sorted(happened.items()))))
    missing = [fault for fault in FAULTS if not happened[fault]]
    assert not missing, f"never happened: {missing}"


@pytest.mark.parametrize("batch", range(2))
def test_killed_large_rounds_go_on_where_they_were(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        assert check_large_rounds(seed, between_steps()) == [], f"seed {seed}"
