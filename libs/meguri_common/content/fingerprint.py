"""The exact fingerprint of a body: equal for equal bodies, white space aside."""

from __future__ import annotations

import xxhash

__all__ = ["content_fp", "normalize_body"]


def normalize_body(body: bytes) -> bytes:
    """Collapse runs of ASCII white space (space, tab, LF, CR, FF, VT) into one space and trim both ends.

    All other bytes stay as they are, be they valid UTF-8 or not.
    """
    return b" ".join(body.split())  # bytes.split() knows just these six


def content_fp(body: bytes) -> int:
    """xxh64 (seed 0) of a body that is normalised already; a hash of 0 becomes 1, since records say "none" with 0."""
    return xxhash.xxh64_intdigest(body) or 1
