from __future__ import annotations

from typing import Any

import pytest

from kafscale.api.topics import alter_partition_reassignments, list_partition_reassignments
from kafscale.cluster.membership.node import Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes
from kafscale.wire.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.api.assignments import OTHER_ID, THIRD_ID, ScriptedMover, ThreeBrokers
from tests.api.handlers import ask, some_services

NODE = Node(node_id=7, cluster_id="the-cluster", broker_epoch=3, advertised={})
INVALID, FACTOR = error_codes.INVALID_REPLICA_ASSIGNMENT, error_codes.INVALID_REPLICATION_FACTOR
UNKNOWN = error_codes.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
async def services() -> Any:
    topics = TopicRegistry(store=MemoryMetadataStore())
    await topics.create([NewTopic(name="a", partition_count=3), NewTopic(name="copied", replication_factor=3)])
    return some_services(node=NODE, topics=topics)


async def alter(
    services: Any, asked: list[tuple[str, int, list[int] | None]], *, version: int = 1, **fields: bool
) -> dict[tuple[str, int], tuple[int, str | None]]:
    topics = [
        ReassignableTopic(name=name, partitions=[ReassignablePartition(partition_index=index, replicas=replicas)])
        for name, index, replicas in asked
    ]
    request = AlterPartitionReassignmentsRequest(topics=topics, **fields)
    response: AlterPartitionReassignmentsResponse = await ask(
        alter_partition_reassignments.API, services, request, version=version
    )
    assert (response.error_code, response.error_message) == (0, None)
    assert response.allow_replication_factor_change == (version == 0 or request.allow_replication_factor_change)
    answers = [(topic.name, each) for topic in response.responses for each in topic.partitions]
    found = {(name, each.partition_index): (each.error_code, each.error_message) for name, each in answers}
    assert len(found) == len(answers)
    return found


@pytest.mark.parametrize("version", range(2))
async def test_reassigning_a_partition_to_its_current_replicas_succeeds(services: Any, version: int) -> None:
    asked: list[tuple[str, int, list[int] | None]] = [("a", 0, [7]), ("a", 2, [7]), ("copied", 0, [7, 7, 7])]
    answers = await alter(services, asked, version=version)
    assert answers == {("a", 0): (0, None), ("a", 2): (0, None), ("copied", 0): (0, None)}


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize(
    ("name", "index", "replicas", "error"),
    [
        (
            "a",
            0,
            [8],
            (INVALID, "The manual partition assignment includes broker 8, but no such broker is registered."),
        ),
        ("a", 0, [], (INVALID, "The manual partition assignment includes an empty replica list.")),
        ("a", 0, [7, 7], (INVALID, "The manual partition assignment includes the broker 7 more than once.")),
        ("copied", 0, [7], (FACTOR, "The replication factor is changed from 3 to 1")),
        ("a", 0, None, (error_codes.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")),
        ("a", 3, [7], (UNKNOWN, "Unable to find partition a:3.")),
        ("a", -1, [7], (UNKNOWN, "Unable to find partition a:-1.")),
        ("nope", 0, [7], (UNKNOWN, "Unable to find a topic named nope.")),
    ],
)
async def test_others_are_refused_each_by_itself(
    services: Any, name: str, index: int, replicas: list[int] | None, error: tuple[int, str], allowed: bool
) -> None:
    asked = [(name, index, replicas), ("a", 1, [7])]
    answers = await alter(services, asked, allow_replication_factor_change=allowed)
    assert answers == {(name, index): error, ("a", 1): (0, None)}


async def test_the_first_of_two_entries_of_a_partition_counts(services: Any) -> None:
    answers = await alter(services, [("a", 0, [8]), ("a", 0, [7])])
    assert [code for code, _ in answers.values()] == [INVALID]


async def test_nothing_is_on_its_way(services: Any) -> None:
    named = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 9]) for name in ("a", "nope")]
    for topics in (None, [], named):
        request = ListPartitionReassignmentsRequest(topics=topics)
        response = await ask(list_partition_reassignments.API, services, request)
        assert (response.error_code, response.error_message, response.topics) == (0, None, [])


# ---- where partitions can be moved -----------------------------------------------------------------------------------


@pytest.fixture
async def several(services: Any) -> Any:
    """Broker 7 leads a-0 and copied-0, the second one a-1, the third one a-2."""
    services.assignment = ThreeBrokers(NODE)
    services.mover = ScriptedMover(services.assignment)
    return services


async def under_way(services: Any, topics: list[ListPartitionReassignmentsTopics] | None = None) -> list[Any]:
    request = ListPartitionReassignmentsRequest(topics=topics)
    response = await ask(list_partition_reassignments.API, services, request)
    assert response.error_code == 0
    return [
        (topic.name, each.partition_index, each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in response.topics
        for each in topic.partitions
    ]


@pytest.mark.parametrize("version", range(2))
async def test_a_partition_is_moved_to_the_first_of_its_replicas(several: Any, version: int) -> None:
    asked: list[tuple[str, int, list[int] | None]] = [
        ("a", 0, [OTHER_ID]),
        ("a", 1, [OTHER_ID]),
        ("a", 2, [7]),
        ("copied", 0, [THIRD_ID, OTHER_ID, 7]),
    ]
    answers = await alter(several, asked, version=version)
    assert {code for code, _ in answers.values()} == {0}
    assert sorted(several.mover.moves) == [("a", 0, OTHER_ID), ("a", 2, 7), ("copied", 0, THIRD_ID)]
    assert await under_way(several) == [
        ("a", 0, [OTHER_ID, 7], [OTHER_ID], [7]),
        ("a", 2, [7, THIRD_ID], [7], [THIRD_ID]),
        ("copied", 0, [THIRD_ID, 7], [THIRD_ID], [7]),
    ]
    named = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[1, 2, 9]) for name in ("a", "nope")]
    assert await under_way(several, named) == [("a", 2, [7, THIRD_ID], [7], [THIRD_ID])]
    assert await under_way(several, []) == []


async def test_a_move_is_stopped_and_changed(several: Any) -> None:
    none = error_codes.NO_REASSIGNMENT_IN_PROGRESS
    assert (await alter(several, [("a", 0, None)]))["a", 0][0] == none
    await alter(several, [("a", 0, [OTHER_ID])])
    assert (await alter(several, [("a", 0, None)]))["a", 0][0] == 0
    assert (several.mover.replicas, await under_way(several)) == ({("a", 0): (7,)}, [])  # it stays where it is
    await alter(several, [("a", 0, [OTHER_ID])])
    assert (await alter(several, [("a", 0, [7])]))["a", 0][0] == 0  # where it is
    assert (several.mover.replicas, await under_way(several)) == ({("a", 0): [7]}, [])
    await alter(several, [("a", 0, [OTHER_ID])])
    await alter(several, [("a", 0, [THIRD_ID])])
    assert [target for *_, target in several.mover.moves[-2:]] == [OTHER_ID, THIRD_ID]


async def test_a_reassignment_can_be_cancelled(several: Any) -> None:
    await alter(several, [("a", 0, [7]), ("copied", 0, [7, OTHER_ID, THIRD_ID])])
    assert several.mover.replicas == {("a", 0): [7], ("copied", 0): [7, OTHER_ID, THIRD_ID]}
    assert (await alter(several, [("a", 0, None)]))["a", 0][0] == 0
    assert list(several.mover.replicas) == [("copied", 0)]
    assert (await alter(several, [("a", 0, None)]))["a", 0][0] == error_codes.NO_REASSIGNMENT_IN_PROGRESS


async def test_moves_are_looked_up_once_per_topic(several: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """To stop the moves of 10,000 partitions all of them were looked at for each."""
    looked: list[str] = []
    targets = ScriptedMover.targets
    monkeypatch.setattr(
        ScriptedMover, "targets", lambda mover, topic: looked.append(topic.name) or targets(mover, topic)
    )
    asked: list[tuple[str, int, list[int] | None]] = [("a", index, None) for index in range(3)] + [("copied", 0, None)]
    await alter(several, asked)
    assert looked == ["a", "copied"]


async def test_a_partition_without_a_leader_is_moved_too(several: Any) -> None:
    several.assignment.others["a", 0] = None
    assert (await alter(several, [("a", 0, None)]))["a", 0][0] == error_codes.NO_REASSIGNMENT_IN_PROGRESS
    assert (await alter(several, [("a", 0, [OTHER_ID])]))["a", 0][0] == 0
    assert await under_way(several) == [("a", 0, [OTHER_ID], [OTHER_ID], [])]


@pytest.mark.parametrize(
    ("name", "replicas", "error"),
    [
        ("a", [OTHER_ID, 7], FACTOR),
        ("a", [OTHER_ID, OTHER_ID], INVALID),
        ("copied", [OTHER_ID], FACTOR),
        ("copied", [OTHER_ID, 7, 5], INVALID),
        ("a", [5], INVALID),
        ("a", [], INVALID),
        ("nope", [7], UNKNOWN),
    ],
)
async def test_no_partition_is_moved_that_can_not_be(several: Any, name: str, replicas: list[int], error: int) -> None:
    several.mover.refused.add(("a", 1))
    answers = await alter(several, [(name, 0, replicas), ("a", 1, [7]), ("a", 2, [7])])
    assert [code for code, _ in answers.values()] == [error, INVALID, 0]
    assert answers["a", 1][1] == "broker 7 is about to leave"
    assert several.mover.moves == [("a", 2, 7)]
