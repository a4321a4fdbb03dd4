"""Sources of Settings: flag over environment over file over default.

    flag           --chunk-pool-bytes 1GiB
    environment    KAFSCALE_CHUNK_POOL_BYTES=1GiB      repeatable options separated by commas
    file           chunk-pool-bytes = "1GiB"           named by --config or KAFSCALE_CONFIG

An unknown key or variable is an error that names the nearest option, and a removed one says what holds now. Three kinds
of variable are ignored: empty ones (compose files write `${NAME:-}`), those of other commands, and Kubernetes' service
links, such as KAFSCALE_BROKER_PORT_9092_TCP for a Service whose name begins with `kafscale`.
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
from kafscale.process_variables import SUPERVISOR_VARIABLE

CONFIG_VARIABLE = "KAFSCALE_CONFIG"
BOOTSTRAP_VARIABLE = "KAFSCALE_BOOTSTRAP"
USER_PASSWORD_VARIABLE = "KAFSCALE_USER_PASSWORD"
COMMAND_CONFIG_VARIABLE = "KAFSCALE_COMMAND_CONFIG"
ADMIN_CA_VARIABLE = "KAFSCALE_ADMIN_CA_FILE"
DEFAULT_SOURCE = "default"

# Options that earlier builds had, by name, and what holds now.
REMOVED: Mapping[str, str] = {
    "allow-replication-factor": "any replication factor is accepted, as the store replicates",
    "auto-create-topics-per-minute": "clients create at most 600 topics a minute by asking for them",
    "balance-by": "partitions are balanced by load",
    "cluster-id": "the id is generated at the first start and kept in the metadata",
    "fetch-max-bytes": "a fetch returns at most 55MiB",
    "footer-cache-bytes": "footers of segments take up to 32MiB",
    "frame-timeout": "a request must arrive within 30s, and 1s more for each 8KiB",
    "group-consumer-assignors": "members choose uniform (the default) or range",
    "group-consumer-max-heartbeat-interval": "it is 15s, or --group-consumer-heartbeat-interval if that is longer",
    "group-consumer-max-session-timeout": "it is 60s",
    "group-consumer-max-size": "such a group has at most 10,000 members",
    "group-consumer-migration-policy": "groups may change their protocol in both directions",
    "group-consumer-min-heartbeat-interval": "it is 5s, or --group-consumer-heartbeat-interval if that is shorter",
    "group-consumer-min-session-timeout": "it is 45s",
    "group-consumer-regex-refresh-interval": "it is 10m",
    "group-consumer-session-timeout": "it is 45s; set consumer.session.timeout.ms of a group",
    "max-decompressed-bytes": "a batch unpacks to at most 128MiB",
    "max-decompressed-request-bytes": "the batches of a Produce unpack to at most 1GiB",
    "max-fetch-sessions": "there are at most 1,000",
    "max-group-lag-series": "kafscale_group_lag has the 10,000 largest",
    "max-groups": "there are at most 100,000; see --group-state-bytes",
    "max-in-flight-bytes": "unanswered requests of a connection take up to 64MiB; see --max-in-flight-requests",
    "max-partitions": "there are at most 100,000",
    "max-producer-ids": "there are at most 200,000 for 256MiB of --max-producer-state-bytes",
    "max-response-bytes": "an answer other than a fetch's has at most 64MiB",
    "max-ssl-handshakes": "256 run at a time",
    "max-topics": "there are at most 10,000",
    "max-transaction-partitions": "a transaction has at most 10,000",
    "max-transactional-ids": "there are at most 100,000",
    "offset-metadata-max-bytes": "it is 4KiB",
    "orphan-check-interval": "it is 1h",
    "orphan-grace": "it is 1h",
    "retention-check-interval": "it is 5m",
    "s3-hedge-percentile": "it is 99",
    "s3-wal-bytes": "an object of the write-ahead log is uploaded when it has 8MiB",
    "sasl-authentication-timeout": "clients must log in within 30s",
    "sasl-oauthbearer-jwks-endpoint-refresh": "keys are read every hour, and when a token names an unknown one",
    "sasl-oauthbearer-scope-claim-name": "it is scope",
    "sasl-server-max-receive-size": "it is 512KiB",
    "ssl-handshake-timeout": "it is 10s",
    "ssl-receive-buffer-bytes": "it is 256KiB",
    "ssl-reload-interval": "files are checked every 10s; SIGHUP reloads them at once",
    "store-retry-deadline": "operations are retried for 60s",
    "store-upload-deadline": "an upload may take 5m, and is then begun again",
    "transaction-cleanup-interval": "it is 10s",
    "transactional-id-expiration": "it is 7d",
}

_OTHER_VARIABLES = (
    CONFIG_VARIABLE,
    BOOTSTRAP_VARIABLE,
    COMMAND_CONFIG_VARIABLE,
    ADMIN_CA_VARIABLE,
    USER_PASSWORD_VARIABLE,
    SUPERVISOR_VARIABLE,
)
# Variables of commands, which read them themselves.
_COMMANDS_VARIABLE = re.compile(r"KAFSCALE_(SQL|SPARK|CONSOLE|SCHEMA_REGISTRY)_\w+")
_SERVICE_LINK = re.compile(r"KAFSCALE_(\w+_)?(SERVICE_HOST|(SERVICE_)?PORT(_\w+)?)")  # of a Service kafscale…


@attrs.frozen(kw_only=True)
class Loaded:
    """Settings, and the source of each option that was given, by attribute."""

    settings: Settings
    sources: dict[str, str]

    def source(self, option: Option) -> str:
        """Return the source of a value: `flag --listen`, `environment KAFSCALE_LISTEN`, `file NAME`, `default`."""
        return self.sources.get(option.attribute, DEFAULT_SOURCE)


@attrs.frozen
class _Given:
    raw: object
    given_as: str
    source: str


def load(flags: Mapping[str, Any], environment: Mapping[str, str], config_file: str | None = None) -> Loaded:
    """Read the settings; `flags` are by attribute. Raises ConfigError, which names the option as given."""
    config_file = config_file or environment.get(CONFIG_VARIABLE)
    given: dict[str, _Given] = {}
    if config_file:
        given |= _from_file(config_file)
    given |= _from_environment(environment)
    given |= _from_flags(flags)
    values = {
        option.attribute: option.parse(found.raw, given_as=found.given_as)
        for option in options()
        if (found := given.get(option.attribute)) is not None
    }
    groups = {name: _take(values, options_class) for name, options_class in GROUPS.items()}
    settings = Settings(**groups, **values)
    return Loaded(settings=settings, sources={name: found.source for name, found in given.items()})


def _take(values: dict[str, Any], options_class: type) -> Any:
    names = [option.attribute for option in options_of(options_class) if option.attribute in values]
    return options_class(**{name: values.pop(name) for name in names})


def _from_flags(flags: Mapping[str, str | Sequence[str] | None]) -> dict[str, _Given]:
    return {
        option.attribute: _Given(flags[option.attribute], option.flag, f"flag {option.flag}")
        for option in options()
        if flags.get(option.attribute) not in (None, ())
    }


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Given]:
    by_variable = {option.variable: option for option in options()}
    given = {}
    for variable, text in environment.items():
        if not variable.startswith("KAFSCALE_") or not text.strip():
            continue
        if variable in by_variable:
            given[by_variable[variable].attribute] = _Given(text, variable, f"environment {variable}")
        elif not _is_of_others(variable):
            check_removed(variable, variable.removeprefix("KAFSCALE_").lower().replace("_", "-"))
            raise ConfigError(f"{variable}: there is no such option; {_nearest(variable, by_variable)}")
    return given


def check_removed(given_as: str, name: str) -> None:
    if name in REMOVED:
        raise ConfigError(f"{given_as}: this option was removed; {REMOVED[name]}")


def _is_of_others(variable: str) -> bool:
    patterns = (_COMMANDS_VARIABLE, _SERVICE_LINK)
    return variable in _OTHER_VARIABLES or any(pattern.fullmatch(variable) for pattern in patterns)


def _from_file(path: str) -> dict[str, _Given]:
    by_name = {option.name: option for option in options()}
    given = {}
    for key, raw in _read_toml(path).items():
        if key not in by_name:
            check_removed(f"{path}: {key}", key)
            raise ConfigError(f"{path}: '{key}' is not an option; {_nearest(key, by_name)}")
        given[by_name[key].attribute] = _Given(raw, f"{path}: {key}", f"file {path}")
    return given


def _read_toml(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as exc:
        reason = exc.strerror or os.strerror(exc.errno or 0)
        raise ConfigError(f"--config: '{path}' can't be read: {reason}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--config: '{path}' is not TOML: {exc}") from exc


def _nearest(wrong: str, known: Iterable[str]) -> str:
    names = list(known)
    similar = difflib.get_close_matches(wrong, names, n=1, cutoff=0.6)
    return f"did you mean {similar[0]}?" if similar else "`kafscale serve --help` lists all"
