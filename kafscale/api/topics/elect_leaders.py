"""ElectLeaders (43, KIP-460): have partitions led by their preferred replica, or by any that is alive.

v0  the preferred replica
v1  or any live one, which may lose records (unclean); an error code of the whole
v2  flexible

A partition's only replica is its leader, so no election is needed: ELECTION_NOT_NEEDED, or, where all partitions are
asked for, nothing. A partition that nobody leads just now has no replica that could be elected; it is led again as soon
as a broker has recovered it, without being told to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.new_topics import know_topics
from kafscale.api.handling.services import Services
from kafscale.concurrency.turns import Turns, distinct_partitions
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import (
    ELECTION_NOT_NEEDED,
    ELIGIBLE_LEADERS_NOT_AVAILABLE,
    INVALID_REQUEST,
    NONE,
    PREFERRED_LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from kafscale.wire.schema import mapped

PREFERRED, UNCLEAN = range(2)
NOT_AVAILABLE = {  # why a partition without a leader gets none, by the type of the election
    PREFERRED: KafkaError(PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
    UNCLEAN: KafkaError(ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."),
}
NOT_NEEDED = KafkaError(ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


async def handle(services: Services, call: Call, request: ElectLeadersRequest) -> ElectLeadersResponse:
    election_type = request.election_type
    refusal = None
    if election_type not in NOT_AVAILABLE:
        refusal = KafkaError(INVALID_REQUEST, f"Unknown election type {election_type}")
    if request.topic_partitions is None:
        results = [] if refusal else await _leaderless(services, NOT_AVAILABLE[election_type])
    else:
        asked = await distinct_partitions(((each.topic, each.partitions) for each in request.topic_partitions), int)
        await know_topics(services, asked)
        results = [
            _results(topic, tuple(indexes), partial(_outcome, services, topic, election_type, refusal))
            for topic, indexes in asked.items()
        ]
    return ElectLeadersResponse(error_code=refusal.code if refusal else NONE, replica_election_results=results)


def _results(topic: str, indexes: Collection[int], outcome: Callable[[int], KafkaError]) -> ReplicaElectionResult:
    def result(index: int) -> PartitionResult:
        error = outcome(index)
        return PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)

    return ReplicaElectionResult(topic=topic, partition_result=mapped(result, indexes))


def _outcome(services: Services, name: str, election_type: int, refusal: KafkaError | None, index: int) -> KafkaError:
    """Return why no leader is elected, which is what always becomes of it."""
    if refusal is not None:
        return refusal
    topic = services.topics.get(name)
    if topic is None:
        return KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < topic.partition_count:
        return KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    return NOT_AVAILABLE[election_type] if services.assignment.leader(topic, index) is None else NOT_NEEDED


async def _leaderless(services: Services, error: KafkaError) -> list[ReplicaElectionResult]:
    """Return every topic, and those of its partitions that nobody leads."""
    turns = Turns()
    results = []
    for topic in services.topics.all():
        indexes = []
        for index in range(topic.partition_count):
            await turns.step()
            if services.assignment.leader(topic, index) is None:
                indexes.append(index)
        results.append(_results(topic.name, indexes, lambda _index: error))
    return results


API = Api(43, "ElectLeaders", 0, 2, ElectLeadersRequest, ElectLeadersResponse, handle)
