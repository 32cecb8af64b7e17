"""The canonicalizer as a service: public events in, canonical links, visits and operators' rows out. No state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meguri_canonicalizer.batch import BatchCanonicalizer
from meguri_canonicalizer.extract import Extractor
from meguri_canonicalizer.origins import reject_messages
from meguri_canonicalizer.settling import Settling, groups_of
from meguri_common.events.model import ControlEvent, PageEvent, SeedEvent, SignalEvent, SitemapEvent
from meguri_common.runtime.service import ServiceSpec
from meguri_common.topics import PAGES, REJECTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    from meguri_canonicalizer.extract import Extracted
    from meguri_canonicalizer.policy import Policy
    from meguri_common.bus.port import Message
    from meguri_common.events.model import Event
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.service import Parameters
    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter

__all__ = ["DEFAULTS", "Canonicalizer", "canonicalizer_spec"]

DEFAULTS: Mapping[str, Any] = {"clock_tolerance": 24 * 3600}
"""`clock_tolerance`: seconds that an event's time may lie behind the time its message was appended."""

_CHUNK_BYTES = 6 << 20
_LAST_TIME = 0xFFFFFFFF
_TIMES: dict[type[Event], str] = {
    PageEvent: "fetched_at",
    SeedEvent: "observed_at",
    SitemapEvent: "observed_at",
    SignalEvent: "epoch",
    ControlEvent: "at",
}


class Canonicalizer:
    """One partition of the public events."""

    def __init__(self, partition: int, partitions: int, policy: Policy, parameters: Parameters) -> None:
        """Set up.

        Args:
            partition: the partition of the pages topic that is read; named in rejects.
            partitions: how many partitions the links topic has.
            policy: the campaign's URL policy.
            parameters: see `DEFAULTS`.
        """
        self._partition = partition
        self._tolerance = int(parameters["clock_tolerance"])
        rules = [policy.default, *(rules for _, rules in policy.hosts)]
        self._extractor = Extractor(keep_fragments=any(rule.keep_hashbang for rule in rules))
        self._settling = Settling(BatchCanonicalizer(policy), partitions)
        self._events = self._rejected = self._pages = self._links = 0

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        """Send what follows from the messages: rows to the links topic, unusable events to the rejects."""
        for chunk in _chunks(messages):
            self._apply_chunk(chunk, outputs)

    def skip(self, message: Message) -> int:  # noqa: ARG002 - see below
        """Pass over a message: there is no state that it could have changed, and no cash in events."""
        return 0

    def save(self, writer: SnapshotWriter) -> None:
        """Write nothing: there is no state beside the committed offset."""

    def saved(self) -> None:
        """Forget nothing."""

    def load(self, reader: SnapshotReader) -> None:
        """Take over nothing."""

    def stats(self) -> dict[str, dict[str, float]]:
        """Telemetry: `passed`, since the partition was loaded: events used and rejected; pages used, their links."""
        return {
            "passed": {
                "events": self._events,
                "events_rejected": self._rejected,
                "pages": self._pages,
                "links": self._links,
            }
        }

    def _apply_chunk(self, messages: Sequence[Message], outputs: Outputs) -> None:
        payloads = [
            message.payload if isinstance(message.payload, bytes) else bytes(message.payload) for message in messages
        ]
        found = self._extractor.extract(payloads)
        rejects = {reject.line: (reject.reason, reject.detail) for reject in found.rejects}
        accepted = self._in_time(found, messages, rejects)
        for group in groups_of(found, accepted):
            self._settling.settle(found, group, outputs, rejects)
        for payload in reject_messages(self._partition, messages, found, rejects):
            outputs.add_raw(REJECTS, 0, payload)
        self._count(found, accepted, rejects)

    def _count(self, found: Extracted, accepted: Sequence[int], rejects: Mapping[int, tuple[str, str]]) -> None:
        used = [index for index in accepted if found.line_of[index] not in rejects]
        pages = [index for index in used if isinstance(found.events[index], PageEvent)]
        self._events += len(used)
        self._rejected += len(rejects)
        self._pages += len(pages)
        self._links += int(found.authored[pages].sum())

    def _in_time(self, found: Extracted, messages: Sequence[Message], rejects: dict[int, tuple[str, str]]) -> list[int]:
        """Positions of the events that don't lie in the future of their message; the others are rejected."""
        latest = [min(message.appended_at + self._tolerance, _LAST_TIME) for message in messages]
        accepted = []
        for position, (event, line) in enumerate(zip(found.events, found.line_of, strict=True)):
            time: int = getattr(event, _TIMES[type(event)])
            if time > latest[found.message_of[line]]:
                appended = messages[found.message_of[line]].appended_at
                detail = f"{time} is later than {appended} (when it was received) by more than {self._tolerance} s"
                rejects[line] = ("future", f"{detail} - at `$.{_TIMES[type(event)]}`")
            else:
                accepted.append(position)
        return accepted


def canonicalizer_spec(
    campaign_digest: int, partitions: int, policy: Policy, parameters: Mapping[str, Any] | None = None
) -> ServiceSpec:
    """The service for the runtime.

    Args:
        campaign_digest: digest of the campaign identity; this service has no state to check against it.
        partitions: how many partitions the links topic has.
        policy: the campaign's URL policy.
        parameters: what differs from `DEFAULTS`.

    Raises:
        ValueError: an unknown parameter.
    """
    del campaign_digest
    unknown = sorted((parameters or {}).keys() - DEFAULTS.keys())
    if unknown:
        msg = f"canonicalizer has no parameter {unknown[0]}: it has {', '.join(sorted(DEFAULTS))}"
        raise ValueError(msg)
    return ServiceSpec(
        name="canonicalizer",
        input_topic=PAGES,
        create=lambda partition, given: Canonicalizer(partition, partitions, policy, {**DEFAULTS, **given}),
        stateful=False,
        parameters={**DEFAULTS, **(parameters or {})},
    )


def _chunks(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Consecutive messages of a few MiB each, so that the work on a step's columns stays bounded."""
    start = size = 0
    for position, message in enumerate(messages):
        length = memoryview(message.payload).nbytes
        if size and size + length > _CHUNK_BYTES:
            yield messages[start:position]
            start, size = position, 0
        size += length
    if start < len(messages):
        yield messages[start:]
