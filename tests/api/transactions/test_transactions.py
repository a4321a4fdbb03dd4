"""Transactions as a client speaks them, over the wire, with a whole broker behind it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kafscale.api.produce import ProduceGroup, ShortWay
from kafscale.config import Durability
from kafscale.config.limits import Limits
from kafscale.wire import error_codes as e
from kafscale.wire.messages.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafscale.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tests.devtools.fakes.memory_broker import memory_parts
from tests.devtools.fakes.transactional_producer import NEW, OLD, TOPIC, Producer, broker, committed_values
from tests.devtools.world.determinism import run_here

EVERY_MODE = pytest.mark.parametrize("durability", list(Durability))
PROTOCOLS = pytest.mark.parametrize("produce_version", [3, OLD, NEW])


@EVERY_MODE
@PROTOCOLS
async def test_all_or_nothing_in_every_mode_and_protocol(autojump_clock, durability, produce_version):
    parts = memory_parts()
    async with broker(durability, parts) as (_, client):
        producer = Producer(client, produce_version=produce_version)
        assert await producer.init() == e.NONE
        for number, committed in enumerate((True, False, True)):
            for index in (0, 1):
                await producer.write(index, b"%d" % number, b"more")
                assert await producer.send(index, b"and more") == e.NONE
            assert await producer.end(committed=committed) == e.NONE
        await producer.write(0, b"open")
        for index in (0, 1):
            assert await committed_values(client, index) == [b"0", b"more", b"and more", b"2", b"more", b"and more"]
    async with broker(durability, parts) as (_, client):
        again = Producer(client, produce_version=produce_version)
        assert await again.init() == e.NONE
        assert (again.producer_id, again.epoch > producer.epoch) == (producer.producer_id, True)
        await again.write(1, b"after")
        assert await again.end(committed=True) == e.NONE
        assert (await committed_values(client, 1))[-1] == b"after"
        assert b"open" not in await committed_values(client, 0)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each Produce took the short way."""
    found: list[bool] = []
    take = ShortWay.take

    def spy(self: ShortWay, frame: memoryview) -> ProduceGroup | None:
        group = take(self, frame)
        if frame[:2] == b"\0\0":  # the API key
            found.append(group is not None)
        return group

    monkeypatch.setattr(ShortWay, "take", spy)
    return found


@EVERY_MODE
async def test_a_first_batch_enrols_its_partition_on_the_short_way_too(autojump_clock, durability, taken):
    async with broker(durability) as (_, client):
        producer = Producer(client)
        await producer.init()
        for number in range(3):
            for value in (b"%d" % number, b"more"):
                assert await producer.send(0, value) == e.NONE
            assert await producer.end(committed=number != 1) == e.NONE
        assert await committed_values(client, 0) == [b"0", b"more", b"2", b"more"]
        if durability is not Durability.SEGMENT:  # there enrolment is waited for
            assert taken == [False, True, True, True, True, True]


async def test_a_fenced_producer_that_sends_gets_invalid_producer_epoch(autojump_clock, taken):
    async with broker() as (_, client):
        zombie = Producer(client)
        await zombie.init()
        await zombie.write(0, b"v")
        assert await zombie.end(committed=True) == e.NONE
        await Producer(client).init()
        assert await zombie.send(0, b"late") == e.INVALID_PRODUCER_EPOCH
        assert taken == [False, False]
        assert await committed_values(client, 0) == [b"v"]


@EVERY_MODE
async def test_a_zombie_writes_nothing(autojump_clock, durability):
    async with broker(durability) as (_, client):
        for version in (OLD, NEW):
            zombie = Producer(client, produce_version=version)
            await zombie.init()
            await zombie.write(0, b"zombie")
            follower = Producer(client, produce_version=version)
            await follower.init()
            assert await zombie.send(0, b"late") == e.INVALID_PRODUCER_EPOCH
            assert await zombie.send(1, b"late") == e.INVALID_PRODUCER_EPOCH
            assert await zombie.end(committed=True) == e.PRODUCER_FENCED
            await follower.write(0, b"%d" % version)
            assert await follower.end(committed=True) == e.NONE
        assert await committed_values(client, 0) == [b"11", b"12"]
        assert await committed_values(client, 1) == []


async def test_unenrolled_partitions_are_refused_to_producers_that_enrol(autojump_clock):
    async with broker() as (_, client):
        producer = Producer(client, produce_version=OLD)
        await producer.init()
        assert await producer.send(0, b"v") == e.TRANSACTION_ABORTABLE
        producer.produce_version = 10
        assert await producer.send(0, b"v") == e.INVALID_TXN_STATE
        assert await producer.add(0) == [e.NONE]
        assert await producer.send(0, b"v") == e.NONE
        assert await producer.send(1, b"v") == e.INVALID_TXN_STATE
        assert await producer.end(committed=True) == e.NONE
        assert await producer.send(0, b"behind the end") == e.INVALID_TXN_STATE
        assert await committed_values(client, 0) == [b"v"]


async def test_a_batch_of_a_transaction_needs_a_transactional_id_on_both_ways(autojump_clock):
    async with broker() as (_, client):
        producer = Producer(client)
        await producer.init()
        await producer.write(0, b"v")
        for transactional_id in (None, None, None):
            code = await producer.send(0, b"w", transactional_id=transactional_id)
            assert code == e.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert await producer.send(1, b"w", transactional_id="somebody else") == e.INVALID_PRODUCER_ID_MAPPING
        nobody = Producer(client, transactional_id="x", producer_id=-1, epoch=-1)
        assert await nobody.send(1, b"w") == e.INVALID_RECORD
        assert await producer.end(committed=True) == e.NONE
        assert (await committed_values(client, 0), await committed_values(client, 1)) == ([b"v"], [])


async def test_partitions_are_added_all_or_none(autojump_clock):
    async with broker() as (_, client):
        producer = Producer(client, produce_version=OLD)
        await producer.init()
        not_attempted = e.OPERATION_NOT_ATTEMPTED
        assert await producer.add(0, 7, 1) == [not_attempted, e.UNKNOWN_TOPIC_OR_PARTITION, not_attempted]
        assert await producer.add(-1) == [e.UNKNOWN_TOPIC_OR_PARTITION]
        assert await producer.add(0, topic="nope") == [e.UNKNOWN_TOPIC_OR_PARTITION]
        assert await producer.add(0, topic="__transaction_state") == [e.TOPIC_AUTHORIZATION_FAILED]
        assert await producer.send(0, b"v") == e.TRANSACTION_ABORTABLE
        producer.epoch += 1
        assert await producer.add(0, version=1) == [e.INVALID_PRODUCER_EPOCH]
        assert await producer.add(0, version=2) == [e.PRODUCER_FENCED]
        producer.producer_id += 1
        assert await producer.add(0) == [e.INVALID_PRODUCER_ID_MAPPING]


async def test_a_producer_that_enrols_too_many_partitions_has_to_abort(autojump_clock):
    async with broker(limits=Limits(max_transaction_partitions_count=2)) as (_, client):
        producer = Producer(client)
        await producer.init()
        for index in (0, 1):
            await producer.write(index, b"v")
        assert await producer.send(2, b"v") == e.TRANSACTION_ABORTABLE
        assert await producer.end(committed=False) == e.NONE
        await producer.write(2, b"v")


async def test_brokers_add_and_verify_for_several_producers_at_once(autojump_clock):
    async with broker() as (_, client):
        producer = Producer(client)
        await producer.init()

        async def ask(*, verify_only: bool, index: int, transactional_id: str = "x") -> int:
            transaction = AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                verify_only=verify_only,
                topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[index])],
            )
            request = AddPartitionsToTxnRequest(transactions=[transaction])
            (answer,) = (await producer.call(request, AddPartitionsToTxnResponse, 5)).results_by_transaction
            return answer.topic_results[0].results_by_partition[0].partition_error_code

        assert await ask(verify_only=True, index=0) == e.TRANSACTION_ABORTABLE
        assert await ask(verify_only=False, index=0) == e.NONE
        assert await ask(verify_only=True, index=0) == e.NONE
        assert await ask(verify_only=True, index=1) == e.TRANSACTION_ABORTABLE
        assert await ask(verify_only=True, index=0, transactional_id="y") == e.INVALID_PRODUCER_ID_MAPPING


async def test_offsets_are_added_as_a_partition_of_their_topic(autojump_clock):
    async with broker(offsets_topic_partitions_count=2) as (running, client):
        producer = Producer(client)
        await producer.init()
        request = AddOffsetsToTxnRequest(
            transactional_id="x", producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id="g"
        )
        assert (await producer.call(request, AddOffsetsToTxnResponse, 3)).error_code == e.NONE
        assert await producer.end(committed=True) == e.NONE
        ends = [each.next_offset for each in running.broker.services.log.by_name["__consumer_offsets"]]
        assert sorted(ends) == [0, 1]  # a marker
        request.producer_epoch = 7
        assert (await producer.call(request, AddOffsetsToTxnResponse, 1)).error_code == e.INVALID_PRODUCER_EPOCH


async def test_describe_and_list(autojump_clock, monkeypatch):
    monkeypatch.setattr(trio.to_thread, "run_sync", run_here)  # the clock would not wait for a thread
    async with broker() as (_, client):
        producer = Producer(client)
        await producer.init()
        await producer.write(1, b"v")
        await producer.write(0, b"v")
        other = Producer(client, transactional_id="other")
        await other.init()
        described = await producer.call(
            DescribeTransactionsRequest(transactional_ids=["x", "nope", "x"]), DescribeTransactionsResponse, 0
        )
        mine, nobody = described.transaction_states
        assert (mine.error_code, mine.transaction_state, mine.producer_id) == (e.NONE, "Ongoing", producer.producer_id)
        assert [(each.topic, each.partitions) for each in mine.topics] == [(TOPIC, [0, 1])]
        assert nobody.error_code == e.TRANSACTIONAL_ID_NOT_FOUND

        async def listed(**wanted: Any) -> list[str]:
            answer = await producer.call(ListTransactionsRequest(**wanted), ListTransactionsResponse, 2)
            assert answer.error_code == e.NONE
            return [each.transactional_id for each in answer.transaction_states]

        assert await listed() == ["other", "x"]
        assert await listed(state_filters=["Ongoing", "What"]) == ["x"]
        assert await listed(producer_id_filters=[other.producer_id]) == ["other"]
        assert await listed(transactional_id_pattern="o.*") == ["other"]
        assert await listed(transactional_id_pattern="the") == []
        bad = await producer.call(ListTransactionsRequest(transactional_id_pattern="("), ListTransactionsResponse, 2)
        assert bad.error_code == e.INVALID_REGULAR_EXPRESSION


async def test_an_administrator_ends_a_transaction_by_its_marker(autojump_clock):
    async with broker() as (_, client):
        producer = Producer(client)
        await producer.init()
        await producer.write(0, b"hangs")

        async def mark(index: int, *, epoch: int, coordinator_epoch: int = 1) -> int:
            marker = WritableTxnMarker(
                producer_id=producer.producer_id,
                producer_epoch=epoch,
                transaction_result=False,
                coordinator_epoch=coordinator_epoch,
                topics=[WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[index])],
            )
            request = WriteTxnMarkersRequest(markers=[marker])
            (answer,) = (await producer.call(request, WriteTxnMarkersResponse, 1)).markers
            return answer.topics[0].partitions[0].error_code

        assert await mark(9, epoch=0) == e.UNKNOWN_TOPIC_OR_PARTITION
        assert await mark(0, epoch=-1) == e.INVALID_PRODUCER_EPOCH
        # What Kafka's tool sends that has never seen a marker: no coordinator is known to have been there.
        assert await mark(0, epoch=producer.epoch, coordinator_epoch=-1) == e.NONE
        assert await committed_values(client, 0) == []
        assert await producer.send(0, b"behind it") == e.NONE
        assert await mark(0, epoch=producer.epoch) == e.NONE
        assert await mark(0, epoch=producer.epoch, coordinator_epoch=0) == e.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), 900_001, 2**31 - 1])
async def test_a_timeout_that_makes_no_sense_is_refused(autojump_clock, timeout_ms):
    async with broker() as (_, client):
        assert await Producer(client).init(timeout_ms) == e.INVALID_TRANSACTION_TIMEOUT


async def test_transactional_ids_are_bounded(autojump_clock):
    async with broker(limits=Limits(max_transactional_ids_count=2)) as (_, client):
        found = [await Producer(client, transactional_id=each).init() for each in ("a", "b", "c", "a")]
        assert found == [e.NONE, e.NONE, e.POLICY_VIOLATION, e.NONE]


async def test_no_coordinator_is_available_without_room_for_its_internal_topic(autojump_clock):
    async with broker(limits=Limits(max_partitions_count=4)) as (_, client):
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])
        (found,) = (await Producer(client).call(find, FindCoordinatorResponse, 4)).coordinators
        assert (found.error_code, found.node_id) == (e.COORDINATOR_NOT_AVAILABLE, -1)


async def test_api_versions_advertises_transaction_version_2(autojump_clock):
    async with broker() as (_, client):
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        for version in (3, 4):
            answer = await Producer(client).call(request, ApiVersionsResponse, version)
            supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
            assert supported["transaction.version"] == (2, 2)
            finalized = {
                each.name: (each.max_version_level, each.min_version_level) for each in answer.finalized_features
            }
            assert (answer.finalized_features_epoch, finalized["transaction.version"]) == (0, (2, 2))


async def test_transactions_of_many_producers_side_by_side(autojump_clock):
    async with broker() as (running, client):

        async def produce(number: int) -> None:
            producer = Producer(await running.connect(), transactional_id=f"id-{number}")
            await producer.init()
            for turn in range(4):
                for index in range(3):
                    await producer.write(index, b"%d-%d" % (number, turn))
                assert await producer.end(committed=turn % 2 == 0) == e.NONE

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(produce, number)
        expected = {b"%d-%d" % (number, turn) for number in range(8) for turn in (0, 2)}
        for index in range(3):
            found = await committed_values(client, index)
            assert (len(found), set(found)) == (16, expected)
