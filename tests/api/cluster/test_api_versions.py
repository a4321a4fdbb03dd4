from __future__ import annotations

import pytest

from kafscale.api.cluster.api_versions import API, LEVELS, unsupported_version_response
from kafscale.wire.codec import decode, encode
from kafscale.wire.error_codes import INVALID_REQUEST, NONE, UNSUPPORTED_VERSION
from kafscale.wire.messages.cluster import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from tests.api.handlers import ask, some_peer, some_services

LISTED = [ApiVersion(api_key=0, min_version=3, max_version=11), ApiVersion(api_key=18, min_version=0, max_version=4)]
SERVICES = some_services(api_versions=LISTED)


@pytest.mark.parametrize("version", range(5))
async def test_the_table_is_listed(version: int) -> None:
    request = ApiVersionsRequest(client_software_name="kafscale", client_software_version="1.0")
    response = await ask(API, SERVICES, request, version=version)
    assert (response.error_code, response.api_keys) == (NONE, LISTED)
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    finalized = {each.name: (each.min_version_level, each.max_version_level) for each in response.finalized_features}
    told = {name: (level, level) for name, level in LEVELS.items() if level} if version >= 3 else {}
    assert (supported, finalized, response.finalized_features_epoch) == (told, told, 0 if version >= 3 else -1)


async def test_the_clients_software_is_remembered() -> None:
    peer = some_peer()
    await ask(API, SERVICES, ApiVersionsRequest(client_software_name="a-b.c", client_software_version="9"), peer=peer)
    assert (peer.software_name, peer.software_version) == ("a-b.c", "9")


@pytest.mark.parametrize(
    ("name", "version"), [("", "1"), ("a", ""), ("-a", "1"), ("a", "1."), ("a b", "1"), ("é", "1")]
)
async def test_a_bad_software_name_is_an_invalid_request(name: str, version: str) -> None:
    peer = some_peer()
    request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    response = await ask(API, SERVICES, request, peer=peer)
    assert (response.error_code, response.api_keys) == (INVALID_REQUEST, [])
    assert peer.software_name == ""


async def test_an_unsupported_version_gets_the_list_in_version_zero() -> None:
    body = b"".join(encode(unsupported_version_response(SERVICES), 0))
    response = decode(ApiVersionsResponse, 0, body)
    assert (response.error_code, response.api_keys) == (UNSUPPORTED_VERSION, LISTED)
