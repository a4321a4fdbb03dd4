"""Client settings among the options: `kafka.*`, and those in a file of the driver that secure connections.

Writers use them, and readers of the newest records at brokers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kafscale.errors import ConfigError
from kafscale.login.properties import read_properties
from kafscale.login.security import PREFIXES, client_security
from kafscale.spark.brokers.cluster import parse_bootstrap
from kafscale.spark.brokers.newest import INSTEAD, BrokerOptions

PREFIX = "kafka."
CONFIG_FILE = "kafkaConfigFile"
BOOTSTRAP = "bootstrap.servers"
_OF_READING = ("kafka.isolation.level",)


def client_settings(values: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings without their prefix; options have priority over the file. Raises ConfigError."""
    chosen = {
        name.removeprefix(PREFIX): value
        for name, value in values.items()
        if name.startswith(PREFIX) and name not in _OF_READING
    }
    return {**_settings_in(values.get(CONFIG_FILE.lower())), **chosen}


def broker_options(values: Mapping[str, str]) -> BrokerOptions:
    """Return the addresses of brokers. Raises ConfigError."""
    settings = client_settings(values)
    if not settings.get(BOOTSTRAP):
        raise ConfigError(f"freshness is broker, and needs the option {PREFIX}{BOOTSTRAP}: {INSTEAD}")
    secured = {name: value for name, value in settings.items() if name.startswith(PREFIXES)}
    with named():
        client_security(secured)  # so that the driver reports mistakes, before there are tasks
        return BrokerOptions(bootstrap=parse_bootstrap(settings[BOOTSTRAP]), settings=secured)


def secures(name: str) -> bool:
    return name.startswith(PREFIX) and name.removeprefix(PREFIX).startswith(PREFIXES)


@contextmanager
def named() -> Iterator[None]:
    """Name settings in errors as the user has written them. Raises ConfigError."""
    try:
        yield
    except ConfigError as exc:
        raise ConfigError(f"{PREFIX}{exc}") from exc


def _settings_in(file: str | None) -> Mapping[str, str]:
    if file is None:
        return {}
    try:
        found = read_properties(Path(file.strip()))
    except ConfigError as exc:
        raise ConfigError(f"{CONFIG_FILE}: {exc}") from exc
    return {name: value for name, value in found.items() if name.startswith(PREFIXES)}
