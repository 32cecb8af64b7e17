"""`meguri top`: the most important URLs of a data folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meguri.commands.showing import data_option, json_option, print_json
from meguri_common.records import ParkReason

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["top"]

_TERMS = ("score", "page_rank", "host_score", "blended")


@click.command()
@data_option
@click.option("-n", "count", default=20, show_default=True, metavar="N", type=click.IntRange(min=1), help="How many.")
@click.option("--why", is_flag=True, help="Add the parts of each priority.")
@json_option
def top(data: Path, count: int, *, why: bool, as_json: bool) -> None:
    """List the most important URLs of a data folder, best first.

    The priority is that of the moment; the store's record holds the one last sent,
    which an imported score or rank only moves when the URL is next visited or linked. Parked URLs are among them, and
    marked; what comes next is for meguri due to say.

    With --json: {"urls": [record, ...]}, each with its priority, keys in 16 hex digits, and with --why what the
    prioritizer knows.

    \b
    Exit codes: 0 done; 2 wrong use; 4 the data folder can't be used.

    \b
    Examples:
      meguri top --data ./meguri-data
      meguri top --data ./meguri-data -n 100 --why --json | jq '.urls[].url'
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.embedded.questions import record_document, top_urls  # noqa: PLC0415 - --help must not pay for numba
    from meguri.looking import open_view  # noqa: PLC0415 - see above

    with open_view(data) as view:
        rows = top_urls(view.partitions, count, why=why)
    if as_json:
        print_json({"urls": [record_document(row) for row in rows]})
        return
    for row in rows:
        named = row.get("url") or f"(on its way to the store: {row['host_key']:016x} {row['path_key']:016x})"
        parked = f"  (parked: {ParkReason(row['reason']).name.lower()})" if row.get("reason") else ""
        click.echo(f"{row['priority']:9.4f}  {named}{parked}")
        if why:
            click.echo(f"{'':9}  {_parts(row['why'])}")
    if not rows:
        click.echo(f"{data}: no URL is admitted yet", err=True)


def _parts(why: dict[str, Any]) -> str:
    terms = why["priority"]
    shown = [f"{name} {value:.4g}" for name, value in terms["in_cash"].items()]
    shown += [f"{name.replace('_', ' ')} {terms[name]:.4g}" for name in _TERMS if terms[name] is not None]
    depth = "depth not stated" if why["depth"] is None else f"depth {why['depth']}"
    suspect = "" if terms["trap_penalty"] is None else " (trap suspect)"
    return f"{', '.join(shown)}{suspect}; {depth} -> {terms['priority']:.4g}, level {terms['level']}"
