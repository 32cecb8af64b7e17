"""Running the application until a signal ends it; one that an outage has stalled is started anew."""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiokafka.errors import KafkaError

from meguri_common.errors import BusError, ConfigError, MeguriError
from meguri_monitor.app import monitor_app
from meguri_monitor.broker import make_topic, shape_of
from meguri_monitor.monitor import CHANGELOG_SETTINGS, Stalled, changelog_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_monitor.monitor import MonitorSettings

__all__ = ["run_monitor"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0


def run_monitor(settings: MonitorSettings, ready: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT; gives the signal's number.

    Args:
        settings: what to listen to, and where to serve.
        ready: called with the page's address once it is served.

    Raises:
        BusError: no broker answers at the start, or the topic isn't there.
        ConfigError: a setting of security that Faust's client doesn't know; the address can't be served at.
        MeguriError: the application failed of itself.
    """
    return asyncio.run(_run(settings, ready))


async def _run(settings: MonitorSettings, ready: Callable[[str], None]) -> int:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    started = False
    pause = _FIRST_PAUSE

    def served(address: str) -> None:
        nonlocal started, pause
        if not started:
            ready(address)
        started, pause = True, _FIRST_PAUSE

    while not ended.done():
        try:
            await _serve(settings, ended, served)
        except BusError as problem:
            if not started:
                raise
            _log.warning("%s: starting anew in %.0f s", problem, pause)
            await asyncio.wait({ended}, timeout=pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
    return ended.result()


async def _serve(settings: MonitorSettings, ended: asyncio.Future[int], served: Callable[[str], None]) -> None:
    """Serve until it is to end, or the application can't go on.

    Raises:
        BusError: no broker answers, the topic isn't there, or the application was cut off.
        ConfigError, MeguriError: see `run_monitor`.
    """
    # Faust ignores a topic that isn't there when it starts, for good.
    shape = await shape_of(settings.bootstrap, settings.topic, settings.client or {})
    if shape is None:
        msg = (
            f"there is no topic {settings.topic} at {settings.bootstrap}: "
            f"make the topics first (meguri topics create --bootstrap {settings.bootstrap})"
        )
        raise BusError(msg)
    # Nor does Faust wait for the topic of its table: the first message that came before it would end the application.
    changelog = changelog_topic(settings.group, shape.partitions)
    await make_topic(settings.bootstrap, changelog, shape, CHANGELOG_SETTINGS, settings.client or {})
    with tempfile.TemporaryDirectory(prefix="meguri-monitor-") as scratch:
        app = monitor_app(settings, shape, Path(scratch))
        try:
            await _start(app, settings)
            served(f"http://{settings.host}:{settings.port}/")
            running = asyncio.ensure_future(app.wait())
            await asyncio.wait({ended, running}, return_when=asyncio.FIRST_COMPLETED)
            running.cancel()
            if not ended.done():
                raise _failure(app.crash_reason) from app.crash_reason
        finally:
            await app.stop()


async def _start(app: Any, settings: MonitorSettings) -> None:
    try:
        await app.start()
    except KafkaError as problem:
        raise _failure(problem) from problem
    except OSError as problem:
        msg = f"can't serve at {settings.host}:{settings.port}: {problem}; choose another with --host and --port"
        raise ConfigError(msg) from problem


def _failure(reason: BaseException | None) -> MeguriError:
    """What the application's end is to be called: an outage passes, a mistake of ours doesn't."""
    if reason is None or isinstance(reason, (KafkaError, OSError, Stalled)):
        return BusError(f"the monitor was cut off from the brokers: {reason!r}")
    return MeguriError(f"the monitor failed, please report it: {reason!r}")
