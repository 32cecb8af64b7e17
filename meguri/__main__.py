"""Entry point: runs a command and turns what it raised into one line and an exit code.

Exit codes: 0 done; 1 failed, or done in part (the command's help says which); 2 wrong use or a wrong policy; 3 an
input can't be read; 4 the data folder or the bus can't be used as it is; 70 something failed inside; 130
interrupted; 141 the reader of the standard output went away; 143 ended in order by SIGTERM.
"""

from __future__ import annotations

import os
import sys
import traceback

import click

from meguri.cli import OutputClosed, cli
from meguri_common.errors import (
    BusError,
    CorruptFilter,
    CorruptGeneration,
    CorruptSnapshot,
    DataFolderError,
    IncompatiblePolicy,
    InputUnreadable,
    ManifestError,
    MeguriError,
    OrderViolation,
    ParameterError,
    PolicyError,
    RecordError,
    RestoreRefused,
)

__all__ = ["exit_code_of", "main"]

_CODES: tuple[tuple[type[MeguriError] | tuple[type[MeguriError], ...], int], ...] = (
    ((ParameterError, PolicyError), 2),
    ((InputUnreadable, RecordError, OrderViolation, IncompatiblePolicy), 3),
    ((DataFolderError, RestoreRefused, BusError, CorruptSnapshot, CorruptGeneration, CorruptFilter, ManifestError), 4),
    (MeguriError, 70),
)
_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
_PIPE_CLOSED = 141  # 128 + SIGPIPE
_DEBUG = "MEGURI_DEBUG"


def exit_code_of(error: MeguriError) -> int:
    """Exit code that stands for an error."""
    return next(code for kinds, code in _CODES if isinstance(error, kinds))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; an int that a command returns is its exit code.

    Args:
        arguments: what stands behind the program's name; by default that of the process.

    Returns:
        The exit code.
    """
    try:
        result = cli.main(arguments, prog_name="meguri", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except click.Abort as problem:
        interrupted = isinstance(problem.__cause__ or problem.__context__, KeyboardInterrupt)
        click.echo("interrupted" if interrupted else "aborted", err=True)
        return _INTERRUPTED if interrupted else 1
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return _INTERRUPTED
    except (OutputClosed, BrokenPipeError):
        _drop_output()
        return _PIPE_CLOSED
    except MeguriError as problem:
        if os.environ.get(_DEBUG) == "1":
            traceback.print_exc()
        click.echo(f"meguri: {' '.join(str(problem).split())}", err=True)
        return exit_code_of(problem)
    return result if type(result) is int else 0


def _drop_output() -> None:
    """Send what is still buffered nowhere, or the interpreter complains about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
