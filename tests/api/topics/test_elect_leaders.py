from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kafscale.api.topics.elect_leaders import API
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.replicas import ElectedTopicPartitions, ElectLeadersRequest, ElectLeadersResponse
from tests.api.assignments import OTHER_ID, THIRD_ID, ScriptedMover, ThreeBrokers, TwoBrokers
from tests.api.handlers import ask, some_services

NODE = Node(node_id=7, cluster_id="the-cluster", broker_epoch=3, advertised={})
PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED, UNKNOWN = error_codes.ELECTION_NOT_NEEDED, error_codes.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
async def services() -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.create([NewTopic(name="a"), NewTopic(name="b", partition_count=3)])
    return some_services(node=NODE, topics=topics, assignment=TwoBrokers(NODE, others={("b", 2): None}))


def told(response: ElectLeadersResponse) -> dict[str, list[tuple[int, int]]]:
    results = response.replica_election_results
    assert len({each.topic for each in results}) == len(results)
    return {each.topic: [(one.partition_id, one.error_code) for one in each.partition_result] for each in results}


@pytest.mark.parametrize("version", range(3))
async def test_every_partition_is_led_by_its_preferred_replica(services: Any, version: int) -> None:
    asked = [("b", [0, 7, -1, 0]), ("nope", [0]), ("b", [1, 0])]
    partitions = [ElectedTopicPartitions(topic=name, partitions=indexes) for name, indexes in asked]
    response = await ask(API, services, ElectLeadersRequest(topic_partitions=partitions), version=version)
    assert response.error_code == 0
    assert told(response) == {
        "b": [(0, NOT_NEEDED), (7, UNKNOWN), (-1, UNKNOWN), (1, NOT_NEEDED)],
        "nope": [(0, UNKNOWN)],
    }
    messages = [each.error_message for each in response.replica_election_results[0].partition_result]
    assert messages[:2] == ["Leader election not needed for topic partition.", "No such partition as b-7"]


@pytest.mark.parametrize(
    ("election_type", "code"),
    [
        (PREFERRED, error_codes.PREFERRED_LEADER_NOT_AVAILABLE),
        (UNCLEAN, error_codes.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
async def test_a_partition_without_a_leader_can_not_be_given_one(services: Any, election_type: int, code: int) -> None:
    partitions = [ElectedTopicPartitions(topic="b", partitions=[1, 2])]
    named = ElectLeadersRequest(election_type=election_type, topic_partitions=partitions)
    assert told(await ask(API, services, named)) == {"b": [(1, NOT_NEEDED), (2, code)]}
    everything = ElectLeadersRequest(election_type=election_type, topic_partitions=None)
    assert told(await ask(API, services, everything)) == {"a": [], "b": [(2, code)]}


async def test_an_empty_list_asks_for_nothing(services: Any) -> None:
    assert told(await ask(API, services, ElectLeadersRequest(topic_partitions=[]))) == {}


async def test_elections_of_an_unknown_type_are_refused(services: Any) -> None:
    partitions = [
        ElectedTopicPartitions(topic="a", partitions=[0]),
        ElectedTopicPartitions(topic="nope", partitions=[0]),
    ]
    response = await ask(API, services, ElectLeadersRequest(election_type=5, topic_partitions=partitions))
    invalid = error_codes.INVALID_REQUEST
    assert (response.error_code, told(response)) == (invalid, {"a": [(0, invalid)], "nope": [(0, invalid)]})
    assert response.replica_election_results[0].partition_result[0].error_message == "Unknown election type 5"
    response = await ask(API, services, ElectLeadersRequest(election_type=5, topic_partitions=None))
    assert (response.error_code, told(response)) == (invalid, {})


async def test_before_version_1_there_is_only_one_type(services: Any) -> None:
    partitions = [ElectedTopicPartitions(topic="a", partitions=[0])]
    response = await ask(API, services, ElectLeadersRequest(election_type=5, topic_partitions=partitions), version=0)
    assert told(response) == {"a": [(0, NOT_NEEDED)]}


# ---- where partitions can be moved -----------------------------------------------------------------------------------


@pytest.fixture
async def several(services: Any) -> Any:
    """Broker 7 leads a-0 and b-0, the second one b-1, the third one b-2."""
    services.assignment = ThreeBrokers(NODE)
    services.mover = ScriptedMover(services.assignment, is_quick=True)
    return services


async def assign(services: Any, name: str, index: int, replicas: list[int]) -> None:
    """Assign a partition to these while it is led by another broker."""
    topic = services.topics.get(name)
    leader = services.assignment.leader(topic, index)
    await services.mover.move(topic, index, replicas)
    services.assignment.others[name, index] = leader
    services.mover.moves.clear()


@pytest.mark.parametrize("everything", [False, True])
async def test_partitions_are_moved_to_their_preferred_replica(several: Any, everything: bool) -> None:
    await assign(several, "b", 0, [OTHER_ID, 7])
    await assign(several, "b", 1, [OTHER_ID])
    named = None if everything else [ElectedTopicPartitions(topic="b", partitions=[0, 1, 2])]
    found = told(await ask(API, several, ElectLeadersRequest(topic_partitions=named)))
    assert found == ({"a": [], "b": [(0, 0)]} if everything else {"b": [(0, 0), (1, NOT_NEEDED), (2, NOT_NEEDED)]})
    assert several.mover.moves == [("b", 0, OTHER_ID)]


async def test_a_preferred_replica_that_does_not_serve_is_not_elected(several: Any) -> None:
    await assign(several, "b", 0, [THIRD_ID])
    several.assignment.third_is_up = False
    asked = ElectLeadersRequest(topic_partitions=[ElectedTopicPartitions(topic="b", partitions=[0])])
    assert told(await ask(API, several, asked)) == {"b": [(0, error_codes.PREFERRED_LEADER_NOT_AVAILABLE)]}
    assert several.mover.moves == []


async def test_a_slow_election_is_answered_with_request_timed_out(autojump_clock: MockClock, several: Any) -> None:
    await assign(several, "b", 0, [THIRD_ID])
    await assign(several, "b", 1, [7])
    several.mover.is_quick = False
    several.mover.refused.add(("b", 1))
    partitions = [ElectedTopicPartitions(topic="b", partitions=[0, 1])]
    began = trio.current_time()
    found = told(await ask(API, several, ElectLeadersRequest(topic_partitions=partitions, timeout_ms=2_000)))
    assert found == {"b": [(0, error_codes.REQUEST_TIMED_OUT), (1, error_codes.INVALID_REPLICA_ASSIGNMENT)]}
    assert trio.current_time() >= began + 2.0


async def test_an_election_with_a_negative_timeout_times_out_at_once(several: Any) -> None:
    """It ended the connection: trio knows no negative time."""
    await assign(several, "b", 0, [THIRD_ID])
    several.mover.is_quick = False
    partitions = [ElectedTopicPartitions(topic="b", partitions=[0])]
    found = told(await ask(API, several, ElectLeadersRequest(topic_partitions=partitions, timeout_ms=-1)))
    assert found == {"b": [(0, error_codes.REQUEST_TIMED_OUT)]}


async def test_nothing_is_moved_for_an_unclean_election(several: Any) -> None:
    await assign(several, "b", 0, [OTHER_ID])
    partitions = [ElectedTopicPartitions(topic="b", partitions=[0])]
    asked = ElectLeadersRequest(election_type=UNCLEAN, topic_partitions=partitions)
    assert told(await ask(API, several, asked)) == {"b": [(0, NOT_NEEDED)]}
    assert several.mover.moves == []
