"""The records of `__transaction_state`: what the codec of Kafka's schemas makes of the same state."""

from __future__ import annotations

import attrs
import hypothesis
from hypothesis import strategies as st

from kafscale.cluster.transactions.values import StateRecord, TransactionState, decode_state, encode_state
from kafscale.wire.internal_topics import encode_key, encode_value
from kafscale.wire.internal_topics.transaction_state import PartitionsSchema, TransactionLogKey, TransactionLogValue

ids = st.integers(-1, 2**63 - 1)
int16s = st.integers(-1, 2**15 - 1)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
topics = st.builds(PartitionsSchema, names, st.lists(st.integers(0, 2**31 - 1), max_size=200))
values = st.builds(
    TransactionLogValue,
    producer_id=st.integers(0, 5) | ids,
    previous_producer_id=st.integers(-1, 5) | ids,
    next_producer_id=st.just(-1) | ids,
    producer_epoch=int16s,
    transaction_timeout_ms=st.integers(0, 2**31 - 1),
    transaction_status=st.sampled_from([state.value for state in TransactionState]),
    transaction_partitions=st.none() | st.lists(topics, max_size=3),
    transaction_last_update_timestamp_ms=ids,
    transaction_start_timestamp_ms=ids,
    client_transaction_version=st.sampled_from([0, 1, 2]),
)


def encoded_by_schema(value: TransactionLogValue) -> bytes:
    is_same = value.previous_producer_id == value.producer_id
    return encode_value(attrs.evolve(value, previous_producer_id=-1) if is_same else value)


@hypothesis.given(names, values)
@hypothesis.settings(deadline=None)
def test_an_encoded_state_record_matches_the_schema_codec(transactional_id: str, value: TransactionLogValue) -> None:
    record = encode_state(StateRecord(transactional_id, value), 7)
    assert record.key == encode_key(TransactionLogKey(transactional_id=transactional_id))
    assert record.value == encoded_by_schema(value)
    assert record.timestamp_ms == 7
    read = decode_state(record)
    assert read is not None
    assert read.transactional_id == transactional_id
    assert read.value is not None
    assert read.value.transaction_partitions == value.transaction_partitions
