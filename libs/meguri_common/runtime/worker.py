"""The fleet's worker: one instance of a service, any number of partitions, each step one transaction.

`run_once` takes part in the group, restores one newly assigned partition if there is one, and otherwise takes one
step: of all partitions that have something to do, up to a bound in bytes, which shrinks where a step takes too long.
After any failed transaction the memory of its partitions is thrown away and they are restored; losing membership
drops all memory. A message whose handling raises stops its partition alone.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri_common.bus.port import Assigned, Batch, Commit, FollowingBus, Lost, Revoked, TopicPartition
from meguri_common.errors import BusError, CorruptGeneration, CorruptSnapshot, DataFolderError, PositionGone
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.partition import COMMIT_MARK, take_snapshot
from meguri_common.runtime.restore import adopt_parameters, restore
from meguri_common.runtime.skips import skip_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from meguri_common.bus.port import Message, Producer
    from meguri_common.runtime.partition import LoadedPartition, Surroundings
    from meguri_common.runtime.service import ServiceSpec
    from meguri_common.runtime.skips import SkipRequest

__all__ = ["Step", "StoppedPartition", "Worker", "WorkerLimits"]

_log = logging.getLogger(__name__)

_NO_SNAPSHOT = (OSError, CorruptGeneration, CorruptSnapshot)
"""A snapshot that couldn't be written: the disk refused, or files were swept while this instance was paused."""


_RETRY_SECONDS = 5.0
"""After which a partition is restored anew that the disk refused."""
_LOOK_FOR_REQUESTS_EVERY = 1.0
"""Seconds between looks for requests to skip the messages at which partitions stand still."""


@dataclass(frozen=True)
class WorkerLimits:
    """Bounds of a step and of a restore."""

    step_bytes: int = 8 << 20
    """Bytes of inbox that a step takes at most."""
    step_seconds: float = 5.0
    """Time that a step may take: those after a longer one take less. A third of the transaction's timeout."""
    snapshot_after: int = 64 << 20
    """Bytes of inbox after which a partition is snapshotted: what a restore reads again at most, about."""
    wait: float = 0.0
    """Seconds to wait for something to do, where the bus can."""


@dataclass(frozen=True)
class StoppedPartition:
    """A partition that stands still, and why."""

    source: TopicPartition
    offset: int
    """Of the message that can't be handled; -1: its state can't be restored."""
    problem: BaseException


@dataclass(frozen=True, slots=True)
class Step:
    """A transaction that took effect, or didn't."""

    messages: int
    bytes: int
    """Payload of the messages."""
    seconds: float
    failed: bool = False


class Worker:
    """One instance of a service."""

    def __init__(
        self,
        spec: ServiceSpec,
        around: Surroundings,
        transactional_id: str,
        *,
        limits: WorkerLimits | None = None,
        wants_snapshot: Callable[[LoadedPartition], bool] | None = None,
        on_step: Callable[[Step], None] = lambda _step: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Join the group of the service.

        Args:
            spec: the service.
            around: bus, files, identity, clock, randomness.
            transactional_id: stable name of this instance: a new one of the name fences the one before.
            limits: bounds of steps and restores.
            wants_snapshot: decides after a commit whether a partition is snapshotted (default: by `limits`).
            on_step: told of each step.
            clock: a clock that never steps, seconds.
        """
        self.spec = spec
        self.stopped: dict[int, StoppedPartition] = {}
        self.failures = 0
        """How often in a row the bus has failed."""
        self._around = around
        self._following = around.bus if isinstance(around.bus, FollowingBus) else None
        self._limits = limits or WorkerLimits()
        self._wants_snapshot = wants_snapshot or (
            lambda loaded: loaded.inbox_bytes >= self._limits.snapshot_after or spec.wants_snapshot(loaded.service)
        )
        self._on_step = on_step
        self._clock = clock
        self._transactional_id = transactional_id
        self._producer: Producer | None = None
        self._member = around.bus.join(spec.name, spec.input_topic)
        self._assigned: dict[int, int] = {}
        self._assignments = 0
        self._loaded: dict[int, LoadedPartition] = {}
        self._one_by_one: dict[int, int] = {}
        """Partitions whose messages are taken one at a time, and up to which offset: one of them can't be handled."""
        self._seeking = False
        self._retry_at: dict[int, float] = {}
        self._skipping: dict[int, SkipRequest] = {}
        """Partitions that stood still, and what an operator asks for about the message they stood at."""
        self._in_vain: dict[int, SkipRequest] = {}
        """What was asked for last, where the rest of the message can't be handled either."""
        self._look_for_requests_at = 0.0
        self._step_bytes = self._limits.step_bytes
        self._turn = 0

    @property
    def waits(self) -> bool:
        """Whether `run_once` has waited when there was nothing to do."""
        return self._following is not None and self._limits.wait > 0

    @property
    def loaded(self) -> Mapping[int, LoadedPartition]:
        """Partitions in memory, by number."""
        return self._loaded

    @property
    def restoring(self) -> set[int]:
        """Partitions that are assigned, and neither in memory nor standing still."""
        return self._assigned.keys() - self._loaded.keys() - self.stopped.keys()

    def run_once(self) -> bool:
        """Take part in the group and do one piece of work; False if there was none."""
        self._follow_membership()
        self._look_for_requests()
        try:
            if self._producer is None:
                self._producer = self._around.bus.producer(self._transactional_id)
            waiting = sorted(number for number in self.restoring if self._clock() >= self._retry_at.get(number, 0.0))
            if waiting:
                self._restore(waiting[0])
                worked = True
            else:
                worked = self._step()
        except PositionGone as problem:
            # Restoring it tells whether that is a reason to refuse.
            _log.warning("%s: %s", self._transactional_id, problem)
            if isinstance(problem.source, TopicPartition):
                self._loaded.pop(problem.source.partition, None)
            self._failed()
            return True
        except BusError as problem:
            # The outcome of an open transaction may be unknown: a new producer settles it, then restore asks.
            _log.warning("%s: %s: starting over from the committed offsets", self._transactional_id, problem)
            self._failed()
            return True
        self.failures = 0
        return worked

    def stop(self) -> None:
        """Stop in order: snapshot what has moved, leave the group."""
        for number in sorted(self._loaded):
            self._give_up(number)
        self._loaded.clear()
        if self._producer is not None:
            self._producer.close()
        self._member.leave()

    def _failed(self) -> None:
        self._producer = None
        self.failures += 1

    def _follow_membership(self) -> None:
        for event in self._member.poll():
            match event:
                case Assigned(partitions):
                    self._assignments += 1
                    self._assigned.update(dict.fromkeys(partitions, self._assignments))
                case Revoked(partitions):
                    for number in partitions:
                        self._give_up(number)
                    self._drop(partitions)
                case Lost(partitions):
                    self._drop(partitions)

    def _drop(self, partitions: Sequence[int]) -> None:
        for number in partitions:
            for known in (
                self._assigned,
                self._loaded,
                self.stopped,
                self._one_by_one,
                self._retry_at,
                self._skipping,
            ):
                known.pop(number, None)

    def _look_for_requests(self) -> None:
        """Go on with partitions that stand still at a message which an operator asks to skip."""
        book, now = self._around.skips, self._clock()
        if book is None or not self.stopped or now < self._look_for_requests_at:
            return
        self._look_for_requests_at = now + _LOOK_FOR_REQUESTS_EVERY
        for number, still in list(self.stopped.items()):
            try:
                request = book.requested(still.source, still.offset) if still.offset >= 0 else None
            except DataFolderError as problem:
                _log.error("%s: %s", still.source, problem)
                continue
            if request is not None and request != self._in_vain.get(number):
                # Its memory was thrown away when the message failed: it is restored, then takes that message alone.
                del self.stopped[number]
                self._skipping[number] = request

    def _give_up(self, number: int) -> None:
        loaded = self._loaded.get(number)
        if loaded is not None and self.spec.stateful and loaded.moved:
            try:
                take_snapshot(loaded, self._around, quick=True, clean=True)
            except (*_NO_SNAPSHOT, BusError) as problem:
                _log.warning("%s: no snapshot on giving it up, the next owner reads more: %s", loaded.source, problem)

    def _restore(self, number: int) -> None:
        assignment = self._assigned[number]
        try:
            loaded = restore(self.spec, number, self._member.group, self._around)
            self._follow_membership()
            # Lost and assigned again in between: others may have gone on from where this restore ended.
            if self._assigned.get(number) == assignment:
                self._loaded[number] = adopt_parameters(loaded, self._around)
        except FileNotFoundError as problem:
            # Paused for longer than the grace time: what was being written is swept. If the partition is still ours,
            # it is restored anew.
            _log.warning("%s: partition %d isn't restored yet: %s is gone", self._transactional_id, number, problem)
        except OSError as problem:
            self._retry_at[number] = self._clock() + _RETRY_SECONDS
            _log.error("%s: partition %d isn't restored yet: %s", self._transactional_id, number, problem)
        except BusError:
            raise
        except Exception as problem:  # noqa: BLE001 - whatever can't be restored stops its partition, not the others
            # A refusal counts only while the partition is ours: snapshots of a next owner may lie above our commit.
            self._follow_membership()
            if self._assigned.get(number) == assignment:
                self._stop_partition(number, -1, problem)

    def _step(self) -> bool:
        # In turns, so that seeking a message that can't be handled doesn't hold up the other partitions.
        self._seeking = bool(self._one_by_one or self._skipping) and not self._seeking
        first, second = (self._batch_for_one, self._batches) if self._seeking else (self._batches, self._batch_for_one)
        batches = first() or second()
        if not batches:
            return False
        began = self._clock()
        done = False
        try:
            done = self._transact(batches)
        finally:
            messages = [message for batch in batches for message in batch.messages]
            size = _size(messages)
            seconds = self._clock() - began
            self._bound(size, seconds)
            self._on_step(Step(len(messages), size, seconds, failed=not done))
        return True

    def _bound(self, size: int, seconds: float) -> None:
        """Let steps grow and shrink with what the last one took."""
        limit = self._limits
        if seconds > limit.step_seconds:
            self._step_bytes = max(1, min(self._step_bytes, round(size * limit.step_seconds / seconds / 2)))
        elif self._step_bytes < limit.step_bytes and seconds < limit.step_seconds / 4:
            self._step_bytes = min(limit.step_bytes, self._step_bytes * 2)

    def _batch_for_one(self) -> list[Batch]:
        """The message to skip of a partition, or the next of one in which one is sought that can't be handled."""
        for number in sorted(self._skipping.keys() & self._loaded.keys()):
            loaded = self._loaded[number]
            messages = self._around.bus.read(loaded.source, loaded.position, max_bytes=1)
            if messages and messages[0].offset == self._skipping[number].offset:
                return [Batch(loaded.source, messages[:1], messages[0].offset + 1)]
            self._settle(number)  # another instance has handled or skipped it meanwhile
        for number in sorted(self._one_by_one.keys() & self._loaded.keys()):
            loaded = self._loaded[number]
            if loaded.position >= self._one_by_one[number]:
                del self._one_by_one[number]
                continue
            messages = self._around.bus.read(loaded.source, loaded.position, max_bytes=1)
            if messages:
                return [Batch(loaded.source, messages[:1], messages[0].offset + 1)]
        return []

    def _batches(self) -> list[Batch]:
        """What there is to do for all partitions in memory, up to the bound."""
        numbers = sorted(self._loaded.keys() - self._one_by_one.keys() - self._skipping.keys())
        if self._following is not None:
            positions = {self._loaded[number].source: self._loaded[number].position for number in numbers}
            wait = 0.0 if self._one_by_one or self._skipping else self._limits.wait
            return self._following.follow(positions, max_bytes=self._step_bytes, wait=wait)
        batches: list[Batch] = []
        room = self._step_bytes
        for at in range(len(numbers)):
            loaded = self._loaded[numbers[(self._turn + at) % len(numbers)]]
            messages = self._around.bus.read(loaded.source, loaded.position, max_bytes=room)
            if messages:
                batches.append(Batch(loaded.source, messages, messages[-1].offset + 1))
                room -= _size(messages)
            if room <= 0:
                self._turn = (self._turn + at + 1) % len(numbers)
                break
        return batches

    def _transact(self, batches: Sequence[Batch]) -> bool:
        """Take one step; whether it took effect."""
        producer = self._producer
        assert producer is not None, "a step is taken with a producer"
        # Until the transaction has taken effect the memory is not the state of any committed offset.
        taken = {batch.source.partition: self._loaded.pop(batch.source.partition) for batch in batches}
        producer.begin()
        outputs = Outputs(self._around.identity.digest())
        handled: Batch | None = None
        try:
            for handled in batches:
                if handled.messages:
                    self._apply(taken[handled.source.partition], handled.messages, outputs)
            handled = None
            for target, payload in outputs.envelopes():
                producer.publish(target, payload)
        except BusError:
            raise
        except Exception as problem:  # noqa: BLE001 - whatever a message provokes stops its partition, not the others
            producer.abort()
            self._handling_failed([handled] if handled is not None else batches, problem)
            return False
        producer.commit_offsets(
            self._member, {batch.source.partition: Commit(batch.position, COMMIT_MARK) for batch in batches}
        )
        producer.commit()
        for batch in batches:
            loaded = taken[batch.source.partition]
            loaded.position = batch.position
            loaded.inbox_bytes += _size(batch.messages)
            self._loaded[loaded.number] = loaded
            if loaded.number in self._skipping:
                self._settle(loaded.number)
        self._snapshot_where_due(taken.values())
        return True

    def _apply(self, loaded: LoadedPartition, messages: Sequence[Message], outputs: Outputs) -> None:
        request = self._skipping.get(loaded.number)
        if request is None:
            loaded.service.apply(messages, outputs)
            return
        record = skip_message(self.spec.name, loaded.service, messages[0], request, outputs)
        _log.warning("%s: offset %d is skipped: %s", loaded.source, record.offset, record.why or "an operator asked")

    def _settle(self, number: int) -> None:
        """A request to skip has been dealt with."""
        request = self._skipping.pop(number)
        assert self._around.skips is not None, "requests come from there"
        try:
            self._around.skips.settle(request)
        except OSError as problem:
            _log.warning("%s: can't be removed, which does no harm: %s", request.path, problem)

    def _snapshot_where_due(self, partitions: Iterable[LoadedPartition]) -> None:
        for loaded in partitions if self.spec.stateful else ():
            if self._wants_snapshot(loaded):
                try:
                    take_snapshot(loaded, self._around)
                except _NO_SNAPSHOT as problem:
                    _log.warning("%s: snapshot failed, the last one still counts: %s", loaded.source, problem)

    def _handling_failed(self, batches: Sequence[Batch], problem: Exception) -> None:
        """Stop the partition whose message can't be handled, or begin to seek it."""
        if len(batches) == 1 and len(batches[0].messages) == 1:
            batch = batches[0]
            self._stop_partition(batch.source.partition, batch.messages[0].offset, problem)
            return
        for batch in batches:
            if batch.messages:
                self._one_by_one[batch.source.partition] = batch.messages[-1].offset + 1

    def _stop_partition(self, number: int, offset: int, problem: Exception) -> None:
        source = TopicPartition(self.spec.input_topic, number)
        self.stopped[number] = StoppedPartition(source, offset, problem)
        self._one_by_one.pop(number, None)
        if number in self._skipping:
            self._in_vain[number] = self._skipping.pop(number)
        way_out = f" (to go on without it: meguri skip {source.topic} {number} {offset})" if offset >= 0 else ""
        _log.error("%s stands still at offset %d: %s%s", source, offset, problem, way_out, exc_info=problem)


def _size(messages: Iterable[Message]) -> int:
    return sum(memoryview(message.payload).nbytes for message in messages)
