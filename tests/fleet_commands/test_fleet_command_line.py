"""The fleet's commands without a broker: help, settings, and what they say when something is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from meguri.__main__ import main
from meguri.cli import COMMANDS
from meguri.fleet.cluster import Cluster
from meguri_common.config import KafkaSettings
from meguri_common.errors import BusError

FLEET = ["publish", "topics", "lag", "tail", "rejects", "replay", "config"]
NEEDS_BROKER = [
    ["publish", "nothing.jsonl"],
    ["topics", "create", "--data", "d"],
    ["lag"],
    ["tail", "pages"],
    ["rejects", "list"],
    ["rejects", "retry"],
    ["replay", "--since", "1"],
]


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in ("MEGURI_CONFIG", "MEGURI_KAFKA_BOOTSTRAP", "MEGURI_DATA"):
        monkeypatch.delenv(name, raising=False)


def test_help_is_there_and_costs_nothing():
    script = (
        "import sys; from meguri.__main__ import main\n"
        f"for name in {FLEET!r}:\n"
        "    assert main([name, '--help']) == 0\n"
        "heavy = {'numba', 'pyarrow', 'numpy', 'confluent_kafka'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.count("Usage: meguri") == len(FLEET)
    assert set(FLEET) <= set(COMMANDS)


@pytest.mark.parametrize("arguments", NEEDS_BROKER)
def test_without_a_broker_they_say_how_to_name_one(arguments, capsys):
    assert main(arguments) == 2
    assert "--bootstrap HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", NEEDS_BROKER)
def test_without_the_client_they_name_the_extra(arguments, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", None)
    assert main([*arguments, "--bootstrap", "localhost:1"]) == 2
    assert "pip install 'meguri[kafka]'" in capsys.readouterr().err


def test_the_state_root_has_to_be_named(capsys):
    pytest.importorskip("confluent_kafka")
    assert main(["topics", "check", "--bootstrap", "127.0.0.1:1"]) == 2
    assert "MEGURI_DATA" in capsys.readouterr().err


def test_a_setting_that_the_client_refuses_is_told(capsys, monkeypatch):
    pytest.importorskip("confluent_kafka")
    monkeypatch.setenv("MEGURI_KAFKA_SECURITY_PROTOCOL", "TELEPATHY")
    assert main(["lag", "--bootstrap", "127.0.0.1:1"]) == 4
    assert "TELEPATHY" in capsys.readouterr().err


def test_config_show_tells_value_and_origin_of_everything(capsys, monkeypatch, tmp_path):
    (tmp_path / "fleet.toml").write_text(
        '[kafka]\nsasl.username = "crawler"\n"sasl.password" = "tell-nobody"\n[topics]\nreplication = 3\n'
    )
    monkeypatch.setenv("MEGURI_TOPICS_REPLICATION", "2")
    monkeypatch.setenv("MEGURI_TYPO", "1")
    arguments = ["config", "show", "--config", "fleet.toml", "--bootstrap", "b:9092"]
    assert main([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    settings = shown["settings"]
    assert settings["kafka.bootstrap"] == {"value": "b:9092", "origin": "--bootstrap"}
    assert settings["topics.replication"] == {"value": 2, "origin": "MEGURI_TOPICS_REPLICATION"}
    assert settings["kafka.sasl.username"] == {"value": "crawler", "origin": "fleet.toml"}
    assert settings["kafka.sasl.password"] == {"value": "********", "origin": "fleet.toml"}
    assert settings["topics.rejects_partitions"] == {"value": 1, "origin": "default"}
    assert "MEGURI_TYPO" in shown["variables_ignored"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "tell-nobody" not in out + err
    assert "MEGURI_TYPO" in err


def test_a_wrong_file_is_refused_by_every_command(capsys, tmp_path):
    (tmp_path / "meguri.toml").write_text("[kafka]\nbootstrap = 'b:9092'\nacks = 'none'\n")
    for arguments in [*NEEDS_BROKER, ["config", "show"]]:
        assert main(arguments) == 2
        assert "meguri.toml: kafka.acks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"inter.broker.protocol.version": "3.9-IV0", "zookeeper.connect": ""},
            "broker 2 is Kafka 3.9-IV0; 4.0 or newer",
        ),
        ({"zookeeper.connect": "z:2181"}, "before 4.0"),
        ({"min.insync.replicas": "1"}, None),
    ],
)
def test_brokers_before_4_are_refused(settings, said, monkeypatch):
    pytest.importorskip("confluent_kafka")
    cluster = Cluster(KafkaSettings(bootstrap="127.0.0.1:1"))
    found = {
        "1": {"min.insync.replicas": SimpleNamespace(value="1")},
        "2": {name: SimpleNamespace(value=value) for name, value in settings.items()},
    }

    class Admin:
        def list_topics(self, timeout):
            assert timeout
            return SimpleNamespace(brokers={1: None, 2: None})

        def describe_configs(self, asked, request_timeout):
            assert request_timeout
            return {each: SimpleNamespace(result=lambda each=each: found[each.name]) for each in asked}

    monkeypatch.setattr(Cluster, "_admin", Admin())
    if said is None:
        cluster.check_version()
    else:
        with pytest.raises(BusError, match=said):
            cluster.check_version()
