"""ApiVersions (18): the served APIs and versions. The first request of nearly every client.

v0  the list of keys and versions
v1  throttle time
v2  throttled by the client
v3  flexible; the client names its software (KIP-511); features (KIP-584)
v4  a feature's lowest version may be 0, which none is here

An unsupported version is answered with a version 0 body, UNSUPPORTED_VERSION and the list, so that the client can ask
again (`unsupported_version_response`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.cluster.transactions.transaction import EPOCH_BUMP_VERSION
from kafscale.wire.error_codes import INVALID_REQUEST, UNSUPPORTED_VERSION
from kafscale.wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

# Levels of the features of Kafka 4.1's clusters (KIP-584). The broker's version decides a level, so only that one is
# supported. A feature of level 0 is not served and, as in Kafka, not in the answer.
LEVELS: Final[Mapping[str, int]] = {
    "metadata.version": 27,  # 4.1-IV1, whose calls are answered; no data here is in its formats
    "transaction.version": EPOCH_BUMP_VERSION,  # each transaction has an epoch of its own (KIP-890)
    "group.version": 1,  # consumer groups whose assignments the broker makes (KIP-848)
    "kraft.version": 0,  # there is no quorum with voters that could be added (KIP-853)
    "eligible.leader.replicas.version": 0,  # every leader has all records from the bucket (KIP-966)
    "share.version": 0,  # KIP-932
    "streams.version": 0,  # KIP-1071
}
_THERE: Final = [(name, level) for name, level in LEVELS.items() if level > 0]

SUPPORTED: Final = [SupportedFeatureKey(name=name, min_version=level, max_version=level) for name, level in _THERE]
FINALIZED: Final = [
    FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level) for name, level in _THERE
]
EPOCH: Final = 0  # of the finalized levels: they do not change while brokers run


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
        supported_features=SUPPORTED,
        finalized_features_epoch=EPOCH,
        finalized_features=FINALIZED,
    )


def unsupported_version_response(services: Services) -> ApiVersionsResponse:
    """Return the answer to an unsupported version, to be encoded in version 0."""
    return ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=services.api_versions)


API = Api(18, "ApiVersions", 0, 4, ApiVersionsRequest, ApiVersionsResponse, handle)
