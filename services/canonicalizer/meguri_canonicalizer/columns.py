"""Canonical URLs as columns, and record batches of them cut by partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_canonicalizer.batch import BaseColumns, LinkColumns
from meguri_canonicalizer.kernels.settle import gather_urls
from meguri_common.keys import partitions_of
from meguri_common.records import LINK_REJECT_REASONS
from meguri_common.topics import LINKS
from meguri_common.wire.columns import binary_array
from meguri_common.wire.schemas import SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from meguri_canonicalizer.batch import BatchCanonicalizer, CanonicalColumns
    from meguri_common.runtime.outputs import Outputs
    from meguri_common.wire.schemas import RowKind

__all__ = ["Requests", "UrlTable", "packed", "partition_order", "send"]

_PADDING = bytes(16)


@dataclass(frozen=True, slots=True)
class UrlTable:
    """Canonical URLs: bytes and offsets, keys, place of the host group, and why a row is none."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    host_key: NDArray[np.uint64]
    path_key: NDArray[np.uint64]
    group_at: NDArray[np.uint16]
    group_len: NDArray[np.uint16]
    reject: NDArray[np.uint8]

    @classmethod
    def of(cls, columns: CanonicalColumns) -> UrlTable:
        """The canonicaliser's result."""
        return cls(
            columns.data,
            columns.offsets,
            columns.host_key,
            columns.path_key,
            columns.group_at,
            columns.group_len,
            columns.reject,
        )

    @classmethod
    def joined(cls, one: UrlTable, two: UrlTable) -> UrlTable:
        """The rows of both, one after the other."""
        size = int(one.offsets[-1])
        return cls(
            np.concatenate([one.data[:size], two.data[: int(two.offsets[-1])], np.zeros(len(_PADDING), np.uint8)]),
            np.concatenate([one.offsets, two.offsets[1:] + size]),
            *(
                np.concatenate([getattr(one, name), getattr(two, name)])
                for name in ("host_key", "path_key", "group_at", "group_len", "reject")
            ),
        )

    def usable(self, row: int) -> bool:
        """Whether the row holds a URL."""
        return not self.reject[row]

    def reason(self, row: int) -> str:
        """Why a row holds none."""
        return LINK_REJECT_REASONS[self.reject[row] - 1]

    def url(self, row: int) -> bytes:
        """A canonical URL."""
        return self.data[self.offsets[row] : self.offsets[row + 1]].tobytes()

    def key(self, row: int) -> tuple[int, int]:
        """Its key."""
        return int(self.host_key[row]), int(self.path_key[row])

    def batch_columns(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        """The URL columns of the wire for some rows, in their order."""
        sizes = self.offsets[rows + 1] - self.offsets[rows]
        data = np.empty(int(sizes.sum()) + len(_PADDING), np.uint8)
        offsets = np.empty(rows.size + 1, np.int32)
        gather_urls(self.data, self.offsets, rows, data, offsets)
        return {
            "url": binary_array(offsets, data[: offsets[-1]]),
            "host_key": self.host_key[rows],
            "path_key": self.path_key[rows],
            "group_at": self.group_at[rows],
            "group_len": self.group_len[rows],
        }


class Requests:
    """URLs beside the links of pages (their own, redirect targets, seeds, ...) that are to be made canonical."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._bases: list[bytes] = []
        self._base_of: list[int] = []

    def add_plain(self, text: str) -> int:
        """Ask for one text without a base; returns its row."""
        self._texts.append(text.encode())
        self._base_of.append(len(self._bases))
        self._bases.append(b"")
        return len(self._texts) - 1

    def add(self, texts: Sequence[str], base: str = "") -> int:
        """Ask for texts of one event, resolved against a base; returns the row of the first one."""
        first = len(self._texts)
        self._texts.extend(text.encode() for text in texts)
        self._base_of.extend([len(self._bases)] * len(texts))
        self._bases.append(base.encode())
        return first

    def answer(self, canonicalizer: BatchCanonicalizer) -> UrlTable:
        """Canonical URLs of all rows."""
        links = LinkColumns(*packed(self._texts), np.array(self._base_of, np.int32))
        return UrlTable.of(canonicalizer.run(links, BaseColumns(*packed(self._bases))))


def packed(texts: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Bytes (with 16 more behind them) and offsets (texts + 1,) i64."""
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=offsets[1:])
    return np.frombuffer(bytearray().join([*texts, _PADDING]), np.uint8), offsets


def partition_order(host_key: NDArray[np.uint64], partitions: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How to bring rows into partition order, and where each partition's begin; rows of one keep their order.

    Returns:
        Positions (rows,) and bounds (partitions + 1,).
    """
    partition = partitions_of(host_key, partitions)
    bounds = np.zeros(partitions + 1, np.int64)
    np.cumsum(np.bincount(partition, minlength=partitions), out=bounds[1:])
    # Of 16 bits numpy sorts by radix.
    return np.argsort(partition.astype(np.uint16), kind="stable"), bounds


def send(outputs: Outputs, kind: RowKind, columns: Mapping[str, Any], bounds: NDArray[np.int64]) -> None:
    """Send rows that are in partition order, a slice to each partition."""
    arrays = [
        column if isinstance(column := columns[field.name], pa.Array) else pa.array(column, field.type)
        for field in SCHEMAS[kind]
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMAS[kind])
    for partition in np.flatnonzero(np.diff(bounds)).tolist():
        start = int(bounds[partition])
        outputs.add(LINKS, partition, kind, batch.slice(start, int(bounds[partition + 1]) - start))
