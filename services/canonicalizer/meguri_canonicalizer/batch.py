"""Canonical URLs of many links at once, columns in and columns out.

A few links in a hundred need the parser; they go through `canonicalize` one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from meguri_canonicalizer.canonical import Rejected, canonicalize
from meguri_canonicalizer.policy import DEFAULT, Policy
from meguri_common.records import LINK_REJECT_REASONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BaseColumns", "BatchCanonicalizer", "CanonicalColumns", "LinkColumns"]

LONGEST_URL: Final = 8192
PAGE_BYTES: Final = 16 << 20
LONGEST_BASE: Final = 1 << 16
_TOO_LONG: Final = LINK_REJECT_REASONS.index("too_long") + 1
_TOO_MUCH: Final = LINK_REJECT_REASONS.index("too_much") + 1
_PADDING: Final = 16


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
    host_key: NDArray[np.uint64]
    path_key: NDArray[np.uint64]
    group_at: NDArray[np.uint16]
    """Byte position of the host group within the URL."""
    group_len: NDArray[np.uint16]
    reject: NDArray[np.uint8]
    """0, or 1 + position in `LINK_REJECT_REASONS`."""


class BatchCanonicalizer:
    """Canonicalises batches under one policy. Results own their memory; scratch buffers are kept between calls."""

    def __init__(self, policy: Policy = DEFAULT) -> None:
        """Set up for a policy."""
        self._policy = policy

    def run(self, links: LinkColumns, bases: BaseColumns) -> CanonicalColumns:
        """Canonical URLs of links."""
        count = links.page.size
        data = links.data.tobytes()
        base_data = bases.data.tobytes()
        urls: list[bytes] = []
        host_key = np.zeros(count, np.uint64)
        path_key = np.zeros(count, np.uint64)
        group_at = np.zeros(count, np.uint16)
        group_len = np.zeros(count, np.uint16)
        reject = np.zeros(count, np.uint8)
        page, used, base = -1, 0, None
        for row in range(count):
            if links.page[row] != page:
                page, used = int(links.page[row]), 0
                text = base_data[bases.offsets[page] : bases.offsets[page + 1]]
                base = text if 0 < len(text) <= LONGEST_BASE else None
            url = b""
            if used > PAGE_BYTES:
                reject[row] = _TOO_MUCH
            else:
                result = canonicalize(data[links.offsets[row] : links.offsets[row + 1]], base, self._policy)
                if isinstance(result, Rejected):
                    reject[row] = LINK_REJECT_REASONS.index(result.reason) + 1
                elif len(result.url) > LONGEST_URL:
                    reject[row] = _TOO_LONG
                else:
                    url = result.url.encode("ascii")
                    host_key[row], path_key[row] = result.host_key, result.path_key
                    group_at[row], group_len[row] = result.group_at, result.group_len
            used += len(url)
            urls.append(url)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.fromiter(map(len, urls), np.int64, count), out=offsets[1:])
        joined = np.frombuffer(b"".join([*urls, bytes(_PADDING)]), np.uint8)
        return CanonicalColumns(joined, offsets, host_key, path_key, group_at, group_len, reject)
