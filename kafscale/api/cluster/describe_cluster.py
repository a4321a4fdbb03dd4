"""DescribeCluster (60, KIP-700): the brokers, without topics.

v0  cluster id, controller, brokers, authorized operations
v1  brokers or controllers (KIP-919); controllers have no endpoints of their own here
v2  fenced brokers too, if asked for (KIP-1073): known brokers that do not serve now
"""

from __future__ import annotations

from collections.abc import Iterator

from kafscale.api.cluster.metadata import cluster_operations
from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import reachable_brokers
from kafscale.api.handling.services import Services
from kafscale.wire.error_codes import MISMATCHED_ENDPOINT_TYPE, UNSUPPORTED_ENDPOINT_TYPE
from kafscale.wire.messages.cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse

BROKERS, CONTROLLERS = 1, 2


def handle(services: Services, call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            "CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=UNSUPPORTED_ENDPOINT_TYPE, error_message=f"Unsupported endpoint type {request.endpoint_type}"
        )
    return DescribeClusterResponse(
        cluster_id=services.node.cluster_id,
        controller_id=services.assignment.controller_id,
        brokers=[
            *_brokers(services, call, is_fenced=False),
            *(_brokers(services, call, is_fenced=True) if request.include_fenced_brokers else ()),
        ],
        cluster_authorized_operations=cluster_operations(services, call, request.include_cluster_authorized_operations),
    )


def _brokers(services: Services, call: Call, *, is_fenced: bool) -> Iterator[DescribeClusterBroker]:
    for reachable in reachable_brokers(services, call.peer, fenced=is_fenced):
        yield DescribeClusterBroker(
            broker_id=reachable.node.node_id,
            host=reachable.at.host,
            port=reachable.at.port,
            rack=reachable.node.rack,
            is_fenced=is_fenced,
        )


API = Api(60, "DescribeCluster", 0, 2, DescribeClusterRequest, DescribeClusterResponse, handle)
