"""`meguri rejects`: events that couldn't be used, and publishing them anew."""

from __future__ import annotations

import base64
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import click
import msgspec

from meguri.commands.showing import json_option, print_json, safe_text
from meguri.fleet.options import fleet_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri.fleet.retrying import FoundReject, Retrier
    from meguri_common.bus.port import Bus
    from meguri_common.config import Loaded

__all__ = ["rejects"]

_PAYLOAD_START = 160
_GONE_SHOWN = 10


def _filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--reason", metavar="REASON", help="Only those rejected for this reason."),
        click.option("--service", metavar="NAME", help="Only those that this service rejected."),
        click.option("--file", metavar="NAME", help="Only those from this input file, by its name when published."),
    ):
        command = option(command)
    return command


@click.group()
def rejects() -> None:
    """List events that couldn't be used, or publish them anew."""


@rejects.command("list")
@fleet_options
@_filter_options
@click.option("-n", "count", default=20, show_default=True, metavar="N", type=click.IntRange(min=1), help="The last N.")
@json_option
def list_rejects(
    loaded: Loaded, count: int, reason: str | None, service: str | None, file: str | None, *, as_json: bool
) -> None:
    """List rejected events, oldest first: why, which, and from which line of which file.

    With --json: fitting (how many fit in all), by_reason, and rejects: the last of them, as they stand on the topic,
    with the place there, and retried.

    \b
    Exit codes: 0 done; 2 wrong use; 4 no broker answers, or a topic is missing.

    \b
    Examples:
      meguri rejects list --bootstrap localhost:9092
      meguri rejects list --reason future -n 1000 --json --bootstrap localhost:9092 | jq .rejects[].origin
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.retrying import RejectFilter  # noqa: PLC0415 - --help must not pay for it

    bus, retrier = _retrier(loaded)
    try:
        retrier.refresh()
        fitting, by_reason = 0, dict[str, int]()
        last: deque[FoundReject] = deque(maxlen=count)
        for found in retrier.find(RejectFilter(reason, service, file)):
            fitting += 1
            by_reason[found.record.reason] = by_reason.get(found.record.reason, 0) + 1
            last.append(found)
        rows = [_document(found, retried=retrier.retried_before(found)) for found in last]
    finally:
        bus.close()
    if as_json:
        print_json({"fitting": fitting, "by_reason": by_reason, "rejects": rows})
        return
    for row in rows:
        _show(row)
    reasons = ", ".join(f"{name} {number:,}" for name, number in sorted(by_reason.items()))
    click.echo(f"{fitting:,} rejects" + (f": {reasons}" if reasons else ""))


@rejects.command()
@fleet_options
@_filter_options
@json_option
def retry(loaded: Loaded, reason: str | None, service: str | None, file: str | None, *, as_json: bool) -> int:
    """Publish rejected events anew, each once: after a clock was set right, a policy changed, a release mended.

    The events are read from their topic again, so that one that is gone from there can't be retried. An event that is
    rejected again is a new reject, with one attempt more, and can be retried again. Killed at any moment, the same
    command goes on.

    With --json: retried, already (retried before), gone (with the place of each).

    \b
    Exit codes: 0 all that fit were retried; 1 some are gone from their topic; 2 wrong use; 4 no broker answers, or a
    topic is missing.

    \b
    Examples:
      meguri rejects retry --reason future --bootstrap localhost:9092
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.retrying import RejectFilter  # noqa: PLC0415 - --help must not pay for it

    bus, retrier = _retrier(loaded)
    try:
        done = retrier.retry(RejectFilter(reason, service, file))
    finally:
        bus.close()
    if as_json:
        gone = [_document(found, retried=False) for found in done.gone]
        print_json({"retried": done.retried, "already": done.already, "gone": gone})
    else:
        click.echo(f"{done.retried:,} events published anew; {done.already:,} had been before")
    for found in done.gone[:_GONE_SHOWN]:
        click.echo(
            f"meguri: can't be retried, gone from its topic: {_place(_document(found, retried=False))}", err=True
        )
    if len(done.gone) > _GONE_SHOWN:
        click.echo(f"meguri: and {len(done.gone) - _GONE_SHOWN:,} more", err=True)
    return 1 if done.gone else 0


def _retrier(loaded: Loaded) -> tuple[Bus, Retrier]:
    from meguri.fleet.cluster import Cluster  # noqa: PLC0415 - --help must not pay for it
    from meguri.fleet.connecting import open_bus  # noqa: PLC0415 - see above
    from meguri.fleet.retrying import Retrier  # noqa: PLC0415 - see above
    from meguri_common.topics import LEDGER, PAGES, REJECTS  # noqa: PLC0415 - see above

    kafka = loaded.settings.kafka
    cluster = Cluster(kafka)
    for name in (PAGES, REJECTS, LEDGER):
        cluster.partitions(kafka.topic(name))
    bus = open_bus(loaded.settings)
    return bus, Retrier(bus, topic=kafka.topic, ledger_end=lambda: cluster.ends(kafka.topic(LEDGER))[0][1])


def _document(found: FoundReject, *, retried: bool) -> dict[str, Any]:
    return {
        "rejects_partition": found.source.partition,
        "rejects_offset": found.offset,
        "at": found.at,
        "retried": retried,
        **msgspec.to_builtins(found.record),
    }


def _place(row: dict[str, Any]) -> str:
    origin = row["origin"]
    where = f"{row['topic']}[{row['partition']}] offset {row['offset']} line {row['line']}"
    return f"{origin['file']}:{origin['line']} ({where})" if origin else where


def _show(row: dict[str, Any]) -> None:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(row["at"]))
    retried = ", retried" if row["retried"] else ""
    click.echo(f"{when}  {row['reason']}  {safe_text(_place(row))}  attempt {row['attempts']}{retried}")
    click.echo(f"  {safe_text(row['detail'])}")
    start = base64.b64decode(row["payload"])[:_PAYLOAD_START].decode("utf-8", "backslashreplace")
    click.echo(f"  {safe_text(start)}")
