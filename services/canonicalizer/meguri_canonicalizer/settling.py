"""What a group of events becomes: their URLs made canonical, links folded, visits and operators' rows sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_canonicalizer.batch import BaseColumns, LinkColumns
from meguri_canonicalizer.canonical import Rejected, canonicalize
from meguri_canonicalizer.columns import Requests, UrlTable, packed, partition_order, send
from meguri_canonicalizer.kernels.settle import gather_urls, settle_links
from meguri_canonicalizer.operators import OperatorRows
from meguri_canonicalizer.parser import link_text, resolve
from meguri_canonicalizer.visits import REDIRECT_STATUSES, fact_columns, link_depth, stated_depth
from meguri_common.events.decode import EventRejected
from meguri_common.events.model import PageEvent, SitemapEvent
from meguri_common.records import LINK_REJECT_REASONS, NO_DEPTH, Source, VisitFlag
from meguri_common.wire.columns import list_array
from meguri_common.wire.schemas import RowKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from meguri_canonicalizer.batch import BatchCanonicalizer
    from meguri_canonicalizer.extract import Extracted
    from meguri_common.events.model import Event
    from meguri_common.runtime.outputs import Outputs

__all__ = ["Settling", "groups_of"]

_GROUP_BYTES = 32 << 20
_ESCAPED = 3  # bytes that one byte of a link may become

Rejects = dict[int, tuple[str, str]]


def groups_of(found: Extracted, accepted: Sequence[int]) -> Iterator[Sequence[int]]:
    """Consecutive events whose canonical links take a bounded amount of memory together.

    Short links under a long base grow a thousandfold: such events get groups of their own.
    """
    sizes = found.offsets[found.last_row[accepted]] - found.offsets[found.first_row[accepted]]
    rows = found.last_row[accepted] - found.first_row[accepted]
    start = total = 0
    for position, (index, count, size) in enumerate(zip(accepted, rows.tolist(), sizes.tolist(), strict=True)):
        estimate = _estimate(found.events[index], count, size)
        if total and total + estimate > _GROUP_BYTES:
            yield accepted[start:position]
            start, total = position, 0
        total += estimate
    if start < len(accepted):
        yield accepted[start:]


def _estimate(event: Event, rows: int, size: int) -> int:
    match event:
        case PageEvent():
            return rows * (_ESCAPED * len(event.base or event.url) + len(event.url)) + _ESCAPED * size
        case SitemapEvent():
            return _ESCAPED * sum(len(entry.loc) + len(event.url) for entry in event.entries)
        case _:
            return 0


@dataclass(slots=True)
class _Sources:
    """The pages and sitemaps of a group that can be used, in order: what the rows of each are, and say."""

    events: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    """Row of the event's own URL among the requests."""
    extra_first: list[int] = field(default_factory=list)
    extra_last: list[int] = field(default_factory=list)
    """Rows of the redirect target, or of the sitemap's entries, among the requests."""
    extra_only: list[bool] = field(default_factory=list)
    link_depth: list[int] = field(default_factory=list)
    extra_depth: list[int] = field(default_factory=list)
    extra_source: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    pages: list[PageEvent] = field(default_factory=list)
    page_positions: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    redirects: list[bytes] = field(default_factory=list)
    """Of the pages alone: the event, its position in the other lists, what is known of it."""


class Settling:
    """Makes rows of events. Keeps nothing from one group to the next."""

    def __init__(self, canonicalizer: BatchCanonicalizer, partitions: int) -> None:
        self._canonicalizer = canonicalizer
        self._partitions = partitions

    def settle(self, found: Extracted, group: Sequence[int], outputs: Outputs, rejects: Rejects) -> None:
        """Send the rows of some events; those whose URLs can't be used are added to `rejects`, by line.

        Args:
            found: what was extracted.
            group: positions of the events in it.
            outputs: where the rows go.
            rejects: reason and detail by line.
        """
        requests, operators, sources = Requests(), OperatorRows(), _Sources()
        asked = {}
        for index in group:
            try:
                asked[index] = _ask(found.events[index], requests)
            except EventRejected as problem:
                rejects[found.line_of[index]] = (problem.reason, problem.detail)
        own = requests.answer(self._canonicalizer)
        for index, row in asked.items():
            event = found.events[index]
            try:
                if isinstance(event, PageEvent):
                    _take_page(sources, index, event, own, row)
                elif isinstance(event, SitemapEvent):
                    _take_sitemap(sources, index, event, own, row)
                else:
                    operators.take(event, own, row)
            except EventRejected as problem:
                rejects[found.line_of[index]] = (problem.reason, problem.detail)
        operators.send(outputs, own, self._partitions)
        if sources.events:
            self._links_and_visits(found, sources, own, outputs)

    def _links_and_visits(self, found: Extracted, sources: _Sources, own: UrlTable, outputs: Outputs) -> None:
        events = np.array(sources.events, np.int64)
        first, last, links, counts = self._canonical_links(found, sources, events)
        table = UrlTable.joined(links, own)
        shift = links.reject.size
        rows = table.reject.size
        own_rows = np.array(sources.own, np.int64)
        own_host, own_path = own.host_key[own_rows], own.path_key[own_rows]
        capacity = 64
        while capacity < 2 * rows:
            capacity *= 2
        out_row, out_event, seen_by = np.empty((3, rows), np.int64)
        out_extra = np.empty(rows, np.bool_)
        out_count = np.empty(rows, np.uint32)
        rejected = np.zeros((events.size, len(LINK_REJECT_REASONS)), np.uint32)
        target_host, target_path = np.empty((2, rows), np.uint64)
        target_end = np.zeros(events.size + 1, np.int32)
        sent = settle_links(
            table.host_key,
            table.path_key,
            table.reject,
            counts,
            first,
            last,
            np.array(sources.extra_first, np.int64) + shift,
            np.array(sources.extra_last, np.int64) + shift,
            own_host,
            own_path,
            np.array(sources.extra_only, np.bool_),
            np.full(capacity, -1, np.int64),
            out_row,
            out_event,
            out_extra,
            out_count,
            seen_by,
            rejected,
            target_host,
            target_path,
            target_end,
        )
        self._send_links(
            sources, table, own_host, out_row[:sent], out_event[:sent], out_extra[:sent], out_count[:sent], outputs
        )
        if sources.pages:
            positions = np.array(sources.page_positions, np.int64)
            ends = np.append(target_end[positions], target_end[-1])
            facts = {
                "links": found.authored[events[positions]].astype(np.uint32),
                "rejected": pa.FixedSizeListArray.from_arrays(
                    pa.array(rejected[positions].ravel()), len(LINK_REJECT_REASONS)
                ),
                "target_host": list_array(ends, target_host[: ends[-1]]),
                "target_path": list_array(ends, target_path[: ends[-1]]),
            }
            self._send_visits(sources, own, own_rows[positions], facts, outputs)

    def _canonical_links(
        self, found: Extracted, sources: _Sources, events: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], UrlTable, NDArray[np.uint32]]:
        """The authored links of the sources, made canonical: first and last row of each source, URLs, counts."""
        first, last = found.first_row[events], found.last_row[events]
        data, offsets, counts = found.data, found.offsets, found.counts
        if int((last - first).sum()) != counts.size:
            rows = np.concatenate([np.arange(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
            data, offsets = _gathered(data, offsets, rows)
            counts = counts[rows]
            last = np.cumsum(last - first)
            first = np.append(0, last[:-1])
        page = np.empty(counts.size, np.int32)
        for position, (start, end) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
            page[start:end] = position
        bases = [_base(found.events[index]) for index in sources.events]
        links = LinkColumns(data, offsets, page)
        return first, last, UrlTable.of(self._canonicalizer.run(links, BaseColumns(*packed(bases)))), counts

    def _send_links(
        self,
        sources: _Sources,
        table: UrlTable,
        own_host: NDArray[np.uint64],
        rows: NDArray[np.int64],
        events: NDArray[np.int64],
        extra: NDArray[np.bool_],
        counts: NDArray[np.uint32],
        outputs: Outputs,
    ) -> None:
        order, bounds = partition_order(table.host_key[rows], self._partitions)
        rows, events, extra = rows[order], events[order], extra[order]
        link_depth = np.array(sources.link_depth, np.uint16)[events]
        extra_depth = np.array(sources.extra_depth, np.uint16)[events]
        extra_source = np.array(sources.extra_source, np.uint8)[events]
        columns = table.batch_columns(rows) | {
            "source_host": own_host[events],
            "depth": np.where(extra, extra_depth, link_depth),
            "source": np.where(extra, extra_source, np.uint8(Source.LINK)),
            "count": counts[order],
            "at": np.array(sources.at, np.uint32)[events],
        }
        send(outputs, RowKind.LINK, columns, bounds)

    def _send_visits(
        self,
        sources: _Sources,
        own: UrlTable,
        rows: NDArray[np.int64],
        links: dict[str, Any],
        outputs: Outputs,
    ) -> None:
        order, bounds = partition_order(own.host_key[rows], self._partitions)
        columns = fact_columns(sources.pages, np.array(sources.flags, np.uint8), sources.redirects) | links
        ordered = {
            name: column.take(pa.array(order)) if isinstance(column, pa.Array) else column[order]
            for name, column in columns.items()
        }
        send(outputs, RowKind.VISIT, own.batch_columns(rows[order]) | ordered, bounds)


def _ask(event: Event, requests: Requests) -> int:
    """Ask for the canonical URLs that an event needs beside its links; returns the row of the first one: its own."""
    if isinstance(event, PageEvent):
        row = requests.add_plain(event.url)
        if event.redirect is not None and event.status in REDIRECT_STATUSES:
            requests.add([event.redirect], event.url)
        return row
    if isinstance(event, SitemapEvent):
        row = requests.add_plain(event.url)
        requests.add([entry.loc for entry in event.entries], event.url)
        return row
    return OperatorRows.ask(event, requests)


def _check_own(own: UrlTable, row: int, url: str) -> None:
    if not own.usable(row):
        raise EventRejected("url", f"{own.reason(row)}: {url!r:.200} - at `$.url`")


def _take_page(sources: _Sources, index: int, page: PageEvent, own: UrlTable, row: int) -> None:
    _check_own(own, row, page.url)
    redirects = page.status in REDIRECT_STATUSES
    flags, target, extra = 0, b"", 0
    if redirects and page.redirect is not None:
        if not own.usable(row + 1):
            flags = VisitFlag.REDIRECT_UNUSABLE
        elif own.key(row + 1) == own.key(row):
            flags = VisitFlag.REDIRECT_SELF
        else:
            target, extra = own.url(row + 1), 1
    sources.page_positions.append(len(sources.events))
    sources.pages.append(page)
    sources.flags.append(flags)
    sources.redirects.append(target)
    sources.events.append(index)
    sources.own.append(row)
    sources.extra_first.append(row + 1)
    sources.extra_last.append(row + 1 + extra)
    sources.extra_only.append(redirects)
    sources.link_depth.append(link_depth(page.depth))
    sources.extra_depth.append(stated_depth(page.depth))
    sources.extra_source.append(Source.REDIRECT)
    sources.at.append(page.fetched_at)


def _take_sitemap(sources: _Sources, index: int, sitemap: SitemapEvent, own: UrlTable, row: int) -> None:
    _check_own(own, row, sitemap.url)
    sources.events.append(index)
    sources.own.append(row)
    sources.extra_first.append(row + 1)
    sources.extra_last.append(row + 1 + len(sitemap.entries))
    sources.extra_only.append(False)
    sources.link_depth.append(NO_DEPTH)
    sources.extra_depth.append(NO_DEPTH)
    sources.extra_source.append(Source.SITEMAP)
    sources.at.append(sitemap.observed_at)


def _base(event: Event) -> bytes:
    """What the links of an event resolve against: never the canonical form of its URL."""
    if not isinstance(event, PageEvent):
        return b""
    if event.base is None or isinstance(canonicalize(event.base, event.url), Rejected):
        return event.url.encode()
    return resolve(link_text(event.base), event.url).encode()


def _gathered(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Some rows of a byte column as one of their own."""
    size = int((offsets[rows + 1] - offsets[rows]).sum())
    out = np.empty(size + 16, np.uint8)
    out_offsets = np.empty(rows.size + 1, np.int32)
    gather_urls(data, offsets, rows, out, out_offsets)
    return out, out_offsets.astype(np.int64)
