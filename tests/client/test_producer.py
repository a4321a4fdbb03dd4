"""Batches and partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafscale.client import Producer, connect
from kafscale.client.producer import MAX_BATCH_BYTES, split
from kafscale.errors import KafkaError
from kafscale.wire import error_codes
from kafscale.wire.messages.records import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kafscale.wire.records import Record, build_batch, iterate_records
from tests.client.small_cluster import SmallCluster


@given(st.lists(st.integers(0, MAX_BATCH_BYTES + 1), max_size=12))
def test_batches_hold_all_records_in_order_and_fit(sizes: list[int]) -> None:
    records = [Record(value=bytes(size)) for size in sizes]
    batches = list(split(records))
    assert [record for batch in batches for record in batch] == records
    assert all(len(batch) == 1 or sum(len(each.value or b"") for each in batch) <= MAX_BATCH_BYTES for batch in batches)


@given(st.binary(max_size=99), st.text(max_size=9), st.integers(0, 2**41))
def test_a_record_takes_no_more_than_split_counts(data: bytes, name: str, timestamp_ms: int) -> None:
    records = [Record(key=data, value=data, headers=[(name, data)], timestamp_ms=timestamp_ms)] * 3
    batch = build_batch(records)
    counted = 32 + 2 * len(data) + len(name) * 4 + len(data) + 10
    assert len(batch) - 61 <= 3 * counted


async def test_keyless_records_take_turns_by_call() -> None:
    cluster = SmallCluster()
    cluster.create("t", 2)
    async with cluster.broker.listening() as cluster.address, connect(cluster.address) as client:
        producer = Producer(client=client, topic="t")
        for number in range(4):
            await producer.send([Record(value=b"%d" % number), Record(value=b"again")])
    values = [
        [record.value for batch in log.batches for record in iterate_records(memoryview(batch))]
        for log in cluster.topics["t"].logs
    ]
    assert values == [[b"0", b"again", b"2", b"again"], [b"1", b"again", b"3", b"again"]]


async def test_a_leader_that_moved_is_looked_up_again_and_a_refusal_is_not_retried() -> None:
    codes = [error_codes.NOT_LEADER_OR_FOLLOWER, error_codes.NONE, error_codes.CORRUPT_MESSAGE]
    cluster = SmallCluster()
    cluster.create("t")

    def answer(request: ProduceRequest) -> ProduceResponse:
        partition = PartitionProduceResponse(index=0, error_code=codes.pop(0), base_offset=5)
        return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=[partition])])

    cluster.broker.handlers = {**cluster.broker.handlers, ProduceRequest: answer}
    async with cluster.broker.listening() as cluster.address, connect(cluster.address) as client:
        producer = Producer(client=client, topic="t")
        assert await producer.send_batch(0, build_batch([Record(value=b"x")])) == 5
        with pytest.raises(KafkaError, match="partition 0 of topic 't': CORRUPT_MESSAGE"):
            await producer.send_batch(0, build_batch([Record(value=b"x")]))
    assert codes == []
