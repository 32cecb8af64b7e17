"""What a step sends: batches and raw messages, put in the order that receivers rely on and cut into envelopes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from meguri_common.bus.port import TopicPartition
from meguri_common.wire.columns import row_sizes
from meguri_common.wire.envelope import ENVELOPE_LIMIT, encode
from meguri_common.wire.schemas import ORDER, SCHEMAS, RowKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = ["Outputs", "cut_batch"]


def cut_batch(batch: pa.RecordBatch, limit: int = ENVELOPE_LIMIT) -> Iterator[pa.RecordBatch]:
    """Consecutive slices of at most `limit` bytes of rows each; a larger row travels alone."""
    if batch.nbytes <= limit:  # never less than the rows' bytes, and far cheaper to ask
        if batch.num_rows:
            yield batch
        return
    ends = np.cumsum(row_sizes(batch))
    start = 0
    while start < batch.num_rows:
        sent = int(ends[start - 1]) if start else 0
        end = max(int(np.searchsorted(ends, sent + limit, side="right")), start + 1)
        yield batch.slice(start, end - start)
        start = end


class Outputs:
    """Collects a step's outputs.

    To one partition a step sends its kinds in `wire.schemas.ORDER`, rows of a kind in the order they were added.
    `fence` starts a new segment, for the rare outputs whose order across kinds matters. Raw messages (public JSON)
    go out in the order they were added.
    """

    def __init__(self, campaign: int) -> None:
        self._campaign = campaign
        self._batches: dict[TopicPartition, dict[tuple[int, RowKind], list[pa.RecordBatch]]] = {}
        self._raw: list[tuple[TopicPartition, Buffer]] = []
        self._segment = 0

    def add(self, topic: str, partition: int, kind: RowKind, batch: pa.RecordBatch) -> None:
        """Send rows of `SCHEMAS[kind]`; empty batches are ignored."""
        if batch.num_rows:
            target = self._batches.setdefault(TopicPartition(topic, partition), {})
            target.setdefault((self._segment, kind), []).append(batch)

    def add_raw(self, topic: str, partition: int, payload: Buffer) -> None:
        """Send a public message as it is."""
        self._raw.append((TopicPartition(topic, partition), payload))

    def fence(self) -> None:
        """What is added from here on comes after all that was added so far, whatever its kind."""
        self._segment += 1

    def envelopes(self) -> Iterator[tuple[TopicPartition, Buffer]]:
        """The messages to publish, in order."""
        for target in sorted(self._batches):
            kinds = self._batches[target]
            for segment, kind in sorted(kinds, key=lambda key: (key[0], ORDER[key[1]])):
                parts = kinds[segment, kind]
                batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
                if batch.schema != SCHEMAS[kind]:
                    msg = f"rows for {target} aren't of the schema of {kind.name}: {batch.schema}"
                    raise TypeError(msg)
                for piece in cut_batch(batch):
                    yield target, encode(kind, piece, self._campaign)
        yield from self._raw
