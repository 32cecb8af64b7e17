"""`meguri publish`: page events onto a fleet's pages."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from meguri.commands.showing import json_option, print_json
from meguri.commands.stopping import EXIT_BY_SIGNAL, StopSignals
from meguri.commands.working import WorkProgress
from meguri.fleet.options import fleet_options
from meguri_common.errors import InputUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri.fleet.publishing import FleetPublisher
    from meguri_common.config import Loaded

__all__ = ["publish"]

_EXIT_UNREADABLE = 3


@click.command()
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@fleet_options
@click.option("--seed", "seeds", metavar="URL", multiple=True, help="A start URL: it mints cash. May be repeated.")
@click.option("--vouch", "vouched", metavar="HOST", multiple=True, help="A host without URL budget. May be repeated.")
@click.option(
    "--patience",
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="How long brokers that don't answer are waited for.",
)
@json_option
def publish(
    inputs: tuple[str, ...],
    loaded: Loaded,
    seeds: tuple[str, ...],
    vouched: tuple[str, ...],
    patience: float,
    *,
    as_json: bool,
) -> int:
    """Publish page events to a fleet: INPUT as meguri run takes it, or - for standard input.

    Each event arrives once: what was published before is known by its content and skipped, and a publish that was
    killed at any moment goes on where it was when it is started again. Events of a host stay in order. Several inputs
    may be published at once; two publishers of the same input take over from one another, and double nothing.

    With --json: messages, lines, bytes, rejected (lines that are too long), already (bytes that were published
    before), seconds, stopped, inputs_unreadable.

    \b
    Exit codes: 0 done: every event is acknowledged by all in-sync replicas; 2 wrong use; 3 an input could not be read
    (the others were published); 4 the brokers don't take it; 143 or 130 stopped in order by a signal.

    \b
    Examples:
      meguri publish examples/sqlite-docs.jsonl.zst --bootstrap localhost:9092
      zstdcat crawl-*.jsonl.zst | meguri publish - --bootstrap localhost:9092 --json
      meguri publish --seed https://www.example.org/ --vouch example.org --bootstrap localhost:9092
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.cluster import Cluster  # noqa: PLC0415 - --help must not pay for it
    from meguri.fleet.connecting import open_bus  # noqa: PLC0415 - see above
    from meguri.fleet.publishing import FleetPublisher  # noqa: PLC0415 - see above
    from meguri_common.topics import LEDGER, PAGES, REJECTS  # noqa: PLC0415 - see above

    begun, kafka = time.monotonic(), loaded.settings.kafka
    cluster = Cluster(kafka)
    for name in (PAGES, REJECTS, LEDGER):
        cluster.partitions(kafka.topic(name))
    bus = open_bus(loaded.settings)
    with WorkProgress(quiet=as_json) as progress:
        stop = StopSignals()  # in here: SIGTERM stops after a transaction, where it would end the progress at once
        publisher = FleetPublisher(
            bus,
            topic=kafka.topic,
            ledger_end=lambda: cluster.ends(kafka.topic(LEDGER))[0][1],
            stopping=stop.asked,
            on_lines=progress.on_rows,
            patience=patience,
        )
        try:
            unreadable = _publish_all(publisher, inputs, seeds, vouched, progress, stop.asked)
        finally:
            publisher.close()
            bus.close()
    total, seconds = publisher.total, time.monotonic() - begun
    for problem in unreadable:
        click.echo(f"meguri: {problem}", err=True)
    stopped = stop.asked()
    if stopped:
        click.echo("meguri: stopped in order; the same command goes on from here", err=True)
    if as_json:
        print_json(
            {
                **asdict(total),
                "seconds": round(seconds, 3),
                "stopped": stopped,
                "inputs_unreadable": [str(problem) for problem in unreadable],
            }
        )
    else:
        click.echo(
            f"{total.lines:,} events published ({total.bytes / 1e6:,.1f} MB in {total.messages:,} messages, "
            f"{seconds:.1f} s); {total.already / 1e6:,.1f} MB had been published before"
        )
        if total.rejected:
            click.echo(f"{total.rejected:,} lines are too long to be events: they are among the rejects", err=True)
    if stopped:
        return EXIT_BY_SIGNAL + stop.received
    return _EXIT_UNREADABLE if unreadable else 0


def _publish_all(
    publisher: FleetPublisher,
    inputs: tuple[str, ...],
    seeds: tuple[str, ...],
    vouched: tuple[str, ...],
    progress: WorkProgress,
    stopping: Callable[[], bool],
) -> list[InputUnreadable]:
    """Publish what the options say, then the inputs; an input that can't be read is passed over, and returned."""
    from meguri.embedded.ingest import operator_events  # noqa: PLC0415 - --help must not pay for it
    from meguri.embedded.inputs import InputStopped, open_input  # noqa: PLC0415 - see above

    unreadable: list[InputUnreadable] = []
    events = operator_events(seeds, vouched)
    if events and not publisher.publish("(options)", iter([events])):
        return unreadable
    for name in inputs:
        try:
            stream = open_input(name, stopping)
            progress.on_input(stream)
            try:
                if not publisher.publish(name, stream.chunks()):
                    break
            finally:
                stream.close()
        except InputStopped:
            break
        except InputUnreadable as problem:
            unreadable.append(problem)
    return unreadable
