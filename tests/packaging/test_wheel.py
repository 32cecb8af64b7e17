"""What the wheel holds, seen as a zip and as an installation."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "meguri",
    "meguri_canonicalizer",
    "meguri_common",
    "meguri_dedup",
    "meguri_monitor",
    "meguri_prioritizer",
    "meguri_store",
}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that MEGURI_WHEEL names, else one built from the sources, if they and the builder are here."""
    named = os.environ.get("MEGURI_WHEEL")
    if named:
        return zipfile.ZipFile(named)
    if not (ROOT / "libs").is_dir() or find_spec("hatchling") is None:
        pytest.skip("no wheel (MEGURI_WHEEL), and none can be built here")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_top_level_names_are_ours_alone(wheel: zipfile.ZipFile) -> None:
    """A fetcher's own project may have a package called `services` or `libs`."""
    top = {name.partition("/")[0] for name in wheel.namelist()}
    (info,) = (name for name in top if name.endswith(".dist-info"))
    assert top - {info} == PACKAGES
    assert all(f"{package}/__init__.py" in wheel.namelist() for package in PACKAGES)


def test_data_files_are_in_it(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert "meguri_canonicalizer/data/tracking_params.json" in names
    suffixes = wheel.read("meguri_common/data/public_suffix_list.dat")
    assert b"https://mozilla.org/MPL/2.0/" in suffixes[:400], "the list keeps its notice"
    assert suffixes.count(b"\n") > 10_000
    assert "meguri_common/py.typed" in names
    assert "meguri_monitor/page/index.html" in names


def test_nothing_is_in_it_that_is_no_part_of_the_packages(wheel: zipfile.ZipFile) -> None:
    stray = [
        name
        for name in wheel.namelist()
        if name.endswith((".pyc", ".nbi", ".nbc", ".so", ".db")) or "/tests/" in name or "__pycache__" in name
    ]
    assert stray == []


def test_licence_is_in_it(wheel: zipfile.ZipFile) -> None:
    licences = [name for name in wheel.namelist() if name.endswith("dist-info/licenses/LICENSE")]
    assert len(licences) == 1
    assert b"Apache License" in wheel.read(licences[0])


def test_schemas_can_be_made_from_an_installation(tmp_path: Path) -> None:
    """The schemas are generated: whoever has the package has them, and they are those in the docs."""
    command = [sys.executable, "-m", "meguri_common.events.schemas", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    made = {file.name: file.read_text() for file in tmp_path.glob("*.json")}
    assert {"page.json", "seed.json", "asyncapi.json"} <= set(made)
    assert made == {file.name: file.read_text() for file in (ROOT / "docs" / "schemas").glob("*.json")}


def test_the_command_is_installed() -> None:
    (script,) = metadata.entry_points(group="console_scripts", name="meguri")
    assert script.value == "meguri.__main__:main"
    done = subprocess.run([sys.executable, "-m", "meguri", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"meguri {metadata.version('meguri')}\n"
