"""`meguri skip`: go on without a message that stops a partition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from meguri.commands.showing import json_option, print_json
from meguri.fleet.options import data_of, fleet_options, state_root_option

if TYPE_CHECKING:
    from meguri_common.config import Loaded

__all__ = ["skip"]

_PENDING = 1
_UNIT = 1 << 32


@click.command()
@click.argument("topic")
@click.argument("partition", type=click.IntRange(min=0))
@click.argument("offset", type=click.IntRange(min=0))
@state_root_option
@fleet_options
@click.option(
    "--line",
    "lines",
    metavar="N",
    multiple=True,
    type=click.IntRange(min=0),
    help="Of a message of the pages: only this line of it, from 0; the others are handled. May be repeated.",
)
@click.option("--why", default="", metavar="TEXT", help="The reason, for the record and the rejects.")
@click.option(
    "--wait",
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="How long to wait for the service to go on.",
)
@json_option
def skip(
    topic: str,
    partition: int,
    offset: int,
    loaded: Loaded,
    lines: tuple[int, ...],
    why: str,
    wait: float,
    *,
    as_json: bool,
) -> int:
    """Go on without the message at OFFSET of a PARTITION of TOPIC: pages, links, frontier or deltas.

    For a message whose handling fails, at which its partition therefore stands still (meguri lag, the monitor, the
    service's log and its /ready say where and why). The service moves it to the rejects and goes on behind it, without
    a restart. A record on the topic of skips makes every later re-read skip it too. Cash in it is written off; links
    and URLs in it are lost, unless its pages are published again.

    With --json: topic, partition, offset, lines, skipped, passed (the service is beyond it), written_off (cash, in
    units of 2^-32; -1 if nobody can tell), why.

    \b
    Exit codes: 0 skipped; 1 not yet (no instance has taken the request within the time; it stays, and the next one to
    own the partition takes it), or handled after all; 2 it isn't the message at which the service stands; 4 no broker
    answers, or a topic or the state root is missing.

    \b
    Examples:
      meguri skip links 7 120394 --why "damaged by a disk" --bootstrap localhost:9092 --data ./fleet
      meguri skip pages 0 88 --line 3 --bootstrap localhost:9092 --data ./fleet
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.campaign import open_campaign  # noqa: PLC0415 - --help must not pay for it
    from meguri.fleet.connecting import open_bus  # noqa: PLC0415 - see above
    from meguri.fleet.skipping import Skipper, inbox_of  # noqa: PLC0415 - see above
    from meguri_common.runtime.files import LocalFiles  # noqa: PLC0415 - see above
    from meguri_common.runtime.skips import SkipRequest  # noqa: PLC0415 - see above

    settings = loaded.settings
    campaign = open_campaign(data_of(loaded))
    request = SkipRequest(
        topic=inbox_of(topic, settings), partition=partition, offset=offset, lines=tuple(sorted(set(lines))), why=why
    )
    bus = open_bus(settings)
    try:
        skipper = Skipper(settings, bus, LocalFiles(campaign.data), clock=time.monotonic, sleep=time.sleep)
        skipper.check(request)
        skipper.ask(request)
        verdict = skipper.wait(request, wait)
    finally:
        bus.close()
    record = verdict.record
    place = f"{request.topic}[{partition}], offset {offset}"
    if as_json:
        print_json(
            {
                "topic": request.topic,
                "partition": partition,
                "offset": offset,
                "lines": list(request.lines),
                "skipped": record is not None,
                "passed": verdict.passed,
                "written_off": record.written_off if record else 0,
                "why": why,
            }
        )
    elif record is not None:
        what = f"{len(record.lines)} lines" if record.lines else "the message"
        click.echo(f"{place}: {what} skipped, and among the rejects; {_cash(record.written_off)}")
    elif verdict.passed:
        click.echo(f"{place}: not skipped: the service could handle it after all", err=True)
    else:
        click.echo(f"{place}: asked for; no instance that owns the partition has taken it up yet", err=True)
    return 0 if record is not None else _PENDING


def _cash(units: int) -> str:
    if units < 0:
        return "it couldn't be decoded: cash that was in it stays among what is in flight"
    return f"{units / _UNIT:.6f} of cash written off" if units else "no cash was in it"
