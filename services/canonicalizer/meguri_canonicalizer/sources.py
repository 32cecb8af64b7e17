"""The events of a group whose rows have an origin: pages and sitemaps, and what they ask for and say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from meguri_canonicalizer.batch import LONGEST_BASE
from meguri_canonicalizer.canonical import Rejected, canonicalize
from meguri_canonicalizer.parser import link_text, resolve
from meguri_common.events.decode import EventRejected
from meguri_common.events.model import PageEvent, SitemapEvent
from meguri_common.records import NO_DEPTH, Source, VisitFlag

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from meguri_canonicalizer.columns import Requests, UrlTable
    from meguri_common.events.model import Event

__all__ = ["REDIRECT_STATUSES", "UNSTATED", "Sources", "ask", "base_of", "depths"]

REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})

UNSTATED = -1
"""Depth of an event that states none."""

_DEEPEST = NO_DEPTH - 1


def ask(event: PageEvent | SitemapEvent, requests: Requests) -> int:
    """Ask for the canonical URLs that an event needs beside its links.

    Returns:
        The row of its own URL; that of the redirect target, or those of the sitemap's entries, follow.
    """
    row = requests.add_plain(event.url)
    if isinstance(event, SitemapEvent):
        requests.add([entry.loc for entry in event.entries], event.url)
    elif event.redirect is not None and event.status in REDIRECT_STATUSES:
        requests.add([event.redirect], event.url)
    return row


def base_of(event: Event) -> bytes:
    """What the links of an event resolve against: never the canonical form of its URL."""
    if not isinstance(event, PageEvent):
        return b""
    if event.base is None or isinstance(canonicalize(event.base, event.url), Rejected):
        return event.url.encode()
    resolved = resolve(link_text(event.base), event.url).encode()
    return resolved if len(resolved) <= LONGEST_BASE else event.url.encode()


def depths(stated: NDArray[np.int64], steps: NDArray[np.int64] | int) -> NDArray[np.uint16]:
    """Depths that lie some steps behind stated ones; the deepest that can be stated is one less than `NO_DEPTH`."""
    deeper = np.minimum(stated + steps, _DEEPEST)
    return np.where(stated == UNSTATED, NO_DEPTH, deeper).astype(np.uint16)


@dataclass(slots=True)
class Sources:
    """Pages and sitemaps that can be used, in order. Positions are those in the first four lists."""

    events: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """Row of the event's own URL among the requests."""
    stated: list[int] = field(default_factory=list)
    """Depth, or `UNSTATED`."""
    at: list[int] = field(default_factory=list)
    extras: dict[int, int] = field(default_factory=dict)
    """By position: how many usable or unusable extra rows follow the own one."""
    redirecting: list[int] = field(default_factory=list)
    """Positions of pages whose out-links are their redirect target alone."""
    sitemaps: list[int] = field(default_factory=list)
    """Positions of sitemaps."""
    pages: list[PageEvent] = field(default_factory=list)
    page_positions: list[int] = field(default_factory=list)
    flags: dict[int, int] = field(default_factory=dict)
    targets: dict[int, bytes] = field(default_factory=dict)
    """By number of the page: what is special about its redirect, and the canonical target."""

    def take(self, index: int, event: PageEvent | SitemapEvent, own: UrlTable, row: int) -> None:
        """Take an event over, with the answers to what it asked for.

        Raises:
            EventRejected: its own URL can't be used.
        """
        if own.reject[row]:
            raise EventRejected("url", f"{own.reason(row)}: {event.url!r:.200} - at `$.url`")
        position = len(self.events)
        if isinstance(event, SitemapEvent):
            self.extras[position] = len(event.entries)
            self.sitemaps.append(position)
            self.stated.append(UNSTATED)
            self.at.append(event.observed_at)
        else:
            if event.status in REDIRECT_STATUSES:
                self._take_redirect(position, event, own, row)
            self.page_positions.append(position)
            self.pages.append(event)
            self.stated.append(UNSTATED if event.depth is None else event.depth)
            self.at.append(event.fetched_at)
        self.events.append(index)
        self.own.append(row)

    def _take_redirect(self, position: int, page: PageEvent, own: UrlTable, row: int) -> None:
        self.redirecting.append(position)
        if page.redirect is None:
            return
        number = len(self.pages)
        if own.reject[row + 1]:
            self.flags[number] = VisitFlag.REDIRECT_UNUSABLE
        elif own.key(row + 1) == own.key(row):
            self.flags[number] = VisitFlag.REDIRECT_SELF
        else:
            self.extras[position] = 1
            self.targets[number] = own.url(row + 1)

    def extra_counts(self) -> NDArray[np.int64]:
        """By position: how many extra rows there are."""
        counts = np.zeros(len(self.events), np.int64)
        counts[list(self.extras.keys())] = list(self.extras.values())
        return counts

    def extra_sources(self) -> NDArray[np.uint8]:
        """By position: how the extra rows were found."""
        found = np.full(len(self.events), Source.REDIRECT, np.uint8)
        found[self.sitemaps] = Source.SITEMAP
        return found

    def redirects(self) -> NDArray[np.bool_]:
        """By position: whether the extra row is all that the page leads to."""
        found = np.zeros(len(self.events), np.bool_)
        found[self.redirecting] = True
        return found
