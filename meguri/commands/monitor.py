"""`meguri monitor`: the fleet on a page."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from meguri.fleet.options import data_of, fleet_options, state_root_option

if TYPE_CHECKING:
    from meguri_common.config import Loaded

__all__ = ["monitor"]

_SIGNALLED = 128


@click.command()
@state_root_option
@fleet_options
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to serve the page at; it has no access control."
)
@click.option("--port", default=6066, show_default=True, type=click.IntRange(1, 65535), help="Port of the page.")
def monitor(loaded: Loaded, host: str, port: int) -> int:
    """Show the fleet live: rates, lag and health, and what to scale next.

    Listens to the services' telemetry and serves a web page, by default for this machine alone. The state as JSON is
    at /api/state, Prometheus's text at /metrics, and /health answers 200 while telemetry can be heard. It changes
    nothing in the fleet, which doesn't need it; it may be stopped and started at any time.

    \b
    Exit codes: 143 or 130 stopped in order by a signal; 2 wrong use; 4 the broker or the topics can't be used.

    \b
    Examples:
      meguri monitor --bootstrap localhost:9092 --data ./state
      curl -s localhost:6066/api/state | jq .advice
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    import logging  # noqa: PLC0415 - see below

    from meguri_common.errors import MissingExtra  # noqa: PLC0415 - see below

    if find_spec("faust") is None:
        msg = "the monitor needs the package faust-streaming; install it with: pip install 'meguri[monitor]'"
        raise MissingExtra(msg)
    from meguri.fleet.campaign import find_campaign  # noqa: PLC0415 - --help must not pay for it
    from meguri_common.topics import TELEMETRY  # noqa: PLC0415 - see above
    from meguri_monitor.monitor import MonitorSettings  # noqa: PLC0415 - Faust is an optional dependency, and not a light one
    from meguri_monitor.running import run_monitor  # noqa: PLC0415 - see above

    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", level=logging.WARNING)
    # Faust's client tells of each failed question of an outage; the monitor tells of the outage.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    kafka, data = loaded.settings.kafka, data_of(loaded)
    kafka.client_config()
    campaign = find_campaign(data)
    settings = MonitorSettings(
        bootstrap=kafka.bootstrap,
        data=data,
        host=host,
        port=port,
        topic=kafka.topic(TELEMETRY),
        group=kafka.group("monitor"),
        campaign=campaign.identity.campaign if campaign else None,
        client=kafka.client,
    )
    number = run_monitor(settings, lambda address: click.echo(f"{address} (Ctrl-C ends it)", err=True))
    return _SIGNALLED + number
