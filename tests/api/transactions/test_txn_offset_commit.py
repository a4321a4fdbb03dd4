"""Offsets that transactions commit, as a client speaks of them, over the wire, with a whole broker behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import aclosing
from random import Random
from typing import Any

import attrs
import pytest
import trio.testing

from kafscale.client.connection import Connection
from kafscale.cluster.coordinator.loading import SkippedRecords, apply_batch, load
from kafscale.cluster.coordinator.partitions import TopicPartition
from kafscale.cluster.groups.loading import LoadedGroups
from kafscale.cluster.transactions import offset_commits
from kafscale.config import CoordinatorSettings, Durability
from kafscale.wire import codec
from kafscale.wire import error_codes as e
from kafscale.wire.messages.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from kafscale.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kafscale.wire.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse
from kafscale.wire.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.devtools.fakes.memory_broker import memory_parts
from tests.devtools.fakes.transactional_producer import NEW, OLD, TOPIC, Producer, broker, committed_values

EVERY_MODE = pytest.mark.parametrize("durability", list(Durability))
PROTOCOLS = pytest.mark.parametrize("produce_version", [OLD, NEW])
GROUP = "readers"
UNSTABLE = "unstable"
SWEEP_SECONDS = 650  # the retention of offsets is looked at every 600 s


async def call(client: Connection, request: Any, response: Any, version: int) -> Any:
    calling = client.call(type(request), response, version=version)
    return await (await client.send_encoded(calling, codec.encode(request, version))).wait()


async def fetch(
    client: Connection, indexes: Iterable[int] | None = (0, 1, 2), *, stable: bool = True, group: str = GROUP
) -> dict[int, Any]:
    """Return the committed offset of each partition that has one, or UNSTABLE."""
    topics = None if indexes is None else [OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[*indexes])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable)
    while True:
        (answer,) = (await call(client, request, OffsetFetchResponse, 8)).groups
        if answer.error_code not in (e.COORDINATOR_LOAD_IN_PROGRESS, e.NOT_COORDINATOR):
            break
        await trio.sleep(0.05)
    found: dict[int, Any] = {}
    for each in (partition for topic in answer.topics for partition in topic.partitions):
        if each.error_code == e.UNSTABLE_OFFSET_COMMIT:
            found[each.partition_index] = UNSTABLE
        elif each.committed_offset >= 0:
            found[each.partition_index] = each.committed_offset
    return found


async def commit(client: Connection, offsets: Mapping[int, int], *, group: str = GROUP) -> int:
    """Commit outside of any transaction."""
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in offsets.items()
    ]
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
    request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)
    (answer,) = (await call(client, request, OffsetCommitResponse, 8)).topics
    return max(each.error_code for each in answer.partitions)


async def forget(client: Connection, *indexes: int, group: str = GROUP) -> int:
    partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
    request = OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=TOPIC, partitions=partitions)])
    return (await call(client, request, OffsetDeleteResponse, 0)).error_code


async def started(client: Connection, transactional_id: str = "x", produce_version: int = NEW) -> Producer:
    producer = Producer(client, transactional_id=transactional_id, produce_version=produce_version)
    assert await producer.init() == e.NONE
    return producer


@EVERY_MODE
@PROTOCOLS
async def test_offsets_count_with_the_records_of_their_transaction(autojump_clock, durability, produce_version):
    parts = memory_parts()
    async with broker(durability, parts) as (_, client):
        producer = await started(client, produce_version=produce_version)
        expected: dict[int, int] = {}
        for number, committed in enumerate((True, False, True)):
            await producer.write(0, b"%d" % number)
            await producer.commit_offsets(GROUP, {0: number + 1, 1: 10 * number})
            assert await fetch(client) == {0: UNSTABLE, 1: UNSTABLE}
            assert await fetch(client, stable=False) == expected
            assert await producer.end(committed=committed) == e.NONE
            if committed:
                expected = {0: number + 1, 1: 10 * number}
            assert await fetch(client) == await fetch(client, None) == expected
        await producer.commit_offsets(GROUP, {0: 99, 2: 99})
    async with broker(durability, parts) as (_, client):
        assert await fetch(client) == {0: UNSTABLE, 1: 20, 2: UNSTABLE}
        assert await fetch(client, None, stable=False) == {0: 3, 1: 20}
        await started(client, produce_version=produce_version)  # aborts what is open
        assert await fetch(client) == {0: 3, 1: 20}
        assert await committed_values(client, 0) == [b"0", b"2"]


@EVERY_MODE
async def test_a_transaction_with_offsets_continues_after_a_restart(autojump_clock, durability):
    parts = memory_parts()
    async with broker(durability, parts) as (_, client):
        producer = await started(client)
        await producer.commit_offsets(GROUP, {0: 5})
    async with broker(durability, parts) as (_, client):
        await fetch(client)
        producer.client = client
        await producer.commit_offsets(GROUP, {1: 6})
        assert await producer.end(committed=True) == e.NONE
        assert await fetch(client) == {0: 5, 1: 6}
    async with broker(durability, parts) as (_, client):
        assert await fetch(client) == {0: 5, 1: 6}


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_later_offset_in_the_log_wins_whichever_commits_first(autojump_clock, restarts):
    parts = memory_parts()
    async with broker(parts=parts) as (_, client):
        early, late = await started(client, "early"), await started(client, "late")
        await early.commit_offsets(GROUP, {0: 1, 1: 1, 2: 1})
        assert await commit(client, {1: 7}) == e.NONE
        await late.commit_offsets(GROUP, {0: 2})
        assert await late.end(committed=True) == e.NONE
        assert await fetch(client) == {0: UNSTABLE, 1: UNSTABLE, 2: UNSTABLE}
        if not restarts:
            assert await early.end(committed=True) == e.NONE
            assert await fetch(client) == {0: 2, 1: 7, 2: 1}
            await early.commit_offsets(GROUP, {1: 3})
            assert await early.end(committed=True) == e.NONE
            assert await fetch(client) == {0: 2, 1: 3, 2: 1}
    if restarts:
        async with broker(parts=parts) as (_, client):
            assert await fetch(client) == {0: UNSTABLE, 1: UNSTABLE, 2: UNSTABLE}
            early.client = client
            assert await early.end(committed=True) == e.NONE
            assert await fetch(client) == {0: 2, 1: 7, 2: 1}


async def test_deleting_an_offset_deletes_a_pending_one_too(autojump_clock):
    async with broker() as (_, client):
        producer = await started(client)
        await producer.commit_offsets(GROUP, {0: 1, 1: 1})
        assert await forget(client, 0) == e.NONE
        assert await fetch(client) == {1: UNSTABLE}
        await producer.commit_offsets(GROUP, {2: 1})
        assert await producer.end(committed=True) == e.NONE
        assert await fetch(client) == {1: 1, 2: 1}


@pytest.mark.parametrize("produce_version", [OLD, NEW])
async def test_fenced_or_unenrolled_producers_commit_nothing(autojump_clock, produce_version):
    async with broker() as (_, client):
        zombie = await started(client, produce_version=produce_version)
        if produce_version < NEW:
            assert await zombie.send_offsets(GROUP, {0: 1}, version=3) == [e.INVALID_TXN_STATE]
            assert await zombie.send_offsets(GROUP, {0: 1}, version=4) == [e.TRANSACTION_ABORTABLE]
        await zombie.commit_offsets(GROUP, {0: 1})
        follower = await started(client, produce_version=produce_version)
        assert await zombie.send_offsets(GROUP, {0: 1}) == [e.INVALID_PRODUCER_EPOCH]
        assert await fetch(client) == {}
        await follower.commit_offsets(GROUP, {0: 2})
        assert await zombie.end(committed=True) == e.PRODUCER_FENCED
        assert await follower.end(committed=True) == e.NONE
        assert await fetch(client) == {0: 2}
        follower.producer_id += 1
        assert await follower.send_offsets(GROUP, {0: 1}) == [e.INVALID_PRODUCER_ID_MAPPING]


async def test_partitions_are_refused_one_by_one_and_groups_as_a_whole(autojump_clock):
    async with broker() as (_, client):
        producer = await started(client)
        unknown = e.UNKNOWN_TOPIC_OR_PARTITION
        assert await producer.send_offsets(GROUP, {7: 1, 0: 1, -1: 1}) == [unknown, e.NONE, unknown]
        assert await producer.send_offsets(GROUP, {0: 1}, topic="nope") == [unknown]
        assert await producer.send_offsets("", {0: 1, 7: 1}) == [e.INVALID_GROUP_ID, unknown]
        assert await producer.send_offsets("new", {0: 1}, generation_id=3) == [e.ILLEGAL_GENERATION]
        assert await producer.end(committed=True) == e.NONE
        assert await fetch(client) == {0: 1}
        assert await fetch(client, group="new") == {}


async def test_a_member_that_has_lost_its_partitions_commits_nothing(autojump_clock):
    """KIP-447: by the group's metadata, a producer is refused whose consumer is of an earlier generation."""
    async with broker() as (_, client):
        join = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = await call(client, join, JoinGroupResponse, 3)
        assert joined.error_code == e.NONE
        producer = await started(client)
        member = {"member_id": joined.member_id, "generation_id": joined.generation_id}
        # The group has not completed its rebalance, and what was read before it may be committed all the same.
        assert await producer.send_offsets(GROUP, {0: 1}, **member) == [e.NONE]
        assert await producer.send_offsets(GROUP, {0: 1}) == [e.NONE]  # a producer of before KIP-447 names nobody
        assert await commit(client, {0: 1}) == e.UNKNOWN_MEMBER_ID
        wrong = {**member, "generation_id": joined.generation_id - 1}
        assert await producer.send_offsets(GROUP, {0: 9}, **wrong) == [e.ILLEGAL_GENERATION]
        assert await producer.send_offsets(GROUP, {0: 9}, **{**member, "member_id": "x"}) == [e.UNKNOWN_MEMBER_ID]
        named = {**member, "group_instance_id": "nobody"}
        assert await producer.send_offsets(GROUP, {0: 9}, **named) == [e.UNKNOWN_MEMBER_ID]
        assert await producer.end(committed=True) == e.NONE
        assert await fetch(client) == {0: 1}


async def test_deleting_a_group_removes_its_pending_offsets(autojump_clock):
    parts = memory_parts()
    async with broker(parts=parts) as (_, client):
        producer = await started(client)
        await producer.commit_offsets(GROUP, {0: 1})
        request = DeleteGroupsRequest(groups_names=[GROUP])
        (answer,) = (await call(client, request, DeleteGroupsResponse, 2)).results
        assert answer.error_code == e.NONE
        assert await fetch(client) == {}
        await producer.commit_offsets(GROUP, {1: 1})  # makes it anew
        assert await producer.end(committed=True) == e.NONE
        assert await fetch(client) == {1: 1}
    async with broker(parts=parts) as (_, client):
        assert await fetch(client) == {1: 1}


async def test_deleting_a_topic_removes_its_pending_offsets(autojump_clock):
    async with broker() as (running, client):
        producer = await started(client)
        await producer.commit_offsets(GROUP, {0: 1})
        request = DeleteTopicsRequest(topic_names=[TOPIC], timeout_ms=1_000)
        (answer,) = (await call(client, request, DeleteTopicsResponse, 3)).responses
        assert answer.error_code == e.NONE
        assert await producer.end(committed=True) == e.NONE
        assert await fetch(client, stable=False) == {}
        assert not running.broker.services.groups.is_unstable(GROUP, TopicPartition(TOPIC, 0))


@EVERY_MODE
async def test_an_abort_marker_from_an_administrator_clears_pending_offsets(autojump_clock, durability):
    async with broker(durability, offsets_topic_partitions_count=1) as (_, client):
        producer = await started(client)
        await producer.commit_offsets(GROUP, {0: 1})
        assert await fetch(client) == {0: UNSTABLE}
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_result=False,
            coordinator_epoch=0,
            topics=[WritableTxnMarkerTopic(name="__consumer_offsets", partition_indexes=[0])],
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        (answer,) = (await call(client, request, WriteTxnMarkersResponse, 1)).markers
        assert answer.topics[0].partitions[0].error_code == e.NONE
        assert await fetch(client) == {}


async def test_offsets_do_not_expire_while_a_transaction_has_pending_offsets(autojump_clock):
    async with broker(coordinator=CoordinatorSettings(offsets_retention_ms=60_000)) as (running, client):
        groups = running.broker.services.groups
        began_ms, began = groups.wall_clock_ms(), trio.current_time()
        groups.wall_clock_ms = lambda: began_ms + int((trio.current_time() - began) * 1000)
        groups.deletion.context = attrs.evolve(groups.deletion.context, wall_clock_ms=groups.wall_clock_ms)
        producer = await started(client)
        assert await commit(client, {0: 1, 1: 1}) == e.NONE
        await producer.commit_offsets(GROUP, {0: 2})
        await trio.sleep(SWEEP_SECONDS)
        producer.client = await running.connect()
        assert await fetch(producer.client, stable=False) == {0: 1}
        assert await producer.end(committed=False) == e.NONE
        await trio.sleep(SWEEP_SECONDS)
        assert await fetch(await running.connect()) == {}
        assert groups.group(GROUP) is None


async def test_offsets_of_several_batches_are_one_transaction(autojump_clock, monkeypatch):
    monkeypatch.setattr(offset_commits, "PIECE_COUNT", 2)
    async with broker(offsets_topic_partitions_count=1) as (running, client):
        producer = await started(client)
        await producer.commit_offsets(GROUP, {0: 7, 1: 8, 2: 9})
        await producer.commit_offsets("other", {1: 1})
        (partition,) = running.broker.services.log.by_name["__consumer_offsets"]
        assert len(partition.tail.batches) == 3
        assert await fetch(client) == {0: UNSTABLE, 1: UNSTABLE, 2: UNSTABLE}
        assert await producer.end(committed=True) == e.NONE
        assert await fetch(client) == {0: 7, 1: 8, 2: 9}
        assert await fetch(client, group="other") == {1: 1}


async def _logged(services: Any) -> tuple[dict[Any, int], set[Any]]:
    """Return what a restart would read: the offsets, and where they are unstable."""
    offsets, unstable = {}, set()
    for partition in services.log.by_name["__consumer_offsets"]:
        loading = LoadedGroups(partition.index)
        async with aclosing(load(services.log.reader, partition)) as found:
            async for batch in found:
                apply_batch(loading, batch, SkippedRecords())
        for group_id, group in loading.groups.items():
            offsets |= {(group_id, at): logged.offset.offset for at, logged in group.offsets.items()}
        for by_group in loading.pending.values():
            unstable |= {(group_id, at) for group_id, pending in by_group.items() for at in pending}
    return offsets, unstable


@EVERY_MODE
@pytest.mark.parametrize("seed", range(3))
async def test_offsets_in_memory_equal_those_read_from_the_log(autojump_clock, durability, seed):
    """Whatever commits, ends, deletes and restarts in whatever order: memory and log say the same."""
    parts, random = memory_parts(), Random(seed)
    groups = ("g", "h")
    for _ in range(3):
        async with broker(durability, parts, offsets_topic_partitions_count=1) as (running, client):
            await fetch(client)

            async def work(number: int) -> None:
                own = await running.connect()
                producer = await started(own, f"id-{number}", random.choice((OLD, NEW)))
                for _ in range(random.randrange(4, 9)):
                    group, index, offset = random.choice(groups), random.randrange(3), random.randrange(1000)
                    match random.randrange(6):
                        case 0:
                            await commit(own, {index: offset}, group=group)
                        case 1:
                            await forget(own, index, group=group)
                        case 2:
                            await producer.end(committed=random.random() < 0.7)
                        case 3 if random.random() < 0.2:
                            await call(own, DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse, 2)
                        case _:
                            if producer.produce_version < NEW:
                                await producer.add_offsets(group)
                            await producer.send_offsets(group, {index: offset})

            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(work, number)
            services = running.broker.services
            offsets, unstable = await _logged(services)
            known = {
                (each.group_id, TopicPartition(each.topic, each.partition)): each.offset
                for each in services.groups.committed_offsets()
            }
            assert known == offsets
            places = [(group, TopicPartition(TOPIC, index)) for group in groups for index in range(3)]
            assert {each for each in places if services.groups.is_unstable(*each)} == unstable
