"""What commands that look at a data folder have in common: the option, JSON, hours."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["HourType", "columns", "data_option", "hour_text", "json_option", "print_json", "safe_text"]

_LAST_HOUR = 0xFFFFFFFF


class HourType(click.ParamType):
    """An hour since 1970: as a number, as a date with or without a time (UTC where it states no zone), or `now`."""

    name = "hour"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See `click.ParamType`."""
        try:
            hour = _hour_of(str(value).strip())
        except ValueError:
            self.fail(
                f"{value!r} is neither a number of hours since 1970, nor a date such as 2026-07-01 or 2026-07-01T15:00,"
                " nor `now`",
                param,
                ctx,
            )
        if not 0 <= hour <= _LAST_HOUR:
            self.fail(f"{value!r} is out of range: hours go from 0 (1970) to {_LAST_HOUR}", param, ctx)
        return hour


def _hour_of(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    if text == "now":
        return int(time.time()) // 3600
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()) // 3600


def data_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The `--data` option of commands that only look."""
    option = click.option(
        "--data",
        required=True,
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="The data folder; a run that writes to it isn't disturbed.",
    )
    return option(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The `--json` option."""
    option = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output instead.")
    return option(command)


def print_json(document: dict[str, Any]) -> None:
    """One object on one line."""
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE))


def hour_text(hours: int) -> str:
    """An hour of a record for people: UTC; 0 is never."""
    return time.strftime("%Y-%m-%d %H:00", time.gmtime(hours * 3600)) if hours else "never"


def columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows of a table as lines: all columns but the last one padded."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def safe_text(text: str) -> str:
    """A foreign text for a terminal: what doesn't print is escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)
