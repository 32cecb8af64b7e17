"""The root of the command line: what errors become, and what loading a command costs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from meguri.__main__ import exit_code_of, main
from meguri.cli import COMMANDS, LazyCommand, LazyGroup, cli
from meguri_common import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

RAISED: list[BaseException] = []


@pytest.fixture
def raising() -> Iterator[None]:
    """A command that raises what stands in RAISED."""

    @cli.command("raise-it")
    def raise_it() -> None:
        raise RAISED[-1]

    yield
    del cli.commands["raise-it"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InputUnreadable("x: cut off"), 3),
        (errors.PolicyError("x: cut off"), 2),
        (errors.DataFolderError("x: cut off"), 4),
        (errors.DataFolderLocked("x: cut off"), 4),
        (errors.CampaignMismatch("x: cut off"), 4),
        (errors.ParametersChanged("x: cut off"), 4),
        (errors.RestoreRefused("x: cut off"), 4),
        (errors.CorruptSnapshot("x: cut off"), 4),
        (errors.OutcomeUnknown("x: cut off"), 4),
        (errors.CorruptGeneration("x: cut off"), 4),
        (errors.MeguriError("x:\n  cut\toff"), 70),
    ],
)
@pytest.mark.usefixtures("raising")
def test_an_error_is_one_line_and_an_exit_code(
    error: errors.MeguriError, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    RAISED.append(error)
    monkeypatch.delenv("MEGURI_DEBUG", raising=False)
    assert main(["raise-it"]) == code == exit_code_of(error)
    assert capsys.readouterr().err == "meguri: x: cut off\n"
    monkeypatch.setenv("MEGURI_DEBUG", "1")
    assert main(["raise-it"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_every_error_has_an_exit_code() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__]
    assert {exit_code_of(kind("x")) for kind in kinds} == {2, 3, 4, 70}


@pytest.mark.usefixtures("raising")
def test_interrupts_and_closed_readers(capsys: pytest.CaptureFixture[str]) -> None:
    RAISED.append(KeyboardInterrupt())
    assert main(["raise-it"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted"
    RAISED.append(click.Abort())
    assert main(["raise-it"]) == 1


@pytest.mark.usefixtures("raising")
def test_a_mistake_of_ours_is_not_hidden() -> None:
    RAISED.append(ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError, match="ours"):
        main(["raise-it"])


def test_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-command"]) == 2
    assert "no-such-command" in capsys.readouterr().err
    assert main(["events", "from-html"]) == 2
    assert main([]) == 2
    assert main(["--help"]) == 0
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("meguri 0.")


def test_only_installed_commands_are_listed() -> None:
    group = LazyGroup(
        lazy={"events": COMMANDS["events"], "gone": LazyCommand("meguri.commands.gone:gone", "Not there.")}, name="g"
    )
    context = click.Context(group)
    assert group.list_commands(context) == ["events"]
    assert group.get_command(context, "gone") is None
    assert "Not there" not in group.get_help(context)
    assert COMMANDS["events"].summary in group.get_help(context)


def test_every_command_loads_by_the_name_it_is_listed_under() -> None:
    context = click.Context(cli)
    names = cli.list_commands(context)
    assert "events" in names
    for name in names:
        command = cli.get_command(context, name)
        assert isinstance(command, click.Command), name
        assert command.name == name
        assert command.help, f"{name} has no help"


def paths_of_commands() -> list[list[str]]:
    """Every command and subcommand, as arguments."""
    context = click.Context(cli)
    found: list[list[str]] = [[]]
    for name in cli.list_commands(context):
        found.append([name])
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            found += [[name, below] for below in command.list_commands(click.Context(command))]
    return found


@pytest.mark.parametrize("arguments", paths_of_commands(), ids=" ".join)
def test_help_imports_neither_numba_nor_pyarrow(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from meguri.__main__ import main\n"
        "code = main(sys.argv[1:])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "heavy = loaded & {'numba', 'llvmlite', 'pyarrow', 'duckdb', 'polars'}\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments, "--help"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: meguri" in done.stdout
