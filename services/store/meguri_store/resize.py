"""Row ranges of generations: what a shard of other bounds is made of. Records are copied, none is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from meguri_store.generation import Generation

__all__ = ["hosts_between", "records_between"]


def records_between(generations: Sequence[Generation], low: int, high: int) -> Iterator[pa.Table]:
    """URL records of the hosts from `low` to `high`, both included, in store order.

    Args:
        generations: of shards, in the order of their ranges. Row groups without such a host aren't decoded.
        low: least host key.
        high: greatest host key.

    Raises:
        CorruptGeneration: one can't be read.
    """
    for generation in generations:
        for group in range(generation.groups):
            first, last = generation.host_range(group)
            if first <= high and last >= low:
                yield from _between(generation.urls(group), low, high)


def hosts_between(generations: Sequence[Generation], low: int, high: int) -> Iterator[pa.Table]:
    """Host records likewise; `first_row` is still that of the old shard.

    Raises:
        CorruptGeneration: one can't be read.
    """
    for generation in generations:
        for table in generation.hosts():
            yield from _between(table, low, high)


def _between(table: pa.Table, low: int, high: int) -> Iterator[pa.Table]:
    host = table.column("host_key").to_numpy()
    start = int(np.searchsorted(host, np.uint64(low)))
    end = int(np.searchsorted(host, np.uint64(high), side="right"))
    if start < end:
        yield table.slice(start, end - start)
