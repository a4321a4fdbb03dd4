"""ElectLeaders (43, KIP-460): have partitions led by their preferred replica, or by any that is alive.

v0  the preferred replica
v1  or any live one, which may lose records (unclean); an error code of the whole
v2  flexible

A partition whose preferred replica, the first of those that it was assigned to, is not its leader and serves, is moved
there; the answer comes when it is led there, or REQUEST_TIMED_OUT where that takes longer than the request allows. Of
others no election is needed: ELECTION_NOT_NEEDED, or, where all partitions are asked for, nothing. A partition that
has no leader now waits for a broker that does not serve, and has no preferred replica that could be elected. An
unclean election gives that broker up: it is fenced, and others lead this and all that it led, without what only its
machine has (`kafscale brokers replace`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import partial

import attrs
import trio

from kafscale.api.handling.calls import Api, Call
from kafscale.api.handling.partitions import know_topics
from kafscale.api.handling.services import Services
from kafscale.cluster.membership.placement.mover import Mover
from kafscale.cluster.registries.topics import Topic
from kafscale.concurrency.turns import Turns, distinct_partitions
from kafscale.errors import KafkaError
from kafscale.wire.error_codes import (
    ELECTION_NOT_NEEDED,
    ELIGIBLE_LEADERS_NOT_AVAILABLE,
    INVALID_REQUEST,
    PREFERRED_LEADER_NOT_AVAILABLE,
    REQUEST_TIMED_OUT,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafscale.wire.messages.replicas import (
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from kafscale.wire.schema import mapped

At = tuple[str, int]  # a topic's name and a partition

PREFERRED, UNCLEAN = range(2)
AT_ONCE_COUNT = 256  # partitions that are decided about together
NOT_AVAILABLE = {  # why a partition without a leader gets none, by the type of the election
    PREFERRED: KafkaError(PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
    UNCLEAN: KafkaError(ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."),
}
NOT_NEEDED = KafkaError(ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


async def handle(services: Services, call: Call, request: ElectLeadersRequest) -> ElectLeadersResponse:
    election_type = request.election_type
    if election_type not in NOT_AVAILABLE:
        return await _refused(request, KafkaError(INVALID_REQUEST, f"Unknown election type {election_type}"))
    if request.topic_partitions is None:
        asked: Mapping[str, Collection[int]] = {
            topic.name: range(topic.partition_count) for topic in services.topics.all()
        }
    else:
        asked = await _named(request.topic_partitions)
        await know_topics(services, asked)
    elected = await _elect(services, election_type, asked, request.timeout_ms)
    if request.topic_partitions is None:
        asked = await _worth_telling(services, asked, elected)
    outcome = partial(_outcome, services, election_type, elected)
    results = [_results(name, tuple(indexes), partial(outcome, name)) for name, indexes in asked.items()]
    return ElectLeadersResponse(replica_election_results=results)


async def _named(partitions: Sequence[ElectedTopicPartitions]) -> Mapping[str, Collection[int]]:
    return await distinct_partitions(((topic.topic, topic.partitions) for topic in partitions), int)


async def _refused(request: ElectLeadersRequest, error: KafkaError) -> ElectLeadersResponse:
    named = await _named(request.topic_partitions or ())
    results = [_results(name, tuple(indexes), lambda _index: error) for name, indexes in named.items()]
    return ElectLeadersResponse(error_code=error.code, replica_election_results=results)


def _results(
    topic: str, indexes: Collection[int], outcome: Callable[[int], KafkaError | None]
) -> ReplicaElectionResult:
    def result(index: int) -> PartitionResult:
        error = outcome(index)
        if error is None:
            return PartitionResult(partition_id=index)
        return PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)

    return ReplicaElectionResult(topic=topic, partition_result=mapped(result, indexes))


def _outcome(
    services: Services, election_type: int, elected: Mapping[At, KafkaError | None], name: str, index: int
) -> KafkaError | None:
    """Return why no leader is elected, or None if one was."""
    if (name, index) in elected:
        return elected[name, index]
    topic = services.topics.get(name)
    if topic is None:
        return KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    if not 0 <= index < topic.partition_count:
        return KafkaError(UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    return NOT_AVAILABLE[election_type] if services.assignment.leader(topic, index) is None else NOT_NEEDED


async def _worth_telling(
    services: Services, asked: Mapping[str, Collection[int]], elected: Container[At]
) -> Mapping[str, Collection[int]]:
    """Return every topic with its partitions that have no leader, or for which a leader was to be elected."""
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


# ---- elections -----------------------------------------------------------------------------------------------------


async def _elect(
    services: Services, election_type: int, asked: Mapping[str, Collection[int]], timeout_ms: int
) -> dict[At, KafkaError | None]:
    """Move partitions to other leaders and wait for it; return why each election failed, or None."""
    elected: dict[At, KafkaError | None] = {}
    mover = services.mover
    if election_type == UNCLEAN:
        wanted = await _give_up(services, asked, elected)
    else:
        wanted = await _not_preferred(services, mover, asked)
        for first in range(0, len(wanted), AT_ONCE_COUNT):
            async with trio.open_nursery() as nursery:  # what is decided at the same time shares a commit
                for election in wanted[first : first + AT_ONCE_COUNT]:
                    nursery.start_soon(_move, services, mover, election, elected)
    waiting = list(wanted)

    def all_are_led() -> bool:  # asked at each change of the cluster: those that are led are looked at once
        while waiting and (elected[waiting[-1].at] is not None or waiting[-1].is_led(services)):
            waiting.pop()
        return not waiting

    with trio.move_on_after(max(0, timeout_ms) / 1000):
        await mover.wait_until(all_are_led)
    for election in wanted:
        if elected[election.at] is None and not election.is_led(services):
            elected[election.at] = KafkaError(REQUEST_TIMED_OUT, "The new leader is still to take over.")
    return elected


@attrs.frozen
class _Election:
    """A partition, and the brokers that may lead it: the first of its replicas, or any without an assignment."""

    topic: Topic
    index: int
    replicas: Sequence[int]

    @property
    def at(self) -> At:
        return self.topic.name, self.index

    def is_led(self, services: Services) -> bool:
        leader = services.assignment.leader(self.topic, self.index)
        return leader is not None and leader.node_id in (self.replicas[:1] or (leader.node_id,))


async def _not_preferred(services: Services, mover: Mover, asked: Mapping[str, Collection[int]]) -> list[_Election]:
    turns = Turns()
    found = []
    for name, indexes in asked.items():
        topic = services.topics.get(name)
        if topic is None:
            continue
        for index, replicas in mover.assigned(topic).items():
            await turns.step()
            leader = services.assignment.leader(topic, index)
            if index in indexes and leader is not None and leader.node_id != replicas[0]:
                found.append(_Election(topic, index, replicas))
    return found


async def _give_up(
    services: Services, asked: Mapping[str, Collection[int]], elected: dict[At, KafkaError | None]
) -> list[_Election]:
    """Give up the brokers that partitions wait for; these partitions are to be led by others then."""
    refusals: dict[int, KafkaError | None] = {}
    found = []
    for name, indexes in asked.items():
        topic = services.topics.get(name)
        if topic is None:
            continue
        for index, broker_id in services.assignment.waiting(topic).items():
            if index not in indexes:
                continue
            if broker_id not in refusals:
                refusals[broker_id] = await _refusal(services, broker_id)
            elected[name, index] = refusals[broker_id]
            found.append(_Election(topic, index, ()))
    return found


async def _refusal(services: Services, broker_id: int) -> KafkaError | None:
    try:
        await services.membership.give_up(broker_id)
    except KafkaError as exc:
        return exc.kept()
    return None


async def _move(services: Services, mover: Mover, election: _Election, elected: dict[At, KafkaError | None]) -> None:
    elected[election.at] = None
    try:
        if all(node.node_id != election.replicas[0] for node in services.assignment.brokers()):
            raise NOT_AVAILABLE[PREFERRED]
        await mover.move(election.topic, election.index, election.replicas)
    except KafkaError as exc:
        elected[election.at] = exc.kept()


API = Api(43, "ElectLeaders", 0, 2, ElectLeadersRequest, ElectLeadersResponse, handle)
