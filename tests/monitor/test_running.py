"""What the monitor does when it is cut off: it looks after itself, and starts anew."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("faust", reason="no faust-streaming (the extra `monitor`)")

from aiokafka.errors import KafkaConnectionError
from faust.types import TP

from meguri_common.errors import BusError, MeguriError
from meguri_monitor import monitor as monitor_module
from meguri_monitor import running
from meguri_monitor.monitor import Monitor, MonitorSettings, Stalled

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = MonitorSettings(bootstrap="127.0.0.1:1", data=Path("nowhere"), topic="t")


@dataclass
class Broker:
    """A consumer's places, and where the topic ends."""

    position_of: dict[int, int] = field(default_factory=lambda: {0: 10, 1: 0})
    ends: dict[int, int] = field(default_factory=lambda: {0: 10, 1: 0})
    away: bool = False

    def assignment(self) -> set[Any]:
        return {TP("t", number) for number in self.position_of} | {TP("changelog", 0)}

    async def position(self, place: Any) -> int:
        return self.position_of[place.partition]

    async def ends_of(self, *_: Any) -> dict[int, int]:
        if self.away:
            raise BusError("away")
        return self.ends


class FakeApp:
    """As much of Faust's application as the monitor looks at."""

    def __init__(self) -> None:
        self.consumer = Broker()
        self.rebalancing = False

    def Table(self, *_: Any, **__: Any) -> FakeApp:  # noqa: N802 - Faust's name
        return self

    def tumbling(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {}


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Monitor:
    app = FakeApp()
    monkeypatch.setattr(monitor_module, "ends_of", app.consumer.ends_of)
    return Monitor(app, SETTINGS, 2)


def look(monitor: Monitor, times: int) -> None:
    async def looks() -> None:
        for _ in range(times):
            await monitor.look_after_itself()

    asyncio.run(looks())


def test_silence_is_no_stall(monitor: Monitor) -> None:
    look(monitor, 10)


def test_what_waits_and_is_not_read_is_a_stall(monitor: Monitor) -> None:
    look(monitor, 2)
    monitor.app.consumer.ends[0] = 15
    look(monitor, 1)
    with pytest.raises(Stalled, match=r"t\[0\] is read up to 10 of 15"):
        look(monitor, 1)


def test_what_is_fetched_and_not_taken_is_a_stall_too(monitor: Monitor) -> None:
    monitor.take(b"", 0, 11, 0.0, 1e9)
    monitor.app.consumer.position_of[0] = monitor.app.consumer.ends[0] = 40
    with pytest.raises(Stalled, match=r"t\[0\] is read up to 12 of 40"):
        look(monitor, 3)


def test_slow_reading_is_no_stall(monitor: Monitor) -> None:
    monitor.app.consumer.ends[0] = 10**6
    for offset in range(10, 20):
        monitor.take(b"", 0, offset, 0.0, 1e9)
        look(monitor, 1)


@pytest.mark.parametrize("trouble", ["away", "rebalancing"])
def test_an_outage_is_waited_out(monitor: Monitor, trouble: str) -> None:
    setattr(monitor.app.consumer if trouble == "away" else monitor.app, trouble, True)
    monitor.app.consumer.ends[0] = 15
    look(monitor, 10)


def serving(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[Callable[[str], None]], None]) -> list[int]:
    """Replace serving by acts that follow one another; gives the numbers of those that were begun."""
    begun: list[int] = []

    async def serve(_settings: MonitorSettings, ended: asyncio.Future[int], served: Callable[[str], None]) -> None:
        begun.append(len(begun))
        acts[begun[-1]](served)
        await asyncio.wait({ended}, timeout=10)

    monkeypatch.setattr(running, "_serve", serve)
    monkeypatch.setattr(running, "_FIRST_PAUSE", 0.01)
    return begun


def cut_off(_served: Callable[[str], None]) -> None:
    raise BusError("cut off")


def served_and_cut_off(served: Callable[[str], None]) -> None:
    served("http://here/")
    raise BusError("cut off")


def served_and_signalled(served: Callable[[str], None]) -> None:
    served("http://here/")
    os.kill(os.getpid(), signal.SIGTERM)


def test_it_starts_anew_until_it_is_ended(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    begun = serving(monkeypatch, served_and_cut_off, cut_off, cut_off, served_and_signalled)
    said: list[str] = []
    assert running.run_monitor(SETTINGS, said.append) == signal.SIGTERM
    assert begun == [0, 1, 2, 3]
    assert said == ["http://here/"], "once"
    assert len([line for line in caplog.messages if "starting anew" in line]) == 3


def test_what_fails_at_the_first_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    serving(monkeypatch, cut_off)
    with pytest.raises(BusError, match="cut off"):
        running.run_monitor(SETTINGS, lambda _address: None)


def test_outages_pass_and_mistakes_do_not() -> None:
    for reason in (KafkaConnectionError("x"), Stalled("x"), OSError("x"), None):
        assert isinstance(running._failure(reason), BusError)
    failure = running._failure(ZeroDivisionError("ours"))
    assert isinstance(failure, MeguriError)
    assert not isinstance(failure, BusError)
    assert "report" in str(failure)
