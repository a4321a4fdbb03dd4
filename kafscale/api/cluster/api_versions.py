"""ApiVersions (18): what this broker speaks. The first request of nearly every client.

v0  the list of keys and versions
v1  throttle time
v2  throttled by the client
v3  flexible; the client names its software (KIP-511); features (KIP-584), which are those of `features`
v4  a feature's lowest version may be 0, which none is here

A version that is not supported is answered all the same, with a version 0 body, UNSUPPORTED_VERSION and the list, so
that the client can ask again: `unsupported_version_response`.
"""

from __future__ import annotations

import re

from kafscale.api.cluster import features
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.wire.error_codes import INVALID_REQUEST, UNSUPPORTED_VERSION
from kafscale.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

NAME_MAX_COUNT = 100  # characters that are remembered as long as the connection is open
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(services: Services, call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if call.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=INVALID_REQUEST)
        call.peer.software_name, call.peer.software_version = name[:NAME_MAX_COUNT], version[:NAME_MAX_COUNT]
    return ApiVersionsResponse(
        api_keys=services.api_versions,
        supported_features=features.SUPPORTED,
        finalized_features_epoch=features.EPOCH,
        finalized_features=features.FINALIZED,
    )


def unsupported_version_response(services: Services) -> ApiVersionsResponse:
    """The answer to a version that is not supported; to be encoded in version 0."""
    return ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=services.api_versions)


API = Api(18, "ApiVersions", 0, 4, ApiVersionsRequest, ApiVersionsResponse, handle)
