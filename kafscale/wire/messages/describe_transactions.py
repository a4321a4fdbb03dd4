"""DescribeTransactions (key 65, version 0): the state of transactional ids that this broker coordinates (KIP-664)."""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class DescribeTransactionsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 65, 0, 0, 0

    transactional_ids: list[str] = wire(Array("string"), factory=list)


@attrs.define(kw_only=True)
class TopicData:
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class TransactionState:
    error_code: int = wire("int16", default=0)
    transactional_id: str = wire("string")
    transaction_state: str = wire("string", default="")
    transaction_timeout_ms: int = wire("int32", default=0)
    transaction_start_time_ms: int = wire("int64", default=0)  # -1: none is open
    producer_id: int = wire("int64", default=0)
    producer_epoch: int = wire("int16", default=0)
    topics: list[TopicData] = wire(Array(TopicData), factory=list)  # those that are still without a marker


@attrs.define(kw_only=True)
class DescribeTransactionsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 65, 0, 0, 0

    throttle_time_ms: int = wire("int32", default=0)
    transaction_states: list[TransactionState] = wire(Array(TransactionState), factory=list)
