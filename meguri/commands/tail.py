"""`meguri tail`: the last messages of a topic, decoded."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import orjson

from meguri.commands.showing import json_option, print_json, safe_text
from meguri.fleet.options import fleet_options
from meguri_common.topics import DELTAS, DUE, FRONTIER, LEDGER, LINKS, PAGES, REJECTS, SKIPS, TELEMETRY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from meguri.fleet.reading import Placed
    from meguri_common.bus.port import Bus, TopicPartition
    from meguri_common.config import Loaded

__all__ = ["tail"]

_TOPICS = {
    name.partition(".")[2]: name for name in (PAGES, LINKS, FRONTIER, DELTAS, DUE, REJECTS, TELEMETRY, SKIPS, LEDGER)
}
_ROWS_SHOWN = 5
_FOLLOW_SECONDS = 0.5
_SHOWN_CHARACTERS = 400


@click.command()
@click.argument("topic")
@fleet_options
@click.option("-n", "count", default=10, show_default=True, metavar="N", type=click.IntRange(min=1), help="Messages.")
@click.option("--partition", metavar="P", type=click.IntRange(min=0), help="Of this partition alone.")
@click.option("--from", "start", metavar="OFFSET", type=click.IntRange(min=0), help="N messages from this offset on.")
@click.option(
    "--rows",
    metavar="N",
    type=click.IntRange(min=1),
    help="Rows of a message that are shown (default 5; with --json all).",
)
@click.option("-f", "--follow", is_flag=True, help="Go on with messages as they come.")
@json_option
def tail(
    topic: str,
    loaded: Loaded,
    count: int,
    partition: int | None,
    start: int | None,
    rows: int | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """Show the last messages of TOPIC: pages, links, frontier, deltas, due, rejects, telemetry, skips or ledger.

    Messages between services hold rows of one kind, which are shown decoded, keys in 16 hex digits. Only what has
    committed is shown.

    With --json: one object a line for each message: topic, partition, offset, at, headers, count, and kind, campaign
    and rows, or events.

    \b
    Exit codes: 0 done; 2 wrong use; 4 no broker answers, or there is no such topic.

    \b
    Examples:
      meguri tail links -n 3 --bootstrap localhost:9092
      meguri tail frontier --partition 7 --from 1200 -n 1 --json --bootstrap localhost:9092 | jq .rows[0]
      meguri tail rejects --follow --bootstrap localhost:9092
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.connecting import open_bus  # noqa: PLC0415 - --help must not pay for it
    from meguri_common.bus.port import TopicPartition  # noqa: PLC0415 - see above

    kafka = loaded.settings.kafka
    name = kafka.topic(_TOPICS.get(topic, topic))
    bus = open_bus(loaded.settings)
    try:
        numbers = range(bus.partitions(name)) if partition is None else [partition]
        sources = [TopicPartition(name, number) for number in numbers]
        limit = rows if rows is not None or as_json else _ROWS_SHOWN
        for placed in _messages(bus, sources, count, start, follow=follow):
            _show(placed, limit, as_json=as_json)
    finally:
        bus.close()


def _messages(
    bus: Bus, sources: Sequence[TopicPartition], count: int, start: int | None, *, follow: bool
) -> Iterator[Placed]:
    from meguri.fleet.reading import last_messages, span  # noqa: PLC0415 - --help must not pay for it

    ends = {source: bus.watermarks(source)[1] for source in sources}
    if start is None:
        yield from last_messages(bus, sources, count)
    else:
        for source in sources:
            yield from islice(span(bus, source, start, ends[source]), count)
    while follow:
        time.sleep(_FOLLOW_SECONDS)
        for source in sources:
            end = bus.watermarks(source)[1]
            yield from span(bus, source, ends[source], end)
            ends[source] = end


def _show(placed: Placed, rows: int | None, *, as_json: bool) -> None:
    from meguri.fleet.decoding import document_of  # noqa: PLC0415 - --help must not pay for it

    found = document_of(placed, rows=rows)
    if as_json:
        print_json(found)
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(found["at"]))
    shown: list[Any] = found.get("rows") or found.get("events") or []
    what = found.get("problem") or f"{found.get('kind', 'event').lower()} x {found['count']}"
    click.echo(f"{found['topic']}[{found['partition']}] offset {found['offset']}  {when}  {what}")
    for row in shown:
        text = orjson.dumps(row).decode()
        more = "..." if len(text) > _SHOWN_CHARACTERS else ""
        click.echo(f"  {safe_text(text[:_SHOWN_CHARACTERS])}{more}")
    if found.get("count", 0) > len(shown):
        click.echo(f"  (and {found['count'] - len(shown):,} more)")
