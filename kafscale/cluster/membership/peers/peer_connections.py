"""Connections from broker to broker, as any client makes them: to a listener, with TLS and a login if need be.

All brokers have a listener of the same name for that: `--inter-broker-listener`, or else the first that is secured as
`--inter-broker-config` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

from kafscale.cluster.membership.records import BrokerRecord
from kafscale.config import Address, SecurityProtocol, Settings
from kafscale.errors import BrokerUnavailable, ConfigError, StartupError

if TYPE_CHECKING:
    from kafscale.login.security import ClientSecurity

CLIENT_ID = "kafscale-broker"
LOCATION = ".location"  # what settings that name a file end with


R = TypeVar("R")


class PeerConnection(Protocol):
    """A connection to another broker."""

    async def request(self, message: object, response_class: type[R]) -> R:
        """Send one request and wait for its reply. Raises BrokerUnavailable, ProtocolError, KafkaError."""

    async def aclose(self) -> None:
        """Close it."""


Connect = Callable[[int, BrokerRecord], Awaitable[PeerConnection]]


@attrs.define(eq=False, repr=False)
class InterBrokerLogin:
    """Credentials of this broker towards others, and the certificates it trusts: the file of `--inter-broker-config`.

    It is made from that file and those that it names, and can be read again (`kafscale.server.watched_files`).
    """

    path: Path
    security: ClientSecurity = attrs.field(init=False)
    paths: Sequence[Path] = attrs.field(init=False)
    what: str = attrs.field(default="the file of --inter-broker-config", init=False)

    @classmethod
    def open(cls, settings: Settings) -> InterBrokerLogin | None:
        """Read the file, if the settings name one. Raises StartupError."""
        if settings.inter_broker_config is None:
            return None
        login = cls(settings.inter_broker_config)
        login.security, login.paths = login._read()
        return login

    def load(self) -> None:
        """Read it again, for connections that are made from now on. Raises StartupError, and leaves what was there."""
        security, paths = self._read()
        if security.protocol is not self.security.protocol:
            raise StartupError(
                f"--inter-broker-config {self.path}: security.protocol is {security.protocol.value} now, and was "
                f"{self.security.protocol.value}; restart the broker for that"
            )
        self.security, self.paths = security, paths

    def _read(self) -> tuple[ClientSecurity, Sequence[Path]]:
        from kafscale.login.properties import read_properties  # a broker that is alone has no use for these
        from kafscale.login.security import client_security

        try:
            properties = read_properties(self.path)
            named = [Path(value) for name, value in properties.items() if name.endswith(LOCATION)]
            return client_security(properties), [self.path, *named]
        except ConfigError as exc:
            raise StartupError(f"--inter-broker-config {self.path}: {exc}") from exc


def peer_connector(settings: Settings, login: InterBrokerLogin | None) -> Connect | None:
    """Return what connects to other brokers; None if no listener is secured as this broker can be.

    Raises ConfigError.
    """
    protocol = _protocol(login)
    listener = settings.inter_broker_listener or _first_listener(settings, protocol)
    if listener is None:
        return None
    (wanted,) = (settings.protocol_of(name) for name in settings.listeners if name.name == listener)
    if wanted is not protocol:
        raise ConfigError(
            f"--inter-broker-listener: '{listener}' is {wanted.value}, and this broker connects by {protocol.value}; "
            "allowed: with a file --inter-broker-config that has the same security.protocol"
        )
    timeout_seconds = settings.broker_session_timeout_seconds

    async def connect(broker_id: int, record: BrokerRecord) -> PeerConnection:
        from kafscale.client.connection import connect_to  # a broker that is alone has no use for it
        from kafscale.login.security import PLAINTEXT

        endpoint = record.endpoints.get(listener)
        if endpoint is None:
            raise BrokerUnavailable(f"broker {broker_id} has no listener {listener}: give all brokers one of that name")
        address = Address(endpoint.host, endpoint.port)
        return await connect_to(
            address, CLIENT_ID, timeout_seconds, security=PLAINTEXT if login is None else login.security
        )

    return connect


def _protocol(login: InterBrokerLogin | None) -> SecurityProtocol:
    """Return how this broker connects."""
    return SecurityProtocol.PLAINTEXT if login is None else login.security.protocol


def _first_listener(settings: Settings, protocol: SecurityProtocol) -> str | None:
    return next((listener.name for listener in settings.listeners if settings.protocol_of(listener) is protocol), None)
