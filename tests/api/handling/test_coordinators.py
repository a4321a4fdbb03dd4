"""What every API of groups answers about a group that this broker does not coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.api.cluster import find_coordinator
from kafscale.api.groups import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from kafscale.api.handling.calls import Api
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import NO_GENERATION, GroupMemberIdentity
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.group_commit import GroupCommit
from kafscale.cluster.registries.topics import NewTopic, TopicListener, TopicRegistry
from kafscale.config import Settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes as e
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue
from kafscale.wire.messages.cluster import FindCoordinatorRequest
from kafscale.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tests.api.assignments import TwoBrokers
from tests.api.handlers import LOCAL_LOG, ask, some_services
from tests.cluster.groups.classic_groups import subscription
from tests.cluster.groups.group_log import MemoryOffsetsLog

NODE = Node(node_id=7, cluster_id="c", broker_epoch=0, advertised={"PLAINTEXT": Endpoint("broker", 9999)})
HERE, MOVED, NOBODYS = "here", "moved", "nobodys"
ELSEWHERE = (MOVED, NOBODYS)
SIMPLE = GroupMemberIdentity(member_id="", generation_id=NO_GENERATION)
PARTITION_COUNT = 20
BY_NAME, BY_ID = 9, 10  # versions of OffsetCommit


@pytest.fixture
async def services(autojump_clock: MockClock, nursery: trio.Nursery) -> Any:
    """Three groups with an offset of 5 in partition 0; two of them are not coordinated here any more."""
    store = MemoryMetadataStore()
    metadata = GroupCommit(store)
    await nursery.start(metadata.run)
    topics = TopicRegistry(store=metadata)
    offsets_log = MemoryOffsetsLog()
    groups = GroupCoordinator(offsets_log, Settings(), partition_count=offsets_log.known_count, draining=trio.Event())
    offsets_log.load(groups)
    topics.follow(TopicListener(on_deleted=lambda topic: groups.deletion.forget_topic(topic.name)))
    await topics.create([NewTopic(name="t", partition_count=PARTITION_COUNT)])
    await nursery.start(groups.run)
    assignment = TwoBrokers(NODE)
    services = some_services(
        node=NODE,
        topics=topics,
        groups=groups,
        assignment=assignment,
        store=store,
        offsets_log=offsets_log,
        internal=LOCAL_LOG,
    )
    for group_id in (HERE, *ELSEWHERE):
        offset = OffsetCommitValue(offset=5, leader_epoch=0, commit_timestamp_ms=groups.wall_clock_ms())
        assert await groups.commit(group_id, SIMPLE, {TopicPartition("t", 0): offset}).wait() == e.NONE
    assignment.groups.update({MOVED: assignment.other, NOBODYS: None})
    return services


def versions(api: Api) -> Sequence[int]:
    return range(api.min_version, api.max_version + 1)


def every_version(api: Api) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("version", versions(api))


def join_request(group_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group_id,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    )


@every_version(join_group.API)
async def test_join_is_refused_by_other_brokers(services: Any, version: int) -> None:
    for group_id in ELSEWHERE:
        answer = await ask(join_group.API, services, join_request(group_id), version=version)
        assert (answer.error_code, answer.member_id, answer.members) == (e.NOT_COORDINATOR, "", [])
        assert not services.groups.group(group_id).members
    answer = await ask(join_group.API, services, join_request(HERE), version=version)
    assert answer.error_code == (e.NONE if version < 4 else e.MEMBER_ID_REQUIRED)
    answer = await ask(join_group.API, services, join_request(""), version=version)
    assert answer.error_code == e.INVALID_GROUP_ID


@every_version(sync_group.API)
async def test_sync_is_refused_by_other_brokers(services: Any, version: int) -> None:
    errors = {HERE: e.UNKNOWN_MEMBER_ID, MOVED: e.NOT_COORDINATOR, NOBODYS: e.NOT_COORDINATOR, "": e.INVALID_GROUP_ID}
    for group_id, error in errors.items():
        request = SyncGroupRequest(
            group_id=group_id, generation_id=1, member_id="m", protocol_type="consumer", protocol_name="range"
        )
        assert (await ask(sync_group.API, services, request, version=version)).error_code == error


@every_version(heartbeat.API)
async def test_a_heartbeat_has_a_member_look_for_its_coordinator(services: Any, version: int) -> None:
    errors = {HERE: e.UNKNOWN_MEMBER_ID, MOVED: e.NOT_COORDINATOR, NOBODYS: e.NOT_COORDINATOR, "": e.INVALID_GROUP_ID}
    for group_id, error in errors.items():
        request = HeartbeatRequest(group_id=group_id, generation_id=1, member_id="m")
        assert (await ask(heartbeat.API, services, request, version=version)).error_code == error


@every_version(leave_group.API)
async def test_leave_is_refused_by_other_brokers(services: Any, version: int) -> None:
    errors = {HERE: e.UNKNOWN_MEMBER_ID, MOVED: e.NOT_COORDINATOR, NOBODYS: e.NOT_COORDINATOR, "": e.INVALID_GROUP_ID}
    for group_id, error in errors.items():
        request = LeaveGroupRequest(group_id=group_id, member_id="m", members=[MemberIdentity(member_id="m")])
        answer = await ask(leave_group.API, services, request, version=version)
        if version >= 3 and group_id == HERE:
            assert (answer.error_code, [member.error_code for member in answer.members]) == (e.NONE, [error])
        else:
            assert (answer.error_code, answer.members) == (error, [])


def commit_request(services: Any, group_id: str, *partitions: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        member_id="",
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                topic_id=services.topics.get("t").topic_id,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=9) for index in partitions
                ],
            )
        ],
    )


def codes(answer: Any) -> dict[int, int]:
    (topic,) = answer.topics
    return {each.partition_index: each.error_code for each in topic.partitions}


@every_version(offset_commit.API)
async def test_commits_to_a_group_of_another_coordinator_are_refused(services: Any, version: int) -> None:
    for group_id in ELSEWHERE:
        answer = await ask(offset_commit.API, services, commit_request(services, group_id, 0, 1, 99), version=version)
        assert codes(answer) == {0: e.NOT_COORDINATOR, 1: e.NOT_COORDINATOR, 99: e.UNKNOWN_TOPIC_OR_PARTITION}
        assert {index: each.offset for index, each in services.groups.offsets(group_id)["t"].items()} == {0: 5}
        await ask(offset_commit.API, services, commit_request(services, group_id), version=version)
    answer = await ask(offset_commit.API, services, commit_request(services, HERE, 0, 1), version=version)
    assert codes(answer) == {0: e.NONE, 1: e.NONE}


async def test_an_empty_commit_creates_no_group_of_another_coordinator(services: Any) -> None:
    services.assignment.groups["new"] = services.assignment.other
    await ask(offset_commit.API, services, commit_request(services, "new"))
    assert services.groups.group("new") is None


@every_version(offset_fetch.API)
async def test_offset_fetch_for_a_group_of_another_coordinator_is_refused(services: Any, version: int) -> None:
    """An offset of -1 without an error would have the consumer begin anew."""
    for group_id in ELSEWHERE:
        topic_id = services.topics.get("t").topic_id
        for topics in ([OffsetFetchRequestTopic(name="t", topic_id=topic_id, partition_indexes=[0, 1])], None):
            if topics is None and version < 2:
                continue
            request = OffsetFetchRequest(
                group_id=group_id,
                topics=topics,
                groups=[OffsetFetchRequestGroup(group_id=each, topics=topics) for each in (group_id, HERE)],
            )
            answer = await ask(offset_fetch.API, services, request, version=version)
            if version < 2:
                assert codes(answer) == {0: e.NOT_COORDINATOR, 1: e.NOT_COORDINATOR}
                assert {each.committed_offset for each in answer.topics[0].partitions} == {-1}
            elif version < 8:
                assert (answer.error_code, answer.topics) == (e.NOT_COORDINATOR, [])
            else:
                elsewhere, here = answer.groups
                assert (elsewhere.group_id, elsewhere.error_code) == (group_id, e.NOT_COORDINATOR)
                assert elsewhere.topics == []
                assert (here.group_id, here.error_code) == (HERE, e.NONE)
                assert here.topics[0].partitions[0].committed_offset == 5


async def test_offset_delete_for_a_group_of_another_coordinator_is_refused(services: Any) -> None:
    for group_id, error in ((MOVED, e.NOT_COORDINATOR), (NOBODYS, e.NOT_COORDINATOR), (HERE, e.NONE)):
        partition = OffsetDeleteRequestPartition(partition_index=0)
        topics = [OffsetDeleteRequestTopic(name="t", partitions=[partition])]
        answer = await ask(offset_delete.API, services, OffsetDeleteRequest(group_id=group_id, topics=topics))
        assert answer.error_code == error
        assert ("t" in services.groups.offsets(group_id)) == (error != e.NONE)


@every_version(describe_groups.API)
async def test_only_groups_coordinated_here_are_described(services: Any, version: int) -> None:
    """One that is elsewhere is not "Dead"."""
    answer = await ask(
        describe_groups.API, services, DescribeGroupsRequest(groups=[HERE, MOVED, NOBODYS]), version=version
    )
    assert [(each.group_id, each.error_code, each.group_state) for each in answer.groups] == [
        (HERE, e.NONE, "Empty"),
        (MOVED, e.NOT_COORDINATOR, ""),
        (NOBODYS, e.NOT_COORDINATOR, ""),
    ]


@every_version(delete_groups.API)
async def test_only_groups_coordinated_here_are_deleted(services: Any, version: int) -> None:
    request = DeleteGroupsRequest(groups_names=[MOVED, HERE, NOBODYS])
    answer = await ask(delete_groups.API, services, request, version=version)
    assert {each.group_id: each.error_code for each in answer.results} == {
        MOVED: e.NOT_COORDINATOR,
        HERE: e.NONE,
        NOBODYS: e.NOT_COORDINATOR,
    }
    assert services.groups.group(HERE) is None
    assert services.groups.offsets(MOVED)["t"][0].offset == services.groups.offsets(NOBODYS)["t"][0].offset == 5


@every_version(list_groups.API)
async def test_a_broker_lists_only_the_groups_it_coordinates(services: Any, version: int) -> None:
    """The others are listed by their coordinators: who asks every broker would have them twice."""
    answer = await ask(list_groups.API, services, ListGroupsRequest(), version=version)
    assert [each.group_id for each in answer.groups] == [HERE]


async def test_find_coordinator_names_the_current_coordinator_of_each_group(services: Any) -> None:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[HERE, MOVED, NOBODYS])
    found = (await ask(find_coordinator.API, services, request)).coordinators
    assert [(each.error_code, each.node_id) for each in found] == [
        (e.NONE, NODE.node_id),
        (e.NONE, services.assignment.other.node_id),
        (e.COORDINATOR_NOT_AVAILABLE, -1),
    ]


# ---- commits of more offsets than are written at once ----------------------------------------------------------------


async def commit_in_pieces(
    services: Any, monkeypatch: pytest.MonkeyPatch, meanwhile: Any, *, version: int = BY_NAME
) -> dict[int, int]:
    """Commit in pieces of two; `meanwhile` is called once the first piece is on its way, and ends before the last."""
    monkeypatch.setattr(offset_commit, "COMMIT_PIECE_COUNT", 2)
    services.store.gate = services.offsets_log.gate = trio.Event()
    answers: list[Any] = []

    async def commit() -> None:
        request = commit_request(services, HERE, *range(PARTITION_COUNT))
        answers.append(await ask(offset_commit.API, services, request, version=version))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await wait_all_tasks_blocked()
        nursery.start_soon(meanwhile)
        await wait_all_tasks_blocked()
        services.store.gate.set()
    return codes(answers[0])


@pytest.mark.parametrize(("version", "gone"), [(BY_NAME, e.UNKNOWN_TOPIC_OR_PARTITION), (BY_ID, e.UNKNOWN_TOPIC_ID)])
async def test_offsets_of_a_topic_that_is_deleted_during_a_commit_in_pieces_came_back(
    services: Any, monkeypatch: pytest.MonkeyPatch, version: int, gone: int
) -> None:
    """Those of the later pieces were written after the deletion had forgotten the earlier ones."""

    async def delete() -> None:
        await services.topics.delete(["t"])

    found = await commit_in_pieces(services, monkeypatch, delete, version=version)
    assert (found[0], found[PARTITION_COUNT - 1]) == (e.NONE, gone)
    await wait_all_tasks_blocked()
    assert services.groups.offsets(HERE) == {}
    assert [place for place in services.offsets_log.offsets() if place[0] == HERE] == []


async def test_offsets_of_a_replaced_topic_are_not_kept_for_its_successor(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def replace() -> None:
        """By one change, as a broker sees it that was behind: "other" becomes "t"."""
        changes = Transaction(puts={"topics/t": entry.value}, deletes=["topics/other"])
        await services.topics.store.commit(changes)

    await services.topics.create([NewTopic(name="other", partition_count=PARTITION_COUNT)])
    (entry,) = await services.store.list("topics/other")
    before = services.topics.get("t")
    found = await commit_in_pieces(services, monkeypatch, replace)
    assert (found[0], found[PARTITION_COUNT - 1]) == (e.NONE, e.UNKNOWN_TOPIC_OR_PARTITION)
    await wait_all_tasks_blocked()
    assert services.topics.get("t").topic_id != before.topic_id
    assert services.groups.offsets(HERE) == {}


async def test_a_group_that_moves_away_during_a_commit_in_pieces_gets_no_more_offsets_here(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def move() -> None:
        services.assignment.groups[HERE] = services.assignment.other

    found = await commit_in_pieces(services, monkeypatch, move)
    assert found == {index: e.NONE if index < 2 else e.NOT_COORDINATOR for index in range(PARTITION_COUNT)}
    assert services.groups.offsets(HERE)["t"].keys() == {0, 1}
