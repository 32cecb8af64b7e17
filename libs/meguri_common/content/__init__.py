"""Content fingerprints: whether two bodies are the same, nearly the same, or different.

`fingerprint_texts` is for columns of texts and compiles kernels at its first call; nothing else here needs numba.
"""

from meguri_common.content.batch import Fingerprints, fingerprint_texts
from meguri_common.content.change import Change, classify_change, observe_change
from meguri_common.content.change_columns import classify_changes, observe_changes
from meguri_common.content.fingerprint import content_fp, normalize_body
from meguri_common.content.simhash import (
    NEAR_BITS,
    PIPELINE_VERSION,
    distance,
    near,
    simhash,
    simhash_hashes,
    simhash_text,
)
from meguri_common.content.tokens import tokens

__all__ = [
    "NEAR_BITS",
    "PIPELINE_VERSION",
    "Change",
    "Fingerprints",
    "classify_change",
    "classify_changes",
    "content_fp",
    "distance",
    "fingerprint_texts",
    "near",
    "normalize_body",
    "observe_change",
    "observe_changes",
    "simhash",
    "simhash_hashes",
    "simhash_text",
    "tokens",
]
