"""Settings and command of each broker of `kafscale serve --processes N`.

A budget of memory, disk, money or connections is the machine's: each broker has its part. Bounds on one request,
connection or client, and on the metadata, are the same for each. Listeners are on consecutive ports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from kafscale.config import (
    CONFIG_VARIABLE,
    WILDCARD_HOSTS,
    Address,
    Limits,
    Listener,
    Loaded,
    Settings,
    flags_of,
    options,
)
from kafscale.errors import ConfigError
from kafscale.process_variables import SUPERVISOR_VARIABLE
from kafscale.security.secret_keys import KEY_FILE_NAME

PORT_MAX = 65535
SHARED_OUT = frozenset(
    {
        "s3_concurrency",
        "wal_max_bytes",
        "chunk_pool_bytes",
        "cache_bytes",
        "cache_disk_bytes",
        "fetch_buffer_bytes",
        "flush_objects_per_minute",
        "log_cleaner_dedupe_buffer_bytes",
        "max_connections_count",
        "queued_max_request_bytes",
        "group_state_bytes",
        "max_producer_state_bytes",
    }
)
_OWN = frozenset(
    {"processes_count", "several_brokers"}
    | {"broker_id", "data_dir", "store", "cache_directory", "listeners", "advertised_listeners"}
    | {"admin_listen", "admin_ssl", "secret_key_file", "console"}
)
_LOOPBACK = Address("127.0.0.1", 0)


@attrs.frozen(kw_only=True)
class BrokerPlan:
    """One of the brokers. `given` are the options of its command, by attribute."""

    settings: Settings
    given: frozenset[str]

    @property
    def broker_id(self) -> int:
        return self.settings.broker_id

    @property
    def addresses(self) -> list[Address]:
        return [listener.address for listener in self.settings.listeners]

    def arguments(self) -> list[str]:
        return ["serve", *flags_of(self.settings, self.given)]

    def on_ports(self, addresses: Sequence[Address]) -> BrokerPlan:
        """Return the plan with the real ports of its listeners, for the next start."""
        listeners = tuple(
            attrs.evolve(listener, port=address.port)
            for listener, address in zip(self.settings.listeners, addresses, strict=True)
        )
        return attrs.evolve(self, settings=attrs.evolve(self.settings, listeners=listeners))


def environment_of_brokers(environment: Mapping[str, str], supervisor_pid: int) -> dict[str, str]:
    """Return the environment without options, which are flags, and with the parent process."""
    ours = {option.variable for option in options()} | {CONFIG_VARIABLE}
    kept = {name: value for name, value in environment.items() if name not in ours}
    kept.pop("NOTIFY_SOCKET", None)  # the supervisor tells for all
    return {**kept, SUPERVISOR_VARIABLE: str(supervisor_pid)}


def plan_brokers(loaded: Loaded, count: int) -> tuple[BrokerPlan, ...]:
    """Plan `count` brokers. Raises ConfigError if they can't share a machine, or a part of a budget is too small."""
    settings = loaded.settings
    if settings.store.scheme == "memory":
        raise ConfigError(
            f"--processes: '{count}' brokers can't share --store {settings.store}; "
            "allowed: with file:PATH or s3://BUCKET"
        )
    given = frozenset(loaded.sources) | SHARED_OUT | _OWN
    try:
        plans = [BrokerPlan(settings=_settings_of(settings, number, count), given=given) for number in range(count)]
    except ConfigError as exc:
        raise ConfigError(f"--processes: '{count}' leaves too little for each broker: {exc}") from exc
    listening = [("--listen", listener.address) for plan in plans for listener in plan.settings.listeners]
    _check_apart([("--admin-listen", settings.admin_listen), *listening])
    advertised = (listener.address for plan in plans for listener in plan.settings.advertised_listeners)
    _check_apart([("--advertised-listener", address) for address in advertised])
    return tuple(plans)


def _settings_of(settings: Settings, number: int, count: int) -> Settings:
    """Return the settings of the broker of this number; the first has the data directory itself."""
    broker_id = settings.broker_id + number
    shared = _shares(settings, count)
    limits = {name: shared.pop(name) for name in attrs.fields_dict(Limits) if name in shared}
    return attrs.evolve(
        settings,
        processes_count=1,
        several_brokers=True,
        broker_id=broker_id,
        data_dir=_own_directory(settings.data_dir, broker_id, number),
        cache_directory=settings.cache_directory and _own_directory(settings.cache_directory, broker_id, number),
        listeners=_moved(settings.listeners, number, "--listen"),
        advertised_listeners=_moved(settings.advertised_listeners, number, "--advertised-listener"),
        admin_listen=_LOOPBACK,
        admin_ssl=False,
        console=None,
        limits=attrs.evolve(settings.limits, **limits),
        sasl=attrs.evolve(settings.sasl, secret_key_file=key_file_of(settings)),
        **shared,
    )


def key_file_of(settings: Settings) -> Path:
    return settings.sasl.secret_key_file or settings.data_dir / KEY_FILE_NAME


def _own_directory(directory: Path, broker_id: int, number: int) -> Path:
    return directory / f"broker-{broker_id}" if number else directory


def _shares(settings: Settings, count: int) -> dict[str, Any]:
    """Return a broker's part of each budget, at least the option's minimum; 0 stays."""
    shares = {}
    for option in options():
        if option.attribute in SHARED_OUT:
            value: Any = settings.value(option)
            shares[option.attribute] = value and max(value // count, int(option.help.least), 1)
    return shares


def _moved(listeners: Sequence[Listener], number: int, flag: str) -> tuple[Listener, ...]:
    moved = tuple(attrs.evolve(listener, port=listener.port + number if listener.port else 0) for listener in listeners)
    for listener in moved:
        if listener.port > PORT_MAX:
            raise ConfigError(f"{flag}: '{listener}' is not a port; allowed: up to {PORT_MAX}")
    return moved


def _check_apart(addresses: Sequence[tuple[str, Address]]) -> None:
    """Raise ConfigError if two addresses, each with its option, are the same."""
    taken: dict[int, list[Address]] = {}
    for flag, address in addresses:
        for other in taken.setdefault(address.port, []) if address.port else ():
            if address.host == other.host or not WILDCARD_HOSTS.isdisjoint((address.host, other.host)):
                raise ConfigError(
                    f"{flag}: '{address}' would be taken twice, as each broker of --processes has the ports one above "
                    "those of the one before; allowed: ports that are further apart"
                )
        taken.setdefault(address.port, []).append(address)
