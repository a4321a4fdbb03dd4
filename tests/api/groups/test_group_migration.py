"""Groups that change their protocol, with members of both, through the handlers; and what a crash leaves of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.api.groups import describe_groups, heartbeat, join_group, leave_group, list_groups, sync_group
from kafscale.config import CoordinatorSettings, Settings
from kafscale.config.values import GroupMigrationPolicy
from kafscale.wire import error_codes as e
from kafscale.wire.codec import decode, encode
from kafscale.wire.messages.consumer_groups import ConsumerProtocolAssignment, ConsumerTopicPartitions
from kafscale.wire.messages.groups import (
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
from tests.api.groups.group_services import ConsumerMember, GroupWorld, settle
from tests.cluster.groups.consumer_groups import subscription
from tests.cluster.groups.group_log import MemoryOffsetsLog


@pytest.fixture
async def world(autojump_clock: MockClock, nursery: trio.Nursery) -> GroupWorld:
    return await GroupWorld.begun(nursery, t=4)


def member(world: GroupWorld, member_id: str = "new", **more: Any) -> ConsumerMember:
    return ConsumerMember(world=world, member_id=member_id, **more)


def assignment(*partitions: int) -> bytes:
    told = ConsumerProtocolAssignment(
        assigned_partitions=[ConsumerTopicPartitions(topic="t", partitions=list(partitions))]
    )
    return bytes(2) + b"".join(encode(told, 0))


@attrs.define(eq=False, kw_only=True)
class ClassicMember:
    """A consumer of the classic protocol; where it leads, it takes everything."""

    world: GroupWorld
    member_id: str = ""
    generation_id: int = -1
    owned: set[int] = attrs.field(factory=set)

    async def join(self) -> int:
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription("t", owned={"t": self.owned}))],
        )
        answer = await self.world.ask(join_group.API, request, version=3)
        if answer.error_code == e.NONE:
            self.member_id, self.generation_id = answer.member_id, answer.generation_id
        return int(answer.error_code)

    async def sync(self, *partitions: int) -> int:
        request = SyncGroupRequest(
            group_id="g",
            generation_id=self.generation_id,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=self.member_id, assignment=assignment(*partitions))],
        )
        answer = await self.world.ask(sync_group.API, request)
        if answer.error_code == e.NONE:
            told = decode(ConsumerProtocolAssignment, 0, answer.assignment[2:]) if answer.assignment else None
            self.owned = set() if told is None else {n for each in told.assigned_partitions for n in each.partitions}
        return int(answer.error_code)

    async def beat(self) -> int:
        request = HeartbeatRequest(group_id="g", generation_id=self.generation_id, member_id=self.member_id)
        return int((await self.world.ask(heartbeat.API, request)).error_code)

    async def live(self) -> None:
        """Send a heartbeat, and join again if that says so."""
        if await self.beat() == e.REBALANCE_IN_PROGRESS:
            assert await self.join() == e.NONE
            assert await self.sync() == e.NONE

    async def leave(self) -> int:
        request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=self.member_id)])
        (left,) = (await self.world.ask(leave_group.API, request)).members
        return int(left.error_code)


async def stable_classic(world: GroupWorld) -> ClassicMember:
    classic = ClassicMember(world=world)
    assert await classic.join() == e.NONE
    assert await classic.sync(0, 1, 2, 3) == e.NONE
    assert classic.owned == {0, 1, 2, 3}
    return classic


async def share(classic: ClassicMember, consumer: ConsumerMember) -> None:
    for _ in range(6):
        await classic.live()
        await consumer.beat()


def owned(consumer: ConsumerMember) -> set[int]:
    return set(consumer.assigned.get("t", ()))


async def types(world: GroupWorld) -> Mapping[str, tuple[str, str]]:
    answer = await world.ask(list_groups.API, ListGroupsRequest())
    return {each.group_id: (each.group_type, each.group_state) for each in answer.groups}


async def test_a_group_goes_to_the_new_protocol_and_back_without_losing_a_member(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    classic = await stable_classic(world)
    new = member(world)
    assert await new.commit(5, member_id=classic.member_id, generation_id_or_member_epoch=1) == e.NONE
    assert (await new.beat()).error_code == e.NONE
    assert (await types(world))["g"][0] == "consumer"
    assert world.log.groups() == [], "the record of the classic group is taken back"
    await share(classic, new)
    assert (len(classic.owned), len(owned(new)), classic.owned | owned(new)) == (2, 2, {0, 1, 2, 3})
    described = await world.describe()
    assert {each.member_id: each.member_type for each in described.members} == {classic.member_id: 0, "new": 1}
    assert await new.fetch() == (e.NONE, 5)
    commit = {"member_id": classic.member_id, "generation_id_or_member_epoch": classic.generation_id}
    assert await new.commit(6, version=8, **commit) == e.NONE, "the classic member's versions are as ever"
    commit["generation_id_or_member_epoch"] = classic.generation_id - 1
    assert await new.commit(7, version=8, **commit) == e.ILLEGAL_GENERATION

    await world.restart()
    await share(classic, new)
    assert (len(classic.owned), len(owned(new)), classic.owned | owned(new)) == (2, 2, {0, 1, 2, 3})

    assert (await new.leave()).error_code == e.NONE
    assert (await types(world))["g"] == ("classic", "PreparingRebalance")
    assert await classic.beat() == e.REBALANCE_IN_PROGRESS
    assert await classic.join() == e.NONE
    assert await classic.sync(0, 1, 2, 3) == e.NONE
    assert (await types(world))["g"] == ("classic", "Stable")
    assert await new.fetch(member_id=None, member_epoch=-1) == (e.NONE, 6)
    await world.restart()
    assert await classic.beat() == e.NONE
    (group,) = (await world.ask(describe_groups.API, DescribeGroupsRequest(groups=["g"]))).groups
    assert [each.member_id for each in group.members] == [classic.member_id]


async def test_a_group_that_returned_to_the_classic_protocol_survives_a_crash(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    classic, new = await stable_classic(world), member(world)
    await new.beat()
    await share(classic, new)
    await new.leave()
    await world.restart()
    assert (await types(world))["g"] == ("classic", "Stable")
    former = classic.generation_id
    assert await classic.join() == e.NONE
    assert classic.generation_id > former


async def test_a_session_that_ends_takes_the_group_back_to_the_classic_protocol(
    autojump_clock: MockClock, world: GroupWorld
) -> None:
    classic, new = await stable_classic(world), member(world)
    await new.beat()
    await share(classic, new)
    for _ in range(10):
        await trio.sleep(5)
        if world.groups.consumer_group("g") is not None:
            await classic.live()
    assert (await types(world))["g"][0] == "classic"
    assert await classic.beat() == e.REBALANCE_IN_PROGRESS


async def test_classic_members_join_and_leave_a_consumer_group(autojump_clock: MockClock, world: GroupWorld) -> None:
    new = member(world)
    await new.beat()
    classic = ClassicMember(world=world)
    assert await classic.join() == e.NONE
    assert await classic.sync() == e.NONE
    await share(classic, new)
    assert (len(classic.owned), len(owned(new)), classic.owned | owned(new)) == (2, 2, {0, 1, 2, 3})
    assert await classic.leave() == e.NONE
    assert await classic.beat() == e.UNKNOWN_MEMBER_ID
    await settle(new)
    assert owned(new) == {0, 1, 2, 3}


async def test_a_classic_member_that_falls_silent_is_removed(autojump_clock: MockClock, world: GroupWorld) -> None:
    new, classic = member(world), ClassicMember(world=world)
    await new.beat()
    assert await classic.join() == e.NONE
    assert await classic.sync() == e.NONE
    await trio.sleep(11)  # its own session timeout is 10 s
    await settle(new)
    assert owned(new) == {0, 1, 2, 3}
    assert await classic.beat() == e.UNKNOWN_MEMBER_ID


async def test_waiting_joins_of_an_upgraded_classic_group_get_rebalance_in_progress(
    autojump_clock: MockClock, world: GroupWorld, nursery: trio.Nursery
) -> None:
    await stable_classic(world)
    codes: list[int] = []

    async def join() -> None:
        codes.append(await ClassicMember(world=world).join())

    nursery.start_soon(join)  # it waits for the other one
    await wait_all_tasks_blocked()
    assert codes == []
    assert (await member(world).beat()).error_code == e.NONE
    await wait_all_tasks_blocked()
    assert codes == [e.REBALANCE_IN_PROGRESS]


@pytest.mark.parametrize("policy", [GroupMigrationPolicy.DISABLED, GroupMigrationPolicy.DOWNGRADE])
async def test_a_policy_keeps_groups_on_the_classic_protocol(
    autojump_clock: MockClock, nursery: trio.Nursery, policy: GroupMigrationPolicy
) -> None:
    settings = Settings(coordinator=CoordinatorSettings(group_consumer_migration_policy=policy))
    world = await GroupWorld.begun(nursery, settings=settings, t=4)
    classic, used = await stable_classic(world), world.groups.state_bytes.used_bytes
    answer = await member(world).beat()
    assert answer.error_code == e.GROUP_ID_NOT_FOUND
    assert "online upgrade is disabled" in answer.error_message
    assert (await classic.beat(), world.groups.state_bytes.used_bytes) == (e.NONE, used)


async def test_empty_groups_change_their_protocol_at_once(autojump_clock: MockClock, world: GroupWorld) -> None:
    classic, new = await stable_classic(world), member(world)
    assert await new.commit(5, member_id=classic.member_id, generation_id_or_member_epoch=1) == e.NONE
    assert await classic.leave() == e.NONE
    assert (await new.beat()).member_epoch == 1
    assert (await types(world))["g"] == ("consumer", "Stable")
    assert world.log.groups() == [], "the record of the classic group is taken back"
    assert await new.fetch() == (e.NONE, 5)
    await world.restart()
    assert (await types(world))["g"] == ("consumer", "Stable")

    await new.leave()
    stranger = ClassicMember(world=world, member_id="stranger")
    assert await stranger.join() == e.UNKNOWN_MEMBER_ID
    assert (await types(world))["g"] == ("consumer", "Empty")
    again = await stable_classic(world)
    assert (await types(world))["g"] == ("classic", "Stable")
    await world.restart()
    assert (await again.beat(), (await types(world))["g"]) == (e.NONE, ("classic", "Stable"))
    assert await new.fetch(member_id=None, member_epoch=-1) == (e.NONE, 5)


# -- Crashes ---------------------------------------------------------------------------------------------------------


def content(world: GroupWorld, groups: Any) -> tuple[Any, ...]:
    """What a coordinator has of the group, whatever the order."""
    consumer, classic = groups.consumer_group("g"), groups.group("g")
    state = None
    if consumer is not None:
        of = consumer.state
        state = (of.epoch, of.metadata_hash, of.assignment_epoch, dict(of.members), dict(of.targets), dict(of.regexes))
    return state, None if classic is None else classic.record()


async def scenario(world: GroupWorld) -> None:
    """Joins, a session that ends, a regular expression, an upgrade and a downgrade, step by step."""
    classic = await stable_classic(world)
    a, b = member(world, "a"), member(world, "b", topics=None, regex="t.*")
    await a.beat()
    await share(classic, a)
    await b.beat()
    await wait_all_tasks_blocked()
    for _ in range(4):
        await classic.live()
        await settle(a, b)
    await a.leave()
    await b.beat()
    await trio.sleep(9)
    await classic.live()
    await b.leave()


async def test_a_restart_after_any_write_restores_the_same_groups(
    autojump_clock: MockClock, world: GroupWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[Any, ...]] = []
    keep = MemoryOffsetsLog.keep

    def keep_and_compare(log: MemoryOffsetsLog, partition: int, batch: bytearray) -> None:
        keep(log, partition, batch)
        restored = world.coordinator()
        world.log.load(restored)
        here, there = content(world, world.groups), content(world, restored)
        if here[0]:
            assert there[0] == here[0]
            compared.append(here)

    monkeypatch.setattr(MemoryOffsetsLog, "keep", keep_and_compare)
    await scenario(world)
    assert len(compared) > 10
    assert content(world, world.groups)[1] is not None, "the group is a classic one in the end"


async def test_wherever_a_batch_is_cut_members_get_everything_again(
    autojump_clock: MockClock, world: GroupWorld, nursery: trio.Nursery
) -> None:
    """A submission of more than a batch may be cut between two records of it."""
    await scenario(world)
    partition = world.groups.led.partition_of("g")
    batches = [list(batch.records) for batch in world.log.read(partition)]
    cuts = [(index, count) for index, batch in enumerate(batches) for count in range(1, len(batch) + 1)]
    assert len(cuts) > 40
    for index, count in cuts:
        crashed = GroupWorld(nursery, world.topics)
        for records in [*batches[:index], batches[index][:count]]:
            assert crashed.log.append(partition, records) is not None
        await crashed.start()
        await trio.sleep(61)  # whoever was in it is gone
        new = member(crashed, "after", topics=("t",))
        await settle(new)
        assert owned(new) == {0, 1, 2, 3}, (index, count)
        await new.leave()
        crashed.kill()
