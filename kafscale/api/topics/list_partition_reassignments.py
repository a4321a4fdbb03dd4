"""ListPartitionReassignments (46, KIP-455): partitions that are on their way to other replicas.

v0  (flexible) of all topics, or of the partitions that are named

There are none: records are the object store's, so that a partition that gets another leader takes nothing along. As in
Kafka, a partition that does not exist is no error.
"""

from __future__ import annotations

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def handle(
    services: Services, call: Call, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse()


API = Api(
    46,
    "ListPartitionReassignments",
    0,
    0,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    handle,
)
