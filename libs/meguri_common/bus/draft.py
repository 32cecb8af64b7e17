"""What a transaction holds until it commits: the adapters that settle transactions themselves keep it in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meguri_common.bus.port import TopicPartition
from meguri_common.errors import BusError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Buffer

    from meguri_common.bus.port import Commit

__all__ = ["Draft"]


@dataclass
class Draft:
    """An open transaction."""

    messages: list[tuple[TopicPartition, bytes, bytes, int]] = field(default_factory=list)
    """Target, payload, headers and append time, in the order of publishing."""
    commits: dict[tuple[str, TopicPartition], Commit] = field(default_factory=dict)
    """Positions by group and source; the last one given counts."""
    rows: dict[str, bytes | None] = field(default_factory=dict)
    """Named rows; None removes one."""

    def publish(self, target: TopicPartition, payload: Buffer, headers: bytes, at: int) -> None:
        """Add a message. A payload that isn't `bytes` is copied: its owner may use the memory again."""
        self.messages.append((target, payload if isinstance(payload, bytes) else bytes(payload), headers, at))

    def commit_offsets(self, group: str, topic: str, commits: Mapping[int, Commit]) -> None:
        """Add consumed positions.

        Raises:
            BusError: a negative position.
        """
        for partition, commit in commits.items():
            source = TopicPartition(topic, partition)
            if commit.offset < 0:
                msg = f"{source}: {commit.offset} is no position"
                raise BusError(msg)
            self.commits[group, source] = commit

    def put(self, key: str, value: Buffer) -> None:
        """Add or replace a row."""
        self.rows[key] = bytes(value)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove rows."""
        self.rows.update(dict.fromkeys(keys))
