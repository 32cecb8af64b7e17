"""`meguri resize`: a campaign over another number of partitions."""

from __future__ import annotations

from pathlib import Path

import click

from meguri.commands.showing import data_option, json_option, print_json
from meguri.commands.working import WorkProgress, jobs_option, memory_row, rates, summary

__all__ = ["resize"]


@click.command()
@data_option
@click.option(
    "--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The data folder to make of it."
)
@click.option("--partitions", required=True, metavar="N", type=click.IntRange(1, 4096), help="How many it shall have.")
@jobs_option
@json_option
def resize(data: Path, out: Path, partitions: int, jobs: int, *, as_json: bool) -> None:
    """Move a campaign to another number of partitions, exactly, into a new data folder.

    Every service's state goes along: records, row for row; the keys of the seen-sets and what they counted; cash, to
    the unit, in-degrees, budgets and operators' words; which inputs were published, parameters, rejects. The new folder
    is a campaign with an identity of its own, whose topics begin anew; the old one stays, with its deltas compacted.
    Priorities can differ in their last digits, since the pool of each partition is shared anew.

    The old folder must be at rest: what a stopped or killed run has left to do is refused, with the way out. Of the new
    one it is all or nothing: after an error or a kill it is unfinished, and the same command starts over.

    \b
    Exit codes: 0 done; 2 wrong use; 4 a data folder can't be used, or the disk refused.

    \b
    Examples:
      meguri resize --data ./frontier --out ./frontier-64 --partitions 64
      meguri resize --data ./frontier --out ./smaller --partitions 2 --json
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.commands.run import disk_errors  # noqa: PLC0415 - --help must not pay for numba
    from meguri.embedded.resizing import resize_folder  # noqa: PLC0415 - see above

    with WorkProgress(quiet=as_json) as progress, disk_errors(out, "start the same resize again"):
        resized = resize_folder(data, out, partitions, jobs=jobs, on_shard=progress.on_partition)
    figures = rates(resized.urls, resized.bytes, resized.urls, resized.seconds)
    if as_json:
        counts = {"urls": resized.urls, "hosts": resized.hosts, "before": resized.before, "partitions": partitions}
        print_json({**counts, **figures})
        return
    summary(
        [
            ("partitions", f"{partitions:,}", f"{resized.before:,} before"),
            ("URLs", f"{resized.urls:,}", ""),
            ("hosts", f"{resized.hosts:,}", ""),
            ("store", f"{resized.bytes / 1e6:,.1f} MB", f"{figures['bytes_per_url']} bytes a URL"),
            ("speed", f"{figures['rows_per_second']:,} rows/s", f"{resized.seconds:.1f} s"),
            memory_row(figures["peak_memory"]),
        ]
    )
    click.echo(f"\nNext: meguri stats --data {out}; meguri run INPUT --data {out}")
