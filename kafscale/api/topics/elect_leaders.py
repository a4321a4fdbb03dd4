"""ElectLeaders (43, KIP-460): let partitions be led by their preferred replica, or by any live one.

v0  the preferred replica
v1  or any live one, which may lose records (unclean); an error code of the whole
v2  flexible

The preferred replica is the first of those that a partition was assigned to. If it serves and does not lead, the
partition moves there. The answer comes when it leads, or is REQUEST_TIMED_OUT. Other partitions need no election:
ELECTION_NOT_NEEDED, or no answer where all partitions are asked for.

A partition without a leader waits for a broker that does not serve. An unclean election gives that broker up: it is
fenced, and others lead all its partitions, without the records that only its machine has (`kafscale brokers replace`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import partial

import attrs
import trio

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import know_topics
from kafscale.api.handling.services import Services
from kafscale.api.topics.new_partitions import At, decide_together
from kafscale.cluster.registries.topics import Topic
from kafscale.concurrency.turns import Turns, distinct_partitions
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import (
    ELECTION_NOT_NEEDED,
    ELIGIBLE_LEADERS_NOT_AVAILABLE,
    INVALID_REQUEST,
    NONE,
    PREFERRED_LEADER_NOT_AVAILABLE,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.replicas import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from kafscale.wire.schema import mapped

PREFERRED, UNCLEAN = range(2)
NOT_AVAILABLE = {  # the error of a partition that stays without a leader, by the type of the election
    PREFERRED: KafkaError(PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
    UNCLEAN: KafkaError(ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."),
}
NOT_NEEDED = KafkaError(ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")

Asked = Mapping[str, Collection[int]]  # partitions by topic
Elected = Mapping[At, KafkaError | None]  # the outcome of each election


@attrs.frozen(eq=False)
class _Election:
    """A partition, and the brokers that may lead it: the first of its replicas, or any without an assignment."""

    topic: Topic
    index: int
    replicas: Sequence[int] = ()

    @property
    def at(self) -> At:
        return self.topic.name, self.index

    def is_led(self, services: Services) -> bool:
        leader = services.assignment.leader(self.topic, self.index)
        return leader is not None and leader.node_id in (self.replicas[:1] or (leader.node_id,))


async def handle(services: Services, call: Call, request: ElectLeadersRequest) -> ElectLeadersResponse:
    named = ((topic.topic, topic.partitions) for topic in request.topic_partitions or ())
    asked: Asked = await distinct_partitions(named, int)
    if request.election_type not in NOT_AVAILABLE:
        error = KafkaError(INVALID_REQUEST, f"Unknown election type {request.election_type}")
        return ElectLeadersResponse(error_code=error.code, replica_election_results=_results(asked, lambda _: error))
    if request.topic_partitions is None:
        asked = {topic.name: range(topic.partition_count) for topic in services.topics.all()}
    else:
        await know_topics(services, asked)
    elected = await _elect(services, request.election_type, asked, request.timeout_ms)
    if request.topic_partitions is None:
        asked = await _without_needless(services, asked, elected)
    outcome = partial(_outcome, services, request.election_type, elected)
    return ElectLeadersResponse(replica_election_results=_results(asked, outcome))


def _results(asked: Asked, outcome: Callable[[At], KafkaError | None]) -> list[ReplicaElectionResult]:
    def result(name: str, index: int) -> PartitionResult:
        error = outcome((name, index))
        return PartitionResult(
            partition_id=index,
            error_code=error.code if error else NONE,
            error_message=error.message if error else None,
        )

    return [
        ReplicaElectionResult(topic=name, partition_result=mapped(partial(result, name), tuple(indexes)))
        for name, indexes in asked.items()
    ]


def _outcome(services: Services, election_type: int, elected: Elected, at: At) -> KafkaError | None:
    if at in elected:
        return elected[at]
    name, index = at
    topic = services.topics.get(name)
    if topic is None:
        return KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < topic.partition_count:
        return KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    return NOT_AVAILABLE[election_type] if services.assignment.leader(topic, index) is None else NOT_NEEDED


async def _without_needless(services: Services, asked: Asked, elected: Container[At]) -> Asked:
    """Return all existing topics with only the partitions that were elected or have no leader."""
    turns = Turns()
    found: dict[str, list[int]] = {}
    for name, indexes in asked.items():
        topic = services.topics.get(name)
        if topic is None:
            continue  # it was deleted meanwhile
        found[name] = []
        for index in indexes:
            await turns.step()
            if (name, index) in elected or services.assignment.leader(topic, index) is None:
                found[name].append(index)
    return found


async def _elect(services: Services, election_type: int, asked: Asked, timeout_ms: int) -> Elected:
    if election_type == UNCLEAN:
        elected = await _give_up(services, asked)
    else:
        elected = await decide_together(partial(_move, services), await _not_preferred(services, asked))
    waiting = [election for election, error in elected.items() if error is None]

    def all_are_led() -> bool:  # called at each change of the cluster: those that are led are looked at once
        while waiting and waiting[-1].is_led(services):
            waiting.pop()
        return not waiting

    with trio.move_on_after(max(0, timeout_ms) / 1000):
        await services.mover.wait_until(all_are_led)
    for election, error in elected.items():
        if error is None and not election.is_led(services):
            elected[election] = KafkaError(REQUEST_TIMED_OUT, "The new leader is still to take over.")
    return {election.at: error for election, error in elected.items()}


async def _not_preferred(services: Services, asked: Asked) -> list[_Election]:
    turns = Turns()
    found = []
    for name, indexes in asked.items():
        topic = services.topics.get(name)
        if topic is None:
            continue
        for index, replicas in services.mover.assigned(topic).items():
            await turns.step()
            leader = services.assignment.leader(topic, index)
            if index in indexes and leader is not None and leader.node_id != replicas[0]:
                found.append(_Election(topic, index, replicas))
    return found


async def _give_up(services: Services, asked: Asked) -> dict[_Election, KafkaError | None]:
    refusals: dict[int, KafkaError | None] = {}
    found = {}
    for name, indexes in asked.items():
        topic = services.topics.get(name)
        if topic is None:
            continue
        for index, broker_id in services.assignment.waiting(topic).items():
            if index not in indexes:
                continue
            if broker_id not in refusals:
                refusals |= await decide_together(services.membership.give_up, [broker_id])
            found[_Election(topic, index)] = refusals[broker_id]
    return found


async def _move(services: Services, election: _Election) -> None:
    if all(node.node_id != election.replicas[0] for node in services.assignment.brokers()):
        raise NOT_AVAILABLE[PREFERRED]
    await services.mover.move(election.topic, election.index, election.replicas)


API = Api(43, "ElectLeaders", 0, 2, ElectLeadersRequest, ElectLeadersResponse, handle)
