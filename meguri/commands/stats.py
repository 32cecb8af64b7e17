"""`meguri stats`: a data folder in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import columns, data_option, json_option, print_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["stats"]


@click.command()
@data_option
@json_option
def stats(data: Path, *, as_json: bool) -> None:
    """Sum up a data folder, or a fleet's state root: pages, links, URLs by status, cash, snapshots, logs.

    With --json: the totals that meguri run --json ends with, and by_status, by_park_reason (parked URLs), by_source,
    services (of each partition the offset of its snapshot and what it has still to read), topics (messages kept and
    published) and bus_bytes. at_one_moment is false where a run went on while the partitions were read, so that
    counts may differ by what was on its way. Of a fleet, counts are those of each partition's newest snapshot, and
    rejected events, offsets and topics are the brokers' (meguri lag, meguri rejects).

    \b
    Exit codes: 0 done; 2 wrong use; 4 the data folder can't be used.

    \b
    Examples:
      meguri stats --data ./meguri-data
      meguri stats --data ./meguri-data --json | jq .by_status
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.embedded.overview import overview  # noqa: PLC0415 - --help must not pay for numba
    from meguri.fleet.campaign import CAMPAIGN_FILE  # noqa: PLC0415 - see above

    if (data / CAMPAIGN_FILE).is_file():
        from meguri.fleet.inspection import sum_up_root  # noqa: PLC0415 - see above
        from meguri.fleet.view import open_fleet_view  # noqa: PLC0415 - see above

        with open_fleet_view(data) as root:
            found = sum_up_root(root)
    else:
        from meguri.embedded.view import open_view  # noqa: PLC0415 - see above

        with open_view(data) as view:
            found = overview(view)
    if as_json:
        print_json(found)
        return
    for line in _lines(found):
        click.echo(line)
    if not found.get("at_one_moment", True):
        click.echo(f"{data}: a run goes on there; counts may differ by what is on its way", err=True)


def _lines(found: dict[str, Any]) -> list[str]:
    rejected = sum(found["links_rejected"].values())
    rows: list[tuple[str, ...]] = [
        ("pages", f"{found['pages']:,}", ""),
        ("links", f"{found['links']:,}", f"{found['links_new']:,} new, {found['links_known']:,} known"),
        ("links rejected", f"{rejected:,}", _listed(found["links_rejected"])),
        ("URLs", f"{found['urls_total']:,}", f"on {found['hosts']:,} hosts"),
        ("by status", "", _listed(found["by_status"])),
        ("parked", f"{found['urls_trapped']:,}", _listed(found["by_park_reason"])),
        ("by source", "", _listed(found["by_source"])),
        ("cash", f"{found['cash_total'] / (1 << 32):,.3f}", f"{found['cash_minted'] / (1 << 32):,.3f} minted"),
        ("store", f"{found['store_bytes'] / 1e6:,.1f} MB", f"{found['bytes_per_url']} bytes a URL"),
    ]
    if "services" not in found:  # of a fleet
        return columns(rows)
    rows += [
        ("events rejected", f"{found['events_rejected']:,}", ""),
        ("bus", f"{found['bus_bytes'] / 1e6:,.1f} MB", ""),
        (
            "time spent",
            f"{found['seconds']:,.1f} s",
            f"{found['cpu_seconds']:,.1f} s of CPU in whole runs",
        ),
    ]
    services = [
        (
            f"service {name}",
            f"{sum(partition['lag'] for partition in partitions):,} to read",
            f"{len(partitions)} partitions",
        )
        for name, partitions in found["services"].items()
    ]
    topics = [
        (f"topic {name}", f"{topic['kept']:,} kept", f"{topic['published']:,} messages published")
        for name, topic in found["topics"].items()
    ]
    return columns([*rows, *services, *topics])


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
