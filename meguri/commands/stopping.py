"""SIGTERM and SIGINT as a question, for commands that stop in order."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["EXIT_BY_SIGNAL", "StopSignals"]

EXIT_BY_SIGNAL = 128
"""What a shell adds to a signal's number."""


class StopSignals:
    """Takes SIGTERM and SIGINT over; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def asked(self) -> bool:
        """Whether one of them came."""
        return self.received != 0

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
