"""What other languages are given: vectors of the code, as an implementation that shares none of it has them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import xxhash

from meguri_canonicalizer.canonical import Canonical, canonicalize
from meguri_common.sdk.vectors import PARTITION_COUNTS, partition_vectors, with_table

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "fetchers.md").read_text(encoding="utf-8")
VECTORS = json.loads((ROOT / "docs" / "schemas" / "pages-partitions.json").read_bytes())


def test_the_checked_in_vectors_and_the_table_are_up_to_date():
    assert partition_vectors() == VECTORS, "run: make schemas"
    assert with_table(PAGE) == PAGE, "run: make schemas"
    with pytest.raises(ValueError, match="no marks"):
        with_table("no table here")


def test_the_rule_as_printed_gives_the_vectors():
    (code,) = re.findall(r"```python\n(import xxhash\n.*?)```", PAGE, re.DOTALL)
    scope: dict[str, object] = {}
    exec(code, scope)
    checked = 0
    for vector in (*VECTORS["urls"], *VECTORS["events"]):
        for count, partition in vector["partitions"].items():
            assert scope["partition"](vector["key"], int(count)) == partition
            checked += 1
        if vector["key"] is not None:
            assert vector["xxh64"] == xxhash.xxh64(vector["key"].encode(), seed=0).hexdigest()
    assert checked == len(PARTITION_COUNTS) * (len(VECTORS["urls"]) + len(VECTORS["events"])) > 200


@pytest.mark.parametrize("vector", VECTORS["urls"], ids=lambda vector: vector["url"] or "empty")
def test_keys_are_the_canonicalizers_host_groups(vector):
    found = canonicalize(vector["url"], None)
    assert vector["key"] == (found.host_group if isinstance(found, Canonical) else None)


def test_the_python_on_the_page_is_python():
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        compile(code, "docs/fetchers.md", "exec")
