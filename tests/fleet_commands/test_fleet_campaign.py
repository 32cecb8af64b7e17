"""The campaign's file: made once, the same for all who come, refused where it doesn't fit."""

from __future__ import annotations

import json
import threading

import pytest

from meguri.fleet.campaign import CAMPAIGN_FILE, create_campaign, find_campaign, open_campaign
from meguri_common.errors import CampaignMismatch, DataFolderError


def test_first_makes_it_and_later_ones_find_it(tmp_path):
    data = tmp_path / "new" / "root"
    assert find_campaign(data) is None
    with pytest.raises(DataFolderError, match="topics create"):
        open_campaign(data)
    made = create_campaign(data, partitions=4)
    assert made.identity.partitions == 4
    assert open_campaign(data) == made
    assert create_campaign(data).identity == made.identity
    assert [entry.name for entry in data.iterdir()] == [CAMPAIGN_FILE]


def test_default_number_of_partitions(tmp_path):
    assert create_campaign(tmp_path).identity.partitions == 64


def test_all_who_come_at_once_get_one_campaign(tmp_path):
    found, start = [], threading.Barrier(8)

    def come() -> None:
        start.wait()
        found.append(create_campaign(tmp_path, partitions=2).identity)

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({identity.campaign for identity in found}) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == [CAMPAIGN_FILE]


def test_other_partitions_or_policy_are_refused(tmp_path):
    data, policy = tmp_path / "root", tmp_path / "policy.json"
    policy.write_text(json.dumps({"version": 1, "group_by": "host"}))
    made = create_campaign(data, partitions=4, policy=policy)
    assert made.identity.group_by == "host"
    assert made.policy.group_by == "host"
    with pytest.raises(CampaignMismatch, match="made with 4 partitions, 8 were"):
        create_campaign(data, partitions=8)
    policy.write_text(json.dumps({"version": 1}))
    with pytest.raises(CampaignMismatch, match="group_by"):
        create_campaign(data, policy=policy)


@pytest.mark.parametrize(("name", "said"), [("notes.txt", "other files"), ("bus.db", "meguri run")])
def test_a_folder_of_something_else_is_left_alone(tmp_path, name, said):
    (tmp_path / name).write_text("mine")
    with pytest.raises(DataFolderError, match=said):
        create_campaign(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_lost_file_beside_a_frontier_is_refused(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.json").write_text("{}")
    with pytest.raises(DataFolderError, match="lost"):
        create_campaign(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"identity": {"campaign": 1}}'])
def test_a_damaged_file_is_refused(tmp_path, content):
    (tmp_path / CAMPAIGN_FILE).write_bytes(content)
    with pytest.raises(DataFolderError, match="can't be read"):
        create_campaign(tmp_path)


def test_a_program_that_keys_differently_is_refused(tmp_path):
    create_campaign(tmp_path)
    document = json.loads((tmp_path / CAMPAIGN_FILE).read_bytes())
    document["identity"]["suffix_list"] = "00"
    (tmp_path / CAMPAIGN_FILE).write_text(json.dumps(document))
    with pytest.raises(CampaignMismatch, match="suffix_list"):
        open_campaign(tmp_path)
