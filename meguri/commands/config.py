"""`meguri config`: the settings, and where each came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from meguri.commands.showing import columns, json_option, print_json
from meguri.fleet.options import fleet_options, state_root_option

if TYPE_CHECKING:
    from meguri_common.config import Loaded

__all__ = ["config"]


@click.group()
def config() -> None:
    """Show the settings of the fleet."""


@config.command()
@state_root_option
@fleet_options
@json_option
def show(loaded: Loaded, *, as_json: bool) -> None:
    """List every setting, its value and where that came from: a flag, a variable, the file, or the default.

    Flags come before the environment (MEGURI_KAFKA_BOOTSTRAP is kafka.bootstrap), the environment before the file.
    Under [kafka] there may also be what librdkafka needs to reach a broker: ssl.*, sasl.*, security.protocol and
    the like, or MEGURI_KAFKA_SASL_PASSWORD and so on. Secrets aren't shown.

    \b
    Exit codes: 0 done; 2 a setting is unknown or wrong.

    \b
    Examples:
      meguri config show
      MEGURI_KAFKA_BOOTSTRAP=localhost:9092 meguri config show --config fleet.toml --json
    """  # noqa: D301 - backslash-b keeps click from filling the paragraph
    if as_json:
        values = {each.name: {"value": each.shown, "origin": each.origin} for each in loaded.values}
        print_json({"settings": values, "variables_ignored": list(loaded.ignored)})
        return
    for line in columns([(each.name, _text(each.shown), each.origin) for each in loaded.values]):
        click.echo(line)
    for name in loaded.ignored:
        click.echo(f"meguri: the variable {name} is no setting of the fleet", err=True)


def _text(value: object) -> str:
    return "-" if value in {None, ""} else str(value)
