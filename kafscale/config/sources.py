"""From flags, environment and TOML file to Settings: flag over environment over file over default.

    flag           --chunk-pool-bytes 1GiB
    environment    KAFSCALE_CHUNK_POOL_BYTES=1GiB      repeatable options separated by commas
    file           chunk-pool-bytes = "1GiB"           named by --config or KAFSCALE_CONFIG

A key or variable that is no option is an error and names the nearest one: a misspelt setting that is silently ignored
costs an afternoon. Three kinds of variable are let through: an empty one counts as not given (compose files write
`${NAME:-}`), those that only other commands read, and Kubernetes' service links: it sets variables such as
KAFSCALE_BROKER_PORT_9092_TCP in each pod for every Service whose name begins with `kafscale`.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from kafscale.config.option import Option, options_of
from kafscale.config.settings import GROUPS, Settings, options
from kafscale.errors import ConfigError

CONFIG_VARIABLE = "KAFSCALE_CONFIG"
BOOTSTRAP_VARIABLE = "KAFSCALE_BOOTSTRAP"
USER_PASSWORD_VARIABLE = "KAFSCALE_USER_PASSWORD"
COMMAND_CONFIG_VARIABLE = "KAFSCALE_COMMAND_CONFIG"
ADMIN_CA_VARIABLE = "KAFSCALE_ADMIN_CA_FILE"
SUPERVISOR_VARIABLE = "KAFSCALE_SUPERVISOR_PID"  # of a broker that a supervisor has started
DEFAULT_SOURCE = "default"

_OTHER_VARIABLES = (
    CONFIG_VARIABLE,
    BOOTSTRAP_VARIABLE,
    COMMAND_CONFIG_VARIABLE,
    ADMIN_CA_VARIABLE,
    USER_PASSWORD_VARIABLE,
    SUPERVISOR_VARIABLE,
)
_COMMANDS_VARIABLE = re.compile(r"KAFSCALE_(SQL|SPARK)_\w+")  # of commands that run Spark, which read them themselves
_SERVICE_LINK = re.compile(
    r"KAFSCALE_(\w+_)?(SERVICE_HOST|(SERVICE_)?PORT(_\w+)?)"
)  # of a Service kafscale or kafscale-…


@attrs.frozen(kw_only=True)
class Loaded:
    """Settings, and for each option that was given, by attribute, where its value came from."""

    settings: Settings
    sources: dict[str, str]

    def source(self, option: Option) -> str:
        """Return where an option's value came from: `flag --listen`, `environment KAFSCALE_LISTEN`, `file
        kafscale.toml`, `default`.
        """
        return self.sources.get(option.attribute, DEFAULT_SOURCE)


@attrs.frozen
class _Given:
    """A raw value, how the user wrote its option, and what to call the place."""

    raw: object
    given_as: str
    source: str


def load(flags: Mapping[str, Any], environment: Mapping[str, str], config_file: str | None = None) -> Loaded:
    """Read the settings from all places. `flags` maps attributes to what was given: text, or a sequence of texts.

    Raises ConfigError: one line that names the option as it was given, its value, and what is allowed.
    """
    config_file = config_file or environment.get(CONFIG_VARIABLE)
    given: dict[str, _Given] = {}
    if config_file:
        given |= _from_file(config_file)
    given |= _from_environment(environment)
    given |= _from_flags(flags)
    values = {each.attribute: _parse(each, given[each.attribute]) for each in options() if each.attribute in given}
    groups = {name: _take(values, options_class) for name, options_class in GROUPS.items()}
    settings = Settings(**groups, **values)
    return Loaded(settings=settings, sources={name: found.source for name, found in given.items()})


def _take(values: dict[str, Any], options_class: type) -> Any:
    """Move the values of a group's options into an object of it."""
    names = [each.attribute for each in options_of(options_class) if each.attribute in values]
    return options_class(**{name: values.pop(name) for name in names})


def _parse(option: Option, given: _Given) -> Any:
    return option.parse(given.raw, given_as=given.given_as)


def _from_flags(flags: Mapping[str, str | Sequence[str] | None]) -> dict[str, _Given]:
    return {
        each.attribute: _Given(flags[each.attribute], each.flag, f"flag {each.flag}")
        for each in options()
        if flags.get(each.attribute) not in (None, ())
    }


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Given]:
    by_variable = {each.variable: each for each in options()}
    given = {}
    for variable, text in environment.items():
        if not variable.startswith("KAFSCALE_") or not text.strip():
            continue
        if variable in by_variable:
            given[by_variable[variable].attribute] = _Given(text, variable, f"environment {variable}")
        elif not _is_of_others(variable):
            raise ConfigError(f"{variable}: '{text}' sets no option; allowed: {_nearest(variable, by_variable)}")
    return given


def _is_of_others(variable: str) -> bool:
    patterns = (_COMMANDS_VARIABLE, _SERVICE_LINK)
    return variable in _OTHER_VARIABLES or any(each.fullmatch(variable) for each in patterns)


def _from_file(path: str) -> dict[str, _Given]:
    by_name = {each.name: each for each in options()}
    given = {}
    for key, raw in _read_toml(path).items():
        if key not in by_name:
            raise ConfigError(f"{path}: '{key}' is not an option; allowed: {_nearest(key, by_name)}")
        given[by_name[key].attribute] = _Given(raw, f"{path}: {key}", f"file {path}")
    return given


def _read_toml(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as exc:
        reason = exc.strerror or os.strerror(exc.errno or 0)
        raise ConfigError(f"--config: '{path}' can't be read ({reason}); allowed: a TOML file") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--config: '{path}' is not TOML: {exc}") from exc


def _nearest(wrong: str, known: Iterable[str]) -> str:
    names = list(known)
    similar = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    return f"{similar[0]} is nearest" if similar else "see kafscale serve --help"
