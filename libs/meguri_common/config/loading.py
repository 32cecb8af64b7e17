"""Putting settings together: flags before the environment before the file before the defaults."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meguri_common.config.settings import PASSED_ON, FleetSettings, KafkaSettings, Settings, TopicSettings, is_secret
from meguri_common.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["DEFAULT_FILE", "FILE_VARIABLE", "Loaded", "Value", "load_settings", "variable_of"]

DEFAULT_FILE = "meguri.toml"
"""Read from the working folder if no file is named and it is there."""

FILE_VARIABLE = "MEGURI_CONFIG"
"""Names the file where no flag does."""

_PREFIX = "MEGURI_"
_MASK = "********"
_SECTIONS: dict[str, type[KafkaSettings | TopicSettings | FleetSettings]] = {
    "kafka": KafkaSettings,
    "topics": TopicSettings,
    "fleet": FleetSettings,
}
_FREE = "parameters"
_OURS = ("acks", "auto.", "bootstrap.servers", "enable.", "fetch.", "group.", "isolation.", "transaction", "queue")
"""Beginnings of settings of librdkafka that the program sets itself."""


@dataclass(frozen=True, slots=True)
class Value:
    """One setting as it counts."""

    name: str
    """`section.key`."""
    value: Any
    origin: str
    """The flag, the variable, the file, or `default`."""

    @property
    def shown(self) -> Any:
        """The value, unless it is a secret."""
        return _MASK if is_secret(self.name) and self.value else self.value


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where each came from."""

    settings: Settings
    values: tuple[Value, ...]
    """Each setting, in the order of the definitions; of `PASSED_ON` and the parameters, those given."""
    ignored: tuple[str, ...]
    """Variables that begin as ours do and are none."""


def variable_of(name: str) -> str:
    """Name of the variable for a setting."""
    return _PREFIX + name.upper().replace(".", "_")


def load_settings(
    *, flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, file: Path | None = None
) -> Loaded:
    """Put the settings together.

    Args:
        flags: value by setting, as given on the command line; None: not given.
        env: the environment.
        file: the file; by default the one that the environment names, or `meguri.toml` if it is there.

    Raises:
        ConfigError: unknown or wrong; names the flag or the variable, or the file and the key.
    """
    env = env or {}
    types = dict(_types())
    found: dict[str, Value] = {}
    for value in (*_of_file(_file(file, env), types), *_of_environment(env, types), *_of_flags(flags or {}, types)):
        found[value.name] = value
    defaults = {name: Value(name, default, "default") for name, (_, default) in types.items()}
    values = {**defaults, **{name: found[name] for name in types if name in found}}
    values |= {name: found[name] for name in sorted(found.keys() - values.keys())}
    return Loaded(_settings(values), tuple(values.values()), tuple(sorted(_unknown_variables(env, types))))


def _types() -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Type and default of each setting that is defined by name."""
    for field in msgspec.structs.fields(Settings):
        section = _SECTIONS.get(field.name)
        if section is not None:
            for inner in msgspec.structs.fields(section):
                if inner.name != "client":
                    yield f"{field.name}.{inner.name}", (inner.type, inner.default)
        elif field.name != _FREE:
            yield field.name, (field.type, field.default)


def _file(file: Path | None, env: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if env.get(FILE_VARIABLE):
        return Path(env[FILE_VARIABLE])
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).is_file() else None


def _of_file(file: Path | None, types: Mapping[str, tuple[Any, Any]]) -> Iterator[Value]:
    if file is None:
        return
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        msg = f"{file}: can't be read: {problem.strerror or problem}"
        raise ConfigError(msg) from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        msg = f"{file}: no TOML: {problem}"
        raise ConfigError(msg) from problem
    for name, value in _flat(document):
        where = f"{file}: {name}"
        if value == {} and name in {*_SECTIONS, _FREE}:
            continue  # an empty table
        if name.startswith(f"{_FREE}."):
            if name.count(".") != 2:  # noqa: PLR2004 - parameters.service.name
                msg = f"{where}: parameters stand in a table of their service: [parameters.dedup]"
                raise ConfigError(msg)
            yield Value(name, value, str(file))
        elif name in types:
            yield Value(name, _convert(value, types[name][0], where, strict=True), str(file))
        else:
            key = _passed_on(name.removeprefix("kafka."), where) if name.startswith("kafka.") else None
            if key is None:
                msg = f"{where}: no such setting; {_known(name, types)}"
                raise ConfigError(msg)
            yield Value(f"kafka.{key}", _plain(value, where), str(file))


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots; a dotted key that isn't quoted is a table within a table for TOML."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _of_environment(env: Mapping[str, str], types: Mapping[str, tuple[Any, Any]]) -> Iterator[Value]:
    by_variable = {variable_of(name): name for name in types}
    passed = {variable_of(f"kafka.{key}"): key for key in PASSED_ON}
    for variable in sorted(env):
        if not env[variable]:
            continue  # compose files set variables that they don't know to nothing
        if variable in by_variable:
            name = by_variable[variable]
            yield Value(name, _convert(env[variable], types[name][0], variable, strict=False), variable)
        elif variable in passed:
            yield Value(f"kafka.{passed[variable]}", env[variable], variable)
        elif section := next((name for name in _SECTIONS if variable.startswith(variable_of(f"{name}."))), None):
            key = variable.removeprefix(variable_of(f"{section}.")).lower()
            if section == "kafka":
                _passed_on(key.replace("_", "."), variable)
            msg = f"{variable}: no such setting; {_known(f'{section}.{key}', types)}"
            raise ConfigError(msg)


def _unknown_variables(env: Mapping[str, str], types: Mapping[str, tuple[Any, Any]]) -> Iterator[str]:
    known = {FILE_VARIABLE, *map(variable_of, types)}
    for variable in env:
        in_section = any(variable.startswith(variable_of(f"{name}.")) for name in _SECTIONS)
        if variable.startswith(_PREFIX) and variable not in known and not in_section:
            yield variable


def _of_flags(flags: Mapping[str, Any], types: Mapping[str, tuple[Any, Any]]) -> Iterator[Value]:
    for name, value in flags.items():
        if value is None:
            continue
        origin = f"--{name.rpartition('.')[2].replace('_', '-')}"
        yield Value(name, _convert(value, types[name][0], origin, strict=False), origin)


def _convert(value: Any, kind: Any, where: str, *, strict: bool) -> Any:
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as problem:
        msg = f"{where}: {problem}"
        raise ConfigError(msg) from None


def _passed_on(key: str, where: str) -> str | None:
    """The key if librdkafka is to get it; None if it is unknown."""
    if key in PASSED_ON:
        return key
    if key.startswith(_OURS):
        msg = f"{where}: the program sets {key} itself, since what it promises rests on it; leave it out"
        raise ConfigError(msg)
    return None


def _plain(value: Any, where: str) -> str:
    """A value as librdkafka takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    msg = f"{where}: expected a string, a number or a truth value, got {type(value).__name__}"
    raise ConfigError(msg)


def _known(name: str, types: Mapping[str, tuple[Any, Any]]) -> str:
    section = name.partition(".")[0]
    own = sorted(key.partition(".")[2] for key in types if key.startswith(f"{section}."))
    if section == "kafka":
        return f"[kafka] has {', '.join(own)}, and what librdkafka needs to reach a broker (ssl.*, sasl.*, socket.*)"
    if own:
        return f"[{section}] has {', '.join(own)}"
    return f"there are data, and the tables {', '.join(sorted([*_SECTIONS, _FREE]))}"


def _settings(values: Mapping[str, Value]) -> Settings:
    tables: dict[str, dict[str, Any]] = {name: {} for name in (*_SECTIONS, _FREE)}
    client: dict[str, str] = {}
    top: dict[str, Any] = {}
    for name, each in values.items():
        table, _, key = name.partition(".")
        if not key:
            top[name] = each.value
        elif table == _FREE:
            service, _, parameter = key.partition(".")
            tables[_FREE].setdefault(service, {})[parameter] = each.value
        elif table == "kafka" and key in PASSED_ON:
            client[key] = each.value
        else:
            tables[table][key] = each.value
    return Settings(
        **top,
        kafka=KafkaSettings(**tables["kafka"], client=client),
        topics=TopicSettings(**tables["topics"]),
        fleet=FleetSettings(**tables["fleet"]),
        parameters=tables[_FREE],
    )
