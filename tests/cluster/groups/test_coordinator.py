"""The coordinator on an autojump clock and a log in memory: waiting, durability, restarts, retention."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kafscale.api.groups.offset_commit import COMMIT_PIECE_COUNT, commit_in_pieces
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups import coordinator
from kafscale.cluster.groups.classic.group import ClassicGroupState
from kafscale.cluster.groups.common.context import (
    PROTOCOLS_MAX_COUNT,
    CommittedOffset,
    GroupMemberIdentity,
    Heartbeat,
    Sync,
)
from kafscale.cluster.groups.coordinator import GroupCoordinator
from kafscale.cluster.groups.offsets import GroupOffsets
from kafscale.config import Limits, Settings
from kafscale.errors import KafkaError, StorageFailed
from kafscale.wire import error_codes as e
from kafscale.wire.internal_topics.consumer_offsets import ClassicProtocol, OffsetCommitValue
from kafscale.wire.messages.groups import MemberIdentity
from tests.cluster.groups.classic_groups import JOIN, SIMPLE, WALL_CLOCK_START_MS
from tests.cluster.groups.group_log import MemoryOffsetsLog

DAY_SECONDS = 24 * 3600
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@attrs.define(eq=False)
class Broker:
    """A coordinator that runs, and can be killed and started again on the same log."""

    nursery: trio.Nursery
    log: MemoryOffsetsLog = attrs.field(factory=MemoryOffsetsLog)
    settings: Settings = attrs.field(factory=Settings)
    draining: trio.Event = attrs.field(factory=trio.Event)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    coordinator: GroupCoordinator = attrs.field(init=False)

    async def start(self) -> GroupCoordinator:
        self.scope, self.draining = trio.CancelScope(), trio.Event()
        self.coordinator = GroupCoordinator(
            self.log,
            self.settings,
            partition_count=self.log.known_count,
            draining=self.draining,
            wall_clock_ms=wall_clock_ms,
        )
        self.log.load(self.coordinator)
        await self.nursery.start(self._run)
        return self.coordinator

    async def _run(self, *, task_status: Any) -> None:
        with self.scope:
            await self.coordinator.run(task_status=task_status)

    async def restart(self) -> GroupCoordinator:
        self.scope.cancel()
        return await self.start()

    async def stable_member(self, group_id: str = "g", **more: Any) -> str:
        joined = await self.coordinator.join(group_id, attrs.evolve(JOIN, **more)).wait()
        assert joined.error_code == e.NONE
        identity = GroupMemberIdentity(member_id=joined.member_id, generation_id=joined.generation_id)
        synced = await self.coordinator.sync(
            group_id, Sync(identity=identity, assignments={joined.member_id: b"mine"})
        ).wait()
        assert synced.error_code == e.NONE
        return joined.member_id


def wall_clock_ms() -> int:
    return WALL_CLOCK_START_MS + int(trio.current_time() * 1000)


def at(offset: int, **more: Any) -> OffsetCommitValue:
    return OffsetCommitValue(offset=offset, commit_timestamp_ms=wall_clock_ms(), **more)


@pytest.fixture
async def broker(nursery: trio.Nursery) -> Broker:
    broker = Broker(nursery)
    await broker.start()
    return broker


# -- Waiting ---------------------------------------------------------------------------------------------------------


async def test_members_that_join_and_sync_at_the_same_time_form_one_generation(
    autojump_clock: MockClock, broker: Broker
) -> None:
    generations: list[int] = []

    async def member() -> None:
        joined = await broker.coordinator.join("g", JOIN).wait()
        identity = GroupMemberIdentity(member_id=joined.member_id, generation_id=joined.generation_id)
        assignments = {other.member_id: other.member_id.encode() for other in joined.members}
        synced = await broker.coordinator.sync("g", Sync(identity=identity, assignments=assignments)).wait()
        assert synced.assignment == joined.member_id.encode()
        generations.append(joined.generation_id)

    async with trio.open_nursery() as members:
        for _ in range(5):
            members.start_soon(member)
    assert generations == [1] * 5


async def test_a_member_that_loses_its_connection_stays_until_its_session_ends(
    autojump_clock: MockClock, broker: Broker
) -> None:
    first = await broker.stable_member()
    second = broker.coordinator.join("g", JOIN)
    with trio.move_on_after(1):
        await second.wait()
    group = broker.coordinator.group("g")
    assert group is not None
    assert len(group.members) == 2

    await broker.coordinator.join("g", attrs.evolve(JOIN, member_id=first)).wait()
    await trio.sleep(11)
    assert len(group.members) == 0


async def test_an_assignment_survives_the_connection_of_the_leader_that_sent_it(
    autojump_clock: MockClock, broker: Broker
) -> None:
    broker.log.gate = trio.Event()
    first = await broker.coordinator.join("g", JOIN).wait()
    identity = GroupMemberIdentity(member_id=first.member_id, generation_id=1)
    with trio.move_on_after(0.1):
        await broker.coordinator.sync("g", Sync(identity=identity, assignments={first.member_id: b"a"})).wait()
    broker.log.gate.set()
    await wait_all_tasks_blocked()

    synced = await broker.coordinator.sync("g", Sync(identity=identity)).wait()
    assert synced.assignment == b"a"


async def test_draining_answers_waiting_members_and_refuses_new_joins(
    autojump_clock: MockClock, broker: Broker
) -> None:
    member_id = await broker.stable_member()
    waiting = broker.coordinator.join("g", JOIN)
    broker.draining.set()

    assert (await waiting.wait()).error_code == e.COORDINATOR_NOT_AVAILABLE
    assert (await broker.coordinator.join("g", JOIN).wait()).error_code == e.COORDINATOR_NOT_AVAILABLE
    sync = broker.coordinator.sync("g", Sync(identity=GroupMemberIdentity(member_id=member_id, generation_id=1)))
    assert (await sync.wait()).error_code == e.COORDINATOR_NOT_AVAILABLE
    reply = broker.coordinator.commit("g", GroupMemberIdentity(member_id=member_id, generation_id=1), {T0: at(1)})
    assert await reply.wait() == e.NONE, "what was consumed may still be committed"
    await trio.sleep(3600)
    assert await broker.restart() is not None
    group = broker.coordinator.group("g")
    assert group is not None
    assert member_id in group.members, "its time stood still"


# -- What is refused at the door -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group_id", "join", "expected"),
    [
        ("", {}, e.INVALID_GROUP_ID),
        ("g", {"session_timeout_ms": 5_999}, e.INVALID_SESSION_TIMEOUT),
        ("g", {"session_timeout_ms": 1_800_001}, e.INVALID_SESSION_TIMEOUT),
        ("g", {"member_id": "known to nobody"}, e.UNKNOWN_MEMBER_ID),
        (
            "g",
            {
                "protocols": (
                    ClassicProtocol("a", b"x"),
                    ClassicProtocol("b", bytes(coordinator.MEMBER_METADATA_MAX_BYTES)),
                )
            },
            e.INVALID_REQUEST,
        ),
    ],
)
async def test_a_join_that_is_refused_makes_no_group(
    autojump_clock: MockClock, broker: Broker, group_id: str, join: dict[str, Any], expected: int
) -> None:
    result = await broker.coordinator.join(group_id, attrs.evolve(JOIN, **join)).wait()

    assert result.error_code == expected
    assert list(broker.coordinator.groups()) == []


async def test_the_number_of_groups_is_limited(autojump_clock: MockClock, broker: Broker) -> None:
    broker.settings = Settings(limits=Limits(max_groups_count=2))
    await broker.restart()
    await broker.stable_member("a")
    assert await broker.coordinator.commit("b", SIMPLE, {T0: at(1)}).wait() == e.NONE

    assert (await broker.coordinator.join("c", JOIN).wait()).error_code == e.POLICY_VIOLATION
    assert await broker.coordinator.commit("c", SIMPLE, {T0: at(1)}).wait() == e.POLICY_VIOLATION
    assert await broker.coordinator.commit("b", SIMPLE, {T0: at(2)}).wait() == e.NONE


async def test_an_assignment_has_a_limit(autojump_clock: MockClock, broker: Broker) -> None:
    member_id = await broker.stable_member()
    too_much = Sync(
        identity=GroupMemberIdentity(member_id=member_id, generation_id=1),
        assignments={member_id: bytes(coordinator.ASSIGNMENT_MAX_BYTES + 1)},
    )

    assert (await broker.coordinator.sync("g", too_much).wait()).error_code == e.INVALID_REQUEST


async def test_groups_that_do_not_exist(autojump_clock: MockClock, broker: Broker) -> None:
    coordinator = broker.coordinator
    sync = Sync(identity=GroupMemberIdentity(member_id="m", generation_id=1))

    assert (await coordinator.sync("g", sync).wait()).error_code == e.UNKNOWN_MEMBER_ID
    assert (await coordinator.sync("", sync).wait()).error_code == e.INVALID_GROUP_ID
    assert coordinator.heartbeat("g", GroupMemberIdentity(member_id="m", generation_id=1)) == e.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat("", GroupMemberIdentity(member_id="m", generation_id=1)) == e.INVALID_GROUP_ID
    assert await coordinator.leave("g", [MemberIdentity(member_id="m")] * 2) == [e.UNKNOWN_MEMBER_ID] * 2
    assert await coordinator.deletion.delete_group("g").wait() == e.GROUP_ID_NOT_FOUND
    assert coordinator.check_offset_deletion("g") == e.GROUP_ID_NOT_FOUND
    assert coordinator.offsets("g") == {}
    commit = coordinator.commit("g", GroupMemberIdentity(member_id="m", generation_id=1), {T0: at(1)})
    assert await commit.wait() == e.ILLEGAL_GENERATION
    assert list(coordinator.groups()) == []


# -- Durability ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_id", ["g", "a/b", "%2F", "ä ö/ü%", "..", "🦊", "a\nb\0", "group"])
async def test_groups_and_offsets_survive_a_restart(autojump_clock: MockClock, broker: Broker, group_id: str) -> None:
    member_id = await broker.stable_member(group_id)
    identity = GroupMemberIdentity(member_id=member_id, generation_id=1)
    offset = at(7, leader_epoch=3, metadata="\u2028 and \U0001f600")
    assert await broker.coordinator.commit(group_id, identity, {T0: offset, U0: at(1)}).wait() == e.NONE
    assert await broker.coordinator.commit("other", SIMPLE, {T0: at(5)}).wait() == e.NONE

    coordinator = await broker.restart()

    assert coordinator.heartbeat(group_id, GroupMemberIdentity(member_id=member_id, generation_id=1)) == e.NONE
    synced = await coordinator.sync(group_id, Sync(identity=identity)).wait()
    assert (synced.assignment, synced.protocol_name) == (b"mine", "range")
    assert coordinator.offsets(group_id)["t"][0] == offset
    assert sorted(coordinator.committed_offsets(), key=lambda line: (line.group_id, line.topic)) == sorted(
        [
            CommittedOffset(group_id, "t", 0, 7),
            CommittedOffset(group_id, "u", 0, 1),
            CommittedOffset("other", "t", 0, 5),
        ],
        key=lambda line: (line.group_id, line.topic),
    )


async def test_members_that_do_not_come_back_after_a_restart_expire(autojump_clock: MockClock, broker: Broker) -> None:
    member_id = await broker.stable_member()
    coordinator = await broker.restart()
    await trio.sleep(9)
    assert coordinator.heartbeat("g", GroupMemberIdentity(member_id=member_id, generation_id=1)) == e.NONE
    await trio.sleep(11)

    assert coordinator.heartbeat("g", GroupMemberIdentity(member_id=member_id, generation_id=1)) == e.UNKNOWN_MEMBER_ID
    coordinator = await broker.restart()
    group = coordinator.group("g")
    assert group is not None
    assert (group.state, group.generation_id) == (ClassicGroupState.EMPTY, 2)


async def test_a_start_that_takes_long_costs_members_nothing(autojump_clock: MockClock, broker: Broker) -> None:
    member_id = await broker.stable_member()
    broker.scope.cancel()
    coordinator = GroupCoordinator(
        broker.log, Settings(), partition_count=broker.log.known_count, draining=trio.Event()
    )
    broker.log.load(coordinator)
    await trio.sleep(600)  # the log is replayed
    await broker.nursery.start(coordinator.run)
    await trio.sleep(9)

    assert coordinator.heartbeat("g", GroupMemberIdentity(member_id=member_id, generation_id=1)) == e.NONE


async def test_an_offset_is_shown_and_acknowledged_only_when_durable(autojump_clock: MockClock, broker: Broker) -> None:
    broker.log.gate = trio.Event()
    replies = [broker.coordinator.commit("g", SIMPLE, {T0: at(number)}) for number in (1, 2)]
    await wait_all_tasks_blocked()
    assert not replies[0].is_set
    assert broker.coordinator.offsets("g") == {}
    broker.log.gate.set()

    assert [await reply.wait() for reply in replies] == [e.NONE, e.NONE]
    assert broker.coordinator.offsets("g")["t"][0].offset == 2
    assert broker.log.batch_count == 1


async def test_a_commit_survives_the_connection_that_sent_it(autojump_clock: MockClock, broker: Broker) -> None:
    broker.log.gate = trio.Event()
    with trio.move_on_after(0.1):
        await broker.coordinator.commit("g", SIMPLE, {T0: at(1)}).wait()
    broker.log.gate.set()
    await wait_all_tasks_blocked()

    assert broker.coordinator.offsets("g")["t"][0].offset == 1


async def test_a_commit_that_is_lost_changes_nothing(autojump_clock: MockClock, broker: Broker) -> None:
    assert await broker.coordinator.commit("g", SIMPLE, {T0: at(1)}).wait() == e.NONE
    broker.log.failure = KafkaError(e.NOT_LEADER_OR_FOLLOWER)
    reply = broker.coordinator.commit("g", SIMPLE, {T0: at(2), U0: at(2)})

    assert await reply.wait() == e.COORDINATOR_NOT_AVAILABLE
    assert {topic: dict(offsets) for topic, offsets in broker.coordinator.offsets("g").items()}["t"][0].offset == 1
    assert "u" not in broker.coordinator.offsets("g")


async def test_after_the_disk_is_lost_nothing_is_acknowledged(autojump_clock: MockClock, broker: Broker) -> None:
    """The write-ahead log ends the broker."""
    broker.log.failure = StorageFailed("gone")
    reply = broker.coordinator.commit("g", SIMPLE, {T0: at(1)})
    assert await reply.wait() == e.COORDINATOR_NOT_AVAILABLE
    assert broker.coordinator.offsets("g") == {}


async def test_a_heartbeat_writes_nothing(autojump_clock: MockClock, broker: Broker) -> None:
    member_id = await broker.stable_member()
    before = broker.log.batch_count
    for _ in range(100):
        await trio.sleep(1)
        assert broker.coordinator.heartbeat("g", GroupMemberIdentity(member_id=member_id, generation_id=1)) == e.NONE

    assert broker.log.batch_count == before


async def test_a_commit_is_a_sign_of_life(autojump_clock: MockClock, broker: Broker) -> None:
    member_id = await broker.stable_member()
    for number in range(5):
        await trio.sleep(9)
        reply = broker.coordinator.commit(
            "g", GroupMemberIdentity(member_id=member_id, generation_id=1), {T0: at(number)}
        )
        assert await reply.wait() == e.NONE


async def test_a_leave_is_answered_when_the_empty_group_is_durable_so_that_a_killed_broker_does_not_wait_for_the_member(
    autojump_clock: MockClock, broker: Broker
) -> None:
    """Else the next member's join would have to wait for the session of one that had been told that it had left."""
    member_id = await broker.stable_member()
    broker.log.gate = trio.Event()
    answered = trio.Event()

    async def leave() -> None:
        assert await broker.coordinator.leave("g", [MemberIdentity(member_id=member_id)]) == [e.NONE]
        answered.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave)
        await wait_all_tasks_blocked()
        assert not answered.is_set()
        broker.log.gate.set()
    restarted = GroupCoordinator(broker.log, Settings(), partition_count=broker.log.known_count, draining=trio.Event())
    broker.log.load(restarted)
    group = restarted.group("g")
    assert group is not None
    assert len(group.members) == 0


# -- Deleting --------------------------------------------------------------------------------------------------------


async def test_deleting_a_group_leaves_nothing(autojump_clock: MockClock, broker: Broker) -> None:
    member_id = await broker.stable_member()
    assert await broker.coordinator.deletion.delete_group("g").wait() == e.NON_EMPTY_GROUP
    await broker.coordinator.commit("g", GroupMemberIdentity(member_id=member_id, generation_id=1), {T0: at(1)}).wait()
    await broker.coordinator.leave("g", [MemberIdentity(member_id=member_id)])

    assert await broker.coordinator.deletion.delete_group("g").wait() == e.NONE

    assert list(broker.coordinator.groups()) == []
    assert broker.coordinator.offsets("g") == {}
    assert broker.log.live() == []


async def test_a_commit_on_its_way_goes_with_the_group_and_a_later_one_makes_a_new_group(
    autojump_clock: MockClock, broker: Broker
) -> None:
    broker.log.gate = trio.Event()
    first = broker.coordinator.commit("g", SIMPLE, {T0: at(1)})
    deletion = broker.coordinator.deletion.delete_group("g")
    assert broker.coordinator.group("g") is not None
    assert broker.coordinator.deletion.delete_group("g").value == e.GROUP_ID_NOT_FOUND
    assert broker.coordinator.commit("g", SIMPLE, {T1: at(1)}).value == e.COORDINATOR_NOT_AVAILABLE
    assert broker.coordinator.join("g", JOIN).is_set
    broker.log.gate.set()
    assert (await first.wait(), await deletion.wait()) == (e.NONE, e.NONE)
    assert broker.log.live() == []

    assert await broker.coordinator.commit("g", SIMPLE, {T1: at(2)}).wait() == e.NONE
    assert list(broker.coordinator.offsets("g")["t"]) == [1]


async def test_a_group_survives_when_its_deletion_fails(autojump_clock: MockClock, broker: Broker) -> None:
    await broker.coordinator.commit("g", SIMPLE, {T0: at(1)}).wait()
    broker.log.failure = KafkaError(e.NOT_LEADER_OR_FOLLOWER)
    assert await broker.coordinator.deletion.delete_group("g").wait() == e.COORDINATOR_NOT_AVAILABLE
    broker.log.failure = None

    assert await broker.coordinator.commit("g", SIMPLE, {T0: at(2)}).wait() == e.NONE
    assert broker.coordinator.offsets("g")["t"][0].offset == 2


async def test_offset_deletion_needs_an_empty_group_or_readable_subscriptions(
    autojump_clock: MockClock,
    broker: Broker,
) -> None:
    coordinator = broker.coordinator
    await coordinator.commit("g", SIMPLE, {T0: at(1), T1: at(2), U0: at(3)}).wait()
    assert coordinator.check_offset_deletion("g") == e.NONE
    assert await coordinator.deletion.delete_offsets("g", [T0, U0, TopicPartition("v", 0)]).wait() == e.NONE
    assert {topic: list(offsets) for topic, offsets in coordinator.offsets("g").items()} == {"t": [1]}
    assert broker.log.offsets() == {("g", "t", 1): 2}

    await broker.stable_member("g")
    assert coordinator.check_offset_deletion("g") == e.NONE
    await broker.stable_member("connect", protocol_type="connect")
    assert coordinator.check_offset_deletion("connect") == e.NON_EMPTY_GROUP


async def test_deleting_a_topic_deletes_its_offsets_including_pending_commits(
    autojump_clock: MockClock, broker: Broker
) -> None:
    coordinator = broker.coordinator
    await coordinator.commit("g", SIMPLE, {T0: at(1), U0: at(1)}).wait()
    broker.log.gate = trio.Event()
    coordinator.commit("g", SIMPLE, {T1: at(1)})
    coordinator.commit("h", SIMPLE, {U0: at(1)})
    coordinator.deletion.forget_topic("t")
    again = coordinator.commit("g", SIMPLE, {TopicPartition("t", 2): at(1)})  # it was created again
    broker.log.gate.set()
    await again.wait()

    for current in (coordinator, await broker.restart()):
        assert sorted((line.group_id, line.topic, line.partition) for line in current.committed_offsets()) == [
            ("g", "t", 2),
            ("g", "u", 0),
            ("h", "u", 0),
        ]


# -- Retention -------------------------------------------------------------------------------------------------------

Setup = Callable[[Broker], Awaitable[None]]


async def commit_once(broker: Broker) -> None:
    await broker.coordinator.commit("g", SIMPLE, {T0: at(1), U0: at(1)}).wait()


async def commit_and_commit_again_on_the_fifth_day(broker: Broker) -> None:
    await commit_once(broker)
    await trio.sleep(5 * DAY_SECONDS)
    await broker.coordinator.commit("g", SIMPLE, {T0: at(2)}).wait()


async def consume_for_five_days_then_leave(broker: Broker) -> None:
    member_id = await broker.stable_member(session_timeout_ms=1_800_000)
    identity = GroupMemberIdentity(member_id=member_id, generation_id=1)
    await broker.coordinator.commit("g", identity, {T0: at(1), U0: at(1)}).wait()
    for _ in range(5 * 48):
        await trio.sleep(1795)
        assert broker.coordinator.heartbeat("g", GroupMemberIdentity(member_id=member_id, generation_id=1)) == e.NONE
    await broker.coordinator.leave("g", [MemberIdentity(member_id=member_id)])


async def commit_with_a_retention_of_a_day(broker: Broker) -> None:
    await broker.coordinator.commit(
        "g", SIMPLE, {T0: at(1), U0: at(1, expire_timestamp_ms=wall_clock_ms() + DAY_SECONDS * 1000)}
    ).wait()


@pytest.mark.parametrize(
    ("setup", "days", "left"),
    [
        (commit_once, 6.9, {"t", "u"}),
        (commit_once, 7.1, set()),
        (commit_and_commit_again_on_the_fifth_day, 2.1, {"t"}),
        (commit_and_commit_again_on_the_fifth_day, 7.1, set()),
        # As long as there were members, and for the retention time after the last of them, nothing expires.
        (consume_for_five_days_then_leave, 6.9, {"t", "u"}),
        (consume_for_five_days_then_leave, 7.1, set()),
        (commit_with_a_retention_of_a_day, 1.1, {"t"}),
    ],
)
async def test_offsets_expire(
    autojump_clock: MockClock, broker: Broker, setup: Setup, days: float, left: set[str]
) -> None:
    await setup(broker)
    await broker.restart()  # nothing of it lives in memory only
    await trio.sleep(days * DAY_SECONDS)

    assert {line.topic for line in broker.coordinator.committed_offsets()} == left
    assert (broker.coordinator.group("g") is None) is (not left)
    assert {topic for _, topic, _ in broker.log.offsets()} == left


async def test_a_live_group_loses_expired_offsets_of_unsubscribed_topics(
    autojump_clock: MockClock, broker: Broker
) -> None:
    member_id = await broker.stable_member(session_timeout_ms=1_800_000)  # reads only "t"
    identity = GroupMemberIdentity(member_id=member_id, generation_id=1)
    await broker.coordinator.commit("g", identity, {T0: at(1), U0: at(1)}).wait()
    for _ in range(8 * 48):
        await trio.sleep(1795)
        assert broker.coordinator.heartbeat("g", GroupMemberIdentity(member_id=member_id, generation_id=1)) == e.NONE

    assert set(broker.coordinator.offsets("g")) == {"t"}


async def test_an_empty_group_is_removed_unless_a_pending_member_can_still_join(
    autojump_clock: MockClock,
    broker: Broker,
) -> None:
    for group_id, session_timeout_ms in (("short", 10_000), ("long", 1_800_000)):
        join = attrs.evolve(JOIN, member_id_required=True, session_timeout_ms=session_timeout_ms)
        assert broker.coordinator.join(group_id, join).is_set
    await trio.sleep(601)
    assert [group.group_id for group in broker.coordinator.groups()] == ["long"]
    await trio.sleep(2000)

    assert list(broker.coordinator.groups()) == []


async def test_no_time_goes_by_for_members_before_clients_are_served(
    autojump_clock: MockClock, nursery: trio.Nursery, broker: Broker
) -> None:
    """A start that reads many partitions takes longer than a session."""
    member_id = await broker.stable_member(session_timeout_ms=10_000)
    heartbeat = Heartbeat(
        member_id="mine",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=("t",),
        owned={},
        client_id="c",
        client_host="/h",
    )
    assert (await broker.coordinator.consumer_heartbeat("new", heartbeat).wait()).error_code == e.NONE
    broker.scope.cancel()
    serving = trio.Event()
    later = GroupCoordinator(
        broker.log,
        Settings(),
        partition_count=broker.log.known_count,
        draining=trio.Event(),
        wall_clock_ms=wall_clock_ms,
    )
    broker.log.load(later)
    classic, consumer = later.group("g"), later.consumer_group("new")
    assert classic is not None
    assert consumer is not None
    await nursery.start(partial(later.run, serving=serving))
    await trio.sleep(120.0)
    serving.set()
    await trio.sleep(9.9)
    assert classic.members.get(member_id) is not None
    await trio.sleep(0.2)
    assert classic.members.get(member_id) is None
    await trio.sleep(34.8)
    assert not consumer.is_empty
    await trio.sleep(0.2)
    assert consumer.is_empty


# -- Requests of very many entries -----------------------------------------------------------------------------------


@contextmanager
def longest_turn_of_others(nursery: trio.Nursery) -> Iterator[list[float]]:
    """How much was computed while somebody else waited for the event loop, in seconds; one element after the block."""
    waits: list[float] = []
    scope = trio.CancelScope()
    began = time.process_time()

    async def other() -> None:
        with scope:
            before = time.process_time()
            while True:
                await trio.lowlevel.checkpoint()
                waits.append((now := time.process_time()) - before)
                before = now

    nursery.start_soon(other)
    longest: list[float] = []
    gc.disable()  # a broker collects seldom, and not what was there before
    try:
        yield longest
    finally:
        gc.enable()
        scope.cancel()
        longest.append(max(waits, default=time.process_time() - began))  # the other may not have had a turn at all


MANY_COUNT = 200_000


async def test_a_commit_of_very_many_offsets_stopped_the_event_loop(
    broker: Broker, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 0.35 s and more; and so did the deletion of a topic of which a group knows none of them."""
    offset = OffsetCommitValue(offset=1, commit_timestamp_ms=0)
    many = {TopicPartition("many", number): offset for number in range(MANY_COUNT)}
    with longest_turn_of_others(nursery) as longest:
        assert await commit_in_pieces(broker.coordinator, "g", SIMPLE, offsets=many) == {}
    assert longest[0] < 0.1
    assert len(broker.coordinator.offsets("g")["many"]) == MANY_COUNT
    monkeypatch.setattr(GroupOffsets, "known", None)  # visits all of them
    with longest_turn_of_others(nursery) as longest:
        broker.coordinator.deletion.forget_topic("other")
        assert await broker.coordinator.deletion.delete_offsets("g", [T0, TopicPartition("many", 7)]).wait() == e.NONE
    assert longest[0] < 0.1
    assert len(broker.coordinator.offsets("g")["many"]) == MANY_COUNT - 1


async def test_a_commit_in_pieces_reports_the_pieces_that_failed(autojump_clock: MockClock, broker: Broker) -> None:
    count = COMMIT_PIECE_COUNT + 5
    many = {TopicPartition("many", number): at(1) for number in range(2 * count)}
    broker.log.gate = trio.Event()
    found: list[Mapping[TopicPartition, int]] = []

    async def commit() -> None:
        found.append(await commit_in_pieces(broker.coordinator, "g", SIMPLE, offsets=many))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await wait_all_tasks_blocked()
        joined = broker.coordinator.join("g", JOIN)
        broker.log.gate.set()
    assert (await joined.wait()).error_code == e.NONE
    refused = found[0]
    assert list(refused) == list(many)[COMMIT_PIECE_COUNT:]
    assert set(refused.values()) == {e.UNKNOWN_MEMBER_ID}
    assert len(broker.coordinator.offsets("g")["many"]) == COMMIT_PIECE_COUNT


async def test_very_many_members_that_leave_stopped_the_event_loop(broker: Broker, nursery: trio.Nursery) -> None:
    broker.coordinator.join("g", JOIN)
    leavers = [MemberIdentity(member_id=f"m{number}") for number in range(MANY_COUNT)]
    with longest_turn_of_others(nursery) as longest:
        assert set(await broker.coordinator.leave("g", leavers)) == {e.UNKNOWN_MEMBER_ID}
    assert longest[0] < 0.1


async def test_a_member_with_too_many_protocols_is_refused(autojump_clock: MockClock, broker: Broker) -> None:
    """Each of them is looked for in what every other member says."""
    protocols = tuple(ClassicProtocol(str(number), b"") for number in range(PROTOCOLS_MAX_COUNT + 1))
    refused = await broker.coordinator.join("g", attrs.evolve(JOIN, protocols=protocols)).wait()
    assert refused.error_code == e.INVALID_REQUEST
    taken = await broker.coordinator.join("g", attrs.evolve(JOIN, protocols=protocols[1:])).wait()
    assert taken.error_code == e.NONE
