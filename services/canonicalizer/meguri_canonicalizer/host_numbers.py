"""Hosts met in batches, numbered, with what depends on a host alone: looked up once, remembered between batches."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from meguri_canonicalizer.kernels.hosts import ROOM_FOR_ONE, enter_host, index_hosts
from meguri_canonicalizer.kernels.suffixes import group_hosts, index_suffixes, key_hosts
from meguri_common.suffixes import suffix_list

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from meguri_canonicalizer.policy import Policy
    from meguri_common.suffixes import SuffixList

__all__ = ["HostNumbers", "suffix_table"]

_FIRST_ROWS: Final = 1 << 12
_MEAN_BYTES: Final = 32
_MOST_HOSTS: Final = 1 << 18


class HostNumbers:
    """Arrays that kernels enter hosts into, and the columns that follow from a host."""

    def __init__(self, policy: Policy, own_rules: Collection[str]) -> None:
        """Start empty.

        Args:
            policy: its grouping decides a host's group.
            own_rules: hosts that have rules of their own, so that bytes alone don't decide their URLs.
        """
        self._policy = policy
        self._own_rules = own_rules
        self._start()

    def _start(self) -> None:
        self._resolved = 0
        self.index: NDArray[np.int64] = np.zeros(_FIRST_ROWS * 2, np.int64)
        self.hashes: NDArray[np.uint64] = np.zeros(_FIRST_ROWS, np.uint64)
        self.names: NDArray[np.uint8] = np.zeros(_FIRST_ROWS * _MEAN_BYTES, np.uint8)
        self.offsets: NDArray[np.int64] = np.zeros(_FIRST_ROWS + 1, np.int64)
        self.counters: NDArray[np.int64] = np.zeros(1, np.int64)
        self.keys: NDArray[np.uint64] = np.zeros(_FIRST_ROWS, np.uint64)
        self.group_lengths: NDArray[np.int64] = np.zeros(_FIRST_ROWS, np.int64)
        self.has_own_rules: NDArray[np.bool_] = np.zeros(_FIRST_ROWS, np.bool_)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(rows,) i64: bytes of each host; for numbers that are in use."""
        lengths: NDArray[np.int64] = np.diff(self.offsets)
        return lengths

    def trim(self) -> None:
        """Forget all hosts if there are too many: between batches, since numbers end with it."""
        if self.counters[0] > _MOST_HOSTS:
            self._start()

    def grow(self) -> None:
        """Make room for as many hosts again."""
        rows = self.hashes.size * 2
        for name in ("hashes", "names", "keys", "group_lengths", "has_own_rules"):
            setattr(self, name, _doubled(getattr(self, name)))
        self.offsets = np.concatenate([self.offsets, np.zeros(rows + 1 - self.offsets.size, np.int64)])
        self.index = np.zeros(rows * 2, np.int64)
        index_hosts(self.index, self.hashes, int(self.counters[0]))

    def number(self, host: bytes) -> int:
        """The number of a host in normal form, of at most 253 bytes."""
        while self.is_full():
            self.grow()
        data = np.frombuffer(bytearray(host + bytes(8)), np.uint8)
        return enter_host(data, len(host), self.index, self.hashes, self.names, self.offsets, self.counters)

    def is_full(self) -> bool:
        """Whether there may be no room for one more host."""
        count = int(self.counters[0])
        return count >= self.hashes.size or int(self.offsets[count]) + ROOM_FOR_ONE > self.names.size

    def resolve(self) -> None:
        """Look up what is not known yet about hosts that kernels entered."""
        first, count = self._resolved, int(self.counters[0])
        if first == count:
            return
        if self._policy.group_by == "host":
            self.group_lengths[first:count] = np.diff(self.offsets[first : count + 1])
        else:
            group_hosts(self.names, self.offsets, first, count, *_suffix_table(), self.group_lengths)
        key_hosts(self.names, self.offsets, first, count, self.group_lengths, self.keys)
        self.has_own_rules[first:count] = False
        for number in range(first, count) if self._own_rules else ():
            host = self.names[self.offsets[number] : self.offsets[number + 1]].tobytes().decode("ascii")
            self.has_own_rules[number] = host in self._own_rules
        self._resolved = int(self.counters[0])


@lru_cache(maxsize=1)
def _suffix_table() -> tuple[int, NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32]]:
    """The shipped list as `group_hosts` takes it: depth, names, their offsets and marks, index."""
    return suffix_table(suffix_list())


def suffix_table(
    suffixes: SuffixList,
) -> tuple[int, NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32]]:
    """A list as `group_hosts` takes it: depth, names u8, their offsets i32, marks u8, index i32."""
    marks = suffixes.marks()
    names = [name.encode("ascii") for name in marks]
    data = np.frombuffer(bytearray(b"".join(names) + bytes(8)), np.uint8)
    offsets = np.cumsum([0, *map(len, names)]).astype(np.int32)
    index = np.zeros(1 << (2 * len(names)).bit_length(), np.int32)
    index_suffixes(data, offsets, index)
    return suffixes.depth, data, offsets, np.array(list(marks.values()), np.uint8), index


def _doubled(column: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.concatenate([column, np.zeros_like(column)])
