"""What must hold of the listeners together, and how each is secured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kafscale.config.values import Listener, ListenerProtocol, SecurityProtocol
from kafscale.errors import ConfigError


def protocol_of(name: str, given: Sequence[ListenerProtocol]) -> SecurityProtocol:
    """Return how the listener of that name is secured: a name that is a protocol is meant, in whatever case."""
    protocol = SecurityProtocol.__members__.get(name.upper())
    if protocol is not None:
        return protocol
    return next((each.protocol for each in given if each.name == name), SecurityProtocol.PLAINTEXT)


def check_listeners(
    listeners: Sequence[Listener], advertised: Sequence[Listener], protocols: Sequence[ListenerProtocol]
) -> None:
    """Raise ConfigError if the three options do not fit together."""
    if not listeners:
        raise ConfigError("--listen: '' is empty; allowed: at least one [NAME=]HOST:PORT")
    _check_once("--listen", listeners, "NAME=HOST:PORT")
    _check_once("--advertised-listener", advertised, "NAME=HOST:PORT")
    _check_once("--listener-security-protocol", protocols, "NAME=PROTOCOL")
    names = [listener.name for listener in listeners]
    for each in advertised:
        _check_named("--advertised-listener", each, names)
        if each.is_wildcard or each.port == 0:
            raise ConfigError(f"--advertised-listener: '{each}' is nothing to connect to; allowed: a host and a port")
    for given in protocols:
        _check_named("--listener-security-protocol", given, names)
        if protocol_of(given.name, protocols) is not given.protocol:
            raise ConfigError(
                f"--listener-security-protocol: '{given}' has a protocol's name for another one; allowed: a name in "
                "--listen that is no protocol"
            )


def _check_once(flag: str, given: Sequence[Listener | ListenerProtocol], form: str) -> None:
    for name, count in Counter(each.name for each in given).items():
        if count > 1:
            raise ConfigError(f"{flag}: '{name}' is given {count} times; allowed: each name once, as {form}")


def _check_named(flag: str, given: Listener | ListenerProtocol, names: Sequence[str]) -> None:
    if given.name not in names:
        raise ConfigError(f"{flag}: '{given}' has no listener; allowed: the names of --listen, {', '.join(names)}")
