"""Running the application until a signal or a failure ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meguri_common.errors import BusError, ConfigError
from meguri_monitor.app import monitor_app
from meguri_monitor.broker import partitions_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_monitor.app import MonitorSettings

__all__ = ["run_monitor"]

_log = logging.getLogger(__name__)


def run_monitor(settings: MonitorSettings, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT; gives the signal's number.

    Args:
        settings: what to listen to, and where to serve.
        ready: called with the page's address once it is served.

    Raises:
        BusError: no broker answers, the topic isn't there, or the application failed.
        ConfigError: a setting of security that Faust's client doesn't know; the address can't be served at.
    """
    # Faust ignores a topic that isn't there when it starts, for good.
    partitions = partitions_of(settings.bootstrap, settings.topic, settings.client or {})
    if partitions is None:
        msg = (
            f"there is no topic {settings.topic} at {settings.bootstrap}: "
            f"make the topics first (meguri topics create --bootstrap {settings.bootstrap})"
        )
        raise BusError(msg)
    with tempfile.TemporaryDirectory(prefix="meguri-monitor-") as scratch:
        return asyncio.run(_serve(settings, partitions, Path(scratch), ready))


async def _serve(settings: MonitorSettings, partitions: int, scratch: Path, ready: Callable[[str], None]) -> int:
    app = monitor_app(settings, partitions, scratch)
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        await _start(app, settings)
        if not ended.done():
            ready(f"http://{settings.host}:{settings.port}/")
        running = asyncio.ensure_future(app.wait())
        await asyncio.wait({ended, running}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        if not ended.done():
            msg = f"the monitor's application failed: {app.crash_reason!r}"
            raise BusError(msg) from app.crash_reason
        return ended.result()
    finally:
        await app.stop()


async def _start(app: Any, settings: MonitorSettings) -> None:
    try:
        await app.start()
    except OSError as problem:
        msg = f"can't serve at {settings.host}:{settings.port}: {problem}; choose another with --host and --port"
        raise ConfigError(msg) from problem
