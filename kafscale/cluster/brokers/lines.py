"""Connections from broker to broker, as any client makes them: to a listener, with TLS and a login if need be.

All brokers have a listener of the same name for that: `--inter-broker-listener`, or else the first that is secured as
`--inter-broker-config` says.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from kafscale.cluster.brokers.heartbeats import Connect, Line
from kafscale.cluster.brokers.records import BrokerRecord
from kafscale.config import Address, SecurityProtocol, Settings
from kafscale.errors import BrokerUnavailable, ConfigError

if TYPE_CHECKING:
    from kafscale.login.security import ClientSecurity

CLIENT_ID = "kafscale-broker"

logger = logging.getLogger(__name__)


def lines_between(settings: Settings) -> Connect | None:
    """Return what connects to other brokers; None, with a warning, if no listener is secured as this broker can be.

    Raises ConfigError.
    """
    security = None if settings.inter_broker_config is None else _read(settings.inter_broker_config)
    protocol = SecurityProtocol.PLAINTEXT if security is None else security.protocol
    listener = settings.inter_broker_listener or _first_listener(settings, protocol)
    if listener is None:
        logger.warning(
            "no listener is %s: this broker can't reach others, nor tell whether they are dead; see "
            "--inter-broker-listener and --inter-broker-config",
            protocol.value,
        )
        return None
    (wanted,) = (settings.protocol_of(each) for each in settings.listeners if each.name == listener)
    if wanted is not protocol:
        raise ConfigError(
            f"--inter-broker-listener: '{listener}' is {wanted.value}, and this broker connects by {protocol.value}; "
            "allowed: with a file --inter-broker-config that has the same security.protocol"
        )
    timeout_seconds = settings.broker_session_timeout_seconds

    async def connect(broker_id: int, record: BrokerRecord) -> Line:
        from kafscale.client.connection import connect_to  # a broker that is alone has no use for it
        from kafscale.login.security import PLAINTEXT

        endpoint = record.endpoints.get(listener)
        if endpoint is None:
            raise BrokerUnavailable(f"broker {broker_id} has no listener {listener}")
        address = Address(endpoint.host, endpoint.port)
        return await connect_to(address, CLIENT_ID, timeout_seconds, security=security or PLAINTEXT)

    return connect


def _first_listener(settings: Settings, protocol: SecurityProtocol) -> str | None:
    return next((each.name for each in settings.listeners if settings.protocol_of(each) is protocol), None)


def _read(path: Path) -> ClientSecurity:
    from kafscale.login.properties import read_properties
    from kafscale.login.security import client_security

    try:
        return client_security(read_properties(path))
    except ConfigError as exc:
        raise ConfigError(f"--inter-broker-config {path}: {exc}") from exc
