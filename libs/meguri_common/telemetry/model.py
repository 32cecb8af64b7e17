"""The samples of `meguri.telemetry`, as typed definitions.

A message holds what one instance says at one moment: a line of JSON for itself and one for each of its partitions.
The JSON Schemas in `docs/schemas` are generated from these classes. Unknown fields are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from meguri_common.errors import TelemetryUnreadable

__all__ = [
    "TELEMETRY_VERSION",
    "InstanceSample",
    "PartitionSample",
    "PartitionState",
    "Sample",
    "SeenSetFigures",
    "SnapshotFigures",
    "WorkFigures",
    "decode_report",
    "decode_sample",
    "encode_sample",
]

TELEMETRY_VERSION: Literal[1] = 1
"""Version of the samples: raised when a reader of the version before would misread them."""

LINE_LIMIT = 1 << 20
"""Bytes that a line may take; a sample takes about one thousand."""

Name = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,63}$")]
Seconds = Annotated[float, Meta(ge=0)]
Time = Annotated[float, Meta(ge=0, le=2**40, description="epoch seconds")]
Count = Annotated[int, Meta(ge=0)]
Label = Annotated[str, Meta(min_length=1, max_length=256)]
Text = Annotated[str, Meta(max_length=1000)]
PartitionNumber = Annotated[int, Meta(ge=0, le=2**20)]
PartitionState = Literal["running", "restoring", "stopped"]


class SnapshotFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that a restore would begin with."""

    offset: Count
    """Next offset of the inbox that it would read."""
    age: Seconds
    """Seconds since it was written."""


class SeenSetFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What knowing a URL costs."""

    keys: Count
    bits_per_url: Annotated[float, Meta(ge=0, description="of the filter, per key that it holds")]
    target_fpr: Annotated[float, Meta(ge=0, le=1)]
    measured_fpr: Annotated[float, Meta(ge=0, le=1, description="share of new keys that the filter didn't settle")]


class WorkFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance has done since it started."""

    steps: Count = 0
    """Transactions that took effect."""
    messages: Count = 0
    bytes: Count = 0
    """Payload of the messages."""
    failed_steps: Count = 0
    """Transactions that didn't."""
    busy_seconds: Seconds = 0.0
    """Time in steps, waiting for the bus within them included."""
    cpu_seconds: Seconds = 0.0
    """Processor time of the process."""
    memory_bytes: Count = 0
    """Resident memory of the process, now."""
    dropped_reports: Count = 0
    """Reports that couldn't be handed to the bus."""


class _Sample(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every sample says."""

    schema: Literal[1] = TELEMETRY_VERSION
    service: Name
    instance: Label
    """Stable name of the instance."""
    campaign: Label
    at: Time
    started_at: Time
    """When the instance started: one that is started again begins its sequence anew."""
    sequence: Count
    """Number of the report within the instance's life; one that is missing was lost."""


class InstanceSample(_Sample, frozen=True, kw_only=True, tag="instance"):
    """An instance as a whole."""

    state: Literal["running", "left"]
    """`left`: it stopped in order, and this is its last word."""
    partitions: Count
    """How many it owns."""
    work: WorkFigures


class PartitionSample(_Sample, frozen=True, kw_only=True, tag="partition"):
    """One partition, as its owner sees it."""

    partition: PartitionNumber
    state: PartitionState
    problem: Text = ""
    """Why it stands still, with the offset."""
    position: Count | None = None
    """Next offset of the inbox; null while it isn't loaded."""
    end: Count | None = None
    """The inbox's next free offset; null if not known."""
    loaded_at: Time | None = None
    """When its state was loaded: what `passed` counts begins there."""
    counters: dict[Name, Count] = {}
    """Totals of the partition's state: equal at equal positions, whoever owns it."""
    passed: dict[Name, Count] = {}
    """Counts since it was loaded, of what its state doesn't count."""
    gauges: dict[Name, float] = {}
    """Figures of what is there now."""
    snapshot: SnapshotFigures | None = None
    inbox_bytes: Count = 0
    """Bytes of inbox since the snapshot: what a restore would read again."""
    seen_set: SeenSetFigures | None = None
    suspect_hosts: Count | None = None
    """Hosts flagged as traps; null where the service doesn't know."""

    @property
    def lag(self) -> int | None:
        """Offsets of the inbox that are still to be read; null if not known."""
        if self.position is None or self.end is None:
            return None
        return max(0, self.end - self.position)


Sample = InstanceSample | PartitionSample

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Sample)


class _Versioned(msgspec.Struct):
    schema: int = TELEMETRY_VERSION


_version_decoder = msgspec.json.Decoder(_Versioned)


def encode_sample(sample: Sample) -> bytes:
    """One line of JSON, without a line feed."""
    return _encoder.encode(sample)


def decode_sample(line: bytes) -> Sample:
    """Read a sample.

    Raises:
        TelemetryUnreadable: it isn't a sample, or one of a version that this program doesn't know.
    """
    if len(line) > LINE_LIMIT:
        msg = f"a sample of {len(line)} bytes: at most {LINE_LIMIT}"
        raise TelemetryUnreadable(msg)
    try:
        return _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError) as problem:
        version = _version_of(line)
        if version is not None and version > TELEMETRY_VERSION:
            msg = f"a sample of version {version}: this program reads {TELEMETRY_VERSION}; update the monitor"
        else:
            msg = f"not a sample: {problem}"
        raise TelemetryUnreadable(msg) from problem


def decode_report(message: bytes) -> tuple[list[Sample], list[TelemetryUnreadable]]:
    """Read the lines of a message; what can't be read is told apart, and hides nothing else."""
    samples: list[Sample] = []
    problems = []
    for line in message.splitlines():
        if not line.strip():
            continue
        try:
            samples.append(decode_sample(line))
        except TelemetryUnreadable as problem:
            problems.append(problem)
    return samples, problems


def _version_of(line: bytes) -> int | None:
    try:
        return _version_decoder.decode(line).schema
    except (msgspec.DecodeError, RecursionError):
        return None
