"""Content: fingerprints of bodies, and whether one has changed."""

from __future__ import annotations

from meguri_common.content.change import Change, classify_change, observe_change
from meguri_common.content.fingerprint import (
    PIPELINE_VERSION,
    content_fp,
    distance,
    fingerprint_texts,
    near,
    normalize_body,
    simhash,
    simhash_text,
)
from meguri_common.content.tokens import tokens

__all__ = [
    "PIPELINE_VERSION",
    "Change",
    "classify_change",
    "content_fp",
    "distance",
    "fingerprint_texts",
    "near",
    "normalize_body",
    "observe_change",
    "simhash",
    "simhash_text",
    "tokens",
]
