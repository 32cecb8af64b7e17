"""`meguri due`: what to fetch next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from meguri.commands.showing import HourType, columns, data_option, hour_text, json_option, print_json
from meguri_common.records import Status

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["due"]


@click.command()
@data_option
@click.option(
    "--now",
    metavar="HOUR",
    type=HourType(),
    help="The hour to ask for: a date (2026-07-01, 2026-07-01T15:00; UTC), hours since 1970, or `now`; by default that"
    " of the latest event.",
)
@click.option("-n", "count", default=20, show_default=True, metavar="N", type=click.IntRange(min=1), help="How many.")
@click.option("--host", metavar="HOST", help="Only URLs of this host's group (by default its registrable domain).")
@click.option("--by-priority", is_flag=True, help="The most important first, whatever hour they have been due since.")
@json_option
def due(data: Path, now: int | None, count: int, host: str | None, *, by_priority: bool, as_json: bool) -> None:
    """List what is due to be fetched: the longest due first, or the most important.

    With --json: {"now": hour, "urls": [record, ...]}, keys in 16 hex digits.

    \b
    Exit codes: 0 done; 2 wrong use; 4 the data folder can't be used.

    \b
    Examples:
      meguri due --data ./meguri-data --by-priority
      meguri due --data ./meguri-data --host example.org -n 100 --json
      meguri due --data ./meguri-data --now now
      meguri due --data ./meguri-data --now 2026-07-01T15:00
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.embedded.questions import (  # noqa: PLC0415 - --help must not pay for numba
        due_urls,
        group_of,
        latest_hour,
        record_document,
    )
    from meguri.looking import open_view  # noqa: PLC0415 - see above

    with open_view(data) as view:
        key = None
        if host is not None:
            try:
                _, key = group_of(host, view.campaign.policy)
            except ValueError as problem:
                raise click.BadParameter(str(problem), param_hint="--host") from None
        hour = latest_hour(view.partitions) if now is None else now
        rows = due_urls(view.partitions, hour, count, host=key, by_priority=by_priority)
    if as_json:
        print_json({"now": hour, "urls": [record_document(row) for row in rows]})
        return
    for line in columns(
        [
            (hour_text(row["next_due"]), f"{row['priority']:9.4f}", Status(row["status"]).name.lower(), row["url"])
            for row in rows
        ]
    ):
        click.echo(line)
    if not rows:
        click.echo(f"nothing is due at {hour_text(hour)} (hour {hour})", err=True)
