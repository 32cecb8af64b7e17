"""What surrounds the monitor: the store's files, credentials, the command."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from importlib.resources import files
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meguri_common.errors import BusError, ConfigError
from meguri_common.records import HostFlag
from meguri_monitor.suspects import SHOWN, suspects_of

if TYPE_CHECKING:
    from pathlib import Path


def write_hosts(data: Path, shard: int, rows: list[tuple[str, int, int, int]]) -> Path:
    """The hosts of a shard's generation in force: name, flags, URLs, budget."""
    generation = data / "store" / f"shard-{shard:05d}" / "g0"
    generation.mkdir(parents=True)
    names, flags, counts, budgets = zip(*rows, strict=True)
    table = pa.table(
        {
            "host_group": pa.array(names, pa.string()),
            "flags": pa.array(flags, pa.uint16()),
            "url_count": pa.array(counts, pa.uint32()),
            "url_budget": pa.array(budgets, pa.uint32()),
            "host_score": pa.array([0.0] * len(rows), pa.float32()),
        }
    )
    pq.write_table(table, generation / "hosts.parquet")
    (generation.parent / "current").symlink_to("g0")
    return generation / "hosts.parquet"


def test_suspects_are_named_the_largest_first(tmp_path: Path) -> None:
    trap = int(HostFlag.TRAP_SUSPECT)
    write_hosts(tmp_path, 0, [("calm.example", 0, 900, 64), ("trap.example", trap, 70, 64)])
    write_hosts(tmp_path, 3, [("big.example", trap | int(HostFlag.VOUCHED), 5000, 0), ("", trap, 0, 64)])
    found = suspects_of(tmp_path)
    assert [(host.host, host.urls, host.url_budget) for host in found.hosts] == [
        ("big.example", 5000, 0), ("trap.example", 70, 64), ("(no URL yet)", 0, 64),
    ]  # fmt: skip
    assert (found.count, found.problem) == (3, "")


def test_only_some_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    trap = int(HostFlag.TRAP_SUSPECT)
    write_hosts(tmp_path, 0, [(f"h{number:03}.example", trap, number, 64) for number in range(100)])
    found = suspects_of(tmp_path)
    assert (found.count, len(found.hosts), found.hosts[0].host) == (100, SHOWN, "h099.example")


def test_a_shard_that_cannot_be_read_is_told_and_hides_no_other(tmp_path: Path) -> None:
    write_hosts(tmp_path, 0, [("trap.example", int(HostFlag.TRAP_SUSPECT), 70, 64)])
    write_hosts(tmp_path, 1, [("x.example", 0, 1, 64)]).write_bytes(b"no parquet")
    found = suspects_of(tmp_path)
    assert [host.host for host in found.hosts] == ["trap.example"]
    assert "shard-00001" in found.problem


def test_no_store_yet(tmp_path: Path) -> None:
    assert suspects_of(tmp_path / "nowhere").problem == "The store has no generation yet."


def test_credentials_are_those_of_the_other_commands() -> None:
    pytest.importorskip("faust", reason="no faust-streaming (the extra `monitor`)")
    from meguri_monitor.broker import credentials  # noqa: PLC0415 - needs Faust

    assert credentials({"client.id": "x"}) is None
    user = {"sasl.username": "me", "sasl.password": "s"}
    sasl = credentials({"security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512", **user})
    assert (sasl.username, sasl.password, sasl.mechanism.value) == ("me", "s", "SCRAM-SHA-512")
    assert sasl.ssl_context.check_hostname
    plain = credentials({"security.protocol": "sasl_plaintext", **user})
    assert (plain.mechanism.value, plain.ssl_context) == ("PLAIN", None)
    tls = credentials({"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"})
    assert not tls.context.check_hostname
    for client, named in (
        ({"security.protocol": "carrier pigeon"}, "carrier pigeon"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanism": "GSSAPI"}, "GSSAPI"),
        ({"security.protocol": "ssl", "ssl.keystore.location": "x"}, r"ssl\.keystore\.location"),
        ({"security.protocol": "ssl", "ssl.ca.location": "/nowhere.pem"}, "can't be read"),
    ):
        with pytest.raises(ConfigError, match=named):
            credentials(client)


def test_no_broker_is_an_error_with_its_address() -> None:
    pytest.importorskip("faust", reason="no faust-streaming (the extra `monitor`)")
    from meguri_monitor.broker import shape_of  # noqa: PLC0415 - needs Faust

    with pytest.raises(BusError, match=r"127\.0\.0\.1:1: no broker answers"):
        asyncio.run(shape_of("127.0.0.1:1", "meguri.telemetry", {}))


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = (files("meguri_monitor") / "page" / "index.html").read_text(encoding="utf-8")
    assert page.count("<script>") == page.count("<style>") == 1
    assert "style=" not in page, "the policy of the page forbids it"
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page) == []
    assert re.findall(r"innerHTML|document\.write|\beval\(|\son\w+=", page) == []


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "meguri", "monitor", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_needs_no_faust() -> None:
    code = "import sys; from meguri.__main__ import main; main(['monitor', '--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--bootstrap" in done.stdout
    modules = done.stdout.splitlines()[-1]
    assert not {"faust", "numba", "pyarrow", "aiokafka"} & set(re.findall(r"'(\w+)'", modules))


def test_without_faust_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'faust' else real(name, package)\n"
    )
    done = run("--bootstrap", "127.0.0.1:1", "--data", str(tmp_path), PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "pip install 'meguri[monitor]'" in done.stderr


@pytest.mark.parametrize("arguments", [("--data", "x"), ("--bootstrap", "a:1")])
def test_what_is_missing_is_named(arguments: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("faust", reason="no faust-streaming (the extra `monitor`)")
    done = run(*arguments, MEGURI_CONFIG="", HOME=str(tmp_path))
    assert done.returncode == 2
    assert ("--bootstrap" if "--data" in arguments else "--data") in done.stderr
