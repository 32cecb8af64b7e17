"""What a step sends: batches cut into envelopes, in the order that receivers rely on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meguri_common.bus.port import TopicPartition
from meguri_common.runtime.outputs import Outputs, cut_batch
from meguri_common.topics import DELTAS, FRONTIER
from meguri_common.wire.columns import row_sizes
from meguri_common.wire.envelope import decode
from meguri_common.wire.schemas import SCHEMAS, RowKind

CAMPAIGN = 7


def credits_to(*keys: int) -> pa.RecordBatch:
    columns = [np.array(keys, field.type.to_pandas_dtype()) for field in SCHEMAS[RowKind.CREDIT]]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMAS[RowKind.CREDIT])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5)), max_size=40),
    st.integers(1, 400),
    st.integers(0, 5),
)
def test_pieces_are_all_rows_in_order_and_within_the_limit(rows: list[tuple[int, int]], limit: int, skip: int) -> None:
    whole = pa.record_batch(
        {
            "url": pa.array([b"u" * size for size, _ in rows], pa.binary()),
            "targets": pa.array([list(range(count)) for _, count in rows], pa.list_(pa.uint64())),
            "pair": pa.array([[1, 2] for _ in rows], pa.list_(pa.uint32(), 2)),
            "depth": pa.array(range(len(rows)), pa.uint16()),
        }
    ).slice(skip)
    sizes = row_sizes(whole).tolist()
    assert sizes == [4 + size + 4 + 8 * count + 8 + 2 for size, count in rows[skip:]]
    pieces = list(cut_batch(whole, limit))
    assert [row for piece in pieces for row in piece.to_pylist()] == whole.to_pylist()
    for piece in pieces:
        assert piece.num_rows == 1 or row_sizes(piece).sum() <= limit


def test_kinds_go_out_in_order_and_a_fence_holds_them_apart() -> None:
    outputs = Outputs(CAMPAIGN)
    target = TopicPartition(FRONTIER, 1)
    outputs.add(FRONTIER, 1, RowKind.CREDIT, credits_to(1))
    outputs.add(FRONTIER, 1, RowKind.CREDIT, credits_to())
    outputs.add(FRONTIER, 0, RowKind.CREDIT, credits_to(9))
    outputs.add(FRONTIER, 1, RowKind.CREDIT, credits_to(2, 3))
    outputs.fence()
    outputs.add(FRONTIER, 1, RowKind.CREDIT, credits_to(4))
    outputs.add_raw("meguri.rejects", 0, b"{}")
    *rows, raw = outputs.envelopes()
    assert raw == (TopicPartition("meguri.rejects", 0), b"{}")
    decoded = [(at, decode(payload, CAMPAIGN)) for at, payload in rows]
    assert [(at, kind, batch.column(0).to_pylist()) for at, (kind, batch) in decoded] == [
        (TopicPartition(FRONTIER, 0), RowKind.CREDIT, [9]),
        (target, RowKind.CREDIT, [1, 2, 3]),
        (target, RowKind.CREDIT, [4]),
    ]


def test_rows_of_another_schema_are_refused() -> None:
    outputs = Outputs(CAMPAIGN)
    outputs.add(DELTAS, 0, RowKind.UPDATE, credits_to(1))
    with pytest.raises(TypeError, match="UPDATE"):
        list(outputs.envelopes())
