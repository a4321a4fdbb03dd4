"""Records of `__transaction_state` (record type 0): which producer has a transactional id, and its transaction.

State machines use these classes as values: nothing changes one after it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from kafscale.wire.internal_topics.coding import Key, Value
from kafscale.wire.schema import Array, wire


@attrs.define
class PartitionsSchema:
    topic: str = wire("string")
    partition_ids: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class TransactionLogValue(Value, versions=(0, 1), flexible=1, written=1):
    """Kafka writes version 1, and 0 while the feature `transaction.version` is 0.

    Kafka 4.1 declares all tagged fields, but writes only the version that the client speaks.
    """

    producer_id: int = wire("int64")
    previous_producer_id: int = wire("int64", since=1, tag=0, default=-1)  # of the last transaction
    next_producer_id: int = wire("int64", since=1, tag=1, default=-1)  # that the producer was last told
    producer_epoch: int = wire("int16")
    next_producer_epoch: int = wire("int16", since=1, tag=3, default=-1)
    transaction_timeout_ms: int = wire("int32")
    transaction_status: int = wire("int8")  # a `TransactionState`
    # null without partitions
    transaction_partitions: list[PartitionsSchema] | None = wire(Array(PartitionsSchema))
    transaction_last_update_timestamp_ms: int = wire("int64")
    transaction_start_timestamp_ms: int = wire("int64")  # -1: none is open
    client_transaction_version: int = wire("int16", since=1, tag=2, default=0)


@attrs.frozen
class TransactionLogKey(Key, record_type=0, value=TransactionLogValue):
    transactional_id: str = wire("string")


TRANSACTION_STATE: Final[Mapping[int, type]] = MappingProxyType({TransactionLogKey.RECORD_TYPE: TransactionLogKey})
