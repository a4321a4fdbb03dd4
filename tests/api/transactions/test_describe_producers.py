"""DescribeProducers, asked of a whole broker in memory whose partition has producers and transactions."""

from __future__ import annotations

import trio.testing

from kafscale.client.connection import Connection
from kafscale.wire import error_codes
from kafscale.wire.batch_header import parse_header
from kafscale.wire.messages.transactions import (
    DescribedProducersTopic,
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
)
from kafscale.wire.records import ProducerStamp
from tests.api.assignments import TwoBrokers, hand_over
from tests.api.one_topic import TOPIC, first_partition, one_topic, request_in
from tests.devtools.fakes.memory_broker import memory_parts
from tests.devtools.fakes.memory_log import append_nowait
from tests.devtools.fakes.transactions import NOW_MS, abort, commit, send, transactional


async def describe(client: Connection, *asked: tuple[str, list[int]]) -> dict[tuple[str, int], PartitionResponse]:
    topics = [DescribedProducersTopic(name=name, partition_indexes=indexes) for name, indexes in asked]
    response = await request_in(client, 0, DescribeProducersRequest(topics=topics), DescribeProducersResponse)
    answers = [(topic.name, each) for topic in response.topics for each in topic.partitions]
    found = {(name, each.partition_index): each for name, each in answers}
    assert len(found) == len(answers)
    return found


async def producers(client: Connection) -> dict[int, ProducerState]:
    """Those of the first partition, by id."""
    answer = (await describe(client, (TOPIC, [0])))[TOPIC, 0]
    assert (answer.error_code, answer.error_message) == (error_codes.NONE, None)
    return {each.producer_id: each for each in answer.active_producers}


async def test_producers_are_described_with_their_last_sequence(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        assert await producers(client) == {}
        partition = first_partition(running)
        for sequence in (0, 3):
            append_nowait(partition, b"a", b"b", b"c", producer=ProducerStamp(5, 2, sequence), now_ms=NOW_MS)
        assert await producers(client) == {
            5: ProducerState(
                producer_id=5,
                producer_epoch=2,
                last_sequence=5,
                last_timestamp=NOW_MS,
                coordinator_epoch=-1,
                current_txn_start_offset=-1,
            )
        }


async def test_producers_are_described_with_the_first_offset_of_their_open_transaction(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_topic(memory_parts()) as (running, client):
        partition = first_partition(running)
        await send(partition, b"committed", producer_id=1)
        await commit(partition, producer_id=1, coordinator_epoch=4)
        await send(partition, b"open", producer_id=2)
        await send(partition, b"open", producer_id=2, sequence=1)
        found = await producers(client)
        assert {each: found[each].current_txn_start_offset for each in found} == {1: -1, 2: 2}
        assert {each: found[each].coordinator_epoch for each in found} == {1: 4, 2: -1}
        assert found[2].last_sequence == 1
        await abort(partition, producer_id=2)
        assert (await producers(client))[2].current_txn_start_offset == -1


async def test_an_open_transaction_of_a_forgotten_producer_is_described(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        partition = first_partition(running)
        await send(partition, b"open", producer_id=2, epoch=3)
        partition.producers.clear()
        assert await producers(client) == {
            2: ProducerState(producer_id=2, producer_epoch=3, coordinator_epoch=-1, current_txn_start_offset=0)
        }


async def test_a_producer_with_only_refused_batches_is_not_listed(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        partition = first_partition(running)
        await send(partition, b"open", producer_id=2)
        partition.producers.clear()
        for producer_id in (1, 2):
            partition.producers.refuse(parse_header(transactional(b"a", producer_id=producer_id)), NOW_MS)
        found = await producers(client)
        assert {each: found[each].current_txn_start_offset for each in found} == {2: 0}


async def test_a_producer_with_only_a_marker_is_described_without_a_sequence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with one_topic(memory_parts()) as (running, client):
        partition = first_partition(running)
        await send(partition, b"open", producer_id=2)
        partition.producers.clear()
        await abort(partition, producer_id=2, coordinator_epoch=4)
        await abort(partition, producer_id=3, coordinator_epoch=5)
        found = await producers(client)
        assert {each: (found[each].last_sequence, found[each].coordinator_epoch) for each in found} == {
            2: (-1, 4),
            3: (-1, 5),
        }


async def test_partitions_that_can_not_be_described(autojump_clock: trio.testing.MockClock) -> None:
    async with one_topic(memory_parts()) as (running, client):
        TwoBrokers.of(running.broker)
        await hand_over(running.broker, TOPIC, 1)
        answers = await describe(client, (TOPIC, [0, 1, 9, -1, 0]), ("nope", [0]), (TOPIC, [9]), ("a/b", [0]))
        assert {at: answer.error_code for at, answer in answers.items()} == {
            (TOPIC, 0): error_codes.NONE,
            (TOPIC, 1): error_codes.NOT_LEADER_OR_FOLLOWER,
            (TOPIC, 9): error_codes.UNKNOWN_TOPIC_OR_PARTITION,
            (TOPIC, -1): error_codes.UNKNOWN_TOPIC_OR_PARTITION,
            ("nope", 0): error_codes.UNKNOWN_TOPIC_OR_PARTITION,
            ("a/b", 0): error_codes.INVALID_TOPIC_EXCEPTION,
        }
        assert answers["nope", 0].error_message == "This server does not host this topic-partition."
        assert "Topic name is invalid: 'a/b'" in str(answers["a/b", 0].error_message)
