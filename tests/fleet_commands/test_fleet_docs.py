"""What docs/fleet.md says about settings and topics is what the program does."""

from __future__ import annotations

import re
from pathlib import Path

from meguri.fleet.topics import plan_topics
from meguri_common.config import load_settings
from meguri_common.config.loading import variable_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "fleet.md").read_text(encoding="utf-8")


def test_every_setting_is_listed_with_its_variable_and_default():
    listed = re.findall(r"^\| `([\w.]+)` \| `(MEGURI_\w+)` \|(?: `(.*?)`)? \|", PAGE, re.MULTILINE)
    values = [
        (value.name, variable_of(value.name), "" if value.value in {None, ""} else str(value.value))
        for value in load_settings().values
    ]
    assert listed == values


def test_the_file_on_the_page_is_taken(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "meguri.toml"
    file.write_text(text)
    settings = load_settings(file=file).settings
    assert settings.kafka.client["sasl.username"] == "crawler"
    assert settings.parameters["prioritizer"] == {"base_budget": 128}


def test_every_topic_is_in_the_table_with_its_message_size():
    rows = re.findall(r"^\| ((?:`meguri\.\w+`(?:, )?)+) \| .* \| (\d+) MiB \|$", PAGE, re.MULTILINE)
    listed = {topic: int(size) << 20 for topics, size in rows for topic in re.findall(r"`([\w.]+)`", topics)}
    plans = plan_topics(load_settings().settings, 64, 3)
    assert listed == {plan.topic: int(plan.config["max.message.bytes"]) for plan in plans}


def test_plan_follows_settings_and_brokers():
    plans = {plan.topic: plan for plan in plan_topics(load_settings().settings, 64, 5)}
    assert {plan.replication for plan in plans.values()} == {3}
    assert {plan.config["min.insync.replicas"] for plan in plans.values()} == {"2"}
    assert [plans[f"meguri.{name}"].partitions for name in ("links", "frontier", "deltas")] == [64, 64, 64]
    inboxes = [plans[f"meguri.{name}"].config for name in ("links", "frontier", "deltas", "ledger")]
    assert all(config["retention.ms"] == config["retention.bytes"] == "-1" for config in inboxes)
    alone = plan_topics(load_settings().settings, 8, 1)
    assert {(plan.replication, plan.config["min.insync.replicas"]) for plan in alone} == {(1, "1")}
    env = {"MEGURI_KAFKA_PREFIX": "c2.", "MEGURI_TOPICS_REPLICATION": "2", "MEGURI_TOPICS_MIN_INSYNC_REPLICAS": "2"}
    other = plan_topics(load_settings(env=env).settings, 8, 5)
    assert all(plan.topic.startswith("c2.") for plan in other)
    assert {(plan.replication, plan.config["min.insync.replicas"]) for plan in other} == {(2, "2")}
