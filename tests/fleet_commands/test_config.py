"""Settings: which source counts, what is refused and by what name, what is never shown."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meguri_common.config import FleetSettings, KafkaSettings, Settings, TopicSettings, load_settings
from meguri_common.config.loading import variable_of
from meguri_common.config.settings import PASSED_ON
from meguri_common.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def origin(loaded, name):
    return next(value.origin for value in loaded.values if value.name == name)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return path


def test_defaults_alone():
    loaded = load_settings()
    assert loaded.settings == Settings()
    assert {value.origin for value in loaded.values} == {"default"}
    assert loaded.ignored == ()


@pytest.mark.parametrize("given_by", list(itertools.product([False, True], repeat=3)))
def test_flag_before_variable_before_file_before_default(tmp_path, given_by):
    in_file, in_environment, by_flag = given_by
    file = write(tmp_path, "[topics]\npages_partitions = 2\n" if in_file else "")
    env = {"MEGURI_TOPICS_PAGES_PARTITIONS": "3"} if in_environment else {}
    loaded = load_settings(flags={"topics.pages_partitions": 4 if by_flag else None}, env=env, file=file)
    want, source = (
        (4, "--pages-partitions")
        if by_flag
        else (3, "MEGURI_TOPICS_PAGES_PARTITIONS")
        if in_environment
        else (2, str(file))
        if in_file
        else (16, "default")
    )
    assert loaded.settings.topics.pages_partitions == want
    assert origin(loaded, "topics.pages_partitions") == source


def test_all_kinds_of_settings_in_a_file(tmp_path):
    file = write(
        tmp_path,
        """
        data = "/srv/frontier"
        [kafka]
        bootstrap = "a:9092,b:9092"
        security.protocol = "SASL_SSL"
        "sasl.username" = "crawler"
        socket.keepalive.enable = true
        socket.timeout.ms = 6000
        [topics]
        replication = 3
        [parameters.prioritizer]
        base_budget = 128
        """,
    )
    settings = load_settings(file=file).settings
    assert settings.data == "/srv/frontier"
    assert settings.topics.replication == 3
    assert settings.parameters == {"prioritizer": {"base_budget": 128}}
    assert settings.kafka.client_config(group_id="g", enable_auto_commit=False) == {
        "bootstrap.servers": "a:9092,b:9092",
        "security.protocol": "SASL_SSL",
        "sasl.username": "crawler",
        "socket.keepalive.enable": "true",
        "socket.timeout.ms": "6000",
        "group.id": "g",
        "enable.auto.commit": False,
    }


def test_empty_tables_are_no_error(tmp_path):
    assert load_settings(file=write(tmp_path, "[kafka]\n[topics]\n[parameters]\n")).settings == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dat = 1", ["dat: no such setting"]),
        ("[topics]\npage_partitions = 3", ["topics.page_partitions: no such setting", "pages_partitions"]),
        ("[topic]\npartitions = 3", ["topic.partitions: no such setting", "kafka, parameters, topics"]),
        ("[topics]\npartitions = '3'", ["topics.partitions", "Expected `int", "got `str`"]),
        ("[topics]\npartitions = 0", ["topics.partitions", ">= 1"]),
        ("[topics]\nreplication = 16", ["topics.replication", "<= 15"]),
        ("[kafka]\nbootstrap = 9092", ["kafka.bootstrap", "Expected `str`"]),
        ("[kafka]\nsasl.passwort = 'x'", ["kafka.sasl.passwort: no such setting"]),
        ("[kafka]\nisolation.level = 'read_uncommitted'", ["kafka.isolation.level", "itself"]),
        ("[kafka]\ngroup.id = 'x'", ["kafka.group.id", "itself"]),
        ("[kafka]\nsasl.username = ['x']", ["kafka.sasl.username", "list"]),
        ("[parameters]\nbase_budget = 3", ["parameters.base_budget", "[parameters.dedup]"]),
        ("[[topics]]\npartitions = 3", ["topics: no such setting"]),
        ("[topics", ["no TOML"]),
    ],
)
def test_wrong_files_are_refused_by_file_and_key(tmp_path, text, said):
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load_settings(file=file)
    assert str(file) in str(refused.value)
    for part in said:
        assert part in str(refused.value)


def test_a_file_that_is_named_must_be_there(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: can't be read"):
        load_settings(file=tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match=r"nowhere\.toml: can't be read"):
        load_settings(env={"MEGURI_CONFIG": str(tmp_path / "nowhere.toml")})
    monkeypatch.chdir(tmp_path)
    assert load_settings().settings == Settings()
    (tmp_path / "meguri.toml").write_text("data = 'here'")
    assert load_settings().settings.data == "here"


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("MEGURI_TOPICS_PARTITIONS", "many", "Expected `int"),
        ("MEGURI_TOPICS_PARTITIONS", "0", ">= 1"),
        ("MEGURI_TOPICS_PARTITION", "3", "no such setting"),
        ("MEGURI_KAFKA_SASL_PASSWORT", "x", "no such setting"),
        ("MEGURI_KAFKA_ISOLATION_LEVEL", "x", "itself"),
    ],
)
def test_wrong_variables_are_refused_by_name(variable, value, said):
    with pytest.raises(ConfigError, match=variable) as refused:
        load_settings(env={variable: value})
    assert said in str(refused.value)


def test_variables_of_others_are_told_not_refused():
    loaded = load_settings(env={"MEGURI_DEBUG": "1", "MEGURI_DATA": "d", "HOME": "/", "MEGURI_KAFKA_BOOTSTRAP": ""})
    assert loaded.ignored == ("MEGURI_DEBUG",)
    assert loaded.settings.data == "d"
    assert origin(loaded, "kafka.bootstrap") == "default", "an empty variable counts as none"


def test_every_name_has_one_variable():
    names = [
        "data",
        *(f"topics.{field.name}" for field in msgspec.structs.fields(TopicSettings)),
        *(f"fleet.{field.name}" for field in msgspec.structs.fields(FleetSettings)),
        *(f"kafka.{key}" for key in PASSED_ON),
        "kafka.bootstrap",
    ]
    assert len({variable_of(name) for name in names}) == len(names)


@given(key=st.sampled_from(sorted(PASSED_ON)), value=st.text(st.characters(codec="ascii"), min_size=1, max_size=20))
def test_what_is_passed_on_arrives_as_it_is(key, value):
    loaded = load_settings(env={variable_of(f"kafka.{key}"): value, "MEGURI_KAFKA_BOOTSTRAP": "b:1"})
    assert loaded.settings.kafka.client_config() == {"bootstrap.servers": "b:1", key: value}
    (shown,) = [each for each in loaded.values if each.name == f"kafka.{key}"]
    assert shown.shown in {value, "********"}


@pytest.mark.parametrize("key", ["sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"])
def test_secrets_are_not_shown(key):
    loaded = load_settings(env={variable_of(f"kafka.{key}"): "tell-nobody"})
    assert loaded.settings.kafka.client[key] == "tell-nobody"
    assert "tell-nobody" not in {value.shown for value in loaded.values}


def test_secret_names_cover_every_password():
    for key in PASSED_ON:
        if any(part in key for part in ("password", "secret", "key.pem", "keystore.p")):
            loaded = load_settings(env={variable_of(f"kafka.{key}"): "tell-nobody"})
            assert "tell-nobody" not in {value.shown for value in loaded.values}, key


def test_no_broker_says_how_to_name_one():
    with pytest.raises(ConfigError, match=r"--bootstrap.*MEGURI_KAFKA_BOOTSTRAP.*meguri\.toml"):
        KafkaSettings().client_config()
