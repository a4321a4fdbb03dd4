"""Where epochs begin is committed by the controller for many brokers together, and by each where that does not work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from kafscale.cluster.membership.leading.leading import TOLD_SECONDS, EpochStarts, decide_begin
from kafscale.cluster.membership.peers.heartbeats import heartbeat
from kafscale.cluster.membership.peers.peer_connections import BrokerCalls
from kafscale.cluster.membership.placement.writer import PlacementWriter, WantedChange
from kafscale.cluster.membership.records import (
    CONTROLLER_KEY,
    NEXT_NUMBER_KEY,
    BrokerRecord,
    BrokerState,
    ControllerRecord,
    Placement,
    record_key,
    rows_of,
)
from kafscale.cluster.membership.state import ClusterState
from kafscale.cluster.metadata.base import Transaction
from kafscale.cluster.metadata.checkpoint import Checkpointer
from kafscale.cluster.metadata.converter import encode
from kafscale.cluster.metadata.shared import SharedMetadataStore
from kafscale.errors import BrokerUnavailable
from kafscale.formats.metadata_changes import encode_transaction
from kafscale.formats.metadata_head import NONCE_BYTES, Head, HeadEntry, encode_head, head_key
from kafscale.formats.wal_objects import ObjectHeader, WalPosition, wal_object
from kafscale.log.partition.partition import Partition
from kafscale.store.memory import MemoryStore
from kafscale.store.version_writer import VersionWriter
from kafscale.testing.faulty_store import FaultyStore
from kafscale.testing.metadata import MemoryMetadataStore
from kafscale.wire.messages.brokers import BegunPartition, OwnHeartbeatRequest
from tests.cluster.membership.test_fail_over import cluster, topic_of
from tests.cluster.membership.test_several import until
from tests.devtools.fakes.simulated_store import SimulatedStore

CONTROLLER_ID = 1
TOPIC_ID = bytes([7] * 16)
EPOCH = 50  # that everything is led with, and of which it is not decided where it begins
STREAMS = (30, 31)


def incarnation_of(broker_id: int) -> int:
    return 10 + broker_id


@attrs.define(eq=False)
class Calls(BrokerCalls):
    """Tells the brokers of this process; one that is not there can't be reached, or never answers."""

    members: Mapping[int, EpochStarts] = attrs.field(factory=dict)
    is_slow: bool = False

    async def ask(
        self, broker_id: int, message: object, response_class: type, *, within_seconds: float | None = None
    ) -> Any:
        assert isinstance(message, OwnHeartbeatRequest)
        await trio.lowlevel.checkpoint()
        if broker_id in self.members:
            await self.members[broker_id].take(message)
            return
        if self.is_slow:
            assert within_seconds is not None
            await trio.sleep(within_seconds)
        raise BrokerUnavailable("nobody is there")


@asynccontextmanager
async def members_of(count: int, bucket: FaultyStore | None = None) -> AsyncIterator[dict[int, EpochStarts]]:
    """Brokers 1, 2, …, each of which leads the partition with its number, as what led it is dead; the last two more."""
    store = SimulatedStore(MemoryStore() if bucket is None else bucket)
    versions = VersionWriter(store=store, namespace="default", kind="checkpoint", epoch=1)
    await Checkpointer(versions=versions, local=MemoryMetadataStore(), position=lambda: WalPosition(1, 0)).write()
    controller = ControllerRecord(broker_id=CONTROLLER_ID, incarnation=incarnation_of(CONTROLLER_ID), term=2)
    puts = {NEXT_NUMBER_KEY: encode(EPOCH + 1), CONTROLLER_KEY: encode(controller)}
    for broker_id in range(1, count + 1):
        puts[record_key(broker_id)] = encode(
            BrokerRecord(
                incarnation=incarnation_of(broker_id),
                state=BrokerState.LIVE,
                endpoints={},
                directory_id="",
                acknowledges_locally=False,
            )
        )
    leaders = [1, *range(1, count + 1), count, count]
    row = [Placement(leader, EPOCH, 40, 100, recover=STREAMS) for leader in leaders]
    puts |= rows_of(TOPIC_ID, row, range(len(row)))
    entry = HeadEntry(bytes(NONCE_BYTES), encode_transaction(Transaction(puts=puts)))
    await store.put_if_absent(head_key("default"), encode_head(Head(1, 0, (entry,))))
    members: dict[int, EpochStarts] = {}
    async with trio.open_nursery() as nursery:
        for broker_id in range(1, count + 1):
            metadata = await SharedMetadataStore.join(MemoryMetadataStore(), store, "default")
            await nursery.start(metadata.run)
            state = ClusterState(metadata, broker_id, incarnation_of(broker_id))
            await state.load()
            members[broker_id] = EpochStarts(
                metadata=metadata,
                state=state,
                writer=PlacementWriter(state),
                calls=Calls(state, None, members=members),
            )
        yield members
        nursery.cancel_scope.cancel()


def found(index: int, next_offset: int = 105, epoch: int = EPOCH, tail: Sequence[int] = ()) -> Partition:
    """Return a partition that ends there, with a batch of each of these streams in its tail."""
    header = ObjectHeader(salt=0, epoch=0, entry_count=1, number=1, durable_number=0, sequence=1, body_bytes=100)
    batches = [SimpleNamespace(file=wal_object(f"{number}.wal", number, header)) for number in tail]
    partition = SimpleNamespace(
        topic_id=TOPIC_ID,
        index=index,
        partition_id=(TOPIC_ID, index),
        leader_epoch=epoch,
        next_offset=next_offset,
        tail=SimpleNamespace(batches=batches),
    )
    return cast(Partition, partition)


def placement(member: EpochStarts, index: int) -> Placement:
    known = member.state.placement(TOPIC_ID, index)
    assert known is not None
    return known


def told(broker_id: int, offset: int = 105, **changes: Any) -> OwnHeartbeatRequest:
    """Return what a broker tells of the partition with its number."""
    request = heartbeat(ClusterState(MemoryMetadataStore(), broker_id, incarnation_of(broker_id)), 0)
    begun = BegunPartition(
        topic_id=TOPIC_ID, partition_index=broker_id, leader_epoch=EPOCH, offset=offset, recover=[STREAMS[1]]
    )
    request.begun = [attrs.evolve(begun, **changes)]
    return request


async def test_epoch_starts_of_many_brokers_share_a_few_commits(autojump_clock: MockClock) -> None:
    bucket = FaultyStore(MemoryStore())
    async with members_of(30, bucket) as members:
        before = bucket.count("put*")
        committed: dict[int, bool] = {}

        async def commit(broker_id: int, member: EpochStarts) -> None:
            committed[broker_id] = await member.commit(found(broker_id))

        async with trio.open_nursery() as nursery:
            for broker_id, member in members.items():
                nursery.start_soon(commit, broker_id, member)
        assert committed == dict.fromkeys(members, True)
        assert bucket.count("put*") - before <= 3
        for broker_id, member in members.items():
            assert placement(member, broker_id) == Placement(broker_id, EPOCH, EPOCH, 105)


async def test_epoch_starts_of_one_broker_share_a_request(autojump_clock: MockClock) -> None:
    async with members_of(2) as members:
        requests: list[OwnHeartbeatRequest] = []
        take = members[CONTROLLER_ID].take

        async def note(request: OwnHeartbeatRequest) -> None:
            requests.append(request)
            await take(request)

        members[2].calls.members = {CONTROLLER_ID: SimpleNamespace(take=note)}  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:
            for index in (2, 3, 4):
                nursery.start_soon(members[2].commit, found(index))
        assert [len(each.begun) for each in requests] == [3]
        assert all(placement(members[2], index).is_decided_at(105) for index in (2, 3, 4))


async def test_a_tail_search_is_repeated_after_streams_to_recover_have_changed(autojump_clock: MockClock) -> None:
    """A word that was given up came late, and a segment behind it was damaged by then: IndexError."""
    async with members_of(2) as members:
        await members[CONTROLLER_ID].take(told(2, recover=STREAMS[:1]))
        await members[2].metadata.refresh()
        assert await decide_begin(members[2].writer, found(2, tail=STREAMS))
        assert placement(members[2], 2) == Placement(2, EPOCH, EPOCH, 105, recover=STREAMS[:1])


async def test_finished_recoveries_of_many_brokers_share_a_few_commits(autojump_clock: MockClock) -> None:
    """Each heir of a dead broker wrote the head, one behind the other, to say that it needs its stream no more."""
    bucket = FaultyStore(MemoryStore())
    async with members_of(30, bucket) as members:
        for broker_id in members:
            await members[CONTROLLER_ID].take(told(broker_id))
        for member in members.values():
            await member.metadata.refresh()
        assert {placement(members[2], broker_id).recover for broker_id in members} == {STREAMS[1:]}
        before = bucket.count("put*")
        async with trio.open_nursery() as nursery:
            for broker_id, member in members.items():
                nursery.start_soon(member.forget_streams, found(broker_id))
        assert bucket.count("put*") - before <= 3
        for broker_id, member in members.items():
            assert placement(member, broker_id) == Placement(broker_id, EPOCH, EPOCH, 105)
        await members[CONTROLLER_ID].take(told(2))  # late, from before
        assert placement(members[CONTROLLER_ID], 2).recover == ()


async def test_a_broker_cut_off_from_the_controller_commits_a_finished_recovery(autojump_clock: MockClock) -> None:
    async with members_of(3) as members:
        await members[CONTROLLER_ID].take(told(2))
        await members[2].metadata.refresh()
        members[2].calls = Calls(members[2].state, None)
        await members[2].forget_streams(found(2))
        assert placement(members[2], 2) == Placement(2, EPOCH, EPOCH, 105)


@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_broker_cut_off_from_the_controller_commits_an_epoch_start(
    autojump_clock: MockClock, *, is_slow: bool
) -> None:
    async with members_of(3) as members:
        members[2].calls = Calls(members[2].state, None, is_slow=is_slow)
        began = trio.current_time()
        assert await members[2].commit(found(2))
        assert placement(members[2], 2).is_decided_at(105)
        assert trio.current_time() - began < TOLD_SECONDS + 0.5


async def test_a_broker_commits_epoch_starts_alone_under_an_older_controller(autojump_clock: MockClock) -> None:
    async def pass_over(_request: OwnHeartbeatRequest) -> None:
        await trio.lowlevel.checkpoint()

    async with members_of(3) as members:
        older = SimpleNamespace(take=pass_over)
        members[2].calls.members = {CONTROLLER_ID: older}  # type: ignore[attr-defined]
        assert await members[2].commit(found(2))
        assert placement(members[2], 2).is_decided_at(105)


async def test_a_late_report_of_an_earlier_attempt_forces_another_search(
    autojump_clock: MockClock,
) -> None:
    """What was listed the second time and not the first is not part of the log then: all others know that already."""
    async with members_of(2) as members:
        await members[CONTROLLER_ID].take(told(2, offset=100))
        assert not await members[2].commit(found(2, next_offset=105))
        assert placement(members[2], 2).is_decided_at(100)
        assert await members[2].commit(found(2, next_offset=100))


async def test_a_late_report_during_a_local_commit_forces_another_search(autojump_clock: MockClock) -> None:
    async with members_of(2) as members:
        members[2].calls = Calls(members[2].state, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(members[CONTROLLER_ID].take, told(2, offset=100))
            assert not await members[2].commit(found(2, next_offset=105))
        assert placement(members[2], 2).is_decided_at(100)


@pytest.mark.parametrize(
    "request_of_another",
    [
        attrs.evolve(told(2), broker_id=3),  # who does not lead it
        attrs.evolve(told(2), broker_epoch=incarnation_of(2) - 1),  # an earlier incarnation
        told(2, leader_epoch=EPOCH - 1),
    ],
)
@pytest.mark.parametrize("is_decided", [False, True])
async def test_the_controller_ignores_epoch_starts_of_other_brokers_or_epochs(
    autojump_clock: MockClock, request_of_another: OwnHeartbeatRequest, is_decided: bool
) -> None:
    async with members_of(3) as members:
        if is_decided:
            await members[CONTROLLER_ID].take(told(2, recover=STREAMS))
        before = placement(members[CONTROLLER_ID], 2)
        assert before.is_decided == is_decided
        await members[CONTROLLER_ID].take(request_of_another)
        assert placement(members[CONTROLLER_ID], 2) == before


async def test_the_controller_commits_nothing_for_a_broker_fenced_meanwhile(autojump_clock: MockClock) -> None:
    async with members_of(3) as members:
        fenced = attrs.evolve(members[3].state.brokers[2], state=BrokerState.FENCED)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(members[3].state.follower.commit, Transaction(puts={record_key(2): encode(fenced)}))
            await trio.sleep(0.005)  # that one is under way, and the controller does not know of it
            await members[CONTROLLER_ID].take(told(2))
        assert members[CONTROLLER_ID].metadata.lost_race_count == 1
        assert members[CONTROLLER_ID].state.brokers[2].state is BrokerState.FENCED
        assert not placement(members[CONTROLLER_ID], 2).is_decided


async def test_an_epoch_start_is_decided_once_and_repeats_change_nothing(autojump_clock: MockClock) -> None:
    async with members_of(2) as members:
        for offset, recover in ((105, STREAMS[1:]), (90, ()), (105, STREAMS)):
            await members[CONTROLLER_ID].take(told(2, offset=offset, recover=recover))
            assert placement(members[CONTROLLER_ID], 2) == Placement(2, EPOCH, EPOCH, 105, recover=STREAMS[1:])


async def test_a_broker_fenced_before_its_commit_does_not_lead(autojump_clock: MockClock) -> None:
    async with members_of(2) as members:
        fenced = attrs.evolve(members[2].state.brokers[2], state=BrokerState.FENCED)
        await members[CONTROLLER_ID].take(told(2))
        await members[CONTROLLER_ID].state.follower.commit(Transaction(puts={record_key(2): encode(fenced)}))
        assert not await members[2].commit(found(2))


async def test_heirs_of_a_dead_broker_have_the_controller_commit(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    committing: list[ClusterState] = []
    commit = PlacementWriter._commit

    async def note(self: PlacementWriter, batch: Sequence[WantedChange]) -> None:
        committing.append(self.state)
        await commit(self, batch)

    async with cluster(4) as running:
        await topic_of(running, 12)
        controller = running.controller()
        dead = running.others(controller)[0]
        monkeypatch.setattr(PlacementWriter, "_commit", note)
        running.brokers[dead].kill()
        await until(lambda: running.all_led(12, running.others(dead)))
        assert committing
        assert all(each is running.state(controller) for each in committing)
