"""ApiVersions (18): what this broker speaks. The first request of nearly every client.

v0  the list of keys and versions
v1  throttle time
v2  throttled by the client
v3  flexible; the client names its software (KIP-511); features (KIP-584)
v4  a feature's lowest version may be 0; older clients are not told of one for which it is

The one feature is `transaction.version` 2: each transaction has an epoch of its own (KIP-890).

A version that is not supported is answered all the same, with a version 0 body, UNSUPPORTED_VERSION and the list, so
that the client can ask again: `unsupported_version_response`.
"""

from __future__ import annotations

import re

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION
from kafscale.wire.error_codes import INVALID_REQUEST, UNSUPPORTED_VERSION
from kafscale.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

NAME_MAX_COUNT = 100  # characters that are remembered as long as the connection is open
FIRST_VERSION_WITH_LOWEST_0 = 4
_SUPPORTED = [SupportedFeatureKey(name="transaction.version", min_version=0, max_version=EPOCH_BUMP_VERSION)]
_FINALIZED = [
    FinalizedFeatureKey(
        name="transaction.version", max_version_level=EPOCH_BUMP_VERSION, min_version_level=EPOCH_BUMP_VERSION
    )
]
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(services: Services, call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if call.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=INVALID_REQUEST)
        call.peer.software_name, call.peer.software_version = name[:NAME_MAX_COUNT], version[:NAME_MAX_COUNT]
    return ApiVersionsResponse(
        api_keys=_api_keys(services),
        supported_features=_SUPPORTED if call.version >= FIRST_VERSION_WITH_LOWEST_0 else [],
        finalized_features_epoch=0,
        finalized_features=_FINALIZED,
    )


def unsupported_version_response(services: Services) -> ApiVersionsResponse:
    """The answer to a version that is not supported; to be encoded in version 0."""
    return ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=_api_keys(services))


def _api_keys(services: Services) -> list[ApiVersion]:
    return [ApiVersion(api_key=key, min_version=least, max_version=most) for key, least, most in services.api_versions]


API = Api(18, "ApiVersions", 0, 4, ApiVersionsRequest, ApiVersionsResponse, handle)
