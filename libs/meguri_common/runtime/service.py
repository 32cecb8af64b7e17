"""What a service is to the runtime: a deterministic state machine over the ordered inbox of one partition.

The state after offset n is a function of the inbox up to n, the parameters and the logic version alone: no clock, no
randomness, no second input. Messages count one after another, however many `apply` gets at once: other groupings
of the same messages give the same state (outputs may be grouped otherwise).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meguri_common.bus.port import Message
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.runtime.snapshots import SnapshotReader, SnapshotWriter

__all__ = ["Parameters", "Service", "ServiceSpec"]

Parameters = dict[str, Any]
"""Named values (JSON types) that shape a service's state; they are in its snapshots."""


class Service(Protocol):
    """One partition of a service, in memory."""

    def apply(self, messages: Sequence[Message], outputs: Outputs) -> None:
        """Advance the state by these messages, in order, and add what follows from them to `outputs`.

        If it raises, the memory is thrown away and restored.
        """
        ...

    def skip(self, message: Message) -> int:
        """Advance the state past a message that an operator has skipped; gives the units of cash that were in it.

        Raises:
            EnvelopeError: it can't be decoded, so that nobody can tell what was in it.
        """
        ...

    def save(self, writer: SnapshotWriter) -> None:
        """Write all state through the writer: what changed since the last `saved` or `load`, or all of it.

        Doesn't change the state. A later `save` must work whether or not `saved` was called in between.
        """
        ...

    def saved(self) -> None:
        """The last `save` is durable: later ones may build upon it."""
        ...

    def load(self, reader: SnapshotReader) -> None:
        """Take over a snapshot's state; called once, on a fresh instance."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """How the runtime makes and feeds a service."""

    name: str
    input_topic: str
    create: Callable[[int, Parameters], Service]
    """Fresh state (at offset 0) of a partition, under parameters."""
    stateful: bool = True
    logic_version: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters given for this run; a snapshot's win over them (see runtime.restore)."""
    folders: Callable[[int], tuple[str, ...]] = lambda _partition: ()
    """Folders below the data root, beside the service's own, in which snapshots of a partition keep files."""
    wants_snapshot: Callable[[Service], bool] = lambda _service: False
    """Whether a partition should be snapshotted for its own reasons, e.g. since its memory would grow without."""
    on_owned: Callable[[Service], None] = lambda _service: None
    """Called when a process that will write has restored a partition; those who only look don't call it."""
