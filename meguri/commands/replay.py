"""`meguri replay`: events of a span of the past, published anew."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from meguri.commands.showing import json_option, print_json
from meguri.commands.stopping import EXIT_BY_SIGNAL, StopSignals
from meguri.fleet.options import fleet_options

if TYPE_CHECKING:
    from meguri.fleet.cluster import Cluster
    from meguri.fleet.replaying import ReplayPlan
    from meguri_common.config import Loaded

__all__ = ["replay"]


class _When(click.ParamType):
    """A time: epoch seconds, or ISO 8601 (UTC if it names no zone)."""

    name = "when"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.isascii() and value.isdigit():
            return int(value)
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is neither epoch seconds nor a time such as 2026-03-01T12:00", param, ctx)
        return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())


@click.command()
@fleet_options
@click.option("--since", metavar="WHEN", type=_When(), help="Events received at this time or later.")
@click.option("--until", metavar="WHEN", type=_When(), help="Events received before this time (default: now).")
@click.option("--partition", metavar="P", type=click.IntRange(min=0), help="Of this partition of the pages alone.")
@click.option("--from", "first", metavar="OFFSET", type=click.IntRange(min=0), help="From this offset on.")
@click.option(
    "--to", "end", metavar="OFFSET", type=click.IntRange(min=0), help="Before this offset (default: the end)."
)
@json_option
def replay(
    loaded: Loaded,
    since: int | None,
    until: int | None,
    partition: int | None,
    first: int | None,
    end: int | None,
    *,
    as_json: bool,
) -> int:
    """Publish events of a span of time, or of offsets of one partition, anew: they go behind all others.

    What is already known stays as it is: events are known by what they are about. Their links are counted again. A
    replay that was killed is gone on with by the same command; after its end, the same command replays once more.

    WHEN is in epoch seconds, or like 2026-03-01T12:00 (UTC). Messages are replayed whole: with the events that were
    published in one message with one of the span.

    \b
    Exit codes: 0 done; 2 wrong use; 4 the brokers don't take it; 143 or 130 stopped in order by a signal.

    \b
    Examples:
      meguri replay --since 2026-03-01T12:00 --until 2026-03-01T18:00 --bootstrap localhost:9092
      meguri replay --partition 3 --from 1200 --to 1300 --bootstrap localhost:9092
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.cluster import Cluster  # noqa: PLC0415 - --help must not pay for it
    from meguri.fleet.connecting import open_bus  # noqa: PLC0415 - see above
    from meguri.fleet.replaying import Replayer  # noqa: PLC0415 - see above
    from meguri_common.topics import LEDGER, PAGES  # noqa: PLC0415 - see above

    by_offset = first is not None or end is not None
    if by_offset == (since is not None or until is not None):
        raise click.UsageError("give a span either of times (--since, --until) or of offsets (--from, --to)")
    if by_offset and partition is None:
        raise click.UsageError("offsets are those of one partition: give --partition")
    kafka, stop = loaded.settings.kafka, StopSignals()
    cluster = Cluster(kafka)
    pages, ledger = kafka.topic(PAGES), kafka.topic(LEDGER)
    count = cluster.partitions(pages)
    if partition is not None and partition >= count:
        raise click.BadParameter(f"{pages} has partitions 0 to {count - 1}", param_hint="--partition")
    cluster.partitions(ledger)
    bus = open_bus(loaded.settings)
    try:
        replayer = Replayer(bus, topic=kafka.topic, ledger_end=lambda: cluster.ends(ledger)[0][1], stopping=stop.asked)
        done = replayer.replay(
            f"{pages} since {since} until {until} partition {partition} from {first} to {end}",
            lambda: _plan(cluster, pages, (since, until), (partition, first, end)),
        )
    finally:
        bus.close()
    if done.stopped:
        click.echo("meguri: stopped in order; the same command goes on from here", err=True)
    if as_json:
        print_json(asdict(done))
    else:
        went_on = " (going on with one that was interrupted)" if done.resumed else ""
        click.echo(f"{done.lines:,} events replayed, {done.bytes / 1e6:,.1f} MB in {done.messages:,} messages{went_on}")
    return EXIT_BY_SIGNAL + stop.received if done.stopped else 0


def _plan(
    cluster: Cluster,
    topic: str,
    times: tuple[int | None, int | None],
    offsets: tuple[int | None, int | None, int | None],
) -> ReplayPlan:
    from meguri.fleet.replaying import ReplayPlan  # noqa: PLC0415 - --help must not pay for it

    partition, first, end = offsets
    ends = cluster.ends(topic)
    if first is not None or end is not None:
        assert partition is not None, "checked with the options"
        last = ends[partition][1]
        return ReplayPlan(((partition, first or 0, last if end is None else min(end, last)),))
    since, until = times
    starts = [low for low, _ in ends] if since is None else cluster.offsets_at(topic, since)
    # A time that is yet to come ends where the log ends now: what is published from here on isn't replayed.
    limits = (
        cluster.offsets_at(topic, until) if until is not None and until <= time.time() else [high for _, high in ends]
    )
    spans = [(number, start, limit) for number, (start, limit) in enumerate(zip(starts, limits, strict=True))]
    return ReplayPlan(tuple(each for each in spans if partition in {None, each[0]} and each[1] < each[2]))
