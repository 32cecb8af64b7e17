"""`meguri verify`: whether all of a data folder is as it was written."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from meguri.commands.showing import data_option, json_option, print_json
from meguri.commands.working import peak_memory, summary

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["verify"]


@click.command()
@data_option
@json_option
def verify(data: Path, *, as_json: bool) -> None:
    """Read everything in a data folder, or in a fleet's state root, against what it says about itself.

    The pages of the bus; the checksum of every snapshot and of every file that it names; of each generation every page,
    the order of its rows, their values and counts, where each host begins, and whether the filter holds every key;
    store.json against the shards; and whether a snapshot is gone that must be there. Ends at the first lie, naming file
    and row. A run that writes to the folder isn't disturbed.

    \b
    Exit codes: 0 all whole; 2 wrong use; 4 something isn't as it was written, or can't be read.

    \b
    Examples:
      meguri verify --data ./meguri-data
      meguri verify --data ./meguri-data --json
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    from meguri.commands.inspect import say_path  # noqa: PLC0415 - --help must not pay for it
    from meguri.fleet.campaign import CAMPAIGN_FILE  # noqa: PLC0415 - see above

    began = time.monotonic()
    if (data / CAMPAIGN_FILE).is_file():
        from meguri.fleet.inspection import verify_root  # noqa: PLC0415 - see above
        from meguri.fleet.view import open_fleet_view  # noqa: PLC0415 - see above

        with open_fleet_view(data) as root:
            found = verify_root(root, say_path)
    else:
        from meguri.embedded.inspection import verify_folder  # noqa: PLC0415 - see above
        from meguri.embedded.view import open_view  # noqa: PLC0415 - see above

        with open_view(data) as view:
            found = verify_folder(view, say_path)
    seconds = time.monotonic() - began
    rate = round(found["urls"] / seconds) if seconds else 0
    if as_json:
        figures = {"seconds": round(seconds, 3), "rows_per_second": rate, "peak_memory": peak_memory()}
        print_json({"ok": True, **found, **figures})
        return
    rows = [(name.replace("_", " "), f"{count:,}", "") for name, count in found.items()]
    summary([*rows, ("speed", f"{rate:,} rows/s", f"{seconds:.1f} s")])
    click.echo("\nall whole")
