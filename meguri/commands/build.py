"""`meguri build`: a campaign from lists of URLs, at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import print_json
from meguri.commands.working import WorkProgress, failures, jobs_option, rates, summary

if TYPE_CHECKING:
    from meguri.embedded.building import Built

__all__ = ["build"]

_EXIT_BAD_LINES = 1
_MIB = 1 << 20


@click.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--data", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The data folder to make.")
@click.option(
    "--partitions", metavar="N", type=click.IntRange(1, 4096), help="Partitions (default 8); fixed from then on."
)
@click.option(
    "--policy", metavar="FILE", type=click.Path(path_type=Path), help="URL policy (JSON); fixed from then on."
)
@click.option(
    "--now",
    metavar="HOURS",
    type=click.IntRange(1, 0xFFFFFFFF),
    help="Hour since 1970 at which the URLs were first seen and are due (default: the clock's).",
)
@click.option(
    "--memory",
    default=256,
    show_default=True,
    metavar="MIB",
    type=click.IntRange(4, 1 << 20),
    help="Size of the sort buffer; what doesn't fit is sorted on disk.",
)
@jobs_option
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on standard output.")
def build(
    inputs: tuple[str, ...],
    data: Path,
    partitions: int | None,
    policy: Path | None,
    now: int | None,
    memory: int,
    jobs: int,
    *,
    as_json: bool,
) -> int:
    """Make a data folder of lists of URLs, much faster than by feeding events.

    INPUT holds URLs, one a line, in any order and with repeats: plain, .zst, .gz, or - for standard input. Or JSON
    Lines: objects with "url" and, where they are known, "depth", "source" (seed, link, sitemap, redirect, manual),
    "priority", "first_seen" and "next_due" (hours). Each URL is made canonical; a line without a usable one is counted
    by its reason. URLs are scheduled for --now with priority 0.5, source manual and no depth.

    The folder is a campaign like any other: top, due, inspect, export and explain read it, and meguri run goes on with
    it, knowing all URLs, however many a host has. Importance starts at nothing: no cash, no votes.

    It is all or nothing: after an error or a kill the folder is unfinished, and the same command starts over.

    \b
    Exit codes: 0 done; 1 done, but some lines of JSON could not be used; 2 wrong use; 3 an input can't be
    read; 4 the data folder can't be used, or the disk refused.

    \b
    Examples:
      meguri build urls.txt.zst --data ./frontier
      zcat sitemaps-*.gz | meguri build - --data ./frontier --memory 1024 --json
      meguri build seeds.jsonl --data ./frontier --partitions 64 --now 490000 --jobs 4
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.commands.run import disk_errors  # noqa: PLC0415 - --help must not pay for numba
    from meguri.embedded.building import BuildOptions, build_folder  # noqa: PLC0415 - see above

    with WorkProgress(quiet=as_json) as progress, disk_errors(data, "start the same build again"):
        built = build_folder(
            data,
            inputs,
            BuildOptions(
                partitions=partitions,
                policy=policy,
                now=now,
                memory=memory * _MIB,
                jobs=jobs,
                on_input=progress.on_input,
                on_rows=progress.on_rows,
                on_shard=progress.on_shard,
            ),
        )
    for example in built.refused.examples:
        click.echo(f"meguri: {example}", err=True)
    failures(built.failed, "Mend that and start the same build again: it starts over")
    if as_json:
        print_json(_document(built))
    else:
        _summary(built)
    return _EXIT_BAD_LINES if built.refused.bad_lines else 0


def _document(built: Built) -> dict[str, Any]:
    return {
        "lines": built.lines,
        "bad_lines": built.refused.bad_lines,
        "refused": built.refused.reasons,
        "repeats": built.repeats,
        "urls": built.urls,
        "hosts": built.hosts,
        "now": built.now,
        "partitions": built.partitions,
        "cpu_seconds": round(built.cpu_seconds, 3),
        **rates(built.urls, built.bytes, built.lines, built.seconds),
    }


def _summary(built: Built) -> None:
    found = _document(built)
    refused = ", ".join(f"{reason} {count:,}" for reason, count in built.refused.reasons.items())
    summary(
        [
            ("lines", f"{built.lines:,}", f"{built.refused.bad_lines:,} of them no usable JSON"),
            ("refused", f"{sum(built.refused.reasons.values()):,}", refused),
            ("repeats", f"{built.repeats:,}", ""),
            ("URLs", f"{built.urls:,}", f"due from hour {built.now} on"),
            ("hosts", f"{built.hosts:,}", ""),
            (
                "store",
                f"{built.bytes / 1e6:,.1f} MB",
                f"{found['bytes_per_url']} bytes a URL, {built.partitions} shards",
            ),
            (
                "speed",
                f"{found['rows_per_second']:,} rows/s",
                f"{built.seconds:.1f} s, {built.cpu_seconds:.1f} s of CPU",
            ),
            ("memory", f"{found['peak_memory'] / _MIB:,.0f} MiB", "at most"),
        ]
    )
    click.echo(f"\nNext: meguri due --data {built.data}; meguri run INPUT --data {built.data}")
