"""`meguri inspect`: what a data folder is made of, what was rejected, and whether all of it is as it was written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import columns, data_option, json_option, print_json, safe_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["inspect", "say_path"]


@click.command()
@data_option
@click.option("--verify", is_flag=True, help="Read all files against their checksums, orders and counts instead.")
@click.option("--rejects", is_flag=True, help="List the latest rejected events instead.")
@click.option(
    "-n", "count", default=20, show_default=True, metavar="N", type=click.IntRange(min=1), help="How many --rejects."
)
@json_option
def inspect(data: Path, count: int, *, verify: bool, rejects: bool, as_json: bool) -> None:
    """Look into the files of a data folder, or of a fleet's state root, and verify them.

    Shows the campaign's identity, snapshots and generations, the figures of the seen-sets (counted since
    the campaign began), and what each topic keeps (of a fleet, meguri lag tells that). With --json one object:
    {"identity", "services", "generations", "seen_set", "topics"}; with --verify {"ok": true, "manifests", "files",
    "generations", "urls"}; with --rejects {"rejected", "rejects": [...]}.

    \b
    Exit codes: 0 done; 2 wrong use; 4 the data folder can't be used, or --verify found a file that
    isn't as it was written (named on standard error).

    \b
    Examples:
      meguri inspect --data ./meguri-data
      meguri inspect --data ./meguri-data --verify
      meguri inspect --data ./meguri-data --rejects -n 100
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.fleet.campaign import CAMPAIGN_FILE  # noqa: PLC0415 - --help must not pay for numba

    if verify and rejects:
        raise click.UsageError("--verify and --rejects are two questions: ask one at a time")
    if (data / CAMPAIGN_FILE).is_file():
        if rejects:
            raise click.UsageError(f"{data} is a fleet's state root: its rejects are a topic; see meguri rejects list")
        document, lines = _of_a_fleet(data, verify=verify)
    else:
        document, lines = _of_a_folder(data, count, verify=verify, rejects=rejects, as_json=as_json)
    if as_json:
        print_json(document)
        return
    for line in lines:
        click.echo(line)


def _of_a_fleet(data: Path, *, verify: bool) -> tuple[dict[str, Any], list[str]]:
    from meguri.fleet.inspection import inspect_root, verify_root  # noqa: PLC0415 - see above
    from meguri.fleet.view import open_fleet_view  # noqa: PLC0415 - see above

    with open_fleet_view(data) as view:
        if verify:
            found = verify_root(view, say_path)
            return {"ok": True, **found}, [_verified(found)]
        document = inspect_root(view)
        return document, _lines(document)


def _of_a_folder(
    data: Path, count: int, *, verify: bool, rejects: bool, as_json: bool
) -> tuple[dict[str, Any], list[str]]:
    from meguri.embedded.inspection import inspect_folder, rejects_of, verify_folder  # noqa: PLC0415 - see above
    from meguri.embedded.view import open_view  # noqa: PLC0415 - see above

    with open_view(data) as view:
        if rejects:
            total, found = rejects_of(view, count)
            if not as_json:
                click.echo(f"{total:,} events rejected, {len(found):,} listed", err=True)
            return {"rejected": total, "rejects": found}, _reject_lines(found)
        if verify:
            read = verify_folder(view, say_path)
            return {"ok": True, **read}, [_verified(read)]
        document = inspect_folder(view)
        return document, _lines(document)


def _verified(read: dict[str, int]) -> str:
    counted = ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in read.items())
    return f"{counted}: all whole"


def say_path(path: str) -> None:
    """Tell a terminal what is read next."""
    if sys.stderr.isatty():
        click.echo(f"reading {path}", err=True)


def _reject_lines(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for reject in found:
        place = f"{reject['file']}:{reject['line']}" if reject["file"] else f"{reject['topic']} {reject['offset']}"
        lines.append(f"{safe_text(place)}: {reject['reason']}: {safe_text(reject['detail'])}")
        lines.append(f"    {safe_text(reject['payload_start'])}")
    return lines


def _lines(found: dict[str, Any]) -> list[str]:
    lines = ["campaign"]
    lines += _indented([(name, str(value)) for name, value in found["identity"].items()])
    for service, partitions in found["services"].items():
        lines += ["", f"service {service}"]
        lines += _indented([(f"partition {row['partition']}", *_progress(row), *_kept(row)) for row in partitions])
    lines += ["", "generations"]
    lines += _indented(
        [
            (
                row["folder"],
                "current" if row["current"] else "older",
                f"{row['urls']:,} URLs",
                f"{row['hosts']:,} hosts",
                f"{row['row_groups']} row groups",
                f"{row['bytes']:,} bytes",
            )
            for row in found["generations"]
        ]
    )
    lines += ["", "seen-sets"]
    lines += _indented(
        [_seen("all", found["seen_set"])]
        + [_seen(f"partition {row['partition']}", row) for row in found["seen_set"]["partitions"] if row["keys"]]
    )
    if "topics" not in found:  # of a fleet: they are the brokers'
        return lines
    lines += ["", "topics"]
    lines += _indented(
        [
            (name, f"{topic['kept']:,} kept", f"{topic['published']:,} published")
            for name, topic in found["topics"].items()
        ]
    )
    return lines


def _progress(row: dict[str, Any]) -> tuple[str, ...]:
    return (f"read to {row['committed']}", f"{row['lag']} to read") if "committed" in row else ()


def _kept(row: dict[str, Any]) -> tuple[str, str]:
    newest = row["snapshots"][:1]
    if not newest:
        return "no snapshot", ""
    snapshot = newest[0]
    name = f"snapshot at {snapshot['offset']}.{snapshot['sequence']}{' (clean stop)' if snapshot['clean'] else ''}"
    return name, f"{snapshot['files']} files, {snapshot['bytes']:,} bytes"


def _seen(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    return (
        name,
        f"{row['keys']:,} keys",
        f"{row['bits_per_url']:.2f} bits a URL",
        f"false positives {row['measured_fpr']:.3%}",
        f"past the filter {row['base_share']:.3%}",
        f"to disk {row['run_share']:.3%}",
        f"{row['keys_on_disk']:,} keys there",
        *([f"{row['trusted']:,} by the filter's word"] if row["trusted"] else []),
    )


def _indented(rows: list[tuple[str, ...]]) -> list[str]:
    return [f"  {line}" for line in columns(rows) or ["(none)"]]
