"""CPU time of a run by stage: calls between services, bus and snapshots are wrapped, and nothing within them.

A stage is charged the time spent in its calls less that of the stages called from there. Time is that of the process,
user and system, all threads.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import meguri.embedded.campaign
import meguri.embedded.driver
import meguri.embedded.ingest
import meguri.embedded.run
import meguri_store.compact
from meguri_canonicalizer.service import Canonicalizer
from meguri_common.bus.embedded import EmbeddedBus, EmbeddedProducer
from meguri_common.runtime.outputs import Outputs
from meguri_dedup.service import Dedup
from meguri_prioritizer.service import Prioritizer
from meguri_store.service import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASURING", "REST", "STAGES", "StageClock"]

REST = "rest"
MEASURING = "measuring"
"""The benchmark's own; no part of any sum."""

_DRIVER = meguri.embedded.driver.RoundDriver
_CALLS: tuple[tuple[Any, str, str], ...] = (
    (_DRIVER, "publish", "publish"),
    (Canonicalizer, "apply", "canonicalizer"),
    (Dedup, "apply", "dedup"),
    (Prioritizer, "apply", "prioritizer"),
    (Store, "apply", "store"),
    (EmbeddedBus, "read", "bus reads"),
    (EmbeddedBus, "trim", "bus trims"),
    (EmbeddedBus, "barrier", "bus barriers"),
    (EmbeddedProducer, "commit", "bus commits"),
    (meguri.embedded.driver, "take_snapshot", "snapshots"),
    (meguri_store.compact, "compact", "compaction"),
    (meguri.embedded.campaign, "open_campaign", "start"),
    (_DRIVER, "start", "start"),
    (meguri.embedded.run, "_totals", "totals"),
)
_GENERATORS: tuple[tuple[Any, str, str], ...] = (
    (meguri.embedded.ingest, "bundles", "read"),
    (Outputs, "envelopes", "envelopes"),
)
_WHOLE = frozenset({"publish", "start"})
"""Stages that keep what they call: a publish its commit, a start its reads."""

STAGES = (*dict.fromkeys(stage for _, _, stage in (*_GENERATORS[:1], *_CALLS, *_GENERATORS[1:])), REST)


class StageClock:
    """Charges the process's time to one stage at a time."""

    def __init__(self) -> None:
        self._spent: Counter[str] = Counter()
        self._stack = [REST]
        self._since = time.process_time_ns()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Wrap the calls for as long as the context lasts."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in (*_CALLS, *_GENERATORS)]
        for owner, name, stage in _CALLS:
            setattr(owner, name, self._call(getattr(owner, name), stage))
        for owner, name, stage in _GENERATORS:
            setattr(owner, name, self._generator(getattr(owner, name), stage))
        self._spent.clear()
        self._since = time.process_time_ns()
        try:
            yield
        finally:
            self._charge()
            for owner, name, function in before:
                setattr(owner, name, function)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge what happens within to a stage."""
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def seconds(self) -> dict[str, float]:
        """What each stage has been charged."""
        return {stage: nanoseconds / 1e9 for stage, nanoseconds in self._spent.items()}

    def total(self) -> float:
        """Seconds of all stages but the benchmark's own."""
        self._charge()
        return (self._spent.total() - self._spent[MEASURING]) / 1e9

    def _charge(self) -> None:
        now = time.process_time_ns()
        self._spent[self._stack[-1]] += now - self._since
        self._since = now

    def _call(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._stack[-1] in _WHOLE:
                return function(*arguments, **named)
            with self.stage(stage):
                return function(*arguments, **named)

        return timed

    def _generator(self, function: Callable[..., Iterator[Any]], stage: str) -> Callable[..., Iterator[Any]]:
        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Iterator[Any]:
            items = iter(function(*arguments, **named))
            while True:
                with self.stage(stage):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item

        return timed
