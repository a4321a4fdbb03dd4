"""SaslAuthenticate (36, KIP-152): the messages of a mechanism, after SaslHandshake has chosen it.

v0  a message and its answer
v1  the answer says how long the session lasts (KIP-368)
v2  flexible

A login that fails is answered late, and ends the connection.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.wire.error_codes import ILLEGAL_SASL_STATE
from kafscale.wire.messages.security import SaslAuthenticateRequest, SaslAuthenticateResponse


async def handle(services: Services, call: Call, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    session = call.peer.sasl
    if session is None:
        return SaslAuthenticateResponse(
            error_code=ILLEGAL_SASL_STATE, error_message="this listener has no SASL: it knows no users"
        )
    authenticating = services.authenticator.authenticate(session, bytes(request.auth_bytes), call.peer.host)
    request.auth_bytes = b""  # it may be large, and a refusal comes late
    answer = await authenticating
    if session.principal is not None:
        call.peer.principal = session.principal
    return SaslAuthenticateResponse(
        error_code=answer.error_code,
        error_message=answer.message,
        auth_bytes=answer.data,
        session_lifetime_ms=answer.session_lifetime_ms,
    )


API = Api(36, "SaslAuthenticate", 0, 2, SaslAuthenticateRequest, SaslAuthenticateResponse, handle)
