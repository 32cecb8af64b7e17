"""The blocked Bloom filter that grows: layers of doubling capacity.

Layer i answers wrongly at a rate of at most p / 2^(i + 1), so that all of them together stay below p however many
there are (P. Almeida, C. Baquero, N. Preguica, D. Hutchison, "Scalable Bloom Filters", 2007). Growing costs bits: an
owner that can read its keys again keeps a `Layer` instead and makes a larger one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from meguri_common.errors import CorruptFilter
from meguri_common.filters.blob import BLOB_VERSION, BlobKind, open_blob, seal_blob
from meguri_common.filters.layer import Layer, key_columns
from meguri_common.filters.sizing import BLOCK_BITS, MAX_PROBES, check_size

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import Buffer

__all__ = ["Filter"]

_HEADER = struct.Struct("<BBHIQdQ")  # version, kind, layers, 0, first capacity, rate, keys
_LAYER = struct.Struct("<HHIQQQQ")  # probes, 0, 0, capacity, keys, bits set, blocks
_LINE = 64
_SMALLEST_GROWTH = 4096
"""Keys that a second layer holds at least: a tiny first one isn't followed by a long row of tiny ones."""


class Filter:
    """Set of keys with one-sided answers: "absent" is certain, "maybe" is wrong at a rate of at most `fp_rate`.

    The same additions give the same bytes; while the first layer lasts, their order doesn't matter.
    """

    def __init__(self, capacity: int, fp_rate: float, *, layers: list[Layer] | None = None, keys: int = 0) -> None:
        """Make an empty filter; `capacity` is a first size, not a limit; `load` also gives layers and keys.

        Raises:
            ValueError: capacity below 1, or a rate outside (0, 1).
        """
        check_size(capacity, fp_rate)
        self.capacity = capacity
        self.fp_rate = fp_rate
        self._keys = keys
        self._layers = [Layer.sized(capacity, fp_rate / 2)] if layers is None else layers

    def __len__(self) -> int:
        """Keys added, each as often as it was."""
        return self._keys

    @property
    def bits_per_url(self) -> float:
        """Bits of all layers per key; 0 for an empty filter."""
        return sum(layer.bits for layer in self._layers) / self._keys if self._keys else 0.0

    def add(self, host: int, path: int) -> None:
        """Add one key."""
        self.add_batch(np.array([host], np.uint64), np.array([path], np.uint64))

    def add_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> None:
        """Add n keys; shapes (n,)."""
        self.check_and_add_batch(host, path)

    def check_and_add_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Add n keys, one after another; says of each whether it may have been in before its turn. Shapes (n,)."""
        host, path = key_columns(host, path)
        found = np.zeros(host.size, np.bool_)
        start = 0
        while start < host.size:
            rest = host[start:], path[start:], found[start:]
            rest[2][:] = False
            for layer in self._layers[:-1]:
                layer.probe(*rest)
            start += self._layers[-1].add(*rest)
            if start < host.size:
                self._grow()
        self._keys += host.size
        return found

    def maybe_contains(self, host: int, path: int) -> bool:
        """Whether the key may be in."""
        return bool(self.maybe_contains_batch(np.array([host], np.uint64), np.array([path], np.uint64))[0])

    def maybe_contains_batch(self, host: NDArray[np.uint64], path: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Of each key whether it may be in; shapes (n,)."""
        host, path = key_columns(host, path)
        found = np.zeros(host.size, np.bool_)
        for layer in reversed(self._layers):
            layer.probe(host, path, found)
        return found

    def marshal(self) -> bytes:
        """The filter as a blob of kind 0.

        Little-endian: header, one entry a layer, zeros up to a multiple of 64, the layers' blocks, xxh64.
        """
        head = _HEADER.pack(BLOB_VERSION, BlobKind.BLOOM, len(self._layers), 0, self.capacity, self.fp_rate, self._keys)
        for layer in self._layers:
            head += _LAYER.pack(layer.probes, 0, 0, layer.capacity, *layer.counts.tolist(), layer.blocks)
        padding = bytes(-len(head) % _LINE)
        return seal_blob(head, padding, *(layer.words.astype("<u8", copy=False).data for layer in self._layers))

    @classmethod
    def load(cls, blob: Buffer) -> Self:
        """A filter on a blob's own bytes; a layer is copied when something is first added to it.

        Raises:
            CorruptFilter: not a whole blob of kind 0.
        """
        kind, body = open_blob(blob)
        if kind is not BlobKind.BLOOM:
            msg = f"filter blob is of kind {kind.name}, not a Bloom filter"
            raise CorruptFilter(msg)
        try:
            return cls._read(body)
        except (struct.error, ValueError) as problem:
            msg = f"filter blob of {body.nbytes} bytes contradicts itself: {problem}"
            raise CorruptFilter(msg) from problem

    @classmethod
    def _read(cls, body: memoryview) -> Self:
        _, _, count, _, capacity, fp_rate, keys = _HEADER.unpack_from(body)
        check_size(capacity, fp_rate)
        entries = [_LAYER.unpack_from(body, _HEADER.size + i * _LAYER.size) for i in range(count)]
        at = _HEADER.size + count * _LAYER.size
        at += -at % _LINE
        size = at + sum(entry[-1] for entry in entries) * (BLOCK_BITS // 8)
        if size != body.nbytes or not entries:
            msg = f"its {count} layers take {size} bytes"
            raise ValueError(msg)
        layers = []
        for probes, _, _, layer_capacity, layer_keys, bits_set, blocks in entries:
            fits = 1 <= probes <= MAX_PROBES and layer_capacity and layer_keys <= keys and blocks
            if not (fits and bits_set <= min(blocks * BLOCK_BITS, layer_keys * probes)):
                msg = f"{blocks} blocks, {probes} probes, {layer_keys} of {layer_capacity} keys, {bits_set} bits set"
                raise ValueError(msg)
            words = np.frombuffer(body, "<u8", blocks * (BLOCK_BITS // 64), at).astype(np.uint64, copy=False)
            words.flags.writeable = False
            layers.append(Layer(np.require(words, requirements="A"), probes, layer_capacity, layer_keys, bits_set))
            at += blocks * (BLOCK_BITS // 8)
        return cls(capacity, fp_rate, layers=layers, keys=keys)

    def _grow(self) -> None:
        capacity = max(2 * self._layers[-1].capacity, _SMALLEST_GROWTH)
        self._layers.append(Layer.sized(capacity, self.fp_rate / 2.0 ** (len(self._layers) + 1)))
