"""Options that all commands of the fleet have, and the settings that follow from them."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meguri_common.config import Loaded, load_settings
from meguri_common.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from meguri_common.config import Settings

__all__ = ["data_of", "fleet_options", "state_root_option"]

_FLAGS = {"bootstrap": "kafka.bootstrap", "data": "data"}


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--bootstrap` and `--config` (and `--data`, where `state_root_option` adds it).

    The command gets `loaded` instead of them.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, config_file: Path | None, **others: Any) -> Any:
        flags = {setting: others.pop(flag) for flag, setting in _FLAGS.items() if flag in others}
        loaded = load_settings(flags=flags, env=os.environ, file=config_file)
        return command(*args, loaded=loaded, **others)

    config = click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Settings in TOML; by default the file that MEGURI_CONFIG names, or meguri.toml if it is here.",
    )
    bootstrap = click.option(
        "--bootstrap", metavar="HOST:PORT", help="Brokers to ask first, with commas between several."
    )
    return bootstrap(config(wrapped))


def state_root_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """The `--data` option of commands that need the campaign's state root; stands above `fleet_options`."""
    option = click.option("--data", metavar="DIR", help="The state root that all instances of the fleet share.")
    return option(command)


def data_of(loaded: Loaded) -> Path:
    """The state root.

    Raises:
        ConfigError: none is given.
    """
    settings: Settings = loaded.settings
    if not settings.data:
        msg = "no state root is given: use --data DIR, the variable MEGURI_DATA, or data in meguri.toml"
        raise ConfigError(msg)
    return Path(settings.data)
