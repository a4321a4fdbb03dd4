"""CreateTopics (19): create topics, or check whether they could be.

v2  (lowest version) `validate_only`; one error and message per topic
v4  -1 partitions or replicas means the broker's default
v5  flexible; answers with the number of partitions, the replication factor and the configs
v6  may answer THROTTLING_QUOTA_EXCEEDED; with earlier versions the client holds back (KIP-599)
v7  answers with the topic ids

A replica assignment may only name known brokers, also several times, as Metadata does. The first replica of a partition
leads it. A topic is durable before it is acknowledged, so `timeout_ms` has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.services import Services
from kafscale.api.topics.new_partitions import check_assignment, know_brokers, lead_as_assigned, outcomes_by_name
from kafscale.cluster.registries.config_entries import topic_entries
from kafscale.cluster.registries.topics import DEFAULT, NewTopic, Outcome, Topic
from kafscale.errors import KafkaError
from kafscale.security.acls import CREATE_IN_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC_CONFIGS
from kafscale.wire.error_codes import (
    INVALID_CONFIG,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REQUEST,
    TOPIC_AUTHORIZATION_FAILED,
)
from kafscale.wire.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kafscale.wire.schema import mapped


async def handle(services: Services, call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    creates_all = services.access.allows(call, CREATE_IN_CLUSTER, tells=False)

    def new_topic(topic: CreatableTopic) -> NewTopic:
        if not creates_all:
            services.access.check(call, CREATE_TOPIC, topic.name)
        return _new_topic(services, topic)

    await know_brokers(
        services, (assignment.broker_ids for topic in request.topics for assignment in topic.assignments)
    )
    charges = services.quotas.charges(call, strict_since=6)
    create = partial(services.topics.create, validate_only=request.validate_only, charge=charges.charge)
    outcomes = await outcomes_by_name(request.topics, new_topic, create)
    if not request.validate_only:
        await _lead_as_assigned(services, request.topics, outcomes)
    return CreateTopicsResponse(
        throttle_time_ms=charges.throttle_ms(),
        topics=mapped(lambda name: _result(services, call, name, outcomes[name]), outcomes),
    )


async def _lead_as_assigned(
    services: Services, topics: Sequence[CreatableTopic], outcomes: Mapping[str, Outcome]
) -> None:
    for topic in topics:
        outcome = outcomes[topic.name]
        if topic.assignments and isinstance(outcome, Topic):
            assigned = {assignment.partition_index: assignment.broker_ids for assignment in topic.assignments}
            await lead_as_assigned(services, outcome, assigned)


def _new_topic(services: Services, topic: CreatableTopic) -> NewTopic:
    nulls = [config.name for config in topic.configs if config.value is None]
    if nulls:
        raise KafkaError(INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    overrides = {config.name: config.value for config in topic.configs if config.value is not None}
    partition_count, replication_factor = topic.num_partitions, topic.replication_factor
    if topic.assignments:
        if (partition_count, replication_factor) != (DEFAULT, DEFAULT):
            field = "numPartitions" if replication_factor == DEFAULT else "replication factor"
            raise KafkaError(
                INVALID_REQUEST, f"A manual partition assignment was specified, but {field} was not set to -1."
            )
        node_ids = [node.node_id for node in services.assignment.brokers()]
        partition_count, replication_factor = _assigned(topic.assignments, node_ids)
    return NewTopic(
        name=topic.name, partition_count=partition_count, replication_factor=replication_factor, overrides=overrides
    )


def _assigned(assignments: Sequence[CreatableReplicaAssignment], node_ids: Sequence[int]) -> tuple[int, int]:
    """Return the partition count and replication factor. Raises KafkaError INVALID_REPLICA_ASSIGNMENT."""
    replication_factor = len(assignments[0].broker_ids)
    seen: set[int] = set()
    for assignment in assignments:
        if assignment.partition_index in seen:
            raise KafkaError(
                INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {assignment.partition_index}",
            )
        seen.add(assignment.partition_index)
        check_assignment(assignment.broker_ids, node_ids, replication_factor)
    if seen != set(range(len(assignments))):
        raise KafkaError(INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence")
    return len(assignments), replication_factor


def _result(services: Services, call: Call, name: str, outcome: Outcome) -> CreatableTopicResult:
    if isinstance(outcome, KafkaError):
        return CreatableTopicResult(name=name, error_code=outcome.code, error_message=outcome.message)
    if not services.access.allows(call, DESCRIBE_TOPIC_CONFIGS, name, tells=False):
        return CreatableTopicResult(
            name=name, topic_id=outcome.topic_id, topic_config_error_code=TOPIC_AUTHORIZATION_FAILED
        )
    entries = topic_entries(outcome.overrides, services.topics.defaults)
    return CreatableTopicResult(
        name=name,
        topic_id=outcome.topic_id,
        num_partitions=outcome.partition_count,
        replication_factor=outcome.replication_factor,
        configs=[
            CreatableTopicConfigs(name=entry.definition.name, value=entry.value, config_source=entry.source)
            for entry in entries
        ],
    )


API = Api(19, "CreateTopics", 2, 7, CreateTopicsRequest, CreateTopicsResponse, handle)
