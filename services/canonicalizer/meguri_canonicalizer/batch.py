"""Canonical URLs of many links at once, columns in and columns out.

Kernels decide what bytes alone can decide, which is nearly all; the odd links go to the parser one by one. Results are
those of `canonicalize`, link by link, with two bounds for the sake of memory: on a URL, and on the URLs of a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from meguri_canonicalizer.canonical import Rejected, canonicalize
from meguri_canonicalizer.host_numbers import HostNumbers
from meguri_canonicalizer.kernels.classes import tracking_table
from meguri_canonicalizer.kernels.codes import (
    BASE_FIELDS,
    BASE_STATE,
    DONE,
    LONGEST_URL,
    NEEDS_ROOM,
    NO_BASE,
    NO_BASE_GIVEN,
    ODD_BASE,
    ODD_ROWS,
    PAGE_BYTES,
    TOO_LONG,
    TOO_MUCH,
    USABLE_BASE,
)
from meguri_canonicalizer.kernels.links import SCRATCH_BYTES, canonicalize_links
from meguri_canonicalizer.kernels.parts import LONGEST_HOST
from meguri_canonicalizer.kernels.rows import cut_bases, join_rows
from meguri_canonicalizer.parser import RejectReason
from meguri_canonicalizer.policy import DEFAULT, HostRules, Policy
from meguri_common.records import LINK_REJECT_REASONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from numpy.typing import NDArray

__all__ = ["LONGEST_BASE", "BaseColumns", "BatchCanonicalizer", "CanonicalColumns", "LinkColumns"]

LONGEST_BASE: Final = 1 << 16
"""A longer base counts as none: parsing it for each link of its page would take minutes."""

_PADDING: Final = 16
_FIRST_ROOM: Final = 1 << 16
_KEPT_ROOM: Final = 1 << 26
_REMEMBERED: Final = 1 << 15
_REMEMBERED_LENGTH: Final = 512
_REJECT_CODES: Final = {reason: code for code, reason in enumerate(LINK_REJECT_REASONS, 1)}


@dataclass(frozen=True, slots=True)
class LinkColumns:
    """Links as authored. The links of a page are neighbours."""

    data: NDArray[np.uint8]
    """UTF-8, or octets that aren't."""
    offsets: NDArray[np.int64]
    """(n + 1,): link i is `data[offsets[i]:offsets[i + 1]]`."""
    page: NDArray[np.int32]
    """(n,): row of the link's page in the bases."""


@dataclass(frozen=True, slots=True)
class BaseColumns:
    """What the links of each page resolve against: its URL, or its resolved `<base href>`; empty for none."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    """(m + 1,)"""


@dataclass(frozen=True, slots=True)
class CanonicalColumns:
    """Canonical URLs, row by row those of the links. A rejected row is empty and its numbers are 0."""

    data: NDArray[np.uint8]
    """At least 16 bytes longer than the last offset, so that kernels may read whole words."""
    offsets: NDArray[np.int64]
    """(n + 1,)"""
    host_key: NDArray[np.uint64]
    path_key: NDArray[np.uint64]
    group_at: NDArray[np.uint16]
    """Byte position of the host group within the URL."""
    group_len: NDArray[np.uint16]
    reject: NDArray[np.uint8]
    """0, or 1 + position in `LINK_REJECT_REASONS`."""


@dataclass(slots=True)
class _Rows:
    """What the kernel made of the rows of one column of links."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    path_key: NDArray[np.uint64]
    host: NDArray[np.int32]
    reject: NDArray[np.uint8]
    odd: NDArray[np.int64]

    @classmethod
    def empty(cls, count: int) -> Self:
        """Rows without anything."""
        return cls(
            data=np.zeros(_PADDING, np.uint8),
            offsets=np.zeros(count + 1, np.int64),
            path_key=np.zeros(count, np.uint64),
            host=np.full(count, -1, np.int32),
            reject=np.zeros(count, np.uint8),
            odd=np.empty(count, np.int64),
        )


class _Answer(NamedTuple):
    """What the parser said about a link, as the values of a row."""

    code: int
    url: bytes = b""
    host_key: int = 0
    path_key: int = 0
    group_at: int = 0
    group_len: int = 0


_CROWDED_OUT: Final = _Answer(TOO_MUCH)
_NO_BASE: Final = Rejected(RejectReason.NO_BASE)


class BatchCanonicalizer:
    """Canonicalises batches under one policy.

    Results own their memory and stay valid. What is kept between calls is bounded: a table of hosts, scratch buffers,
    the results of links that needed the parser. Not for use from several threads at once.
    """

    def __init__(self, policy: Policy = DEFAULT, *, with_kernels: bool = True) -> None:
        """Set up for a policy.

        Args:
            policy: the campaign's. Kernels know the rules of the default one; hosts with rules of their own, and all
                links of a policy that folds on every host, go to the parser.
            with_kernels: off, every link goes to the parser.
        """
        self._policy = policy
        self._with_kernels = with_kernels and policy.default == HostRules()
        self._own_rules = {host for pairs in (policy.hosts, policy.aliases) for host, _ in pairs}
        self._hosts = HostNumbers(policy, self._own_rules)
        self._tracking = tracking_table()
        self._scratch: NDArray[np.uint8] = np.zeros(SCRATCH_BYTES, np.uint8)
        self._room: NDArray[np.uint8] = np.zeros(_FIRST_ROOM, np.uint8)
        self._remembered: dict[bytes, _Answer] = {}
        self.odd_links = 0
        """How many links went to the parser so far."""

    def run(self, links: LinkColumns, bases: BaseColumns) -> CanonicalColumns:
        """Canonical URLs of links.

        A URL of more than 8,192 bytes is rejected as `too_long`. The links of a page whose URLs fill 16 MiB are
        kept; from the first one on that doesn't fit they are rejected as `too_much`, whatever they are. A base of more
        than 64 KiB counts as none.

        Args:
            links: the links of the batch.
            bases: what they resolve against.

        Returns:
            The columns, in the order of the links.
        """
        data = _for_kernels(links.data)
        own_rows = _Rows.empty(links.page.size)
        if self._with_kernels:
            self._hosts.trim()
            table, base_data = self._base_table(bases)
            self._by_kernel(data, links.offsets, links.page, table, base_data, own_rows)
            self._hosts.resolve()
            self._leave_own_rules(own_rows)
        else:
            own_rows.odd = np.arange(links.page.size)
        return self._joined(links, bases, own_rows)

    def _by_kernel(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        page: NDArray[np.int32],
        table: NDArray[np.int64],
        base_data: NDArray[np.uint8],
        rows: _Rows,
    ) -> None:
        """Fill rows with what bytes decide; `rows.data` is the scratch buffer, good until the next call."""
        wanted = data.size + 32 * page.size
        if self._room.size < wanted:
            self._room = np.zeros(wanted, np.uint8)
        state = np.array([0, 0, 0, -1, 0], np.int64)
        hosts = self._hosts
        while True:
            result = canonicalize_links(
                data,
                offsets,
                page,
                table,
                base_data,
                self._room,
                rows.offsets,
                rows.path_key,
                rows.host,
                rows.reject,
                rows.odd,
                self._scratch,
                state,
                hosts.index,
                hosts.hashes,
                hosts.names,
                hosts.offsets,
                hosts.counters,
                self._tracking,
            )
            if result == DONE:
                break
            if result == NEEDS_ROOM:
                self._room = np.concatenate([self._room, np.zeros(self._room.size, np.uint8)])
            else:
                hosts.grow()
        rows.data = self._room
        rows.odd = rows.odd[: state[ODD_ROWS]]

    def _base_table(self, bases: BaseColumns) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Canonical forms of the bases, which stand for them under the default rules, and positions within."""
        count = bases.offsets.size - 1
        table = np.zeros((count, BASE_FIELDS), np.int64)
        rows = _Rows.empty(count)
        data = _for_kernels(bases.data)
        self._by_kernel(data, bases.offsets, np.arange(count, dtype=np.int32), table, np.zeros(8, np.uint8), rows)
        starts, ends = rows.offsets[:-1].copy(), rows.offsets[1:].copy()
        table[:, BASE_STATE] = np.where(rows.host >= 0, USABLE_BASE, ODD_BASE)
        table[rows.reject == NO_BASE, BASE_STATE] = NO_BASE_GIVEN
        pieces = [rows.data[: rows.offsets[-1]].tobytes()]
        size = len(pieces[0])
        for row in rows.odd.tolist():
            text = data[bases.offsets[row] : bases.offsets[row + 1]].tobytes()
            found = canonicalize(text) if len(text) <= LONGEST_BASE else _NO_BASE
            if isinstance(found, Rejected):
                if found == _NO_BASE:
                    table[row, BASE_STATE] = NO_BASE_GIVEN
                continue
            host = found.url[found.url.index("//") + 2 : found.group_at + found.group_len].encode("ascii")
            if len(host) <= LONGEST_HOST and len(found.url) <= LONGEST_URL:
                rows.host[row] = self._hosts.number(host)
                starts[row], ends[row] = size, size + len(found.url)
                pieces.append(found.url.encode("ascii"))
                size += len(found.url)
                table[row, BASE_STATE] = USABLE_BASE
        base_data = np.frombuffer(bytearray(b"".join([*pieces, bytes(_PADDING)])), np.uint8)
        cut_bases(base_data, starts, ends, rows.host, table)
        return table, base_data

    def _leave_own_rules(self, rows: _Rows) -> None:
        """Leave links to hosts with rules of their own to the parser, and those that these may have crowded out."""
        if self._own_rules:
            own = (rows.host >= 0) & self._hosts.has_own_rules[rows.host]
            own |= rows.reject == TOO_MUCH
            own[rows.odd] = True
            rows.odd = np.flatnonzero(own)
            rows.reject[own] = 0

    def _joined(self, links: LinkColumns, bases: BaseColumns, rows: _Rows) -> CanonicalColumns:
        """All rows in order, those left to the parser included."""
        count = links.page.size
        host_key = np.zeros(count, np.uint64)
        group_at = np.zeros(count, np.uint16)
        group_len = np.zeros(count, np.uint16)
        answers = list(self._answers(links, bases, rows.odd))
        urls = [answer.url for answer in answers]
        odd_offsets = np.zeros(len(urls) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, urls), np.int64, len(urls)), out=odd_offsets[1:])
        odd_data = np.frombuffer(bytearray(b"".join([*urls, bytes(_PADDING)])), np.uint8)
        if answers:
            rows.reject[rows.odd] = [answer.code for answer in answers]
            host_key[rows.odd] = np.array([answer.host_key for answer in answers], np.uint64)
            rows.path_key[rows.odd] = np.array([answer.path_key for answer in answers], np.uint64)
            group_at[rows.odd] = [answer.group_at for answer in answers]
            group_len[rows.odd] = [answer.group_len for answer in answers]
        data = np.empty(int(rows.offsets[-1]) + odd_data.size + _PADDING, np.uint8)
        offsets = np.empty(count + 1, np.int64)
        join_rows(
            links.page,
            rows.data,
            rows.offsets,
            rows.host,
            rows.odd,
            odd_data,
            odd_offsets,
            self._hosts.keys,
            self._hosts.lengths,
            self._hosts.group_lengths,
            data,
            offsets,
            host_key,
            rows.path_key,
            group_at,
            group_len,
            rows.reject,
        )
        if self._room.size > _KEPT_ROOM:
            self._room = np.zeros(_FIRST_ROOM, np.uint8)
        return CanonicalColumns(data, offsets, host_key, rows.path_key, group_at, group_len, rows.reject)

    def _answers(self, links: LinkColumns, bases: BaseColumns, odd: NDArray[np.int64]) -> Iterator[_Answer]:
        """The parser's answers for some rows, none for those surely beyond the bound of their page."""
        self.odd_links += odd.size
        page, used, base = -1, 0, None
        starts, ends, pages = links.offsets[odd].tolist(), links.offsets[odd + 1].tolist(), links.page[odd].tolist()
        for own_page, start, end in zip(pages, starts, ends, strict=True):
            if own_page != page:
                page, used = own_page, 0
                text = bases.data[bases.offsets[page] : bases.offsets[page + 1]].tobytes()
                base = text if 0 < len(text) <= LONGEST_BASE else None
            if used > PAGE_BYTES:
                yield _CROWDED_OUT
                continue
            raw = links.data[start:end].tobytes()
            answer = self._remembered.get(raw)
            if answer is None:
                answer = self._parsed(raw, base)
                if len(raw) <= _REMEMBERED_LENGTH and raw.startswith((b"http://", b"https://")):
                    if len(self._remembered) >= _REMEMBERED:
                        self._remembered.clear()
                    self._remembered[raw] = answer
            used += len(answer.url)
            yield answer

    def _parsed(self, raw: bytes, base: bytes | None) -> _Answer:
        found = canonicalize(raw, base, self._policy)
        if isinstance(found, Rejected):
            return _Answer(_REJECT_CODES[found.reason])
        if len(found.url) > LONGEST_URL:
            return _Answer(TOO_LONG)
        url = found.url.encode("ascii")
        return _Answer(0, url, found.host_key, found.path_key, found.group_at, found.group_len)


def _for_kernels(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes of the one array type that kernels are compiled for."""
    return data if data.flags.writeable and data.flags.c_contiguous else data.copy()
