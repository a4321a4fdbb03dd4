"""SaslHandshake (17, KIP-43): the mechanism by which a client wants to authenticate.

v0  tokens follow without requests around them: refused, as no client that knows v1 sends it
v1  SaslAuthenticate has the tokens (KIP-152)

On a listener without SASL, and after a login, it is ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.wire.error_codes import ILLEGAL_SASL_STATE
from kafscale.wire.messages.security import SaslHandshakeRequest, SaslHandshakeResponse


async def handle(services: Services, call: Call, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    session = call.peer.sasl
    if session is None:
        return SaslHandshakeResponse(error_code=ILLEGAL_SASL_STATE)
    error_code = await services.authenticator.handshake(session, call.version, request.mechanism)
    if error_code == ILLEGAL_SASL_STATE:
        return SaslHandshakeResponse(error_code=error_code)
    return SaslHandshakeResponse(
        error_code=error_code, mechanisms=[mechanism.value for mechanism in session.mechanisms]
    )


API = Api(17, "SaslHandshake", 0, 1, SaslHandshakeRequest, SaslHandshakeResponse, handle)
