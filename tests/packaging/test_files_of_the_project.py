"""Texts and locks of the checkout: nothing in them belongs to one machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*", "examples/*.md", "requirements/*", "Makefile", "pyproject.toml", ".ci/*")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix not in {".png", ".svg"}
)
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:home|root|Users|work(?:space)?|tmp|opt|mnt|srv|builds?)/[\w.-]+")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_texts_are_found() -> None:
    assert {"README.md", "Makefile", "docs/schemas/page.json", "requirements/run.lock"} <= {*map(name_of, TEXTS)}


def test_the_pattern_finds_machine_paths() -> None:
    assert MACHINE_PATH.search("see /home/someone/meguri") is not None
    assert MACHINE_PATH.search("cd /workspace/meguri") is not None
    assert MACHINE_PATH.search("https://example.org/home/someone ./opt/x $HOME/tmp/x") is None


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_no_paths_of_one_machine(path: Path) -> None:
    assert MACHINE_PATH.findall(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("lock", ["run", "test", "dev", "bench"])
def test_locks_pin_everything_by_hash_and_name_no_registry(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index-url" not in text
    entries = re.split(r"\n(?=\w)", text)[1:] if text.startswith("#") else re.split(r"\n(?=\w)", text)
    assert len(entries) > 10
    for entry in entries:
        assert re.match(r"[\w.-]+==[\w.]+", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]


@pytest.mark.parametrize("lock", ["run", "test", "dev", "bench"])
def test_locks_hold_what_the_project_asks_for(lock: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    if lock in {"test", "dev"}:
        wanted += project["dependency-groups"]["test"]
    if lock == "bench":
        wanted += project["dependency-groups"]["bench"]
    if lock == "dev":
        wanted += project["dependency-groups"]["lint"]
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / f"{lock}.lock").read_text(), re.MULTILINE))
    missing = {re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in wanted} - locked
    assert missing == set(), "run `make lock`"


def test_licence_and_notice() -> None:
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert "Public Suffix List" in (ROOT / "NOTICE").read_text(encoding="utf-8")


def test_every_decision_is_listed_and_has_its_parts() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))
    for number, name in enumerate(listed, 1):
        text = (folder / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. ")
        assert all(part in text for part in ("**Context.**", "**Decision.**", "**Why.**", "**Consequences.**")), name
