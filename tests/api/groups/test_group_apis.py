"""The group APIs as clients of every version see them, on an autojump clock."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import attrs
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
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.membership.node import Endpoint, Node
from kafscale.cluster.registries.topics import NewTopic, TopicRegistry
from kafscale.config import Settings
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire import error_codes as e
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
    SyncGroupRequestAssignment,
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
from tests.api.handlers import LOCAL_LOG, ask, some_services
from tests.cluster.groups.classic_groups import subscription
from tests.cluster.groups.group_log import MemoryOffsetsLog

NODE = Node(node_id=7, cluster_id="c", broker_epoch=0, advertised={"PLAINTEXT": Endpoint("broker", 9999)})


@pytest.fixture
async def services(nursery: trio.Nursery) -> Any:
    store = MemoryMetadataStore()
    topics = TopicRegistry(store=store)
    await topics.create([NewTopic(name="t", partition_count=2), NewTopic(name="u", partition_count=1)])
    offsets_log = MemoryOffsetsLog()
    groups = GroupCoordinator(offsets_log, Settings(), partition_count=offsets_log.known_count, draining=trio.Event())
    offsets_log.load(groups)
    await nursery.start(groups.run)
    return some_services(node=NODE, topics=topics, groups=groups, internal=LOCAL_LOG)


def versions(api: Api) -> Sequence[int]:
    return range(api.min_version, api.max_version + 1)


def join_request(**more: Any) -> JoinGroupRequest:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t"))],
    )
    return attrs.evolve(request, **more)


async def join(services: Any, *, version: int = 9, **more: Any) -> Any:
    """As a client does: with the id that it is given, where that is asked for."""
    answer = await ask(join_group.API, services, join_request(**more), version=version)
    if answer.error_code == e.MEMBER_ID_REQUIRED:
        assert version >= 4
        answer = await ask(
            join_group.API, services, join_request(**{**more, "member_id": answer.member_id}), version=version
        )
    return answer


async def become_stable(services: Any, *, group_id: str = "g", assignment: bytes = b"part", **more: Any) -> str:
    joined = await join(services, group_id=group_id, **more)
    assert joined.error_code == e.NONE
    synced = await ask(
        sync_group.API,
        services,
        SyncGroupRequest(
            group_id=group_id,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)],
        ),
    )
    assert (synced.error_code, synced.assignment) == (e.NONE, assignment)
    return str(joined.member_id)


def commit_request(topics: dict[str, dict[int, int]], **more: Any) -> OffsetCommitRequest:
    request = OffsetCommitRequest(
        group_id="g",
        member_id="",
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_leader_epoch=4, committed_metadata="m"
                    )
                    for index, offset in partitions.items()
                ],
            )
            for name, partitions in topics.items()
        ],
    )
    return attrs.evolve(request, **more)


def codes(topics: Any) -> dict[str, dict[int, int]]:
    return {topic.name: {part.partition_index: part.error_code for part in topic.partitions} for topic in topics}


def offsets(topics: Any) -> dict[str, dict[int, int]]:
    return {topic.name: {part.partition_index: part.committed_offset for part in topic.partitions} for topic in topics}


# -- FindCoordinator -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(find_coordinator.API))
async def test_find_coordinator_names_the_single_broker_for_every_group(services: Any, version: int) -> None:
    request = FindCoordinatorRequest(key="g") if version < 4 else FindCoordinatorRequest(coordinator_keys=["g", "h"])
    answer = await ask(find_coordinator.API, services, request, version=version)
    found = [answer] if version < 4 else answer.coordinators

    assert [(one.error_code, one.node_id, one.host, one.port) for one in found] == [(e.NONE, 7, "broker", 9999)] * len(
        found
    )
    if version >= 4:
        assert [one.key for one in found] == ["g", "h"]


@pytest.mark.parametrize("version", versions(find_coordinator.API)[1:])
async def test_a_group_without_a_coordinator_gets_a_final_error(services: Any, version: int) -> None:
    expected = e.INVALID_REQUEST
    request = FindCoordinatorRequest(key_type=2)
    request.key, request.coordinator_keys = ("x", []) if version < 4 else ("", ["x"])
    answer = await ask(find_coordinator.API, services, request, version=version)
    found = answer if version < 4 else answer.coordinators[0]

    assert (found.error_code, found.node_id, found.host, found.port) == (expected, -1, "", -1)
    assert found.error_message
    assert expected not in e.RETRIABLE


# -- Membership ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(join_group.API))
async def test_a_member_joins_syncs_beats_and_leaves(autojump_clock: MockClock, services: Any, version: int) -> None:
    joined = await join(services, version=version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (e.NONE, 1, "range")
    assert joined.protocol_type == ("consumer" if version >= 7 else None)
    assert [(member.member_id, member.metadata) for member in joined.members] == [(joined.member_id, subscription("t"))]
    assert joined.member_id.startswith("test-")

    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"\0\xff")],
    )
    for sync_version in versions(sync_group.API):
        synced = await ask(sync_group.API, services, sync, version=sync_version)
        assert (synced.error_code, synced.assignment) == (e.NONE, b"\0\xff")
        assert synced.protocol_name == ("range" if sync_version >= 5 else None)

    beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
    for beat_version in versions(heartbeat.API):
        assert (await ask(heartbeat.API, services, beat, version=beat_version)).error_code == e.NONE

    left = await ask(
        leave_group.API, services, LeaveGroupRequest(group_id="g", member_id=joined.member_id), version=min(version, 2)
    )
    assert left.error_code == e.NONE
    assert (await ask(heartbeat.API, services, beat)).error_code == e.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(join_group.API))
async def test_a_refused_join_names_no_generation(services: Any, version: int) -> None:
    answer = await ask(join_group.API, services, join_request(session_timeout_ms=1), version=version)

    assert (answer.error_code, answer.generation_id, answer.leader, answer.members) == (
        e.INVALID_SESSION_TIMEOUT,
        -1,
        "",
        [],
    )
    assert answer.protocol_name == (None if version >= 7 else "")


async def test_two_members_share_a_generation_and_the_first_hears_of_the_second_by_heartbeat(
    autojump_clock: MockClock, services: Any, nursery: trio.Nursery
) -> None:
    first = await become_stable(services)
    joined: list[Any] = []

    async def second() -> None:
        joined.append(await join(services))

    nursery.start_soon(second)
    await trio.sleep(3)
    beat = await ask(heartbeat.API, services, HeartbeatRequest(group_id="g", generation_id=1, member_id=first))
    assert beat.error_code == e.REBALANCE_IN_PROGRESS
    again = await join(services, member_id=first)
    await wait_all_tasks_blocked()

    assert again.leader == first
    assert {member.member_id for member in again.members} == {first, joined[0].member_id}
    assert (joined[0].generation_id, joined[0].members) == (2, [])


async def test_version_0_rebalances_within_the_session_timeout(autojump_clock: MockClock, services: Any) -> None:
    await join(services, version=0)

    (member,) = services.groups.group("g").members
    assert member.rebalance_timeout_ms == 10_000


async def test_a_restarted_static_leader_gets_skip_assignment(autojump_clock: MockClock, services: Any) -> None:
    await become_stable(services, group_instance_id="i")

    restarted = await join(services, group_instance_id="i")
    assert (restarted.skip_assignment, restarted.leader) == (True, restarted.member_id)
    restarted = await join(services, group_instance_id="i", version=8)
    assert restarted.leader != restarted.member_id


async def test_sync_of_version_5_must_name_the_protocol(autojump_clock: MockClock, services: Any) -> None:
    member_id = await become_stable(services)
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id)

    assert (await ask(sync_group.API, services, request)).error_code == e.INCONSISTENT_GROUP_PROTOCOL
    assert (await ask(sync_group.API, services, request, version=4)).error_code == e.NONE


async def test_several_members_leave_at_once(autojump_clock: MockClock, services: Any) -> None:
    member_id = await become_stable(services, group_instance_id="i")
    request = LeaveGroupRequest(
        group_id="g",
        members=[
            MemberIdentity(member_id="nobody"),
            MemberIdentity(member_id="", group_instance_id="i", reason="removed"),
            MemberIdentity(member_id=member_id, group_instance_id="i"),
        ],
    )
    answer = await ask(leave_group.API, services, request)

    assert answer.error_code == e.NONE
    assert [(member.member_id, member.group_instance_id, member.error_code) for member in answer.members] == [
        ("nobody", None, e.UNKNOWN_MEMBER_ID),
        ("", "i", e.NONE),
        (member_id, "i", e.UNKNOWN_MEMBER_ID),
    ]


@pytest.mark.parametrize("version", versions(leave_group.API))
async def test_leaving_a_group_that_does_not_exist(services: Any, version: int) -> None:
    request = LeaveGroupRequest(group_id="none", member_id="m" if version < 3 else "")
    request.members = [MemberIdentity(member_id="m")] if version >= 3 else []
    answer = await ask(leave_group.API, services, request, version=version)

    assert answer.error_code == (e.UNKNOWN_MEMBER_ID if version < 3 else e.NONE)
    assert [member.error_code for member in answer.members] == ([] if version < 3 else [e.UNKNOWN_MEMBER_ID])
    request.group_id = ""
    assert (await ask(leave_group.API, services, request, version=version)).error_code == e.INVALID_GROUP_ID


# -- Offsets ---------------------------------------------------------------------------------------------------------


NO_TOPIC_ID = bytes(range(16))
BY_NAME = 9
"""The last version of OffsetCommit that names topics."""


def topic_id(services: Any, name: str) -> bytes:
    """The id of a topic, or one that no topic has."""
    topic = services.topics.get(name)
    return NO_TOPIC_ID if topic is None else topic.topic_id


def by_id(services: Any, topics: Sequence[Any]) -> Any:
    """The topics of a request or response with their ids added, or with the names of their ids."""
    for topic in topics:
        if topic.name:
            topic.topic_id = topic_id(services, topic.name)
        elif (found := services.topics.by_id(topic.topic_id)) is not None:
            topic.name = found.name
    return topics


@pytest.mark.parametrize("version", versions(offset_commit.API))
async def test_a_simple_consumer_commits_and_every_version_fetches(
    autojump_clock: MockClock, services: Any, version: int
) -> None:
    commit = commit_request({"t": {0: 10, 1: 11}})
    by_id(services, commit.topics)
    answer = await ask(offset_commit.API, services, commit, version=version)
    assert [topic.name for topic in answer.topics] == ["" if version >= 10 else "t"]
    assert codes(by_id(services, answer.topics)) == {"t": {0: e.NONE, 1: e.NONE}}

    for fetch_version in versions(offset_fetch.API):
        wanted = [OffsetFetchRequestTopic(name="t", partition_indexes=[1, 5])]
        request = OffsetFetchRequest(group_id="g", topics=wanted, require_stable=fetch_version >= 7)
        if fetch_version >= 8:
            group = OffsetFetchRequestGroup(group_id="g", topics=by_id(services, wanted), member_epoch=5)
            request = OffsetFetchRequest(groups=[group])
        fetched = await ask(offset_fetch.API, services, request, version=fetch_version)
        topics = by_id(services, fetched.topics if fetch_version < 8 else fetched.groups[0].topics)
        assert fetched.error_code == e.NONE
        assert offsets(topics) == {"t": {1: 11, 5: -1}}
        known, unknown = topics[0].partitions
        assert (known.metadata, unknown.metadata, unknown.error_code) == ("m", "", e.NONE)
        assert known.committed_leader_epoch == (4 if version >= 6 and fetch_version >= 5 else -1)


@pytest.mark.parametrize("version", range(2, 11))
async def test_null_topics_fetch_all_offsets_of_a_group(autojump_clock: MockClock, services: Any, version: int) -> None:
    await ask(offset_commit.API, services, commit_request({"t": {0: 1}, "u": {0: 2}}), version=BY_NAME)
    request = OffsetFetchRequest(group_id="g", topics=None)
    if version >= 8:
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "none")]
        request = OffsetFetchRequest(groups=groups)
    answer = await ask(offset_fetch.API, services, request, version=version)

    topics = by_id(services, answer.topics if version < 8 else answer.groups[0].topics)
    assert offsets(topics) == {"t": {0: 1}, "u": {0: 2}}
    if version >= 8:
        assert (answer.groups[1].group_id, answer.groups[1].topics, answer.groups[1].error_code) == ("none", [], e.NONE)


@pytest.mark.parametrize("version", [9, 10])
async def test_partitions_are_refused_one_by_one(autojump_clock: MockClock, services: Any, version: int) -> None:
    request = commit_request({"t": {0: 1, 1: 1, 2: 1, -1: 1}, "missing": {0: 1}})
    request.topics[0].partitions[1].committed_metadata = "x" * 4097
    by_id(services, request.topics)
    answer = await ask(offset_commit.API, services, request, version=version)

    assert codes(by_id(services, answer.topics)) == {
        "t": {
            0: e.NONE,
            1: e.OFFSET_METADATA_TOO_LARGE,
            2: e.UNKNOWN_TOPIC_OR_PARTITION,
            -1: e.UNKNOWN_TOPIC_OR_PARTITION,
        },
        "missing" if version < 10 else "": {0: e.UNKNOWN_TOPIC_OR_PARTITION if version < 10 else e.UNKNOWN_TOPIC_ID},
    }
    assert [line.partition for line in services.groups.committed_offsets()] == [0]


async def test_offset_fetch_answers_unknown_topic_id_for_an_id_without_a_topic(
    autojump_clock: MockClock, services: Any
) -> None:
    await ask(offset_commit.API, services, commit_request({"t": {0: 7}}), version=BY_NAME)
    topics = [
        OffsetFetchRequestTopic(topic_id=topic_id(services, name), partition_indexes=indexes)
        for name, indexes in (("missing", [0, 3]), ("t", [0]), ("missing", [3, 1]))
    ]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    (group,) = (await ask(offset_fetch.API, services, request, version=10)).groups

    assert [(topic.topic_id, [each.partition_index for each in topic.partitions]) for topic in group.topics] == [
        (NO_TOPIC_ID, [0, 3, 1]),
        (topic_id(services, "t"), [0]),
    ]
    unknown, known = group.topics
    assert {(each.error_code, each.committed_offset) for each in unknown.partitions} == {(e.UNKNOWN_TOPIC_ID, -1)}
    assert [(each.error_code, each.committed_offset) for each in known.partitions] == [(e.NONE, 7)]


async def test_offset_fetch_by_id_leaves_out_offsets_of_a_missing_topic(
    autojump_clock: MockClock, services: Any
) -> None:
    await ask(offset_commit.API, services, commit_request({"t": {0: 7}, "u": {0: 8}}), version=BY_NAME)
    known = services.topics.get
    services.topics = SimpleNamespace(get=lambda name: None if name == "t" else known(name))
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])

    for version, expected in ((9, ["t", "u"]), (10, [known("u").topic_id])):
        (group,) = (await ask(offset_fetch.API, services, request, version=version)).groups
        assert [topic.name if version < 10 else topic.topic_id for topic in group.topics] == expected


async def test_an_id_does_not_stand_for_a_later_topic_of_the_name(services: Any) -> None:
    """Others run between the look at a request's ids and that at its partitions, and may make the topic anew."""
    for id, expected in ((topic_id(services, "t"), e.NONE), (NO_TOPIC_ID, e.UNKNOWN_TOPIC_ID)):
        checked = offset_commit.CheckedOffsets(services, by_id=True)
        checked._topic_ids["t"] = id
        assert checked._check(TopicPartition("t", 0), None) == expected


async def test_offset_fetch_answers_unknown_topic_id_when_the_topic_is_recreated_meanwhile(
    autojump_clock: MockClock, services: Any
) -> None:
    former = services.topics.get("t")
    await ask(offset_commit.API, services, commit_request({"t": {0: 7}}), version=BY_NAME)
    await services.topics.delete(["t"])
    await services.topics.create([NewTopic(name="t")])
    services.topics = SimpleNamespace(get=services.topics.get, by_id=lambda _topic_id: former)
    wanted = [OffsetFetchRequestTopic(topic_id=former.topic_id, partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])
    (group,) = (await ask(offset_fetch.API, services, request, version=10)).groups

    assert codes(group.topics) == {"": {0: e.UNKNOWN_TOPIC_ID}}


@pytest.mark.parametrize("version", [9, 10])
async def test_offset_fetch_ignores_offsets_of_a_deleted_topic_with_the_same_name(
    autojump_clock: MockClock, services: Any, version: int
) -> None:
    """It may be deleted and made anew while the groups' coordinator moves, or before it has forgotten the offsets."""
    await ask(offset_commit.API, services, commit_request({"t": {0: 7, 1: 8}}), version=BY_NAME)
    await services.topics.delete(["t"])
    await services.topics.create([NewTopic(name="t", partition_count=2)])
    await ask(offset_commit.API, services, commit_request({"t": {1: 3}}), version=BY_NAME)
    wanted = by_id(services, [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])
    (group,) = (await ask(offset_fetch.API, services, request, version=version)).groups

    assert offsets(by_id(services, group.topics)) == {"t": {0: -1, 1: 3}}


@pytest.mark.parametrize(
    ("version", "expected"), [(8, e.ILLEGAL_GENERATION), (9, e.GROUP_ID_NOT_FOUND), (10, e.GROUP_ID_NOT_FOUND)]
)
async def test_a_member_of_a_group_that_does_not_exist_cannot_commit(
    autojump_clock: MockClock, services: Any, version: int, expected: int
) -> None:
    request = commit_request({"t": {0: 1}}, member_id="m", generation_id_or_member_epoch=3)
    by_id(services, request.topics)
    answer = await ask(offset_commit.API, services, request, version=version)

    assert codes(by_id(services, answer.topics)) == {"t": {0: expected}}
    assert services.groups.group("g") is None


async def test_a_commit_without_metadata_is_fetched_with_empty_metadata(
    autojump_clock: MockClock, services: Any
) -> None:
    request = commit_request({"t": {0: 1}})
    request.topics[0].partitions[0].committed_metadata = None
    await ask(offset_commit.API, services, request, version=BY_NAME)

    assert services.groups.offsets("g")["t"][0].metadata == ""


async def test_commits_are_fenced_by_member_and_generation(autojump_clock: MockClock, services: Any) -> None:
    member_id = await become_stable(services)
    for identity, expected in (
        ({"member_id": member_id, "generation_id_or_member_epoch": 1}, e.NONE),
        ({"member_id": member_id, "generation_id_or_member_epoch": 0}, e.ILLEGAL_GENERATION),
        ({"member_id": "other", "generation_id_or_member_epoch": 1}, e.UNKNOWN_MEMBER_ID),
        ({}, e.UNKNOWN_MEMBER_ID),
    ):
        answer = await ask(offset_commit.API, services, commit_request({"t": {0: 1}}, **identity), version=BY_NAME)
        assert codes(answer.topics) == {"t": {0: expected}}


async def test_offset_commit_up_to_version_4_sets_the_retention_time(autojump_clock: MockClock, services: Any) -> None:
    for version, expected in ((4, 5000), (5, None)):
        request = commit_request({"t": {0: 1}}, retention_time_ms=5000 if version == 4 else -1)
        await ask(offset_commit.API, services, request, version=version)
        stored = services.groups.offsets("g")["t"][0]
        kept_ms = None if stored.expire_timestamp_ms < 0 else stored.expire_timestamp_ms - stored.commit_timestamp_ms
        assert kept_ms == expected


async def test_a_retention_that_ends_after_all_time_is_taken_for_ever(autojump_clock: MockClock, services: Any) -> None:
    """It could not be written into the offset's record, so the commit raised struct.error."""
    request = commit_request({"t": {0: 7}}, retention_time_ms=2**63 - 1)
    answer = await ask(offset_commit.API, services, request, version=4)

    assert codes(answer.topics) == {"t": {0: e.NONE}}
    assert services.groups.offsets("g")["t"][0].expire_timestamp_ms >= 2**62


async def test_offsets_of_topics_that_the_group_reads_are_not_deleted(autojump_clock: MockClock, services: Any) -> None:
    member_id = await become_stable(services)  # reads "t"
    identity = {"member_id": member_id, "generation_id_or_member_epoch": 1}
    await ask(offset_commit.API, services, commit_request({"t": {0: 1}, "u": {0: 1}}, **identity), version=BY_NAME)
    request = OffsetDeleteRequest(
        group_id="g",
        topics=[
            OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
            for name in ("t", "u", "missing")
        ],
    )
    answer = await ask(offset_delete.API, services, request)

    assert answer.error_code == e.NONE
    assert codes(answer.topics) == {
        "t": {0: e.GROUP_SUBSCRIBED_TO_TOPIC},
        "u": {0: e.NONE},
        "missing": {0: e.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert list(services.groups.offsets("g")) == ["t"]
    request.group_id = "none"
    assert (await ask(offset_delete.API, services, request)).error_code == e.GROUP_ID_NOT_FOUND


# -- Administration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(describe_groups.API))
async def test_groups_are_described(autojump_clock: MockClock, services: Any, version: int) -> None:
    member_id = await become_stable(services, group_instance_id="i")
    request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=version >= 3)
    group, missing = (await ask(describe_groups.API, services, request, version=version)).groups

    assert (group.error_code, group.group_id, group.group_state) == (e.NONE, "g", "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    assert (group.authorized_operations > 0) is (version >= 3)
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "test", "/192.0.2.1")
    assert (member.member_metadata, member.member_assignment) == (subscription("t"), b"part")
    assert member.group_instance_id == ("i" if version >= 4 else None)
    assert (missing.group_id, missing.group_state, missing.members) == ("none", "Dead", [])
    if version >= 6:
        assert (missing.error_code, missing.error_message) == (e.GROUP_ID_NOT_FOUND, "Group none not found.")
        assert (group.error_message, missing.authorized_operations) == (None, -(2**31))
    else:
        assert missing.error_code == e.NONE
        assert missing.authorized_operations == group.authorized_operations


async def test_while_a_group_rebalances_its_protocol_is_not_shown(autojump_clock: MockClock, services: Any) -> None:
    await join(services)
    (group,) = (await ask(describe_groups.API, services, DescribeGroupsRequest(groups=["g"]))).groups

    assert (group.group_state, group.protocol_type, group.protocol_data) == ("CompletingRebalance", "consumer", "")
    assert [member.member_metadata for member in group.members] == [b""]


@pytest.mark.parametrize("version", versions(list_groups.API))
async def test_groups_are_listed(autojump_clock: MockClock, services: Any, version: int) -> None:
    await become_stable(services)
    await ask(offset_commit.API, services, commit_request({"t": {0: 1}}, group_id="simple"), version=BY_NAME)
    listed = (await ask(list_groups.API, services, ListGroupsRequest(), version=version)).groups

    assert [(group.group_id, group.protocol_type) for group in listed] == [("g", "consumer"), ("simple", "")]
    assert [group.group_state for group in listed] == (["Stable", "Empty"] if version >= 4 else ["", ""])
    assert {group.group_type for group in listed} == {"classic" if version >= 5 else ""}


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (["stable"], [], ["g"]),
        (["Empty", "Dead"], [], ["simple"]),
        (["PreparingRebalance"], [], []),
        ([], ["Classic"], ["g", "simple"]),
        ([], ["consumer"], []),
        (["EMPTY"], ["consumer", "classic"], ["simple"]),
    ],
)
async def test_groups_are_listed_by_state_and_type(
    autojump_clock: MockClock, services: Any, states: list[str], types: list[str], expected: list[str]
) -> None:
    await become_stable(services)
    await ask(offset_commit.API, services, commit_request({"t": {0: 1}}, group_id="simple"), version=BY_NAME)
    request = ListGroupsRequest(states_filter=states, types_filter=types)

    assert [group.group_id for group in (await ask(list_groups.API, services, request)).groups] == expected


@pytest.mark.parametrize("version", versions(delete_groups.API))
async def test_groups_are_deleted(autojump_clock: MockClock, services: Any, version: int) -> None:
    await become_stable(services)
    for group_id in ("a", "b"):
        await ask(offset_commit.API, services, commit_request({"t": {0: 1}}, group_id=group_id), version=BY_NAME)
    request = DeleteGroupsRequest(groups_names=["a", "g", "none", "b", "a"])
    answer = await ask(delete_groups.API, services, request, version=version)

    assert [(result.group_id, result.error_code) for result in answer.results] == [
        ("a", e.NONE),
        ("g", e.NON_EMPTY_GROUP),
        ("none", e.GROUP_ID_NOT_FOUND),
        ("b", e.NONE),
    ]
    assert [group.group_id for group in services.groups.groups()] == ["g"]
