"""The main job: inputs in, a compacted frontier out, all services in this process."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from meguri.embedded.driver import RoundDriver
from meguri.embedded.ingest import Ingest, operator_events
from meguri.embedded.inputs import open_input
from meguri.embedded.overview import rejected_events
from meguri.embedded.totals import Totals, since, totals_of
from meguri_common.errors import InputUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meguri.embedded.campaign import Campaign
    from meguri.embedded.inputs import InputStream
    from meguri_common.bus.port import Message

__all__ = ["RunOptions", "RunResult", "run_inputs"]

_SPENT = "campaign/spent"


class _Spent(msgspec.Struct):
    """Time that runs which ended in order have taken, seconds."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class RunOptions:
    """What a run is told beside its inputs."""

    seeds: Sequence[str] = ()
    vouched: Sequence[str] = ()
    stopping: Callable[[], bool] = lambda: False
    """Asked between steps; true stops the run in order."""
    on_input: Callable[[InputStream | None], None] = lambda _stream: None
    """Told of each input that is opened; None: of the end of the last."""
    on_step: Callable[[str, int, Sequence[Message]], None] | None = None
    """Told of each step."""


@dataclass
class RunResult:
    """What a run did."""

    totals: Totals
    this_run: dict[str, Any]
    seconds: float
    cpu_seconds: float
    stopped: bool
    """It was asked to stop; the next run goes on."""
    unreadable: list[InputUnreadable] = field(default_factory=list)
    driver: RoundDriver | None = None

    def document(self) -> dict[str, Any]:
        """The object that `--json` ends with."""
        spent = {"seconds": round(self.seconds, 3), "cpu_seconds": round(self.cpu_seconds, 3)}
        return {
            **msgspec.to_builtins(self.totals),
            **spent,
            "this_run": self.this_run,
            "stopped": self.stopped,
            "inputs_unreadable": [str(problem) for problem in self.unreadable],
        }


def run_inputs(campaign: Campaign, inputs: Sequence[str], options: RunOptions) -> RunResult:
    """Publish inputs, drive all services until nobody has anything to do, compact, snapshot.

    An input that can't be read is reported in the result; the others are processed.

    Raises:
        RestoreRefused, ParametersChanged, CampaignMismatch, CorruptSnapshot: the folder can't be gone on with.
        StepFailed: a service failed on a message.
        BusError, OSError: the disk refused.
    """
    begun, cpu_begun = time.monotonic(), time.process_time()
    driver = RoundDriver(
        campaign.specs, campaign.bus, campaign.around, stopping=options.stopping, on_step=options.on_step
    )
    driver.start()
    campaign.remember_parameters()
    before = _totals(campaign, driver)
    unreadable: list[InputUnreadable] = []
    done = driver.drain() and _publish(campaign, driver, inputs, options, unreadable)
    options.on_input(None)
    if done:
        for loaded in driver.partitions("store"):
            service: Any = loaded.service
            service.request_compaction()
    driver.snapshot_all(quick=not done)
    seconds, cpu_seconds = time.monotonic() - begun, time.process_time() - cpu_begun
    spent = _spend(campaign, seconds, cpu_seconds)
    driver.close()
    totals = _totals(campaign, driver)
    this_run = since(totals, before) | {"seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3)}
    return RunResult(totals, this_run, spent.seconds, spent.cpu_seconds, not done, unreadable, driver)


def _publish(
    campaign: Campaign,
    driver: RoundDriver,
    inputs: Sequence[str],
    options: RunOptions,
    unreadable: list[InputUnreadable],
) -> bool:
    """Publish seeds, vouches and inputs, in this order; False if stopped."""
    ingest = Ingest(driver, campaign.bus, campaign.around.now, options.stopping)
    if not ingest.events("(options)", operator_events(options.seeds, options.vouched)):
        return False
    for name in inputs:
        try:
            stream = open_input(name, options.stopping)
            options.on_input(stream)
            if not ingest.stream(stream):
                return False
        except InputUnreadable as problem:
            unreadable.append(problem)
    # A run that was killed may have left messages behind its last cut. Had its input been given again, it would have
    # gone on in the same round, as if undisturbed; it wasn't, so the round ends here.
    return ingest.finish()


def _totals(campaign: Campaign, driver: RoundDriver) -> Totals:
    # Before a run and after a stop, shards hold what they haven't compacted: a stop must not wait for its merge.
    dedup, prioritizer, store = (driver.partitions(name) for name in ("dedup", "prioritizer", "store"))
    return totals_of(dedup, prioritizer, store, rejected_events(campaign.bus), merged=False)


def _spend(campaign: Campaign, seconds: float, cpu_seconds: float) -> _Spent:
    blob = campaign.bus.get(_SPENT)
    spent = msgspec.json.decode(blob, type=_Spent) if blob else _Spent()
    spent.seconds += seconds
    spent.cpu_seconds += cpu_seconds
    producer = campaign.bus.producer("clock")
    producer.begin()
    producer.put(_SPENT, msgspec.json.encode(spent))
    producer.commit()
    producer.close()
    return spent
