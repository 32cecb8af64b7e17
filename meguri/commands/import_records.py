"""`meguri import`: a campaign from exported records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import print_json
from meguri.commands.working import WorkProgress, rates, summary

if TYPE_CHECKING:
    from meguri.embedded.importing import Imported

__all__ = ["import_records"]

_MIB = 1 << 20


@click.command("import")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("--data", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The data folder to make.")
@click.option(
    "--hosts",
    metavar="FILE|DIR",
    multiple=True,
    help="Host records; without them they are made of the URLs. May be repeated.",
)
@click.option(
    "--partitions", metavar="N", type=click.IntRange(1, 4096), help="Partitions (default 8); fixed from then on."
)
@click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="URL policy (JSON) that the records were made with; fixed from then on.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on standard output.")
def import_records(
    inputs: tuple[str, ...],
    data: Path,
    hosts: tuple[str, ...],
    partitions: int | None,
    policy: Path | None,
    *,
    as_json: bool,
) -> None:
    """Make a data folder of records that meguri export wrote, losslessly.

    INPUT is Parquet or JSON Lines (.parquet, .jsonl, .jsonl.zst, .jsonl.gz, - for JSON Lines on standard input), or a
    folder of such files. Records must be in the order of the store, by host key, then URL: one that isn't above the
    one before it is refused, as is one that the URL policy would give another key, or that contradicts itself.

    Records hold what the store knows. Cash, in-degrees and earned budgets aren't in them and start anew; dedup knows
    all keys, and the prioritizer which URLs were visited, parked or excluded. It is all or nothing: after an error or
    a kill the folder is unfinished, and the same command starts over.

    \b
    Exit codes: 0 done; 2 wrong use; 3 an input can't be read, or a record can't be taken over; 4 the data
    folder can't be used, or the disk refused.

    \b
    Examples:
      meguri export --data ./old --format parquet --output urls/
      meguri export --data ./old --format parquet --hosts --output hosts/
      meguri import urls/ --hosts hosts/ --data ./new
      zstdcat frontier.jsonl.zst | meguri import - --data ./new --partitions 64 --json
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.commands.run import disk_errors  # noqa: PLC0415 - --help must not pay for numba
    from meguri.embedded.importing import ImportOptions, import_folder  # noqa: PLC0415 - see above

    with WorkProgress(quiet=as_json) as progress, disk_errors(data, "start the same import again"):
        imported = import_folder(
            data,
            inputs,
            hosts,
            ImportOptions(partitions, policy, progress.on_records, progress.on_shard),
        )
    if as_json:
        print_json(_document(imported))
        return
    found = _document(imported)
    summary(
        [
            ("URLs", f"{imported.urls:,}", ""),
            ("hosts", f"{imported.hosts:,}", ""),
            ("store", f"{imported.bytes / 1e6:,.1f} MB", f"{found['bytes_per_url']} bytes a URL"),
            ("speed", f"{found['rows_per_second']:,} rows/s", f"{imported.seconds:.1f} s"),
            ("memory", f"{found['peak_memory'] / _MIB:,.0f} MiB", "at most"),
        ]
    )
    click.echo(f"\nNext: meguri stats --data {imported.data}; meguri run INPUT --data {imported.data}")


def _document(imported: Imported) -> dict[str, Any]:
    return {
        "urls": imported.urls,
        "hosts": imported.hosts,
        "partitions": imported.partitions,
        "cpu_seconds": round(imported.cpu_seconds, 3),
        **rates(imported.urls, imported.bytes, imported.urls, imported.seconds),
    }
