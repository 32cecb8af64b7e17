"""`meguri compact`: shards with a delta get a new generation."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import data_option, json_option, print_json
from meguri.commands.working import WorkProgress, failures, jobs_option, memory_row, rates, summary

if TYPE_CHECKING:
    from pathlib import Path

    from meguri.embedded.compacting import ShardCompacted
    from meguri_store.pool import ShardResult

__all__ = ["compact"]

_COUNTS = ("urls", "hosts", "inserted", "updated", "carried", "bytes")


@click.command()
@data_option
@jobs_option
@json_option
def compact(data: Path, jobs: int, *, as_json: bool) -> None:
    """Merge what each shard has taken in since its last generation into a new one.

    meguri run compacts at its end; this is for a folder whose run was stopped or killed, or is only looked at by other
    tools from here on: they read the generations, not what came after them. A shard without changes isn't touched.
    Each shard is published by itself: if one fails, the others are done, and the command can be started again.

    With --json one object: {"shards": [{"partition", "changed", "urls", "hosts", "inserted", "updated", "carried",
    "bytes", "bits_per_url"}], and the sums}.

    \b
    Exit codes: 0 done; 2 wrong use; 4 the data folder can't be used, or a shard failed.

    \b
    Examples:
      meguri compact --data ./meguri-data
      meguri compact --data ./meguri-data --jobs 4 --json
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.commands.run import disk_errors  # noqa: PLC0415 - --help must not pay for numba
    from meguri.embedded.compacting import compact_folder  # noqa: PLC0415 - see above

    began = time.monotonic()
    with WorkProgress(quiet=as_json) as progress, disk_errors(data):
        results = compact_folder(data, jobs=jobs, on_shard=progress.on_shard)
    failures([result for result in results if result.error], "Mend that and start again")
    found = _document(results, time.monotonic() - began)
    if as_json:
        print_json(found)
        return
    merged = f"{found['inserted']:,} inserted, {found['updated']:,} updated, {found['carried']:,} carried"
    summary(
        [
            ("shards", f"{found['compacted']:,}", f"of {len(results):,} had changes"),
            ("URLs", f"{found['urls']:,}", merged),
            ("hosts", f"{found['hosts']:,}", ""),
            ("store", f"{found['bytes'] / 1e6:,.1f} MB", f"{found['bytes_per_url']} bytes a URL"),
            ("speed", f"{found['rows_per_second']:,} rows/s", f"{found['seconds']:.1f} s"),
            memory_row(found["peak_memory"]),
        ]
    )


def _document(results: list[ShardResult[ShardCompacted]], seconds: float) -> dict[str, Any]:
    shards = [(result.partition, result.result) for result in results if result.result is not None]
    changed = [shard for _, shard in shards if shard.changed]
    urls = sum(shard.urls for _, shard in shards)
    sums = {name: sum(getattr(shard, name) for _, shard in shards) for name in ("urls", "hosts")}
    sums |= {name: sum(getattr(shard, name) for shard in changed) for name in ("inserted", "updated", "carried")}
    size = sum(shard.bytes for _, shard in shards)
    return {
        "shards": [
            {
                "partition": partition,
                "changed": shard.changed,
                **{name: getattr(shard, name) for name in _COUNTS},
                "bits_per_url": round(8 * shard.bytes / shard.urls, 2) if shard.urls else 0.0,
            }
            for partition, shard in shards
        ],
        "compacted": len(changed),
        **sums,
        **rates(urls, size, sum(shard.urls for shard in changed), seconds),
    }
