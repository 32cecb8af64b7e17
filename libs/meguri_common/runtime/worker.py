"""The fleet's worker: one instance of a service, any number of partitions, each step one transaction.

`run_once` takes part in the group, restores one newly assigned partition if there is one, and otherwise takes one
step. After any failed transaction the memory of its partitions is thrown away and they are restored; losing
membership drops all memory. A message whose handling raises stops its partition alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri_common.bus.port import Assigned, Commit, Lost, Revoked, TopicPartition
from meguri_common.errors import BusError, CorruptGeneration, CorruptSnapshot, MeguriError
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.partition import COMMIT_MARK, take_snapshot
from meguri_common.runtime.restore import adopt_parameters, restore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meguri_common.bus.port import Message, Producer
    from meguri_common.runtime.partition import LoadedPartition, Surroundings
    from meguri_common.runtime.service import ServiceSpec

__all__ = ["StoppedPartition", "Worker", "WorkerLimits"]

_log = logging.getLogger(__name__)

_NO_SNAPSHOT = (OSError, CorruptGeneration, CorruptSnapshot)
"""A snapshot that couldn't be written: the disk refused, or files were swept while this instance was paused."""


@dataclass(frozen=True)
class WorkerLimits:
    """Bounds of a step and of a restore."""

    step_bytes: int = 8 << 20
    """Bytes of one partition's inbox that a step takes at most."""
    snapshot_after: int = 64 << 20
    """Bytes of inbox after which a partition is snapshotted: what a restore reads again at most, about."""


@dataclass(frozen=True)
class StoppedPartition:
    """A partition that stands still, and why."""

    source: TopicPartition
    offset: int
    problem: BaseException


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
    ) -> None:
        """Join the group of the service.

        Args:
            spec: the service.
            around: bus, files, identity, clock, randomness.
            transactional_id: stable name of this instance: a new one of the name fences the one before.
            limits: bounds of steps and restores.
            wants_snapshot: decides after a commit whether a partition is snapshotted (default: by `limits`).
        """
        self.spec = spec
        self.stopped: dict[int, StoppedPartition] = {}
        self._around = around
        self._limits = limits or WorkerLimits()
        self._wants_snapshot = wants_snapshot or (
            lambda loaded: loaded.inbox_bytes >= self._limits.snapshot_after or spec.wants_snapshot(loaded.service)
        )
        self._transactional_id = transactional_id
        self._producer: Producer | None = None
        self._member = around.bus.join(spec.name, spec.input_topic)
        self._assigned: dict[int, int] = {}
        self._assignments = 0
        self._loaded: dict[int, LoadedPartition] = {}
        self._one_by_one: set[int] = set()
        self._turn = 0

    def run_once(self) -> bool:
        """Take part in the group and do one piece of work; False if there was none."""
        self._follow_membership()
        try:
            if self._producer is None:
                self._producer = self._around.bus.producer(self._transactional_id)
            waiting = sorted(self._assigned.keys() - self._loaded.keys() - self.stopped.keys())
            if waiting:
                self._restore(waiting[0])
                return True
            return self._step()
        except BusError as problem:
            # The outcome of an open transaction may be unknown: a new producer settles it, then restore asks.
            _log.warning("%s: %s: starting over from the committed offsets", self._transactional_id, problem)
            self._producer = None
            return True

    def stop(self) -> None:
        """Stop in order: snapshot what has moved, leave the group."""
        for number in sorted(self._loaded):
            self._give_up(number)
        self._loaded.clear()
        if self._producer is not None:
            self._producer.close()
        self._member.leave()

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
            self._assigned.pop(number, None)
            self._loaded.pop(number, None)
            self.stopped.pop(number, None)
            self._one_by_one.discard(number)

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
        except MeguriError as problem:
            if isinstance(problem, BusError):
                raise
            # A refusal counts only while the partition is ours: snapshots of a next owner may lie above our commit.
            self._follow_membership()
            if self._assigned.get(number) == assignment:
                self._stop_partition(number, -1, problem)

    def _step(self) -> bool:
        numbers = sorted(self._loaded.keys() - self.stopped.keys())
        for at in range(len(numbers)):
            number = numbers[(self._turn + at) % len(numbers)]
            loaded = self._loaded[number]
            single = number in self._one_by_one
            messages = self._around.bus.read(
                loaded.source, loaded.position, max_bytes=1 if single else self._limits.step_bytes
            )
            if messages:
                self._turn = (self._turn + at + 1) % len(numbers)
                self._transact(loaded, messages[:1] if single else messages)
                return True
        return False

    def _transact(self, loaded: LoadedPartition, messages: Sequence[Message]) -> None:
        producer, number = self._producer, loaded.number
        assert producer is not None, "a step is taken with a producer"
        position = messages[-1].offset + 1
        # Until the transaction has taken effect the memory is not the state of any committed offset.
        del self._loaded[number]
        producer.begin()
        outputs = Outputs(self._around.identity.digest())
        try:
            loaded.service.apply(messages, outputs)
            envelopes = list(outputs.envelopes())
        except Exception as problem:  # noqa: BLE001 - whatever a message provokes stops its partition, not the others
            producer.abort()
            self._apply_failed(number, messages, problem)
            return
        for target, payload in envelopes:
            producer.publish(target, payload)
        producer.commit_offsets(self._member, {number: Commit(position, COMMIT_MARK)})
        producer.commit()
        loaded.position = position
        loaded.inbox_bytes += sum(memoryview(message.payload).nbytes for message in messages)
        self._loaded[number] = loaded
        if self.spec.stateful and self._wants_snapshot(loaded):
            try:
                take_snapshot(loaded, self._around)
            except _NO_SNAPSHOT as problem:
                _log.warning("%s: snapshot failed, the last one still counts: %s", loaded.source, problem)

    def _apply_failed(self, number: int, messages: Sequence[Message], problem: Exception) -> None:
        if len(messages) == 1:
            self._stop_partition(number, messages[0].offset, problem)
        else:
            self._one_by_one.add(number)

    def _stop_partition(self, number: int, offset: int, problem: Exception) -> None:
        source = TopicPartition(self.spec.input_topic, number)
        self.stopped[number] = StoppedPartition(source, offset, problem)
        _log.error("%s stands still at offset %d: %s", source, offset, problem, exc_info=problem)
