"""`meguri lag`: what the fleet has still to read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import columns, json_option, print_json
from meguri.fleet.options import fleet_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meguri.fleet.cluster import Cluster
    from meguri.fleet.positions import ServicePlace
    from meguri_common.config import Loaded

__all__ = ["lag"]

_SAY_SECONDS = 5.0
_EXIT_TIMEOUT = 1


@click.command()
@fleet_options
@click.option("--wait", is_flag=True, help="Return when every service has read all there is.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="With --wait: give up after that long (default: never).",
)
@click.option(
    "--interval",
    default=0.5,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0.05),
    help="With --wait: time between two looks.",
)
@json_option
def lag(loaded: Loaded, timeout: float | None, interval: float, *, wait: bool, as_json: bool) -> int:
    """Say how far each service is behind the end of its inbox, and how many instances of it are running.

    Lag is counted in offsets, markers of transactions included; a service that has read everything has none. With
    --wait the command returns when there was a moment at which nobody had anything left to read.

    With --json: drained (known with --wait alone, else null), services: for each service, topic, instances, lag,
    partitions: partition, first, end, committed (null: never), lag.

    \b
    Exit codes: 0 done; 1 not drained within --timeout; 2 wrong use; 4 no broker answers, or a topic is missing.

    \b
    Examples:
      meguri lag --bootstrap localhost:9092
      meguri publish crawl.jsonl.zst --bootstrap localhost:9092 && meguri lag --wait --bootstrap localhost:9092
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.cluster import Cluster  # noqa: PLC0415 - --help must not pay for it
    from meguri.fleet.positions import read_places  # noqa: PLC0415 - see above

    cluster = Cluster(loaded.settings.kafka)
    done: bool | None = None
    if wait:
        places, done = _wait(cluster, timeout, interval, quiet=as_json)
    else:
        places = read_places(cluster)
    if as_json:
        print_json({"drained": done, "services": [_document(each) for each in places]})
    else:
        for line in columns([_row(each) for each in places]):
            click.echo(line)
    for each in places:
        if each.lag and not each.instances:
            click.echo(f"meguri: no instance of {each.service} is running", err=True)
    if done is False:
        click.echo(f"meguri: not drained within {timeout:g} s", err=True)
    return _EXIT_TIMEOUT if done is False else 0


def _wait(
    cluster: Cluster, timeout: float | None, interval: float, *, quiet: bool
) -> tuple[Sequence[ServicePlace], bool]:
    """Look until all is drained or time is up; the last reading, and which of the two it was."""
    from meguri.fleet.positions import drained, read_places  # noqa: PLC0415 - --help must not pay for it

    begun = said = time.monotonic()
    before: Sequence[ServicePlace] | None = None
    while True:
        now = read_places(cluster)
        if before is not None and drained(before, now):
            return now, True
        before = now
        if timeout is not None and time.monotonic() - begun >= timeout:
            return now, False
        if not quiet and time.monotonic() - said > _SAY_SECONDS:
            said = time.monotonic()
            click.echo("; ".join(f"{each.service} {each.lag:,}" for each in now), err=True)
        if any(each.lag for each in now):
            time.sleep(interval)


def _row(each: ServicePlace) -> tuple[str, str, str, str]:
    running = f"{each.instances} instance{'' if each.instances == 1 else 's'}"
    behind = sum(1 for place in each.places if place.lag)
    return each.service, f"{each.lag:>12,} to read", running, f"{each.topic}: {behind} of {len(each.places)} behind"


def _document(each: ServicePlace) -> dict[str, Any]:
    partitions = [
        {
            "partition": place.partition,
            "first": place.first,
            "end": place.end,
            "committed": place.committed,
            "lag": place.lag,
        }
        for place in each.places
    ]
    return {
        "service": each.service,
        "topic": each.topic,
        "instances": each.instances,
        "lag": each.lag,
        "partitions": partitions,
    }
