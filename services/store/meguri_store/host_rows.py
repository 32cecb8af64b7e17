"""Host records made of the URLs that pass, where nothing else says what is known of hosts.

They wait in a temporary file until all URLs have passed: a shard may have as many hosts as it has URLs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meguri_common.records import CRAWL_DELAY_UNSET
from meguri_common.wire.columns import binary_array, binary_parts, numbers
from meguri_store.hosts import GROUPINGS
from meguri_store.schema import DEFAULT_CRAWL_DELAY, HOST_SCHEMA, filled
from meguri_store.spill import read_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from meguri_common.runtime.files import FileSystem
    from meguri_store.spill import Block, SpillFile

__all__ = ["COUNTS", "HostRows"]

COUNTS = ("url_count", "crawl_total", "error_total")
"""Columns of a host that are sums over its URLs."""

_ROWS = pa.schema(
    [
        ("host_key", pa.uint64()),
        ("host_group", pa.string()),
        ("first_row", pa.uint64()),
        *((name, pa.int64()) for name in COUNTS),
    ]
)
_MOST = np.iinfo(np.uint32).max


class HostRows:
    """Hosts as their URLs pass in store order."""

    def __init__(self, spill: SpillFile) -> None:
        self._spill = spill
        self._blocks: list[Block] = []
        self._more: list[dict[str, int]] = []
        """Of the last host of each block, what later rows add."""
        self._last: int | None = None
        self.urls = 0
        """URLs that passed."""

    def add(self, batch: pa.RecordBatch, counts: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Pass the next rows.

        Args:
            batch: with the columns `host_key`, `url` (binary), `group_at`, `group_len`; at least one row.
            counts: what each row counts for, by column of `COUNTS`, (n,); by default 1 as a URL.
        """
        host = numbers(batch, "host_key")
        counts = counts or {"url_count": np.ones(len(host), np.int64)}
        begins = np.flatnonzero(np.append(int(host[0]) != self._last, host[1:] != host[:-1]))
        rest = int(begins[0]) if len(begins) else len(host)
        for name, values in counts.items() if rest else ():
            self._more[-1][name] = self._more[-1].get(name, 0) + int(values[:rest].sum(dtype=np.int64))
        if len(begins):
            stated = {
                "host_key": host[begins],
                "host_group": _groups(batch, begins),
                "first_row": (begins + self.urls).astype(np.uint64),
                **dict.fromkeys(COUNTS, 0),
                **{name: np.add.reduceat(values.astype(np.int64), begins) for name, values in counts.items()},
            }
            self._blocks.append(self._spill.append(filled(_ROWS, len(begins), stated).to_batches()[0]))
            self._more.append({})
        self._last = int(host[-1])
        self.urls += batch.num_rows

    def records(self, files: FileSystem, group_by: str, facts: Mapping[str, int]) -> Iterator[pa.Table]:
        """Host records in order, once all rows have passed.

        Args:
            files: where the temporary file is.
            group_by: the campaign's host grouping.
            facts: values of other columns, the same for all hosts.
        """
        self._spill.flush()
        for block, more in zip(self._blocks, self._more, strict=True):
            batch = read_block(files, block, _ROWS)
            group = batch.column("host_group")
            domain = pa.nulls(len(group), pa.string())
            if group_by == "registrable":
                domain = pc.if_else(pc.match_substring_regex(group, r"^\[|[0-9]$"), domain, group)
            sums = {name: numbers(batch, name).copy() for name in COUNTS}
            for name, count in more.items():
                sums[name][-1] += count
            stated = {
                "host_key": batch.column("host_key"),
                "host_group": group,
                "grouping": GROUPINGS.index(group_by),
                "registrable_domain": domain,
                "crawl_delay": DEFAULT_CRAWL_DELAY,
                "crawl_delay_set": CRAWL_DELAY_UNSET,
                "crawl_delay_stated": CRAWL_DELAY_UNSET,
                "first_row": batch.column("first_row"),
                **{name: np.minimum(values, _MOST).astype(np.uint32) for name, values in sums.items()},
                **facts,
            }
            yield filled(HOST_SCHEMA, batch.num_rows, stated)


def _groups(batch: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.StringArray:
    """Host groups in the URLs of some rows."""
    offsets, data = binary_parts(batch.column("url"))
    size = numbers(batch, "group_len")[rows].astype(np.int64)
    end = np.append(0, np.cumsum(size))
    begin = offsets[rows].astype(np.int64) + numbers(batch, "group_at")[rows]
    text = data[np.arange(end[-1]) + np.repeat(begin - end[:-1], size)]
    return binary_array(end.astype(np.int32), text).cast(pa.string())
