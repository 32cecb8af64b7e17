"""Lines into messages: those of one partition together, about a MiB each, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meguri_common.sdk.grouping import group_of_event, pages_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BUNDLE_BYTES", "Batcher", "Packed"]

BUNDLE_BYTES = 1 << 20
"""Bytes of whole lines that a message holds, about; a longer line travels alone."""


@dataclass
class Packed:
    """A message, or what will become one."""

    partition: int
    lines: list[bytes] = field(default_factory=list)
    """Each ends in LF."""
    runs: list[list[int]] = field(default_factory=list)
    """Numbers of the lines in the input, as (first, how many); empty if there is no input."""
    size: int = 0
    """Bytes of the lines."""

    @property
    def payload(self) -> bytes:
        """The message."""
        return b"".join(self.lines)

    def add(self, line: bytes, number: int | None) -> None:
        """Append a line."""
        self.lines.append(line)
        self.size += len(line)
        if number is None:
            return
        if self.runs and sum(self.runs[-1]) == number:
            self.runs[-1][1] += 1
        else:
            self.runs.append([number, 1])


class Batcher:
    """Collects lines by partition. Order within a partition is kept; between partitions there is none."""

    def __init__(self, partitions: int, *, limit: int = BUNDLE_BYTES) -> None:
        self._partitions = partitions
        self._limit = limit
        self._open: dict[int, Packed] = {}

    def add(self, line: bytes, number: int | None = None) -> Packed | None:
        """Take a line.

        Args:
            line: an event, with or without its LF.
            number: of the line in its input, from 1.

        Returns:
            The message before it in its partition, if that is full with it.
        """
        if not line.endswith(b"\n"):
            line += b"\n"
        partition = pages_partition(group_of_event(line), self._partitions)
        packed, full = self._open.get(partition), None
        if packed is not None and packed.size + len(line) > self._limit:
            packed, full = None, packed
        if packed is None:
            packed = self._open[partition] = Packed(partition)
        packed.add(line, number)
        return full

    def drain(self) -> Iterator[Packed]:
        """Give out all that has been collected, by partition."""
        held, self._open = self._open, {}
        for partition in sorted(held):
            yield held[partition]
