"""What a group of events becomes: their URLs made canonical, links folded, visits and operators' rows sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_canonicalizer.batch import BaseColumns, LinkColumns
from meguri_canonicalizer.columns import Requests, UrlTable, packed, partition_order, send
from meguri_canonicalizer.kernels.settle import gather_urls, settle_links
from meguri_canonicalizer.operators import OperatorRows
from meguri_canonicalizer.sources import Sources, ask, base_of, depths
from meguri_canonicalizer.visits import fact_columns
from meguri_common.events.decode import EventRejected
from meguri_common.events.model import PageEvent, SitemapEvent
from meguri_common.records import LINK_REJECT_REASONS, Source
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
    if isinstance(event, PageEvent):
        return rows * (_ESCAPED * len(event.base or event.url) + len(event.url)) + _ESCAPED * size
    if isinstance(event, SitemapEvent):
        return _ESCAPED * sum(len(entry.loc) + len(event.url) for entry in event.entries)
    return 0


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
        requests, operators, sources = Requests(), OperatorRows(), Sources()
        asked = {}
        for index in group:
            event = found.events[index]
            try:
                if isinstance(event, (PageEvent, SitemapEvent)):
                    asked[index] = ask(event, requests)
                else:
                    asked[index] = operators.ask(event, requests)
            except EventRejected as problem:
                rejects[found.line_of[index]] = (problem.reason, problem.detail)
        own = requests.answer(self._canonicalizer)
        for index, row in asked.items():
            event = found.events[index]
            try:
                if isinstance(event, (PageEvent, SitemapEvent)):
                    sources.take(index, event, own, row)
                else:
                    operators.take(event, own, row)
            except EventRejected as problem:
                rejects[found.line_of[index]] = (problem.reason, problem.detail)
        operators.send(outputs, own, self._partitions)
        if sources.events:
            self._links_and_visits(found, sources, own, outputs)

    def _links_and_visits(self, found: Extracted, sources: Sources, own: UrlTable, outputs: Outputs) -> None:
        events = np.array(sources.events, np.int64)
        first, last, links, counts = self._canonical_links(found, sources, events)
        table = UrlTable.joined(links, own)
        rows = table.reject.size
        own_rows = np.array(sources.own, np.int64)
        extra_first = own_rows + 1 + links.reject.size
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
            extra_first,
            extra_first + sources.extra_counts(),
            own_host,
            own_path,
            sources.redirects(),
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
        self, found: Extracted, sources: Sources, events: NDArray[np.int64]
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
        bases = [base_of(found.events[index]) for index in sources.events]
        links = LinkColumns(data, offsets, page)
        return first, last, UrlTable.of(self._canonicalizer.run(links, BaseColumns(*packed(bases)))), counts

    def _send_links(
        self,
        sources: Sources,
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
        stated = np.array(sources.stated, np.int64)[events]
        columns = table.batch_columns(rows) | {
            "source_host": own_host[events],
            "depth": depths(stated, np.where(extra, 0, 1)),
            "source": np.where(extra, sources.extra_sources()[events], np.uint8(Source.LINK)),
            "count": counts[order],
            "at": np.array(sources.at, np.uint32)[events],
        }
        send(outputs, RowKind.LINK, columns, bounds)

    def _send_visits(
        self,
        sources: Sources,
        own: UrlTable,
        rows: NDArray[np.int64],
        links: dict[str, Any],
        outputs: Outputs,
    ) -> None:
        order, bounds = partition_order(own.host_key[rows], self._partitions)
        columns = fact_columns(sources.pages, sources.flags, sources.targets) | links
        ordered = {
            name: column.take(pa.array(order)) if isinstance(column, pa.Array) else column[order]
            for name, column in columns.items()
        }
        send(outputs, RowKind.VISIT, own.batch_columns(rows[order]) | ordered, bounds)


def _gathered(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Some rows of a byte column as one of their own."""
    size = int((offsets[rows + 1] - offsets[rows]).sum())
    out = np.empty(size + 16, np.uint8)
    out_offsets = np.empty(rows.size + 1, np.int32)
    gather_urls(data, offsets, rows, out, out_offsets)
    return out, out_offsets.astype(np.int64)
