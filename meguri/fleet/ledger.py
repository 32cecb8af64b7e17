"""The ledger of what was published to a fleet: a topic of small rows, read whole by each publisher.

A row is written in the transaction of the messages that it stands for, so it is there if and only if they are. Of an
input, rows are those of `meguri.embedded.bundles`: steps of a running digest over the content. Of a reject that was
retried, and of a replay, see `fleet.retrying` and `fleet.replaying`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from meguri_common.bus.port import TopicPartition
from meguri_common.errors import BusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from meguri_common.bus.port import Bus

__all__ = ["TopicLedger", "encode_row"]

_READ_BYTES = 8 << 20
_WAIT = 0.05


class _Row(msgspec.Struct):
    """A message of the ledger."""

    key: str
    input: str = ""
    """Name of the input that it was published from, for people."""
    line: int = 0
    """Number of its first line there."""
    value: str = ""
    """What the row says beside its being there."""


def encode_row(key: str, *, name: str = "", line: int = 0, value: str = "") -> bytes:
    """The message for a row; `name` and `line` say where it came from, for people."""
    return msgspec.json.encode(_Row(key, name, line, value))


class TopicLedger:
    """The rows of the topic; see `meguri.embedded.bundles.Rows`."""

    def __init__(
        self,
        bus: Bus,
        topic: str,
        *,
        end: Callable[[], int] | None = None,
        patience: float = 90.0,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Know nothing yet: `refresh` reads.

        Args:
            bus: where the topic is.
            topic: its name.
            end: gives the offset behind all that was ever appended, by open transactions, too (default: the end that
                the bus states).
            patience: seconds to wait for other publishers' open transactions: what comes after them can't be read.
            sleep: waits.
            clock: monotonic seconds.
        """
        self._bus = bus
        self._source = TopicPartition(topic, 0)
        self._end = end or (lambda: bus.watermarks(self._source)[1])
        self._patience = patience
        self._sleep = sleep
        self._clock = clock
        self._position = 0
        self._rows: dict[str, dict[str, str]] = {}

    def refresh(self) -> None:
        """Read all that was there when this was called.

        Raises:
            BusError: another publisher's transaction stays open, or the topic can't be read.
        """
        end, deadline = self._end(), self._clock() + self._patience
        while self._bus.watermarks(self._source)[1] < end:
            if self._clock() > deadline:
                msg = f"{self._source}: a transaction of another publisher stays open: it can't be read to its end"
                raise BusError(msg)
            self._sleep(_WAIT)
        self._position = max(self._position, self._bus.watermarks(self._source)[0])
        while messages := self._bus.read(self._source, self._position, end=end, max_bytes=_READ_BYTES):
            for message in messages:
                row = msgspec.json.decode(message.payload, type=_Row)
                self.add([row.key], row.value)
            self._position = messages[-1].offset + 1

    def add(self, keys: Iterable[str], value: str = "") -> None:
        """Know rows that were published just now."""
        for key in keys:
            self._rows.setdefault(key[: key.rindex("/") + 1], {})[key] = value

    def scan(self, prefix: str) -> list[tuple[str, bytes]]:
        """See `bundles.Rows`; the prefix ends at the last `/` of the keys."""
        return [(key, value.encode()) for key, value in sorted(self._rows.get(prefix, {}).items())]

    def __contains__(self, key: str) -> bool:
        return key in self._rows.get(key[: key.rindex("/") + 1], ())
