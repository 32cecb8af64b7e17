"""Every error that meguri raises on purpose.

Errors carry the file, row, field or value that they are about, and say what to do. Foreign exceptions are mapped
at the edge where they occur.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BrokerUnreachable",
    "BusError",
    "CampaignMismatch",
    "ConfigError",
    "CorruptFilter",
    "CorruptGeneration",
    "CorruptSnapshot",
    "DataFolderError",
    "DataFolderLocked",
    "DeliveryFailed",
    "EnvelopeError",
    "Fenced",
    "FilterBuildError",
    "IncompatiblePolicy",
    "InputUnreadable",
    "ManifestError",
    "MeguriError",
    "MissingExtra",
    "OrderViolation",
    "OutcomeUnknown",
    "ParameterError",
    "ParametersChanged",
    "PolicyError",
    "PositionGone",
    "RecordError",
    "RestoreRefused",
    "TelemetryUnreadable",
    "TopicMismatch",
    "TopicMissing",
    "TransactionAborted",
]


class MeguriError(Exception):
    """Base of all errors that meguri raises on purpose."""


class ParameterError(MeguriError):
    """A parameter is unknown or out of range; names it and what it may be."""


class ConfigError(ParameterError):
    """A setting is unknown, wrong or missing; names where it stands (flag, variable, or file and key)."""


class MissingExtra(ParameterError):
    """A command needs a package that isn't installed; names the extra to install."""


class PolicyError(MeguriError):
    """A URL policy can't be built; names the field and the value."""


class InputUnreadable(MeguriError):
    """An input file can't be opened or decompressed; names the file and where in it."""


class DataFolderError(MeguriError):
    """The data folder can't be used as it is; says why and the way out."""


class DataFolderLocked(DataFolderError):
    """Another living process writes to the data folder."""


class CampaignMismatch(DataFolderError):
    """The data was written under another campaign identity (policy, suffix list, partition count, ...)."""


class ParametersChanged(DataFolderError):
    """Parameters differ from those of a folder that a killed run left; names the way out."""


class BusError(MeguriError):
    """The bus refused or failed an operation."""

    passes = True
    """Whether it may go well when it is tried again."""


class Fenced(BusError):
    """A newer holder of the transactional id, or a newer generation of the group, has taken over."""


class TransactionAborted(BusError):
    """The transaction did not take effect."""


class OutcomeUnknown(BusError):
    """The transaction may or may not have taken effect; the committed offset tells."""


class BrokerUnreachable(BusError):
    """No broker answers, or none that lets us in; names the address."""


class TopicMismatch(BusError):
    """A topic is missing, or isn't as the campaign needs it; names the setting, what was found and what is wanted."""


class DeliveryFailed(BusError):
    """Events were not acknowledged; says how many, and why the first one wasn't."""

    def __init__(self, message: str, undelivered: Sequence[bytes] = ()) -> None:
        super().__init__(message)
        self.undelivered = tuple(undelivered)
        """Messages of one or more lines that may not have arrived; empty if they are still being sent."""


class TopicMissing(BusError):
    """A topic isn't there; says how it is made."""

    passes = False


class PositionGone(BusError):
    """A position to read from isn't in the log: trimmed, cut short, or the topic was made anew."""

    def __init__(self, message: str, source: object = None) -> None:
        super().__init__(message)
        self.source = source
        """The partition, a `bus.port.TopicPartition`."""


class MessageTooLarge(MeguriError):
    """A message has more bytes than the bus takes."""


class EnvelopeError(MeguriError):
    """An internal message can't be decoded: unknown version, another campaign, or damaged."""


class RestoreRefused(MeguriError):
    """A partition's state can't be restored without a gap; names the way out."""


class CorruptSnapshot(MeguriError):
    """A snapshot file is missing, cut short or altered."""


class CorruptFilter(MeguriError):
    """A filter blob is truncated, altered, or of an unknown version or kind."""


class FilterBuildError(MeguriError):
    """A static filter can't be built of its keys; names their number, and the slots and seeds that were tried."""


class CorruptGeneration(MeguriError):
    """A generation of the store is missing a file, cut short or altered; names file and row."""


class OrderViolation(MeguriError):
    """Rows that must be in store order step backwards; names both rows."""


class RecordError(MeguriError):
    """A record can't be taken over; names file, row and field."""


class IncompatiblePolicy(MeguriError):
    """Records were keyed under another URL policy; names the first that this one would key otherwise."""


class ManifestError(MeguriError):
    """The store's manifest is unusable or contradicts the files."""


class TelemetryUnreadable(MeguriError):
    """A telemetry sample can't be read: damaged, or of a later version; names the field."""
