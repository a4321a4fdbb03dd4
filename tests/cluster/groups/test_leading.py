"""A coordinator leads partitions of `__consumer_offsets`, and gives them up: with all that it knows of their groups."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.common.context import GroupMemberIdentity, Heartbeat, Sync
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.config import Settings
from kafscale.wire import error_codes as e
from kafscale.wire.internal_topics.consumer_offsets import OffsetCommitValue
from tests.cluster.groups.classic_groups import JOIN, SIMPLE
from tests.cluster.groups.group_log import MemoryOffsetsLog

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
OFFSET = OffsetCommitValue(offset=5, commit_timestamp_ms=0)
NEWER = bytes.fromhex("0063")  # a value of a version that nobody knows
JOIN_CONSUMERS = Heartbeat(
    member_id="mine",
    member_epoch=0,
    rebalance_timeout_ms=60_000,
    subscribed_topic_names=("t",),
    owned={},
    client_id="c",
    client_host="/h",
)


@pytest.fixture
def log() -> MemoryOffsetsLog:
    return MemoryOffsetsLog()


@pytest.fixture
async def coordinator(autojump_clock: MockClock, nursery: trio.Nursery, log: MemoryOffsetsLog) -> GroupCoordinator:
    coordinator = GroupCoordinator(
        log,
        Settings(),
        partition_count=log.known_count,
        draining=trio.Event(),
        has_topic=lambda name: name != "gone",
    )
    await nursery.start(coordinator.run)
    log.load(coordinator)
    return coordinator


async def stable_member(coordinator: GroupCoordinator, group_id: str) -> GroupMemberIdentity:
    joined = await coordinator.join(group_id, JOIN).wait()
    identity = GroupMemberIdentity(member_id=joined.member_id, generation_id=joined.generation_id)
    sync = Sync(identity=identity, assignments={joined.member_id: b"mine"})
    assert (await coordinator.sync(group_id, sync).wait()).error_code == e.NONE
    return identity


def names(coordinator: GroupCoordinator) -> set[str]:
    return {group.group_id for group in coordinator.groups()}


async def test_a_resigned_partition_unloads_its_groups_and_a_reload_restores_all(
    autojump_clock: MockClock, coordinator: GroupCoordinator, log: MemoryOffsetsLog
) -> None:
    others = [f"g{number}" for number in range(10)]
    for group_id in others:
        await stable_member(coordinator, group_id)
    identity = await stable_member(coordinator, "g")
    assert await coordinator.commit("g", identity, {T0: OFFSET}).wait() == e.NONE
    partition = coordinator.led.partition_of("g")
    moved = {each for each in (*others, "g") if coordinator.led.partition_of(each) == partition}
    assert 1 < len(moved) < len(others), "the test needs others in both"
    before = coordinator.state_bytes.used_bytes

    coordinator.led.resign(partition)
    assert names(coordinator) == {*others, "g"} - moved
    assert coordinator.error_code("g") == e.NOT_COORDINATOR
    assert coordinator.state_bytes.used_bytes < before

    finish_loading = log.begin_loading(coordinator, partition, leader_epoch=7)
    assert coordinator.error_code("g") == e.COORDINATOR_LOAD_IN_PROGRESS
    assert finish_loading()
    assert coordinator.error_code("g") == e.NONE
    assert names(coordinator) == {*others, "g"}
    assert coordinator.state_bytes.used_bytes == before
    assert coordinator.offsets("g")["t"][0] == OFFSET
    assert coordinator.heartbeat("g", GroupMemberIdentity(member_id=identity.member_id, generation_id=1)) == e.NONE
    await trio.sleep(11)
    group = coordinator.group("g")
    assert group is not None
    assert not len(group.members), "a session counts from the hand-over on"


async def test_resigning_answers_waiting_members_not_coordinator_and_frees_everything(
    autojump_clock: MockClock, coordinator: GroupCoordinator, log: MemoryOffsetsLog
) -> None:
    member = await stable_member(coordinator, "g")
    await coordinator.join("h", attrs.evolve(JOIN, member_id_required=True)).wait()
    waiting = coordinator.join("g", JOIN)
    syncing = coordinator.join("s", JOIN)
    joined = await syncing.wait()
    second = coordinator.join("s", JOIN)
    rejoined = coordinator.join("s", attrs.evolve(JOIN, member_id=joined.member_id))
    follower = (await second.wait()).member_id
    synced = coordinator.sync("s", Sync(identity=GroupMemberIdentity(member_id=follower, generation_id=2)))
    assert (await rejoined.wait()).error_code == e.NONE
    for partition in range(4):
        coordinator.led.resign(partition)
    assert (await waiting.wait()).error_code == e.NOT_COORDINATOR
    assert (await synced.wait()).error_code == e.NOT_COORDINATOR
    assert names(coordinator) == set()
    assert coordinator.state_bytes.used_bytes == 0
    written = log.batch_count
    await trio.sleep(1000)
    assert (coordinator.state_bytes.used_bytes, log.batch_count) == (0, written), "no timer goes off"
    assert member.generation_id == 1


async def test_a_commit_in_flight_across_a_reload_changes_no_state(
    autojump_clock: MockClock, coordinator: GroupCoordinator, log: MemoryOffsetsLog
) -> None:
    assert await coordinator.commit("g", SIMPLE, {T0: OFFSET}).wait() == e.NONE
    log.gate = trio.Event()
    commit = coordinator.commit("g", SIMPLE, {U0: OFFSET})
    deletion = coordinator.deletion.delete_group("g")
    await wait_all_tasks_blocked()
    log.load(coordinator)  # it was led elsewhere meanwhile
    assert set(coordinator.offsets("g")) == {"t"}
    used = coordinator.state_bytes.used_bytes
    log.gate.set()
    await commit.wait()
    await deletion.wait()
    assert set(coordinator.offsets("g")) == {"t"}
    assert coordinator.state_bytes.used_bytes == used


async def test_a_partition_resigned_during_loading_is_not_coordinated(
    autojump_clock: MockClock, coordinator: GroupCoordinator, log: MemoryOffsetsLog
) -> None:
    assert await coordinator.commit("g", SIMPLE, {T0: OFFSET}).wait() == e.NONE
    partition = coordinator.led.partition_of("g")
    finish_loading = log.begin_loading(coordinator, partition, leader_epoch=2)
    coordinator.led.resign(partition)
    assert not finish_loading()
    assert coordinator.group("g") is None
    assert coordinator.error_code("g") == e.NOT_COORDINATOR


async def test_offsets_of_a_topic_that_was_deleted_meanwhile_are_forgotten(
    autojump_clock: MockClock, coordinator: GroupCoordinator, log: MemoryOffsetsLog
) -> None:
    offsets: dict[TopicPartition, Any] = {T0: OFFSET, TopicPartition("gone", 1): OFFSET}
    assert await coordinator.commit("g", SIMPLE, offsets).wait() == e.NONE
    log.load(coordinator)
    await wait_all_tasks_blocked()
    assert set(coordinator.offsets("g")) == {"t"}
    assert log.offsets() == {("g", "t", 0): 5}


async def test_requests_before_the_offsets_topic_exists_create_no_groups(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    coordinator = GroupCoordinator(
        MemoryOffsetsLog(), Settings(), partition_count=MemoryOffsetsLog().known_count, draining=trio.Event()
    )
    await nursery.start(coordinator.run)
    assert coordinator.error_code("g") == e.NONE
    assert (await coordinator.join("g", JOIN).wait()).error_code == e.COORDINATOR_NOT_AVAILABLE
    assert await coordinator.commit("g", SIMPLE, {T0: OFFSET}).wait() == e.COORDINATOR_NOT_AVAILABLE
    assert coordinator.heartbeat("g", GroupMemberIdentity(member_id="m", generation_id=1)) == e.UNKNOWN_MEMBER_ID
    assert await coordinator.deletion.delete_group("g").wait() == e.GROUP_ID_NOT_FOUND
    assert names(coordinator) == set()


async def test_an_unreadable_consumer_group_record_does_not_stop_the_coordinator(
    autojump_clock: MockClock, nursery: trio.Nursery, coordinator: GroupCoordinator, log: MemoryOffsetsLog
) -> None:
    """Each of its records in turn is of a newer version. Others of the partition are served, and members come anew."""
    other = await stable_member(coordinator, "h")
    first = await coordinator.consumer_heartbeat("g", JOIN_CONSUMERS).wait()
    assert first.error_code == e.NONE
    await trio.sleep(1)
    every = [(partition, each) for partition in log.batches for each in log.read(partition)]
    kinds = {record.key for _, batch in every for record in batch.records if record.key and b"g" in record.key}
    assert len(kinds) > 3
    for kind in kinds:
        damaged = MemoryOffsetsLog()
        for partition, batch in every:
            damaged.append(
                partition,
                [
                    attrs.evolve(each, value=NEWER) if each.key == kind and each.value else each
                    for each in batch.records
                ],
            )
        again = GroupCoordinator(damaged, Settings(), partition_count=damaged.known_count, draining=trio.Event())
        await nursery.start(again.run)
        damaged.load(again)
        assert again.heartbeat("h", GroupMemberIdentity(member_id=other.member_id, generation_id=1)) == e.NONE
        known = attrs.evolve(JOIN_CONSUMERS, member_epoch=first.member_epoch)
        reply = await again.consumer_heartbeat("g", known).wait()
        assert reply.error_code in (e.NONE, e.FENCED_MEMBER_EPOCH, e.UNKNOWN_MEMBER_ID, e.GROUP_ID_NOT_FOUND), kind
        newcomer = attrs.evolve(JOIN_CONSUMERS, member_id="new")
        assert (await again.consumer_heartbeat("g", newcomer).wait()).error_code == e.NONE, kind
