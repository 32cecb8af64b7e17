"""A client that is replaced after failures, and let go only when nothing of it can still be under way."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Renewed"]

_Client = TypeVar("_Client")

_YOUNG = 8.0
"""Seconds in which a client isn't replaced: failures that follow one another don't make as many clients."""
_KEPT = 70.0
"""Seconds for which a replaced one is kept, longer than its requests may take (`socket.timeout.ms`, a minute)."""


class Renewed(Generic[_Client]):
    """Holds one client at a time.

    An admin client that has lived through a broker's restart may never get an answer again, so that it has to be
    replaced (seen with librdkafka 2.16.0). The one replaced isn't taken down while its requests may be under way.
    """

    def __init__(self, make: Callable[[], _Client], clock: Callable[[], float] = time.monotonic) -> None:
        """Make the first one.

        Args:
            make: a new client.
            clock: seconds from any moment on.
        """
        self._make = make
        self._clock = clock
        self._born = clock()
        self._replaced: deque[tuple[float, _Client]] = deque()
        self.client = make()
        """The one to use now."""

    def renew(self) -> None:
        """Replace it after a failure, unless it is young; forget those replaced long ago."""
        now = self._clock()
        while self._replaced and now - self._replaced[0][0] >= _KEPT:
            self._replaced.popleft()
        if now - self._born >= _YOUNG:
            self._replaced.append((now, self.client))
            self.client, self._born = self._make(), now
