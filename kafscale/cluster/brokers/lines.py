"""Connections from broker to broker, by the first listener that wants neither TLS nor SASL."""

from __future__ import annotations

import logging

from kafscale.cluster.brokers.heartbeats import Connect, Line
from kafscale.cluster.brokers.records import BrokerRecord
from kafscale.config import Address, SecurityProtocol, Settings
from kafscale.errors import BrokerUnavailable

logger = logging.getLogger(__name__)

CLIENT_ID = "kafscale-broker"


def lines_between(settings: Settings) -> Connect | None:
    """Return what connects to other brokers, which have listeners of the same names; None if none of them is plain."""
    plain = (each.name for each in settings.listeners if settings.protocol_of(each) is SecurityProtocol.PLAINTEXT)
    listener = next(plain, None)
    if listener is None:
        logger.warning("no listener is without TLS and SASL, so that this broker can't tell whether others are dead")
        return None

    async def connect(broker_id: int, record: BrokerRecord) -> Line:
        from kafscale.client.connection import connect_to  # a broker that is alone has no use for it

        endpoint = record.endpoints.get(listener)
        if endpoint is None:
            raise BrokerUnavailable(f"broker {broker_id} has no listener {listener}")
        timeout_seconds = settings.broker_session_timeout_seconds
        return await connect_to(Address(endpoint.host, endpoint.port), CLIENT_ID, timeout_seconds)

    return connect
