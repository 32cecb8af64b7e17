"""`meguri run`: page events in, a compacted, queryable frontier out."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click
import orjson

from meguri.commands.stopping import EXIT_BY_SIGNAL, StopSignals
from meguri_common.errors import DataFolderError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.progress import Progress, TaskID

    from meguri.embedded.campaign import Campaign
    from meguri.embedded.inputs import InputStream
    from meguri.embedded.run import RunResult
    from meguri_common.bus.port import Message

__all__ = ["disk_errors", "run"]

_EXIT_REJECTED = 1
_EXIT_UNREADABLE = 3
_TOP = 10
_QUIET_SECONDS = 10.0


def _settings(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """`service.name=value` settings by service."""
    out: dict[str, dict[str, Any]] = {}
    for text in values:
        name, equals, value = text.partition("=")
        service, dot, parameter = name.partition(".")
        if not equals or not dot:
            raise click.BadParameter(f"{text!r} is not of the form service.parameter=value")
        try:
            out.setdefault(service, {})[parameter] = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise click.BadParameter(f"the value in {text!r} is no number") from None
    return out


@click.command()
@click.argument("inputs", nargs=-1, metavar="[INPUT]...")
@click.option("--data", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The data folder.")
@click.option(
    "--partitions",
    metavar="N",
    type=click.IntRange(1, 4096),
    help="Partitions of a new data folder (default 8); fixed from then on.",
)
@click.option(
    "--policy",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="URL policy of a new data folder (JSON); fixed from then on.",
)
@click.option("--seed", "seeds", metavar="URL", multiple=True, help="A start URL: it mints cash. May be repeated.")
@click.option("--vouch", "vouched", metavar="HOST", multiple=True, help="A host without URL budget. May be repeated.")
@click.option(
    "--set",
    "settings",
    metavar="SERVICE.NAME=VALUE",
    multiple=True,
    callback=_settings,
    help="Change a parameter, e.g. prioritizer.base_budget=128. It holds in this folder until it is changed again.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on standard output.")
def run(
    inputs: tuple[str, ...],
    data: Path,
    partitions: int | None,
    policy: Path | None,
    seeds: tuple[str, ...],
    vouched: tuple[str, ...],
    settings: dict[str, dict[str, Any]],
    *,
    as_json: bool,
) -> int:
    """Feed page events through the whole pipeline into a data folder.

    INPUT is a file of page events, one JSON object a line: .jsonl, .jsonl.zst, .jsonl.gz, or - for standard input.
    A data folder that exists is gone on with; what was published before is known by its content and skipped, and a
    run that was killed at any moment is finished first. Other programs may read the folder meanwhile.

    Exit codes: 0 done; 1 done, but some events were rejected; 2 wrong use; 3 an input could not be read (the others
    were processed); 4 the data folder could not be used; 143 or 130 stopped in order by a signal, to be gone on with.

    \b
    Examples:
      meguri run examples/sqlite-docs.jsonl.zst --data ./meguri-data
      zstdcat crawl-*.jsonl.zst | meguri run - --data ./meguri-data --json
      meguri run --seed https://www.example.org/ --vouch example.org --data ./meguri-data
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.embedded.campaign import open_campaign  # noqa: PLC0415 - --help must not pay for numba
    from meguri.embedded.run import RunOptions, run_inputs  # noqa: PLC0415 - see above

    stop = StopSignals()
    with disk_errors(data):
        campaign = open_campaign(data, partitions=partitions, policy=policy, parameters=settings)
    try:
        with _Reporter(quiet=as_json) as reporter, disk_errors(data):
            options = RunOptions(seeds, vouched, stop.asked, reporter.on_input, reporter.on_step)
            result = run_inputs(campaign, inputs, options)
        for problem in result.unreadable:
            click.echo(f"meguri: {problem}", err=True)
        _warn(result, data)
        if as_json:
            sys.stdout.buffer.write(orjson.dumps(result.document(), option=orjson.OPT_APPEND_NEWLINE))
        elif not result.stopped and (result.totals.urls_total or not result.unreadable):
            _summary(campaign, result)
    finally:
        campaign.close()
    return _exit_code(result, stop)


@contextmanager
def disk_errors(data: Path, way_on: str = "start again: what was committed is kept") -> Iterator[None]:
    """Say in one line which file the disk refused, and what to do."""
    try:
        yield
    except OSError as problem:
        if isinstance(problem, BrokenPipeError):
            raise
        full = problem.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        advice = "Free some space" if full else "Mend that"
        raise DataFolderError(
            f"{problem.filename or data}: {problem.strerror or problem}. {advice} and {way_on}."
        ) from problem


def _compiled() -> bool:
    """Whether kernels compiled by an earlier run are kept where numba looks for them."""
    from meguri_prioritizer import kernels  # noqa: PLC0415 - see above

    folder = os.environ.get("NUMBA_CACHE_DIR")
    places = [Path(folder)] if folder else [Path(place) for place in kernels.__path__]
    return any(next(place.rglob("*.nbi"), None) for place in places)


class _Reporter:
    """Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, *, quiet: bool) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stream: InputStream | None = None
        self._pages_bytes = 0
        self._last_line = ""
        self._said = time.monotonic()
        self._quiet = quiet and not sys.stderr.isatty()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _progress_bar()
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_input(self, stream: InputStream | None) -> None:
        """Another input, or the end of the last."""
        if self._bar is not None:
            if self._task is not None and self._stream is not None:
                self._bar.update(self._task, completed=self._stream.consumed)
            name, total = (stream.name, stream.total) if stream else ("compacting", None)
            self._task = self._bar.add_task(name, total=total)
        self._stream = stream

    def on_step(self, service: str, _partition: int, messages: Sequence[Message]) -> None:
        """A step has committed."""
        if service == "canonicalizer":
            self._pages_bytes += sum(len(memoryview(message.payload)) for message in messages)
        if self._bar is not None and self._task is not None and self._stream is not None:
            self._bar.update(self._task, completed=self._stream.consumed)
        elif self._bar is None and not self._quiet and time.monotonic() - self._said > _QUIET_SECONDS:
            self._said = time.monotonic()
            name = self._stream.name if self._stream else "finishing"
            line = f"{name}: {self._pages_bytes / 1e6:,.0f} MB of events handled"
            if line != self._last_line:
                click.echo(line, err=True)
            self._last_line = line


def _progress_bar() -> Progress:
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import (  # noqa: PLC0415 - see above
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


def _warn(result: RunResult, data: Path) -> None:
    if result.totals.pages and not result.totals.cash_minted:
        click.echo(
            "meguri: no seed yet, so importance is flat: give a start URL with --seed, or state depth 0 in its event",
            err=True,
        )
    if result.this_run["events_rejected"]:
        count = result.this_run["events_rejected"]
        click.echo(f"meguri: {count} events were rejected; see: meguri inspect --rejects --data {data}", err=True)
    if result.stopped:
        click.echo("meguri: stopped in order; the same command goes on from here", err=True)


def _exit_code(result: RunResult, stop: StopSignals) -> int:
    if result.stopped:
        return EXIT_BY_SIGNAL + stop.received
    if result.unreadable:
        return _EXIT_UNREADABLE
    return _EXIT_REJECTED if result.this_run["events_rejected"] else 0


def _summary(campaign: Campaign, result: RunResult) -> None:
    """What came out, for a reader."""
    from meguri.embedded.questions import due_urls, latest_hour, top_urls  # noqa: PLC0415 - --help must not pay for it

    totals, this_run = result.totals, result.this_run
    rate = this_run["links"] / this_run["seconds"] if this_run["seconds"] else 0.0
    rejected = ", ".join(f"{reason} {count:,}" for reason, count in totals.links_rejected.items())
    rows = [
        ("pages", f"{totals.pages:,}", f"{this_run['pages']:,} in this run"),
        ("links", f"{totals.links:,}", f"{totals.links_new:,} new, {totals.links_known:,} known"),
        ("links rejected", f"{sum(totals.links_rejected.values()):,}", rejected),
        ("events rejected", f"{totals.events_rejected:,}", ""),
        ("URLs", f"{totals.urls_total:,}", f"{this_run['urls_new']:,} new in this run, {totals.urls_trapped:,} parked"),
        ("hosts", f"{totals.hosts:,}", ""),
        ("store", f"{totals.store_bytes / 1e6:,.1f} MB", f"{totals.bytes_per_url} bytes a URL, {totals.shards} shards"),
        ("speed", f"{rate:,.0f} links/s", f"{this_run['seconds']:.1f} s, {this_run['cpu_seconds']:.1f} s of CPU"),
    ]
    click.echo("")
    for name, value, note in rows:
        click.echo(f"  {name:<16}{value:>14}  {note}".rstrip())
    driver = result.driver
    assert driver is not None, "a run has a driver"
    _list("most important", [f"{row['priority']:9.4f}  {row['url']}" for row in top_urls(driver.partitions, _TOP)])
    now = latest_hour(driver.partitions)
    _list(
        f"next due, by priority (now is {_hour(now)})",
        [f"{row['priority']:9.4f}  {row['url']}" for row in due_urls(driver.partitions, now, _TOP, by_priority=True)],
    )
    click.echo(f"\nNext: meguri explain URL --data {campaign.data}; meguri due --by-priority --data {campaign.data}")


def _list(title: str, lines: list[str]) -> None:
    click.echo(f"\n{title}")
    for line in lines or ["(none)"]:
        click.echo(f"  {line}")


def _hour(hours: int) -> str:
    return time.strftime("%Y-%m-%d %H:00", time.gmtime(hours * 3600))
