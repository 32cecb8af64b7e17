"""A program that publishes into a data folder itself: the next run takes its events up."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from meguri.__main__ import main
from meguri.embedded.campaign import open_campaign
from meguri_common.sdk import Publisher

if TYPE_CHECKING:
    from pathlib import Path


def run(data: Path, capsys, *inputs: str) -> dict[str, object]:
    assert main(["run", *inputs, "--data", str(data), "--partitions", "2", "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def publish(data: Path, numbers: range) -> None:
    campaign = open_campaign(data, now=time.time)
    with Publisher(campaign.bus) as publisher:
        for number in numbers:
            publisher.page(url=f"https://example.org/{number}", fetched_at=number + 1, depth=0, links=["/shared"])
    campaign.close()


def test_events_published_to_the_embedded_bus_are_taken_up_by_the_next_run(tmp_path, capsys):
    data, file = tmp_path / "frontier", tmp_path / "in.jsonl"
    run(data, capsys)
    publish(data, range(5))
    first = run(data, capsys)
    assert (first["pages"], first["urls_total"]) == (5, 6)
    assert run(data, capsys)["pages"] == 5
    publish(data, range(5, 8))
    file.write_text('{"url": "https://other.example/", "fetched_at": 1}\n')
    last = run(data, capsys, str(file))
    assert (last["pages"], last["urls_total"]) == (9, 10)
