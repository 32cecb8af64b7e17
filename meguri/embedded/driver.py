"""The embedded driver: services and partitions step in a fixed order, in rounds, each step one transaction.

A round goes up to a *cut*, a row of the bus that names the offset of the pages topic up to which the canonicalizer
reads; publishing behind it may go on. Within a round each step takes all that is there, without a bound in time, and
the driver's *place* commits with it, so that a killed round goes on where it was. So the logs, and with them every
output, are a function of the inputs and their order alone: equal inputs give equal exports, killed or not, in one
run or several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meguri_common.bus.port import Commit, TopicPartition
from meguri_common.errors import MeguriError
from meguri_common.runtime.outputs import Outputs
from meguri_common.runtime.partition import COMMIT_MARK, take_snapshot
from meguri_common.runtime.restore import adopt_parameters, restore
from meguri_common.topics import PAGES, REJECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from meguri_common.bus.port import Member, Message, RowBus, RowProducer
    from meguri_common.runtime.partition import LoadedPartition, Surroundings
    from meguri_common.runtime.service import ServiceSpec

__all__ = ["CUT_AFTER_BYTES", "OutMessage", "RoundDriver", "StepFailed"]

CUT_AFTER_BYTES = 4 << 20
"""Bytes of the pages log after which a round is cut: some thousand pages."""

_PLACE = "driver/place"
_ROUND = "driver/round"
_CUTS = "driver/cut/"
_SINCE = "driver/since"


@dataclass(frozen=True, slots=True)
class OutMessage:
    """A message for the pages topic."""

    payload: bytes
    headers: bytes
    """Where its lines came from, JSON."""
    at: int
    """Append time, epoch seconds."""


class StepFailed(MeguriError):
    """Handling a message raised; names service, partition and offset. The step is taken again at the next start."""


class RoundDriver:
    """Drives every partition of every service over a bus that this process owns."""

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        bus: RowBus,
        around: Surroundings,
        *,
        cut_after: int = CUT_AFTER_BYTES,
        snapshot_after: int = 32 << 20,
        stopping: Callable[[], bool] = lambda: False,
        on_step: Callable[[str, int, Sequence[Message]], None] | None = None,
    ) -> None:
        """Take the bus over; `start` must be called next.

        Args:
            specs: the services, in the order in which they step. The first reads the pages topic.
            bus: the embedded bus.
            around: the same bus, files, identity, clock, randomness.
            cut_after: bytes of pages after which a round is cut.
            snapshot_after: bytes of a partition's inbox after which it is snapshotted at the end of a round.
            stopping: asked between steps; true ends `drain` early, to be gone on with by any later start.
            on_step: told of each step after it has committed: service, partition, its messages.
        """
        self._bus = bus
        self._around = around
        self._cut_after = cut_after
        self._snapshot_after = snapshot_after
        self._stopping = stopping
        self._on_step = on_step
        self._steps = [(spec, number) for spec in specs for number in range(bus.partitions(spec.input_topic))]
        self._members: dict[str, Member] = {}
        self._specs = {spec.name: spec for spec in specs}
        self._loaded: dict[tuple[str, int], LoadedPartition] = {}
        self._producer: RowProducer | None = None
        self._pages = TopicPartition(PAGES, 0)
        self._rejects = TopicPartition(REJECTS, 0)

    def start(self) -> None:
        """Restore every partition and take over the parameters given. `drain` then finishes the round that was open.

        Raises:
            RestoreRefused, CampaignMismatch, CorruptSnapshot: see `runtime.restore.restore`.
            ParametersChanged: other parameters than those of a run that was left in the middle.
        """
        # What the process before had committed may not have reached the disk: nothing is built upon it before.
        self._bus.barrier()
        self._producer = self._bus.producer("driver")
        self._members = {spec.name: self._bus.join(spec.name, spec.input_topic) for spec in self._specs.values()}
        for member in self._members.values():
            member.poll()
        restored = {(spec.name, number): restore(spec, number, spec.name, self._around) for spec, number in self._steps}
        for key, loaded in restored.items():
            self._loaded[key] = adopt_parameters(loaded, self._around)

    def publish(
        self, message: OutMessage | None, rows: dict[str, bytes], *, end_of_input: bool, rejects: Sequence[bytes] = ()
    ) -> bool:
        """Append to the pages, with named rows, and cut the round where it is due, all in one transaction.

        Args:
            message: lines of public events; None if there is only a reject.
            rows: rows of the caller that take effect with the message.
            end_of_input: the last message of an input: a round ends here.
            rejects: what can't become a message, for the rejects topic.

        Returns:
            Whether a round was cut: `drain` has work.
        """
        since = int(self._bus.get(_SINCE) or b"0") + (len(message.payload) if message else 0)
        cut = end_of_input or since >= self._cut_after
        producer = self._open()
        if message:
            producer.publish(self._pages, message.payload, headers=message.headers, at=message.at)
        for reject in rejects:
            producer.publish(self._rejects, reject)
        for key, value in rows.items():
            producer.put(key, value)
        producer.put(_SINCE, b"0" if cut else b"%d" % since)
        if cut:
            end = self._bus.watermarks(self._pages)[1] + (1 if message else 0)
            producer.put(f"{_CUTS}{end:012d}", b"")
        producer.commit()
        return cut

    def cut_rest(self) -> None:
        """Cut the round behind what is published and not yet cut, by whomever, if there is anything."""
        cuts = [int(self._bus.get(_ROUND) or b"0"), *(int(key.removeprefix(_CUTS)) for key, _ in self._bus.scan(_CUTS))]
        if self._bus.watermarks(self._pages)[1] > max(cuts):
            self.publish(None, {}, end_of_input=True)

    def drain(self) -> bool:
        """Finish the open round and all that have been cut; False if `stopping` ended it early."""
        while True:
            if not self._finish_round():
                return False
            cuts = [int(key.removeprefix(_CUTS)) for key, _ in self._bus.scan(_CUTS)]
            if not cuts:
                return True
            producer = self._open()
            producer.put(_ROUND, b"%d" % cuts[0])
            producer.put(_PLACE, b"-1")
            producer.delete([f"{_CUTS}{cuts[0]:012d}"])
            producer.commit()

    def partitions(self, service: str) -> list[LoadedPartition]:
        """The restored partitions of a service, by number."""
        return [loaded for (name, _), loaded in sorted(self._loaded.items()) if name == service]

    def snapshot_all(self, *, quick: bool) -> None:
        """Snapshot every partition that has moved: what a clean stop leaves.

        Args:
            quick: changes only, for a stop that must not take long; else full rewrites where they are due, until
                `stopping` says otherwise.
        """
        self._bus.barrier()
        for loaded in self._loaded.values():
            hurry = quick or self._stopping()
            if loaded.spec.stateful and (loaded.moved or not hurry):
                take_snapshot(loaded, self._around, quick=hurry, clean=True, barrier=lambda: None)

    def close(self) -> None:
        """Make what was committed durable and let the bus go."""
        self._bus.barrier()
        if self._producer is not None:
            self._producer.close()

    def _open(self) -> RowProducer:
        assert self._producer is not None, "start comes first"
        self._producer.begin()
        return self._producer

    def _finish_round(self) -> bool:
        """Step from the driver's place on until nobody has anything to do."""
        round_end = int(self._bus.get(_ROUND) or b"0")
        place = int(self._bus.get(_PLACE) or b"-1")
        idle = 0
        while idle < len(self._steps):
            if self._stopping():
                return False
            place = (place + 1) % len(self._steps)
            idle = 0 if self._step(place, round_end) else idle + 1
        for loaded in self._loaded.values():
            if self._stopping():
                return False
            grown = loaded.inbox_bytes >= self._snapshot_after or loaded.spec.wants_snapshot(loaded.service)
            if loaded.spec.stateful and grown:
                take_snapshot(loaded, self._around)
        if self._loaded[self._steps[0][0].name, 0].position:
            self._bus.trim(self._pages, self._loaded[self._steps[0][0].name, 0].position)
        return True

    def _step(self, place: int, round_end: int) -> bool:
        spec, number = self._steps[place]
        loaded = self._loaded[spec.name, number]
        end = round_end if spec.input_topic == PAGES else None
        if end is not None and loaded.position >= end:
            return False
        messages = self._bus.read(loaded.source, loaded.position, end=end)
        if not messages:
            return False
        outputs = Outputs(self._around.identity.digest())
        position = messages[-1].offset + 1
        # Until the commit the memory is ahead of the log; a failure here ends the driver, and a start restores.
        del self._loaded[spec.name, number]
        try:
            loaded.service.apply(messages, outputs)
        except OSError:
            raise  # the disk's doing, not the message's: it says so itself
        except Exception as problem:
            msg = (
                f"{spec.name} failed on {loaded.source}, offsets {messages[0].offset} to {messages[-1].offset}: "
                f"{type(problem).__name__}: {problem}"
            )
            raise StepFailed(msg) from problem
        producer = self._open()
        for target, payload in outputs.envelopes():
            producer.publish(target, payload)
        producer.put(_PLACE, b"%d" % place)
        producer.commit_offsets(self._members[spec.name], {number: Commit(position, COMMIT_MARK)})
        producer.commit()
        loaded.position = position
        loaded.inbox_bytes += sum(memoryview(message.payload).nbytes for message in messages)
        self._loaded[spec.name, number] = loaded
        if self._on_step is not None:
            self._on_step(spec.name, number, messages)
        return True
