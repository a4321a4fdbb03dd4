from __future__ import annotations

from typing import Any

import pytest

from kafscale.api.cluster.describe_cluster import API
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.wire import error_codes
from kafscale.wire.messages.cluster import DescribeClusterRequest
from tests.api.handlers import ask, some_services

NODE = Node(node_id=7, cluster_id="the-cluster", broker_epoch=3, advertised={"PLAINTEXT": Endpoint("broker", 9999)})
SERVICES = some_services(node=NODE)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(("asked", "operations"), [(False, -(2**31)), (True, 8096)])
async def test_the_cluster(version: int, asked: bool, operations: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=asked, include_fenced_brokers=asked)
    response: Any = await ask(API, SERVICES, request, version=version)
    assert (response.error_code, response.cluster_id, response.controller_id) == (0, "the-cluster", 7)
    assert [(each.broker_id, each.host, each.port, each.is_fenced) for each in response.brokers] == [
        (7, "broker", 9999, False)
    ]
    assert response.cluster_authorized_operations == operations


@pytest.mark.parametrize(
    ("endpoint_type", "code"), [(2, error_codes.MISMATCHED_ENDPOINT_TYPE), (9, error_codes.UNSUPPORTED_ENDPOINT_TYPE)]
)
async def test_describing_controllers_or_an_unknown_endpoint_type_is_refused(endpoint_type: int, code: int) -> None:
    response = await ask(API, SERVICES, DescribeClusterRequest(endpoint_type=endpoint_type))
    assert (response.error_code, response.brokers) == (code, [])
    assert response.error_message
