"""CreatePartitions (37): add partitions to topics.

v0  `count` is the new total
v1  throttled by the client
v2  flexible
v3  may answer THROTTLING_QUOTA_EXCEEDED; with earlier versions the client holds back (KIP-599)

Replica assignments are those of CreateTopics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import know_topics
from kafscale.api.handling.services import Services
from kafscale.api.topics.new_partitions import check_assignment, know_brokers, lead_as_assigned, outcomes_by_name
from kafscale.cluster.registries.topics import MorePartitions, Outcome, Topic
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import INVALID_REPLICA_ASSIGNMENT
from kafscale.wire.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from kafscale.wire.schema import mapped


async def handle(services: Services, call: Call, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    charges = services.quotas.charges(call, strict_since=3)
    await know_topics(services, (topic.name for topic in request.topics))
    await know_brokers(
        services, (assignment.broker_ids for topic in request.topics for assignment in topic.assignments or ())
    )
    add = partial(services.topics.create_partitions, validate_only=request.validate_only, charge=charges.charge)
    outcomes = await outcomes_by_name(request.topics, partial(_more_partitions, services), add)
    if not request.validate_only:
        await _lead_as_assigned(services, request.topics, outcomes)
    return CreatePartitionsResponse(
        throttle_time_ms=charges.throttle_ms(),
        results=mapped(lambda name: _result(name, outcomes[name]), outcomes),
    )


async def _lead_as_assigned(
    services: Services, topics: Sequence[CreatePartitionsTopic], outcomes: Mapping[str, Outcome]
) -> None:
    for topic in topics:
        outcome = outcomes[topic.name]
        if topic.assignments and isinstance(outcome, Topic):
            first = topic.count - len(topic.assignments)
            assigned = {first + number: assignment.broker_ids for number, assignment in enumerate(topic.assignments)}
            await lead_as_assigned(services, outcome, assigned)


def _more_partitions(services: Services, topic: CreatePartitionsTopic) -> MorePartitions:
    _check_assignments(services, topic)
    return MorePartitions(name=topic.name, partition_count=topic.count)


def _check_assignments(services: Services, wanted: CreatePartitionsTopic) -> None:
    """Raise KafkaError INVALID_REPLICA_ASSIGNMENT. The registry refuses an unknown topic or a bad count."""
    topic = services.topics.get(wanted.name)
    if topic is None or wanted.assignments is None or wanted.count <= topic.partition_count:
        return
    more = wanted.count - topic.partition_count
    if len(wanted.assignments) != more:
        raise KafkaError(
            INVALID_REPLICA_ASSIGNMENT,
            f"Attempted to add {more} additional partition(s), but only {len(wanted.assignments)} assignment(s) were "
            "specified.",
        )
    node_ids = [node.node_id for node in services.assignment.brokers()]
    for assignment in wanted.assignments:
        check_assignment(assignment.broker_ids, node_ids, topic.replication_factor)


def _result(name: str, outcome: Outcome) -> CreatePartitionsTopicResult:
    if isinstance(outcome, KafkaError):
        return CreatePartitionsTopicResult(name=name, error_code=outcome.code, error_message=outcome.message)
    return CreatePartitionsTopicResult(name=name)


API = Api(37, "CreatePartitions", 0, 3, CreatePartitionsRequest, CreatePartitionsResponse, handle)
