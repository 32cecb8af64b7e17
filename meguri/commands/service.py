"""`meguri canonicalizer`, `dedup`, `prioritizer`, `store`: one instance of a service on Kafka."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from meguri.fleet.options import data_of, fleet_options, state_root_option

if TYPE_CHECKING:
    from meguri_common.config import Loaded

__all__ = ["canonicalizer", "dedup", "prioritizer", "store"]

_LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"
_LEVEL = "MEGURI_LOG"

_HELP = """Run one instance of {name}: {what}.

Start as many as you like, on any number of hosts: they share the partitions of {topic}, and all need the same
state root DIR (a volume that each reaches) and the topics that `meguri topics create` makes. SIGTERM finishes the
step, snapshots, and leaves; an instance that is killed loses nothing.

Exit codes: 0 stopped in order; 2 wrong use; 4 the topics or the state root can't be used as they are.

\b
Examples:
  meguri {name} --bootstrap localhost:9092 --data ./state
  meguri {name} --config meguri.toml --health 127.0.0.1:8081
"""


def _address(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdecimal():
        raise click.BadParameter(f"{value!r} is not of the form HOST:PORT")
    return host, int(port)


def _service(name: str, what: str, topic: str) -> click.Command:
    @click.command(name, help=_HELP.format(name=name, what=what, topic=topic))
    @click.option(
        "--instance", metavar="NAME", help="A name that this instance keeps (default: the host's, and a number)."
    )
    @click.option(
        "--health",
        metavar="HOST:PORT",
        callback=_address,
        help="Answer /live and /ready there.",
    )
    @state_root_option
    @fleet_options
    def command(loaded: Loaded, instance: str | None, health: tuple[str, int] | None) -> int:
        from meguri.commands.stopping import StopSignals  # noqa: PLC0415 - --help must not pay for what a service needs

        # Before what takes long: a stop that is asked for meanwhile is a stop in order, too.
        stop = StopSignals()
        from meguri.fleet.serving import ServeOptions, serve  # noqa: PLC0415 - see above

        logging.basicConfig(
            stream=sys.stderr, format=_LOG_FORMAT, level=os.environ.get(_LEVEL, "INFO").upper(), force=True
        )
        options = ServeOptions(instance, health)
        in_order = serve(name, loaded.settings, data_of(loaded), options, stopping=stop.asked)
        return 0 if in_order else 1

    made: click.Command = command
    return made


canonicalizer = _service("canonicalizer", "public events in, canonical links out", "the pages")
dedup = _service("dedup", "links in, new URLs and visits out", "the links")
prioritizer = _service("prioritizer", "what a URL is worth, from the frontier", "the frontier")
store = _service("store", "the records, from what changed about them", "the deltas")
