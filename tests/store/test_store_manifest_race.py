"""Instances of the store that start at once write one store.json."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from meguri_common.identity import CampaignIdentity
from meguri_common.runtime.files import LocalFiles
from meguri_store.manifest import make_manifest, read_manifest, write_manifest

if TYPE_CHECKING:
    from pathlib import Path


def test_many_at_once(tmp_path: Path) -> None:
    identity = CampaignIdentity(campaign="c", partitions=64, group_by="host", policy="", suffix_list="", url_parser="")
    for turn in range(10):
        files, together, found = LocalFiles(tmp_path / str(turn)), threading.Barrier(6), []

        def start(name: str) -> None:
            together.wait()  # noqa: B023 - the threads end within the turn
            found.append(write_manifest(files, identity, name))  # noqa: B023 - see above

        threads = [threading.Thread(target=start, args=[f"{number}-"]) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [make_manifest(identity)] * 6
        assert read_manifest(files, identity) == make_manifest(identity)
