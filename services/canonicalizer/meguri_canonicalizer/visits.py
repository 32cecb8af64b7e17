"""Visit rows: the facts that a page event states, in the wire's units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from meguri_canonicalizer.sources import UNSTATED, depths
from meguri_common.content import PIPELINE_VERSION, fingerprint_texts
from meguri_common.records import CRAWL_DELAY_UNSET, FetchError, VisitFlag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from meguri_common.events.model import PageEvent

__all__ = ["ETAG_LIMIT", "fact_columns"]

ETAG_LIMIT = 1024
"""Bytes of an ETag that is kept; a longer one counts as absent, so that a visit fits an envelope."""

_NOT_MODIFIED = 304
_U16 = 0xFFFF
_U32 = 0xFFFFFFFF
_ERRORS = {error.name.lower(): int(error) for error in FetchError if error}


def fact_columns(pages: Sequence[PageEvent], flags: Mapping[int, int], targets: Mapping[int, bytes]) -> dict[str, Any]:
    """The visit facts of the wire for some pages.

    Args:
        pages: the events.
        flags: what is known of `VisitFlag` already, by number of the page.
        targets: canonical URLs of redirect targets, by number of the page.
    """
    status = np.array([page.status for page in pages], np.uint16)
    all_flags = np.array([VisitFlag.NOT_MODIFIED if page.not_modified else 0 for page in pages], np.uint8)
    all_flags[status == _NOT_MODIFIED] |= np.uint8(VisitFlag.NOT_MODIFIED)
    error = np.zeros(len(pages), np.uint8)
    redirects = [b""] * len(pages)
    for number, flag in flags.items():
        all_flags[number] |= np.uint8(flag)
    for number in np.flatnonzero(status == 0).tolist():
        error[number] = _ERRORS[pages[number].error or "other"]
    for number, target in targets.items():
        redirects[number] = target
    content_fp, simhash = _fingerprints(pages, all_flags)
    stated = np.array([UNSTATED if page.depth is None else page.depth for page in pages], np.int64)
    delay = np.array([-1 if page.crawl_delay_ds is None else page.crawl_delay_ds for page in pages], np.int64)
    modified = np.array([page.last_modified or 0 for page in pages], np.int64)
    return {
        "fetched_at": np.array([page.fetched_at for page in pages], np.uint32),
        "status": status,
        "error": error,
        "flags": all_flags,
        "depth": depths(stated, 0),
        "content_fp": content_fp,
        "simhash": simhash,
        "etag": pa.array([_etag(page.etag) if page.etag else b"" for page in pages], pa.binary()),
        # A time that no record can hold counts as absent.
        "last_modified": np.where((modified > 0) & (modified <= _U32), modified, 0).astype(np.uint32),
        "redirect": pa.array(redirects, pa.binary()),
        "retry_after": _at_most(_U32, [page.retry_after_s or 0 for page in pages]).astype(np.uint32),
        "crawl_delay": np.where(delay < 0, CRAWL_DELAY_UNSET, np.minimum(delay, CRAWL_DELAY_UNSET - 1)).astype(
            np.uint16
        ),
        "latency": _at_most(_U16, [page.latency_ms or 0 for page in pages]).astype(np.uint16),
    }


def _at_most(limit: int, values: list[int]) -> NDArray[np.int64]:
    return np.minimum(np.array(values, np.int64), limit)


def _etag(etag: str) -> bytes:
    encoded = etag.encode()
    return encoded if len(encoded) <= ETAG_LIMIT else b""


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
