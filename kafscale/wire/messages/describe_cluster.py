"""DescribeCluster (key 60, versions 0 to 2): the cluster's id and brokers (KIP-700)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DescribeClusterRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 60, 0, 2, 0

    include_cluster_authorized_operations: bool = wire("bool", default=False)
    endpoint_type: int = wire("int8", since=1, default=1)  # 1 brokers, 2 controllers
    include_fenced_brokers: bool = wire("bool", since=2, default=False)  # (KIP-1073)


@attrs.define(kw_only=True)
class DescribeClusterBroker:
    broker_id: int = wire("int32")
    host: str = wire("string")
    port: int = wire("int32")
    rack: str | None = wire("string", default=None)
    is_fenced: bool = wire("bool", since=2, default=False)


@attrs.define(kw_only=True)
class DescribeClusterResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 60, 0, 2, 0

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    endpoint_type: int = wire("int8", since=1, default=1)
    cluster_id: str = wire("string", default="")
    controller_id: int = wire("int32", default=-1)
    brokers: list[DescribeClusterBroker] = wire(Array(DescribeClusterBroker), factory=list)
    # a bit field; this value means "not asked for"
    cluster_authorized_operations: int = wire("int32", default=-2147483648)
