"""Visit rows: the facts that a page event states, in the wire's units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_common.content import PIPELINE_VERSION, fingerprint_texts
from meguri_common.records import CRAWL_DELAY_UNSET, NO_DEPTH, FetchError, VisitFlag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from meguri_common.events.model import PageEvent

__all__ = ["ETAG_LIMIT", "REDIRECT_STATUSES", "fact_columns", "link_depth", "stated_depth"]

REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})

ETAG_LIMIT = 1024
"""Bytes of an ETag that is kept; a longer one counts as absent, so that a visit fits an envelope."""

_NOT_MODIFIED = 304
_U16 = 0xFFFF
_U32 = 0xFFFFFFFF
_ERRORS = {error.name.lower(): int(error) for error in FetchError if error}


def stated_depth(depth: int | None) -> int:
    """The depth a page states; the deepest that can be stated is one less than `NO_DEPTH`."""
    return NO_DEPTH if depth is None else min(depth, NO_DEPTH - 1)


def link_depth(depth: int | None) -> int:
    """The depth of a page's links."""
    return NO_DEPTH if depth is None else min(depth + 1, NO_DEPTH - 1)


def fact_columns(pages: Sequence[PageEvent], flags: NDArray[np.uint8], redirects: Sequence[bytes]) -> dict[str, Any]:
    """The visit facts of the wire for some pages.

    Args:
        pages: the events.
        flags: (pages,) what is known of `VisitFlag` already; the others are added to it.
        redirects: canonical URL of the redirect target, or nothing.
    """
    for position, page in enumerate(pages):
        if page.not_modified or page.status == _NOT_MODIFIED:
            flags[position] |= VisitFlag.NOT_MODIFIED
    content_fp, simhash = _fingerprints(pages, flags)
    return {
        "fetched_at": np.array([page.fetched_at for page in pages], np.uint32),
        "status": np.array([page.status for page in pages], np.uint16),
        "error": np.array([0 if page.status else _error(page) for page in pages], np.uint8),
        "flags": flags,
        "depth": np.array([stated_depth(page.depth) for page in pages], np.uint16),
        "content_fp": content_fp,
        "simhash": simhash,
        "etag": pa.array([_etag(page.etag) if page.etag else b"" for page in pages], pa.binary()),
        "last_modified": np.array([_time(page.last_modified) for page in pages], np.uint32),
        "redirect": pa.array(redirects, pa.binary()),
        "retry_after": np.array([min(page.retry_after_s or 0, _U32) for page in pages], np.uint32),
        "crawl_delay": np.array([_crawl_delay(page.crawl_delay_ds) for page in pages], np.uint16),
        "latency": np.array([min(page.latency_ms or 0, _U16) for page in pages], np.uint16),
    }


def _error(page: PageEvent) -> int:
    return _ERRORS[page.error] if page.error else FetchError.OTHER


def _etag(etag: str) -> bytes:
    encoded = etag.encode()
    return encoded if len(encoded) <= ETAG_LIMIT else b""


def _time(seconds: int | None) -> int:
    """A time that a server stated; one that no record can hold counts as absent."""
    return seconds if seconds is not None and 0 < seconds <= _U32 else 0


def _crawl_delay(deciseconds: int | None) -> int:
    return CRAWL_DELAY_UNSET if deciseconds is None else min(deciseconds, CRAWL_DELAY_UNSET - 1)


def _fingerprints(
    pages: Sequence[PageEvent], flags: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Content fingerprints: as given by the same pipeline, else of the text; 0 = none."""
    content_fp, simhash = np.zeros((2, len(pages)), np.uint64)
    positions: list[int] = []
    texts: list[bytes] = []
    for position, page in enumerate(pages):
        if page.content_fp is not None and page.pipeline == PIPELINE_VERSION:
            content_fp[position] = int(page.content_fp, 16)
            simhash[position] = int(page.simhash or "0", 16)
        elif page.text is not None:
            positions.append(position)
            texts.append(page.text.encode())
    if positions:
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        data = np.frombuffer(b"".join([*texts, bytes(16)]), np.uint8)
        made_fp, made_simhash, empty = fingerprint_texts(data, offsets)
        content_fp[positions] = made_fp
        simhash[positions] = made_simhash
        flags[positions] |= np.where(empty, np.uint8(VisitFlag.EMPTY_BODY), np.uint8(0))
    return content_fp, simhash
