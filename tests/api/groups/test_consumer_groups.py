"""Consumer groups of Kafka 4 as their members see them, through the handlers, on an autojump clock."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.api.groups import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    list_groups,
    offset_delete,
)
from kafscale.cluster.groups.common.context import REGEX_REFRESH_MIN_INTERVAL_MS
from kafscale.cluster.registries.topics import MorePartitions
from kafscale.config import CoordinatorSettings, Limits, Settings
from kafscale.errors import KafkaError
from kafscale.security.acls import AclBinding, AclOperation, PatternType, Permission, ResourceType
from kafscale.security.authorizer import AclAuthorizer
from kafscale.security.principals import Principal
from kafscale.wire import error_codes as e
from kafscale.wire.messages.consumer_groups import ConsumerGroupDescribeRequest
from kafscale.wire.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafscale.wire.messages.offsets import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from tests.api.groups.group_services import ConsumerMember, GroupWorld, settle
from tests.api.handlers import some_peer


@pytest.fixture
async def world(autojump_clock: MockClock, nursery: trio.Nursery) -> GroupWorld:
    return await GroupWorld.begun(nursery, t=4, u=2)


def member(world: GroupWorld, member_id: str = "a", **more: Any) -> ConsumerMember:
    return ConsumerMember(world=world, member_id=member_id, **more)


async def stable(world: GroupWorld, *member_ids: str) -> list[ConsumerMember]:
    members = [member(world, each) for each in member_ids]
    await settle(*members)
    return members


# -- Members ---------------------------------------------------------------------------------------------------------


async def test_partitions_of_a_leaving_member_go_to_the_remaining_member(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    a = member(world)
    answer = await a.beat()
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (e.NONE, "a", 1)
    assert answer.heartbeat_interval_ms == 5_000
    assert a.assigned == {"t": {0, 1, 2, 3}}
    assert (await a.beat(topic_partitions=None)).assignment is None, "nothing has changed"

    b = member(world, "b")
    await settle(a, b)
    assert len(a.assigned["t"]) == len(b.assigned["t"]) == 2
    assert a.assigned["t"] | b.assigned["t"] == {0, 1, 2, 3}

    left = await b.leave()
    assert (left.error_code, left.member_epoch) == (e.NONE, -1)
    await settle(a)
    assert a.assigned == {"t": {0, 1, 2, 3}}


async def test_a_member_that_falls_silent_goes_when_its_session_ends(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    a, b = await stable(world, "a", "b")
    for _ in range(5):
        await trio.sleep(9.1)
        await a.beat()
    await settle(a)
    assert a.assigned == {"t": {0, 1, 2, 3}}, "45 s without a word"
    assert (await b.beat()).error_code == e.UNKNOWN_MEMBER_ID
    await trio.sleep(44)
    assert (await a.beat()).error_code == e.NONE


async def test_a_member_that_does_not_give_up_its_partitions_in_time_is_removed(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    a, b = member(world), member(world, "b")
    await a.beat()
    everything = a.request().topic_partitions
    await b.beat()
    codes = []
    for _ in range(7):
        codes.append((await a.beat(topic_partitions=everything)).error_code)
        await trio.sleep(10)
        assert (await b.beat()).error_code == e.NONE
    assert codes == [e.NONE] * 6 + [e.UNKNOWN_MEMBER_ID]
    await settle(b)
    assert b.assigned == {"t": {0, 1, 2, 3}}


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"group_id": " "}, e.INVALID_REQUEST, "GroupId can't be empty."),
        ({"member_id": ""}, e.INVALID_REQUEST, "MemberId can't be empty."),
        ({"rebalance_timeout_ms": -1}, e.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request."),
        ({"server_assignor": "x"}, e.UNSUPPORTED_ASSIGNOR, None),
        ({"subscribed_topic_regex": "("}, e.INVALID_REGULAR_EXPRESSION, None),
        ({"member_epoch": 3}, e.GROUP_ID_NOT_FOUND, "Consumer group g not found."),
        ({"member_epoch": -1}, e.GROUP_ID_NOT_FOUND, "Consumer group g not found."),
    ],
)
async def test_a_refused_heartbeat_creates_no_group(
    autojump_clock: MockClock, world: GroupWorld, changed: dict[str, Any], code: int, message: str | None
) -> None:
    used = world.groups.state_bytes.used_bytes
    answer = await member(world).beat(**changed)
    assert answer.error_code == code
    assert answer.error_message == message or message is None
    assert (list(world.groups.groups()), world.log.batch_count) == ([], 0)
    assert world.groups.state_bytes.used_bytes == used


async def test_before_version_1_the_broker_makes_the_id_of_a_member(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    old = member(world, "")
    answer = await old.beat(version=0)
    assert (answer.error_code, len(answer.member_id)) == (e.NONE, 36)
    old.member_id = answer.member_id
    assert (await old.beat(version=0)).error_code == e.NONE


async def test_a_static_member_gets_its_assignment_back_after_a_restart(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    a, b = member(world, instance_id="i"), member(world, "b")
    await settle(a, b)
    had = a.assigned
    assert (await a.leave(-2)).member_epoch == -2
    await world.restart()
    again = member(world, "another", instance_id="i")
    await again.beat()
    assert again.assigned == had


async def test_draining_and_an_unknown_coordinator_send_members_to_look_again(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    (a,) = await stable(world, "a")
    partition = world.groups.led.partition_of("g")
    world.groups.led.resign(partition)
    assert (await a.beat()).error_code == e.NOT_COORDINATOR
    assert (await world.describe()).error_code == e.NOT_COORDINATOR
    finish_loading = world.log.begin_loading(world.groups, partition, leader_epoch=2)
    assert (await a.beat()).error_code == e.COORDINATOR_LOAD_IN_PROGRESS
    assert finish_loading()
    world.draining.set()
    assert (await a.beat()).error_code == e.COORDINATOR_NOT_AVAILABLE


# -- Topics ----------------------------------------------------------------------------------------------------------


async def test_groups_learn_of_topics_that_are_made_grow_and_go(autojump_clock: MockClock, world: GroupWorld) -> None:
    a = member(world, topics=("t", "new"))
    await a.beat()
    assert a.assigned == {"t": {0, 1, 2, 3}}
    await world.create(new=1)
    await settle(a)
    assert a.assigned == {"t": {0, 1, 2, 3}, "new": {0}}
    await world.topics.create_partitions([MorePartitions(name="new", partition_count=3)])
    await settle(a)
    assert a.assigned["new"] == {0, 1, 2}
    await world.topics.delete(["t"])
    await settle(a)
    assert a.assigned == {"new": {0, 1, 2}}
    former = a.owned
    await world.topics.delete(["new"])
    await world.create(new=3)
    await settle(a)
    assert a.assigned == {"new": {0, 1, 2}}
    assert a.owned != former, "it is another topic"


async def test_topics_are_looked_for_by_regular_expressions(autojump_clock: MockClock, world: GroupWorld) -> None:
    a = member(world, topics=None, regex="t|n.*")
    await a.beat()
    await wait_all_tasks_blocked()
    await settle(a)
    assert a.assigned == {"t": {0, 1, 2, 3}}
    await world.create(none=1, other=1)
    await trio.sleep(11)  # as seldom as topics are looked for
    await a.beat()
    await wait_all_tasks_blocked()
    await settle(a)
    assert a.assigned == {"t": {0, 1, 2, 3}, "none": {0}}
    await world.restart()
    await settle(a)
    assert a.assigned == {"t": {0, 1, 2, 3}, "none": {0}}


async def test_a_regex_match_for_a_group_that_moved_away_is_discarded(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    await member(world, topics=None, regex="t.*").beat()
    written = world.log.batch_count
    world.groups.led.resign(world.groups.led.partition_of("g"))  # before the search has begun, or while it goes on
    await wait_all_tasks_blocked()
    assert (world.log.batch_count, world.groups.state_bytes.used_bytes) == (written, 0)


# -- Durability ------------------------------------------------------------------------------------------------------


async def test_a_member_is_answered_when_all_that_its_answer_rests_on_is_durable(
    autojump_clock: MockClock, world: GroupWorld, nursery: trio.Nursery
) -> None:
    a, b = await stable(world, "a", "b")
    world.log.gate = trio.Event()
    answered: list[str] = []

    async def ask(name: str, client: ConsumerMember) -> None:
        await client.beat()
        answered.append(name)

    nursery.start_soon(ask, "c joins", member(world, "c"))
    await wait_all_tasks_blocked()
    nursery.start_soon(ask, "b, for whom nothing is written", attrs.evolve(b))
    await wait_all_tasks_blocked()
    assert (answered, a.epoch) == ([], b.epoch)
    world.log.gate.set()
    await wait_all_tasks_blocked()
    assert answered == ["c joins", "b, for whom nothing is written"]


async def test_a_member_that_joins_on_a_full_disk_retries_and_is_admitted(
    autojump_clock: MockClock, world: GroupWorld, nursery: trio.Nursery
) -> None:
    world.log.full = True
    a = member(world)
    assert (await a.beat()).error_code == e.COORDINATOR_NOT_AVAILABLE
    world.log.make_room()
    await wait_all_tasks_blocked()
    answer = await a.beat()
    assert (answer.error_code, answer.member_epoch) == (e.NONE, 1)
    await world.restart()
    assert (await a.beat()).error_code == e.NONE


async def test_a_change_that_the_log_refuses_fails(autojump_clock: MockClock, world: GroupWorld) -> None:
    world.log.failure = KafkaError(e.NOT_COORDINATOR)
    assert (await member(world).beat()).error_code == e.COORDINATOR_NOT_AVAILABLE
    assert world.log.batch_count == 0


async def test_a_heartbeat_with_nothing_new_writes_nothing(autojump_clock: MockClock, world: GroupWorld) -> None:
    a, b = await stable(world, "a", "b")
    before = world.log.batch_count
    for _ in range(20):
        await trio.sleep(5)
        await a.beat()
        await b.beat(topic_partitions=None)
    assert world.log.batch_count == before


# -- Offsets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [9, 10])
async def test_a_member_commits_and_fetches_at_its_epoch_only(
    autojump_clock: MockClock, world: GroupWorld, version: int
) -> None:
    a, b = await stable(world, "a", "b")
    assert await a.commit(5, version=version) == e.NONE
    assert await a.fetch(version=version) == (e.NONE, 5)
    stale = attrs.evolve(a, member_id="a")
    stale.epoch = a.epoch - 1
    assert await stale.commit(6, version=version) == e.STALE_MEMBER_EPOCH
    assert await stale.fetch(version=version) == (e.STALE_MEMBER_EPOCH, -1)
    stranger = member(world, "stranger")
    stranger.epoch = 1
    assert await stranger.commit(6, version=version) == e.UNKNOWN_MEMBER_ID
    assert await stranger.fetch(version=version) == (e.UNKNOWN_MEMBER_ID, -1)
    admin = {"member_id": None, "member_epoch": -1}
    assert await b.fetch(version=version, **admin) == (e.NONE, 5)
    assert await b.commit(7, version=version, member_id="", generation_id_or_member_epoch=-1) == e.UNKNOWN_MEMBER_ID


async def test_versions_that_know_no_epochs_are_not_for_members(autojump_clock: MockClock, world: GroupWorld) -> None:
    (a,) = await stable(world, "a")
    assert await a.commit(5, version=8) == e.UNSUPPORTED_VERSION
    assert await a.fetch(version=8) == (e.NONE, -1)


async def test_an_empty_group_accepts_commits_without_a_member_id(autojump_clock: MockClock, world: GroupWorld) -> None:
    (a,) = await stable(world, "a")
    assert await a.commit(5) == e.NONE
    await a.leave()
    assert await a.commit(9, version=8, member_id="", generation_id_or_member_epoch=-1) == e.NONE
    await world.restart()
    assert await a.fetch(member_id=None, member_epoch=-1) == (e.NONE, 9)


def deletion(topic: str, index: int = 0) -> OffsetDeleteRequest:
    partition = OffsetDeleteRequestPartition(partition_index=index)
    return OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name=topic, partitions=[partition])])


async def test_offsets_of_topics_that_members_read_are_not_deleted(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    (a,) = await stable(world, "a")
    assert await a.commit(5) == e.NONE
    answer = await world.ask(offset_delete.API, deletion("t"))
    assert answer.topics[0].partitions[0].error_code == e.GROUP_SUBSCRIBED_TO_TOPIC
    await a.beat(subscribed_topic_names=["u"])
    answer = await world.ask(offset_delete.API, deletion("t"))
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (e.NONE, e.NONE)
    assert world.log.offsets() == {}


async def test_groups_are_deleted_with_all_their_records_once_they_are_empty(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    (a,) = await stable(world, "a")
    assert await a.commit(5) == e.NONE
    request = DeleteGroupsRequest(groups_names=["g"])
    (deleted,) = (await world.ask(delete_groups.API, request)).results
    assert deleted.error_code == e.NON_EMPTY_GROUP
    await a.leave()
    (deleted,) = (await world.ask(delete_groups.API, request)).results
    assert deleted.error_code == e.NONE
    assert (await world.describe()).error_code == e.GROUP_ID_NOT_FOUND
    assert (list(world.log.live()), world.groups.state_bytes.used_bytes) == ([], 0)
    assert (await a.beat()).member_epoch == 1, "a new group"


async def test_a_group_that_is_being_deleted_refuses_members(
    autojump_clock: MockClock, world: GroupWorld, nursery: trio.Nursery
) -> None:
    (a,) = await stable(world, "a")
    await a.leave()
    world.log.gate = trio.Event()
    deletion = world.groups.deletion.delete_group("g")
    await wait_all_tasks_blocked()
    assert (await a.beat()).error_code == e.COORDINATOR_NOT_AVAILABLE
    assert not world.groups.exists("g")
    world.log.gate.set()
    assert await deletion.wait() == e.NONE


async def test_offsets_expire_by_their_own_age_and_then_the_group_goes(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    world = await GroupWorld.begun(
        nursery, settings=Settings(coordinator=CoordinatorSettings(offsets_retention_ms=100_000)), t=1
    )
    (a,) = await stable(world, "a")
    assert await a.commit(5) == e.NONE
    for _ in range(20):
        await trio.sleep(40)
        await a.beat()
    assert await a.fetch() == (e.NONE, 5), "a member reads the topic"
    await a.leave()
    await trio.sleep(700)
    assert not world.groups.exists("g"), "the commit is as old as that"
    assert list(world.log.live()) == []


# -- Administration --------------------------------------------------------------------------------------------------


async def test_a_group_is_described_with_current_and_target_assignments(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    a = member(world, instance_id="i")
    await a.beat(rack_id="r")
    await member(world, "b").beat()
    group = await world.describe()
    assert (group.error_code, group.group_state, group.assignor_name) == (e.NONE, "Reconciling", "uniform")
    assert (group.group_epoch, group.assignment_epoch) == (2, 2)
    first, second = group.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("a", "i", "r", 1)
    assert (first.client_id, first.client_host, first.member_type) == ("test", "/192.0.2.1", 1)
    assert (first.subscribed_topic_names, first.subscribed_topic_regex) == (["t"], "")
    has = {each.topic_name: each.partitions for each in first.assignment.topic_partitions}
    target = {each.topic_name: each.partitions for each in first.target_assignment.topic_partitions}
    assert has == {"t": [0, 1, 2, 3]}
    assert len(target["t"]) == 2
    assert second.assignment.topic_partitions == []
    assert first.assignment.topic_partitions[0].topic_id == world.topic_id("t")


async def test_each_describe_api_finds_only_groups_of_its_protocol(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    await stable(world, "a")
    other = member(world, group_id="simple")
    assert await other.commit(1, member_id="", generation_id_or_member_epoch=-1) == e.NONE

    request = ConsumerGroupDescribeRequest(group_ids=["simple", "missing", ""])
    described = (await world.ask(consumer_group_describe.API, request)).groups
    assert [(each.error_code, each.error_message) for each in described] == [
        (e.GROUP_ID_NOT_FOUND, "Group simple is not a consumer group."),
        (e.GROUP_ID_NOT_FOUND, "Group missing not found."),
        (e.INVALID_GROUP_ID, None),
    ]
    (group,) = (await world.ask(describe_groups.API, DescribeGroupsRequest(groups=["g"]))).groups
    found = (group.error_code, group.group_state, group.error_message)
    assert found == (e.GROUP_ID_NOT_FOUND, "Dead", "Group g is not a classic group.")
    (group,) = (await world.ask(describe_groups.API, DescribeGroupsRequest(groups=["g"]), version=5)).groups
    assert (group.error_code, group.group_state) == (e.NONE, "Dead")


@pytest.mark.parametrize(
    ("types", "states", "expected"),
    [
        ([], [], {("g", "consumer", "Stable", "consumer"), ("simple", "classic", "Empty", "")}),
        (["Consumer"], [], {("g", "consumer", "Stable", "consumer")}),
        (["classic"], [], {("simple", "classic", "Empty", "")}),
        (["share"], [], set()),
        ([], ["stable"], {("g", "consumer", "Stable", "consumer")}),
        (["classic"], ["stable"], set()),
    ],
)
async def test_groups_are_listed_by_type_and_state(
    autojump_clock: MockClock, world: GroupWorld, types: list[str], states: list[str], expected: set[tuple[str, ...]]
) -> None:
    await stable(world, "a")
    other = member(world, group_id="simple")
    assert await other.commit(1, member_id="", generation_id_or_member_epoch=-1) == e.NONE
    answer = await world.ask(list_groups.API, ListGroupsRequest(types_filter=types, states_filter=states))
    found = {(each.group_id, each.group_type, each.group_state, each.protocol_type) for each in answer.groups}
    assert found == expected


# -- Bounds ----------------------------------------------------------------------------------------------------------


async def test_the_state_of_all_groups_is_bounded(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    world = await GroupWorld.begun(nursery, t=1)
    world.groups.state_bytes.max_bytes = 20_000
    codes = [(await member(world, "a", group_id=f"g{number}").beat()).error_code for number in range(12)]
    assert codes[0] == e.NONE
    assert set(codes[8:]) == {e.COORDINATOR_NOT_AVAILABLE}
    many = [f"topic-with-a-long-name-{number}" for number in range(200)]
    first = member(world, "a", group_id="g0")
    first.epoch = 1
    assert (await first.beat(subscribed_topic_names=many)).error_code == e.COORDINATOR_NOT_AVAILABLE
    assert world.groups.state_bytes.used_bytes <= 20_000


async def test_the_numbers_of_groups_and_of_their_members_are_bounded(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    settings = Settings(limits=Limits(max_groups_count=1, group_consumer_max_size_count=2))
    world = await GroupWorld.begun(nursery, settings=settings, t=4)
    codes = [(await member(world, each).beat()).error_code for each in ("a", "b", "c")]
    assert codes == [e.NONE, e.NONE, e.GROUP_MAX_SIZE_REACHED]
    assert (await member(world, group_id="h").beat()).error_code == e.POLICY_VIOLATION


async def test_a_resigned_group_leaves_nothing_behind(autojump_clock: MockClock, world: GroupWorld) -> None:
    await stable(world, "a", "b")
    for partition in range(world.log.partition_count):
        world.groups.led.resign(partition)
    written = world.log.batch_count
    assert world.groups.state_bytes.used_bytes == 0
    await trio.sleep(1000)
    assert (world.log.batch_count, world.groups.state_bytes.used_bytes) == (written, 0), "no timer goes off"


async def test_offsets_of_a_deleted_topic_go(autojump_clock: MockClock, world: GroupWorld) -> None:
    (a,) = await stable(world, "a")
    assert await a.commit(5) == e.NONE
    world.groups.deletion.forget_topic("t")
    await wait_all_tasks_blocked()
    assert world.log.offsets() == {}
    assert world.groups.offsets("g").get("t") is None


# -- Rights ----------------------------------------------------------------------------------------------------------


def may_read(user: str, prefix: str) -> AclBinding:
    return AclBinding(
        resource_type=ResourceType.TOPIC,
        pattern_type=PatternType.PREFIXED,
        resource_name=prefix,
        principal=f"User:{user}",
        host="*",
        operation=AclOperation.READ,
        permission=Permission.ALLOW,
    )


async def test_a_regex_subscription_matches_only_topics_the_member_may_describe(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """A user with rights on `bob-*` learnt the ids and the numbers of partitions of all topics."""
    authorizer = AclAuthorizer()
    authorizer.acls.add(may_read("bob", "bob-"))
    world = await GroupWorld.begun(nursery, authorizer=authorizer, **{"bob-a": 1, "bob-b": 2, "pay-roll": 3})
    bob = member(world, topics=None, regex=".*", peer=attrs.evolve(some_peer(), principal=Principal("User", "bob")))
    await settle(bob)
    await wait_all_tasks_blocked()
    await settle(bob)
    assert bob.assigned == {"bob-a": {0}, "bob-b": {0, 1}}
    authorizer.acls.add(may_read("bob", "pay-"))
    authorizer.acls.remove(may_read("bob", "bob-"))
    authorizer.changed()
    await trio.sleep(REGEX_REFRESH_MIN_INTERVAL_MS / 1000 + 1)
    await settle(bob)
    await wait_all_tasks_blocked()
    await settle(bob)
    assert bob.assigned == {"pay-roll": {0, 1, 2}}
