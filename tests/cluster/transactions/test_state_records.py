"""The records of `__transaction_state`: what the codec of Kafka's schemas makes of the same state."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from kafscale.cluster.transactions.state_records import decode_state, encode_state
from kafscale.cluster.transactions.values import PartitionsOfTopic, StateRecord, TransactionLogValue
from kafscale.wire.internal_topics import encode_key, encode_value
from kafscale.wire.internal_topics import transactions as wire

ids = st.integers(-1, 2**63 - 1)
int16s = st.integers(-1, 2**15 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
topics = st.builds(PartitionsOfTopic, names, st.lists(st.integers(0, 2**31 - 1), max_size=200).map(tuple))
values = st.builds(
    TransactionLogValue,
    producer_id=st.integers(0, 5) | ids,
    previous_producer_id=st.integers(-1, 5) | ids,
    next_producer_id=st.just(-1) | ids,
    producer_epoch=int16s,
    transaction_timeout_ms=st.integers(0, 2**31 - 1),
    transaction_status=st.sampled_from([each.value for each in wire.TransactionStatus]),
    transaction_partitions=st.none() | st.lists(topics, max_size=3).map(tuple),
    transaction_last_update_timestamp_ms=ids,
    transaction_start_timestamp_ms=ids,
    client_transaction_version=st.sampled_from([0, 1, 2]),
)


def encoded_by_schema(value: TransactionLogValue) -> bytes:
    partitions = value.transaction_partitions
    written = wire.TransactionLogValue(
        producer_id=value.producer_id,
        previous_producer_id=-1 if value.previous_producer_id == value.producer_id else value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        producer_epoch=value.producer_epoch,
        transaction_timeout_ms=value.transaction_timeout_ms,
        transaction_status=value.transaction_status,
        transaction_partitions=None
        if partitions is None
        else [wire.PartitionsSchema(topic=each.topic, partition_ids=list(each.partition_ids)) for each in partitions],
        transaction_last_update_timestamp_ms=value.transaction_last_update_timestamp_ms,
        transaction_start_timestamp_ms=value.transaction_start_timestamp_ms,
        client_transaction_version=value.client_transaction_version,
    )
    return encode_value(written)


@hypothesis.given(names, values)
@hypothesis.settings(deadline=None)
def test_a_record_is_what_the_schema_makes_of_the_state(transactional_id: str, value: TransactionLogValue) -> None:
    record = encode_state(StateRecord(transactional_id, value), 7)
    assert record.key == encode_key(wire.TransactionLogKey(transactional_id=transactional_id))
    assert record.value == encoded_by_schema(value)
    assert record.timestamp_ms == 7
    read = decode_state(record)
    assert read is not None
    assert read.transactional_id == transactional_id
    assert read.value is not None
    assert read.value.transaction_partitions == value.transaction_partitions
