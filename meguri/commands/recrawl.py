"""`meguri recrawl`: a simulated crawl of all that is due."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import data_option, json_option, print_json
from meguri.commands.working import WorkProgress, failures, jobs_option, memory_row, rates, summary

if TYPE_CHECKING:
    from pathlib import Path

    from meguri_store.pool import ShardResult
    from meguri_store.recrawl import RecrawlResult

__all__ = ["recrawl"]

_SUMS = ("rows", "due", "visited", "changed", "unchanged", "failed", "gone")


@click.command()
@data_option
@click.option(
    "--now", required=True, metavar="HOURS", type=click.IntRange(1, 1_193_046), help="Hour since 1970 of the recrawl."
)
@click.option("--seed", default=0, show_default=True, metavar="N", type=click.IntRange(0), help="Of the outcomes.")
@click.option(
    "--budget",
    metavar="FETCHES",
    type=click.FloatRange(0, min_open=True),
    help="Schedule by worth, for so many fetches an hour in all (default: as the folder's parameters have it).",
)
@jobs_option
@json_option
def recrawl(data: Path, now: int, seed: int, budget: float | None, jobs: int, *, as_json: bool) -> None:
    """Try out a recrawl: fold a drawn outcome into every URL that is due at --now, and schedule it anew.

    For benchmarks and for trying schedules: outcomes follow from --seed, the URL's key and the hour, each page changing
    at a rate of its own. Only the store's records are changed, as by real visits; what fetchers really saw goes
    through meguri run. Use a copy of a folder that matters.

    Each shard is published by itself: if one fails, the others are done, and the command can be started again.

    \b
    Exit codes: 0 done; 2 wrong use; 4 the data folder can't be used, or a shard failed.

    \b
    Examples:
      meguri recrawl --data ./copy --now 490200
      meguri recrawl --data ./copy --now 490200 --seed 7 --budget 5000 --jobs 4 --json
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.commands.run import disk_errors  # noqa: PLC0415 - --help must not pay for numba
    from meguri.embedded.recrawling import recrawl_folder  # noqa: PLC0415 - see above

    began = time.monotonic()
    with WorkProgress(quiet=as_json) as progress, disk_errors(data):
        results = recrawl_folder(data, now, seed=seed, budget=budget, jobs=jobs, on_shard=progress.on_shard)
    failures([result for result in results if result.error], "Mend that and start again at the same hour")
    found = _document(results, time.monotonic() - began)
    if as_json:
        print_json(found)
        return
    visits = (
        f"{found['changed']:,} changed, {found['unchanged']:,} not, {found['failed']:,} failed, {found['gone']:,} gone"
    )
    summary(
        [
            ("URLs", f"{found['rows']:,}", f"{found['due']:,} due"),
            ("visited", f"{found['visited']:,}", visits),
            ("interval", f"{found['mean_interval']:,.1f} h", "on average until the next visit"),
            ("written", f"{found['bytes'] / 1e6:,.1f} MB", f"{found['bytes_per_url']} bytes a URL"),
            ("speed", f"{found['rows_per_second']:,} rows/s", f"due ones; {found['seconds']:.1f} s"),
            memory_row(found["peak_memory"]),
        ]
    )


def _document(results: list[ShardResult[RecrawlResult | None]], seconds: float) -> dict[str, Any]:
    shards = [(result.partition, result.result) for result in results if result.result is not None]
    sums: dict[str, int] = {name: sum(getattr(shard, name) for _, shard in shards) for name in _SUMS}
    written = [shard for _, shard in shards if shard is not None and shard.made is not None]
    size = sum(shard.made.bytes for shard in written if shard.made is not None)
    visited = sums["visited"]
    interval = sum(shard.mean_interval * shard.visited for _, shard in shards) / visited if visited else 0.0
    return {
        "shards": [
            {
                "partition": partition,
                **{name: getattr(shard, name) for name in _SUMS},
                "mean_interval": shard.mean_interval,
                "tau": shard.tau,
                "seconds": round(shard.seconds, 3),
            }
            for partition, shard in shards
        ],
        **sums,
        "mean_interval": interval,
        **rates(sum(shard.rows for shard in written), size, sums["due"], seconds),
    }
