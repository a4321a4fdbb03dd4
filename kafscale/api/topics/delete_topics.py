"""DeleteTopics (20).

v1  (lowest version) throttle time
v4  flexible
v5  error messages; may answer THROTTLING_QUOTA_EXCEEDED; with earlier versions the client holds back (KIP-599)
v6  topics may be given by id

A topic is durably deleted before the answer; its objects in the bucket are deleted later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import know_topics
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import in_turns
from kafscale.errors import KafkaError
from kafscale.security.acls import DELETE_IN_CLUSTER, DELETE_TOPIC, DESCRIBE_TOPIC
from kafscale.wire.error_codes import INVALID_REQUEST, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID
from kafscale.wire.messages.topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

NO_ID = bytes(16)


async def handle(services: Services, call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    asked = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
    await know_topics(
        services,
        (topic.name for topic in asked if topic.name is not None),
        (topic.topic_id for topic in asked if topic.name is None),
    )
    deletes_all = services.access.allows(call, DELETE_IN_CLUSTER, tells=False)
    results: list[DeletableTopicResult] = []
    by_name: dict[str, DeletableTopicResult] = {}
    topic_ids: dict[str, bytes] = {}  # of those that are given by id
    async for topic, count in in_turns(_counted(asked)):
        result = DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
        results.append(result)
        try:
            _resolve(services, result, count)
            if not deletes_all:
                _check_access(services, call, result, is_by_id=topic.name is None)
            if result.name in by_name:
                raise KafkaError(INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied.")
            assert result.name is not None
            by_name[result.name] = result
            if topic.name is None:
                topic_ids[result.name] = topic.topic_id
        except KafkaError as exc:
            result.error_code, result.error_message = exc.code, exc.message
    charges = services.quotas.charges(call, strict_since=5)
    outcomes = await services.topics.delete(by_name, topic_ids=topic_ids, charge=charges.charge)
    for result, outcome in zip(by_name.values(), outcomes, strict=True):
        if isinstance(outcome, KafkaError):
            result.error_code, result.error_message = outcome.code, outcome.message
    return DeleteTopicsResponse(throttle_time_ms=charges.throttle_ms(), responses=results)


def _check_access(services: Services, call: Call, result: DeletableTopicResult, *, is_by_id: bool) -> None:
    assert result.name is not None
    if services.access.allows(call, DELETE_TOPIC, result.name):
        return
    if not is_by_id:
        result.topic_id = NO_ID
    elif not services.access.allows(call, DESCRIBE_TOPIC, result.name, tells=False):
        result.name = None
    raise KafkaError(TOPIC_AUTHORIZATION_FAILED)


def _counted(asked: Iterable[DeleteTopicState]) -> Iterable[tuple[DeleteTopicState, int]]:
    counts = Counter((topic.name, topic.topic_id) for topic in asked)
    return [(DeleteTopicState(name=name, topic_id=topic_id), count) for (name, topic_id), count in counts.items()]


def _resolve(services: Services, result: DeletableTopicResult, count: int) -> None:
    """Set the name of a topic given by id, or the reverse. Raises KafkaError."""
    if result.name is not None and result.topic_id != NO_ID:
        raise KafkaError(INVALID_REQUEST, "You may not specify both topic name and topic id.")
    if result.name is None and result.topic_id == NO_ID:
        raise KafkaError(INVALID_REQUEST, "Neither topic name nor id were specified.")
    if count > 1:
        what = "id" if result.name is None else "name"
        raise KafkaError(INVALID_REQUEST, f"Duplicate topic {what}.")
    if result.name is None:
        topic = services.topics.by_id(result.topic_id)
        if topic is None:
            raise KafkaError(UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        result.name = topic.name
    elif (topic := services.topics.get(result.name)) is not None:
        result.topic_id = topic.topic_id


API = Api(20, "DeleteTopics", 1, 6, DeleteTopicsRequest, DeleteTopicsResponse, handle)
