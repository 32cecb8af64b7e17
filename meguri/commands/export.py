"""`meguri export`: the frontier, row for row, in the store's order."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from meguri.commands.events import OUTPUT_SUFFIXES, open_output
from meguri.commands.showing import data_option, print_json
from meguri.commands.working import WorkProgress, rates
from meguri_common.errors import MeguriError
from meguri_common.records import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from meguri.looking import Viewer

__all__ = ["Wanted", "export", "tables_of"]

_STATUSES = {status.name.lower(): status for status in Status}


class Wanted(NamedTuple):
    """Which records go out."""

    host: int | None
    """Key of a host group; None for all."""
    statuses: frozenset[Status]
    """Empty for all."""
    due_before: int | None
    """Only what is due before this hour."""
    hosts: bool
    """Host records instead of URL records."""


@click.command()
@data_option
@click.option("--format", "form", type=click.Choice(["jsonl", "parquet"]), default="jsonl", show_default=True)
@click.option(
    "--output",
    metavar="FILE|DIR",
    help="A file; a folder (one that is there, or a name that ends in /) for one file a partition; "
    "- for standard output, the default of jsonl. A .jsonl.zst or .jsonl.gz is compressed.",
)
@click.option("--host", metavar="HOST", help="Only this host's group (by default its registrable domain).")
@click.option(
    "--status", "statuses", metavar="NAME", type=click.Choice(list(_STATUSES)), multiple=True, help="May be repeated."
)
@click.option(
    "--due-before",
    metavar="HOURS",
    type=click.IntRange(1),
    help="Only URLs that are due before this hour.",
)
@click.option("--hosts", is_flag=True, help="Host records instead of URL records.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option("--json", "as_json", is_flag=True, help="Sum up in one JSON object on standard output; needs --output.")
def export(
    data: Path,
    form: str,
    output: str | None,
    host: str | None,
    statuses: tuple[str, ...],
    due_before: int | None,
    *,
    hosts: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write the frontier out, row for row, in the order of the store: by host key, then URL.

    Every column of the records, codes as numbers. Keys and fingerprints are unsigned numbers in Parquet and 16 hex
    digits in JSON Lines, where octets that are no UTF-8 are {"hex": "..."}; first_row of a host counts from the
    beginning of its partition. Equal campaigns give equal JSON Lines. meguri import makes a data folder of either. A
    file appears under its name when all of it is there.

    \b
    Statuses: discovered, scheduled, ready, in_flight, crawled, due_recrawl, gone, excluded_robots,
    trapped.

    \b
    Exit codes: 0 done; 1 an output can't be written; 2 wrong use; 4 the data folder can't be used.

    \b
    Examples:
      meguri export --data ./meguri-data | jq -r .url
      meguri export --data ./meguri-data --status crawled --host example.org --output a.jsonl.zst
      meguri export --data ./meguri-data --format parquet --output frontier.parquet
      meguri export --data ./meguri-data --format parquet --hosts --output hosts/
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    target = None if output in {None, "-"} else output
    _check_together(form, target, hosts=hosts, of_urls=bool(statuses) or due_before is not None, as_json=as_json)
    from meguri.looking import open_view  # noqa: PLC0415 - --help must not pay for numba

    with open_view(data) as view:
        key = _host_key(view, host)
        wanted = Wanted(key, frozenset(_STATUSES[name] for name in statuses), due_before, hosts)
        outputs = _outputs(target, form, _partitions(view, key), force=force)
        try:
            written = _write_all(view, wanted, outputs, form, quiet=as_json or target is None)
        except OSError as problem:
            if isinstance(problem, BrokenPipeError):
                raise
            raise click.ClickException(
                f"{target or 'standard output'}: can't be written: {problem.strerror or problem}"
            ) from problem
    if as_json:
        print_json(written.document())
    elif target is not None:
        click.echo(
            f"{written.rows:,} records, {written.bytes / 1e6:,.1f} MB in {len(written.files):,} files, "
            f"{written.document()['rows_per_second']:,} rows/s",
            err=True,
        )


def _check_together(form: str, target: str | None, *, hosts: bool, of_urls: bool, as_json: bool) -> None:
    """Refuse options that contradict one another."""
    if hosts and of_urls:
        raise click.UsageError("--status and --due-before are about URLs: leave them out with --hosts")
    if form == "parquet" and target is None:
        raise click.UsageError("a Parquet file has its index at its end, so it can't be piped: give --output")
    if as_json and target is None:
        raise click.UsageError("the records go to standard output: give --output, and --json sums up there")


def _host_key(view: Viewer, host: str | None) -> int | None:
    """Key of the host group that is asked for."""
    from meguri.embedded.questions import group_of  # noqa: PLC0415 - --help must not pay for numba

    if host is None:
        return None
    try:
        return group_of(host, view.campaign.policy)[1]
    except ValueError as problem:
        raise click.BadParameter(str(problem), param_hint="--host") from None


def _write_all(
    view: Viewer, wanted: Wanted, outputs: Iterable[tuple[Path | None, list[int]]], form: str, *, quiet: bool
) -> _Written:
    written = _Written()
    with nullcontext() if quiet else WorkProgress(quiet=False) as progress:
        for path, numbers in outputs:
            found = (table for number in numbers for table in tables_of(view, number, wanted))
            tables = written.counted(found, progress)
            if form == "parquet":
                assert path is not None, "Parquet goes to files"
                _write_parquet(path, tables, hosts=wanted.hosts)
            else:
                _write_jsonl(path, tables)
            written.add(path)
    return written


class _Written:
    """What has gone out."""

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0
        self.files: list[str] = []
        self._began = time.monotonic()

    def counted(self, tables: Iterable[pa.Table], progress: WorkProgress | None) -> Iterator[pa.Table]:
        """Pass records on."""
        for table in tables:
            self.rows += table.num_rows
            if progress is not None:
                progress.on_records("records written", self.rows)
            yield table

    def add(self, path: Path | None) -> None:
        """A file is there, whole."""
        if path is not None:
            self.files.append(str(path))
            self.bytes += path.stat().st_size

    def document(self) -> dict[str, Any]:
        """What `--json` says."""
        return {
            "rows": self.rows,
            "files": self.files,
            **rates(self.rows, self.bytes, self.rows, time.monotonic() - self._began),
        }


def tables_of(view: Viewer, number: int, wanted: Wanted) -> Iterator[pa.Table]:
    """Records of a partition that are wanted, in store order, a chunk at a time. The partition is let go afterwards."""
    import numpy as np  # noqa: PLC0415 - --help must not pay for it
    import pyarrow as pa  # noqa: PLC0415 - see above

    from meguri.embedded.questions import DUE_STATUSES, records_of  # noqa: PLC0415 - see above
    from meguri.embedded.totals import shard_of  # noqa: PLC0415 - see above

    loaded = view.partition("store", number)
    for table in shard_of(loaded).hosts() if wanted.hosts else records_of(loaded, wanted.host):
        keep = np.ones(table.num_rows, np.bool_)
        if wanted.hosts and wanted.host is not None:
            keep &= table.column("host_key").to_numpy() == np.uint64(wanted.host)
        if wanted.statuses:
            keep &= np.isin(table.column("status").to_numpy(), list(wanted.statuses))
        if wanted.due_before is not None:
            due = table.column("next_due").to_numpy()
            waits = np.isin(table.column("status").to_numpy(), DUE_STATUSES)
            keep &= (due > 0) & (due < wanted.due_before) & waits
        yield table if keep.all() else table.filter(pa.array(keep))
    view.forget()


def _partitions(view: Viewer, host: int | None) -> list[int]:
    from meguri_common.keys import partition_of  # noqa: PLC0415 - imports numpy, which --help must not pay for

    count = view.count("store")
    return list(range(count)) if host is None else [partition_of(host, count)]


def _outputs(
    target: str | None, form: str, partitions: list[int], *, force: bool
) -> Iterable[tuple[Path | None, list[int]]]:
    """Which partitions go to which file; None is standard output."""
    if target is None:
        return [(None, partitions)]
    path = Path(target)
    if path.is_dir() or target.endswith("/"):
        path.mkdir(parents=True, exist_ok=True)
        outputs = [(path / f"shard-{number:05d}.{form}", [number]) for number in partitions]
    else:
        suffixes = OUTPUT_SUFFIXES if form == "jsonl" else (".parquet",)
        if not path.name.endswith(suffixes):
            raise click.BadParameter(f"{target!r} ends in none of {', '.join(suffixes)}", param_hint="--output")
        outputs = [(path, partitions)]
    for file, _ in outputs:
        if file.exists() and not force:
            raise click.BadParameter(f"{file} is there: --force replaces it", param_hint="--output")
    return outputs


def _write_jsonl(path: Path | None, tables: Iterable[pa.Table]) -> None:
    from meguri.embedded.record_lines import record_lines  # noqa: PLC0415 - --help must not pay for pyarrow

    try:
        with open_output(path) as write:
            for table in tables:
                for lines in record_lines(table):
                    write(lines)
    except MeguriError as problem:
        if isinstance(problem.__cause__, OSError) and path is not None:
            raise problem.__cause__ from None
        raise


def _write_parquet(path: Path, tables: Iterable[pa.Table], *, hosts: bool) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - --help must not pay for it

    from meguri_store.schema import HOST_SCHEMA, URL_SCHEMA  # noqa: PLC0415 - see above

    schema = HOST_SCHEMA if hosts else URL_SCHEMA
    plain = {} if hosts else {"url": "DELTA_BYTE_ARRAY"}
    coded: list[str] = [name for name in schema.names if name not in plain]
    with (
        _whole_file(path) as file,
        pq.ParquetWriter(
            file, schema, compression="zstd", use_dictionary=coded, column_encoding=plain or None
        ) as writer,
    ):
        for table in tables:
            if table.num_rows:
                writer.write_table(table)


@contextmanager
def _whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when everything is in it, and not at all after an error."""
    # Beside the target, so that the rename stays within one file system.
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
