"""What commands that work on a whole data folder have in common: progress, a summary, results shard by shard."""

from __future__ import annotations

import resource
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import click

from meguri_common.errors import DataFolderError, MeguriError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.progress import Progress, TaskID

    from meguri.embedded.inputs import InputStream
    from meguri_store.pool import ShardResult

__all__ = ["WorkProgress", "failures", "jobs_option", "memory_row", "peak_memory", "rates", "summary"]

_MIB = 1 << 20
_QUIET_SECONDS = 5.0
_EXIT_BY_SIGNAL = 128


def jobs_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The `--jobs` option."""
    option = click.option(
        "--jobs",
        default=1,
        show_default=True,
        metavar="N",
        type=click.IntRange(1, 256),
        help="Processes that work at once, each on a shard of its own.",
    )
    return option(command)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(_EXIT_BY_SIGNAL + number)


class WorkProgress:
    """Progress on standard error: a bar on a terminal; elsewhere a line now and then, none with `quiet`.

    Inside, SIGTERM ends the command as an error does: what is temporary is removed.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._terminal = sys.stderr.isatty()
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._stream: InputStream | None = None
        self._said = time.monotonic()
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, _end)
        if self._terminal:
            from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
            from rich.progress import (  # noqa: PLC0415 - see above
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def on_input(self, stream: InputStream | None) -> None:
        """Another input, or the end of the last."""
        if self._bar is not None and stream is not None:
            self._task = self._bar.add_task(f"reading {stream.name} (bytes)", total=stream.total)
        self._stream = stream

    def on_rows(self, rows: int) -> None:
        """As many rows have been read."""
        if self._bar is not None and self._task is not None and self._stream is not None:
            self._bar.update(self._task, completed=self._stream.consumed)
        elif self._stream is not None:
            self._line(f"{self._stream.name}: {rows:,} rows read")

    def on_records(self, what: str, rows: int) -> None:
        """As many records of a kind have been read."""
        if self._bar is not None:
            if self._task is None or self._bar.tasks[self._task].description != what:
                self._task = self._bar.add_task(what, total=None)
            self._bar.update(self._task, completed=rows)
        else:
            self._line(f"{rows:,} {what}")

    def on_shard(self, result: ShardResult[Any], count: int) -> None:
        """A shard has ended, of so many."""
        if self._bar is not None:
            if self._stream is not None or self._task is None or self._bar.tasks[self._task].description != "shards":
                self._stream, self._task = None, self._bar.add_task("shards", total=count)
            self._bar.advance(self._task)
        else:
            self._line(f"shard {result.partition} {'failed' if result.error else 'done'}, of {count}")

    def on_partition(self, partition: int, count: int) -> None:
        """A partition is done, of so many."""
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task("partitions", total=count)
            self._bar.advance(self._task)
        else:
            self._line(f"partition {partition} done, of {count}")

    def _line(self, text: str) -> None:
        if not self._quiet and time.monotonic() - self._said > _QUIET_SECONDS:
            self._said = time.monotonic()
            click.echo(text, err=True)


def peak_memory() -> int:
    """Most bytes that this process, or one that it started, had resident."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def memory_row(peak: int) -> tuple[str, str, str]:
    """The summary's line on memory."""
    return "memory", f"{peak / _MIB:,.0f} MiB", "at most"


def rates(urls: int, size: int, rows: int, seconds: float) -> dict[str, Any]:
    """Figures of a summary that all such commands give.

    Args:
        urls: URLs in the shards that were written.
        size: bytes of their files.
        rows: rows that were handled.
        seconds: time that it took.
    """
    return {
        "bytes": size,
        "bytes_per_url": round(size / urls, 2) if urls else 0.0,
        "seconds": round(seconds, 3),
        "rows_per_second": round(rows / seconds) if seconds else 0,
        "peak_memory": peak_memory(),
    }


def summary(rows: Iterable[tuple[str, str, str]]) -> None:
    """Name, figure and note a line, for a reader."""
    for name, value, note in rows:
        click.echo(f"  {name:<16}{value:>14}  {note}".rstrip())


def failures(failed: Iterable[ShardResult[Any]], advice: str) -> None:
    """Name the shards that failed, if any did.

    Raises:
        MeguriError: the error of the first that failed; of the disk, or of a worker's end, a `DataFolderError`.
    """
    results = list(failed)
    for result in results:
        click.echo(f"meguri: shard {result.partition}: {_words(result.error)}", err=True)
    if not results:
        return
    first = results[0].error
    msg = f"{len(results)} of the shards failed; the others are done. {advice}"
    if isinstance(first, MeguriError) and not isinstance(first, DataFolderError):
        click.echo(f"meguri: {msg}", err=True)
        raise first
    raise DataFolderError(msg) from first


def _words(problem: Exception | None) -> str:
    if isinstance(problem, OSError):
        return f"{problem.filename or 'disk'}: {problem.strerror or problem}"
    return str(problem)
