"""SASL on a connection: the steps of `kafscale.login`, each taken in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from kafscale.login.sasl import ClientSasl
from kafscale.login.steps import HANDSHAKE_VERSION, LoginSteps, Request
from kafscale.wire import codec
from kafscale.wire.messages.security import SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from kafscale.client.connection import Connection


async def authenticate(connection: Connection, sasl: ClientSasl) -> float | None:
    """Log in; the seconds until the session ends, or None if it does not. Raises BrokerUnavailable, KafkaError."""
    steps = LoginSteps(sasl, connection.address)
    request = await trio.to_thread.run_sync(steps.next, None)
    while request is not None:
        request = await trio.to_thread.run_sync(steps.next, await _ask(connection, request))
    return steps.session_seconds


async def _ask(connection: Connection, request: Request) -> Any:
    if not isinstance(request, SaslHandshakeRequest):
        return await connection.request(request, SaslAuthenticateResponse)
    call = connection.call(SaslHandshakeRequest, SaslHandshakeResponse, version=HANDSHAKE_VERSION)
    return await (await connection.send_encoded(call, codec.encode(request, HANDSHAKE_VERSION))).wait()
