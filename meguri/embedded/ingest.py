"""Publishing inputs to the embedded bus, round by round, from where the ledger says they were left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from meguri.embedded.bundles import LINE_LIMIT, Bundle, Ledger, bundles
from meguri.embedded.driver import OutMessage
from meguri.embedded.inputs import InputStopped
from meguri_common.errors import InputUnreadable
from meguri_common.events.rejects import Origin, RejectRecord, encode_reject, payload_text
from meguri_common.topics import PAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from meguri.embedded.driver import RoundDriver
    from meguri.embedded.inputs import InputStream
    from meguri_common.bus.port import RowBus

__all__ = ["Ingest", "operator_events", "too_long_reject"]


def operator_events(seeds: Sequence[str], vouched: Sequence[str]) -> bytes:
    """Events for `--seed` and `--vouch`, with time 0: given again, they change nothing."""
    events: list[dict[str, object]] = [
        {"type": "control", "schema": 1, "at": 0, "action": "vouch", "host": host} for host in vouched
    ]
    events += [{"type": "seed", "schema": 1, "urls": [url], "observed_at": 0} for url in seeds]
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


class Ingest:
    """Publishes inputs through a driver."""

    def __init__(
        self, driver: RoundDriver, bus: RowBus, now: Callable[[], float], stopping: Callable[[], bool]
    ) -> None:
        self._driver = driver
        self._ledger = Ledger(bus)
        self._now = now
        self._stopping = stopping

    def events(self, name: str, content: bytes) -> bool:
        """Publish events that were made here; False if stopped early."""
        return self._publish(name, iter([content] if content else []))

    def stream(self, stream: InputStream) -> bool:
        """Publish an input file; False if stopped early.

        Raises:
            InputUnreadable: in the middle too; what came before is published and handled.
        """
        try:
            return self._publish(stream.name, stream.chunks())
        except InputStopped:
            return False
        except InputUnreadable:
            self.finish()
            raise
        finally:
            stream.close()

    def finish(self) -> bool:
        """End the round of what is published and not yet cut: an input that broke off, or a run that was killed."""
        self._driver.cut_rest()
        return self._driver.drain()

    def _publish(self, name: str, chunks: Iterator[bytes]) -> bool:
        for bundle in self._until_stopped(bundles(chunks, self._ledger)):
            row, value = bundle.row
            rejects = [too_long_reject(bundle, name)] if bundle.too_long else []
            cut = self._driver.publish(
                None if bundle.too_long else self._message(bundle, name),
                {row: value},
                end_of_input=bundle.last,
                rejects=rejects,
            )
            if cut and not self._driver.drain():
                return False
        return not self._stopping()

    def _until_stopped(self, found: Iterable[Bundle]) -> Iterator[Bundle]:
        for bundle in found:
            if self._stopping():
                return
            yield bundle

    def _message(self, bundle: Bundle, name: str) -> OutMessage:
        headers = msgspec.json.encode({"file": name, "line": bundle.first_line})
        return OutMessage(bundle.data, headers, int(self._now()))


def too_long_reject(bundle: Bundle, name: str) -> bytes:
    """The reject for a line that is too long to become a message."""
    return encode_reject(
        RejectRecord(
            at_service="publisher",
            topic=PAGES,
            partition=0,
            offset=-1,
            origin=Origin(file=name, line=bundle.first_line),
            reason="too_large",
            detail=f"a line of {bundle.too_long} bytes; an event has at most {LINE_LIMIT}",
            attempts=1,
            payload=payload_text(bundle.data),
        )
    )
