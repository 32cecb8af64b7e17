"""The ribbon filter: a set of keys that is known beforehand, in at most 1.05 r bits a key at a rate of 2^-r.

Keys are spread, by the hash that filters know them by, over small systems of equations (`kernels.ribbon`), chunks. Of
large sets the chunks are gathered in shards, by the hash's top bits: a shard is what is solved, and loaded, at once.
The same keys give the same bytes, in whatever order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from meguri_common.errors import CorruptFilter
from meguri_common.filters.blob import BLOB_VERSION, CHECKSUM_SIZE, BlobKind, blob_parts, open_blob
from meguri_common.filters.kernels.ribbon import probe_ribbon
from meguri_common.filters.layer import key_columns
from meguri_common.filters.ribbon_sizing import LEAST_SEGMENTS, MAX_BITS, SEGMENT, check_shards, clamped_bits
from meguri_common.filters.ribbon_solving import SEEDS, Shard, shard_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = ["BuiltRibbon", "RibbonFilter", "build_ribbon"]

_HEADER = struct.Struct("<BBBBIQQ")  # version, kind, bits, 0, chunks (kind 1) or shards (kind 2), keys, slots
_SHARD = np.dtype([("keys", "<u8"), ("chunks", "<u4"), ("zero", "<u4")])
_CHUNK = np.dtype([("segments", "<u2"), ("seed", "<u2")])
_MOST_SEGMENTS = 1 << 31
_HUGE = 4 << 20
"""Bytes from which numpy asks for huge pages: probes of a copy are a seventh faster than of the blob itself."""


class Sink(Protocol):
    """What a blob is written to."""

    def write(self, chunk: Buffer, /) -> object:
        """Write all of it."""
        ...


@dataclass(frozen=True, slots=True)
class BuiltRibbon:
    """Solved shards, ready to be written."""

    bits: int
    shards: Sequence[Shard]
    """As many as a power of two, in their order."""

    def __len__(self) -> int:
        """Distinct keys."""
        return sum(shard.keys for shard in self.shards)

    def parts(self) -> Iterator[Buffer]:
        """The blob, piece by piece: of kind 1 if there is one shard, of kind 2 otherwise.

        Little-endian: header; for kind 2 an entry a shard (keys, chunks); an entry a chunk (segments, seed); the
        segments; xxh64.
        """
        shards = np.zeros(len(self.shards), _SHARD)
        shards["keys"] = [shard.keys for shard in self.shards]
        shards["chunks"] = [shard.segments.size for shard in self.shards]
        chunks = np.empty(int(shards["chunks"].sum()), _CHUNK)
        chunks["segments"] = np.concatenate([shard.segments for shard in self.shards])
        chunks["seed"] = np.concatenate([shard.seeds for shard in self.shards])
        slots = int(chunks["segments"].sum(dtype=np.int64)) * SEGMENT
        if len(self.shards) == 1:
            head = _HEADER.pack(BLOB_VERSION, BlobKind.RIBBON, self.bits, 0, chunks.size, len(self), slots)
        else:
            head = _HEADER.pack(BLOB_VERSION, BlobKind.SHARDED_RIBBON, self.bits, 0, shards.size, len(self), slots)
            head += shards.tobytes()
        words = (shard.words.astype("<u4", copy=False).data.cast("B") for shard in self.shards if shard.keys)
        return blob_parts(head + chunks.tobytes(), *words)

    def marshal(self) -> bytes:
        """The blob."""
        return b"".join(self.parts())

    def write(self, sink: Sink) -> None:
        """Write the blob, without making it whole in memory."""
        for part in self.parts():
            sink.write(part)


def build_ribbon(host: NDArray[np.uint64], path: NDArray[np.uint64], bits: int = 7) -> bytes:
    """The blob, of kind 1, of n keys as one shard; shapes (n,), any n. Repeats count once.

    Args:
        host: host keys.
        path: path keys.
        bits: bits a slot, brought to within 1 to 16; the false-positive rate is 2^-bits.

    Raises:
        FilterBuildError: no seed and number of slots gave a solution.
    """
    bits = clamped_bits(bits)
    return BuiltRibbon(bits, [shard_of(*key_columns(host, path), 0, bits)]).marshal()


class RibbonFilter:
    """A ribbon filter; "absent" is certain, "maybe" is wrong at a rate of 2^-bits."""

    def __init__(
        self, bits: int, size: int, shards: NDArray[np.void], chunks: NDArray[np.void], words: NDArray[np.uint32]
    ) -> None:
        """Use `load`: entries of shards and chunks, and the segments of all."""
        self.bits = bits
        self._size = size
        self._words = words
        self._keys = int(shards["keys"].sum())
        self._shards = _firsts(shards["chunks"]) << np.uint64(32) | shards["chunks"]
        self._chunks = _firsts(chunks["segments"]) << np.uint64(32)
        self._chunks |= chunks["segments"].astype(np.uint64) << np.uint64(16) | chunks["seed"]

    def __len__(self) -> int:
        """Distinct keys."""
        return self._keys

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self._shards)

    @property
    def bits_per_url(self) -> float:
        """Bits of the blob per key; 0 for an empty filter."""
        return 8 * self._size / self._keys if self._keys else 0.0

    def maybe_contains(self, host: int, path: int) -> bool:
        """Whether the key may be in."""
        return bool(self.maybe_contains_batch(np.array([host], np.uint64), np.array([path], np.uint64))[0])

    def maybe_contains_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Of each key whether it may be in; shapes (n,)."""
        host, path = key_columns(host, path)
        found = np.empty(host.size, np.bool_)
        skip = self.shards.bit_length() - 1
        probe_ribbon(self._words, self.bits, skip, self._shards, self._chunks, host, path, found)
        return found

    @classmethod
    def load(cls, blob: Buffer) -> Self:
        """The filter of a blob of kind 1 or 2; probes read a small blob's own bytes, and a copy of a large one's.

        Raises:
            CorruptFilter: not a whole blob of these kinds.
        """
        kind, body = open_blob(blob)
        if kind not in {BlobKind.RIBBON, BlobKind.SHARDED_RIBBON}:
            msg = f"filter blob is of kind {kind.name}, not a ribbon"
            raise CorruptFilter(msg)
        try:
            return cls._read(kind, body)
        except (struct.error, ValueError) as problem:
            msg = f"filter blob of {body.nbytes} bytes contradicts itself: {problem}"
            raise CorruptFilter(msg) from problem

    @classmethod
    def _read(cls, kind: BlobKind, body: memoryview) -> Self:
        _, _, bits, zero, entries, keys, slots = _HEADER.unpack_from(body)
        if not 1 <= bits <= MAX_BITS or zero:
            msg = f"{bits} bits a slot, reserved byte {zero}"
            raise ValueError(msg)
        at = _HEADER.size
        if kind is BlobKind.RIBBON:
            shards = np.array([(keys, entries, 0)], _SHARD)
        else:
            check_shards(entries)
            shards = np.frombuffer(body, _SHARD, entries, at)
            at += shards.nbytes
        count = _check_shard_entries(shards, keys)
        chunks = np.frombuffer(body, _CHUNK, count, at)
        at += chunks.nbytes
        _check_chunk_entries(chunks, shards, slots)
        size = slots // SEGMENT * bits
        if body.nbytes - at != 4 * size:
            msg = f"{slots} slots of {bits} bits don't take {body.nbytes - at} bytes"
            raise ValueError(msg)
        words = np.frombuffer(body, "<u4", size, at).astype(np.uint32, copy=4 * size >= _HUGE)
        words = np.require(words, requirements="A")
        words.flags.writeable = False
        return cls(bits, body.nbytes + CHECKSUM_SIZE, shards, chunks, words)


def _firsts(sizes: NDArray[Any]) -> NDArray[np.uint64]:
    """Where each part begins, of parts that follow one another."""
    counts = sizes.astype(np.uint64)
    return np.cumsum(counts, dtype=np.uint64) - counts


def _check_shard_entries(shards: NDArray[np.void], keys: int) -> int:
    """The number of chunks, if the shards' entries fit together."""
    entries: list[tuple[int, int, int]] = shards.tolist()
    if sum(held for held, _, _ in entries) != keys:
        msg = f"its shards don't have {keys} keys in all"
        raise ValueError(msg)
    for shard, (held, chunks, zero) in enumerate(entries):
        if not 1 <= chunks <= max(held, 1) or zero:
            msg = f"shard {shard} of {held} keys has {chunks} chunks, reserved word {zero}"
            raise ValueError(msg)
    return sum(chunks for _, chunks, _ in entries)


def _check_chunk_entries(chunks: NDArray[np.void], shards: NDArray[np.void], slots: int) -> None:
    segments = chunks["segments"].astype(np.int64)
    if int(segments.sum()) * SEGMENT != slots or segments.sum() > _MOST_SEGMENTS:
        msg = f"its chunks have {int(segments.sum()) * SEGMENT} slots, not {slots}"
        raise ValueError(msg)
    bad = np.flatnonzero(((segments > 0) & (segments < LEAST_SEGMENTS)) | (chunks["seed"] >= SEEDS))
    if bad.size:
        msg = f"chunk {bad[0]} has {segments[bad[0]]} segments, seed {chunks['seed'][bad[0]]}"
        raise ValueError(msg)
    room = np.add.reduceat(segments, _firsts(shards["chunks"]).astype(np.int64)) * SEGMENT
    short = np.flatnonzero(room.astype(np.uint64) < shards["keys"])
    if short.size:
        msg = f"shard {short[0]} has {shards['keys'][short[0]]} keys in {room[short[0]]} slots"
        raise ValueError(msg)
