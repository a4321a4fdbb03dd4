"""AddPartitionsToTxn (key 24, versions 0 to 5): partitions that a transaction is going to write to (KIP-98).

Producers speak versions 0 to 3, each for its own transaction. From version 4 on a broker asks for several transactions
at once, and may ask whether partitions are in them instead of adding them (KIP-890). Both forms hold the same structs.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class AddPartitionsToTxnTopic:
    name: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class AddPartitionsToTxnTransaction:
    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    verify_only: bool = wire("bool", default=False)  # add nothing: is each of them in the transaction?
    topics: list[AddPartitionsToTxnTopic] = wire(Array(AddPartitionsToTxnTopic), factory=list)


@attrs.define(kw_only=True)
class AddPartitionsToTxnRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 24, 0, 5, 3

    transactions: list[AddPartitionsToTxnTransaction] = wire(
        Array(AddPartitionsToTxnTransaction), since=4, factory=list
    )
    transactional_id: str = wire("string", until=3, default="")
    producer_id: int = wire("int64", until=3, default=0)
    producer_epoch: int = wire("int16", until=3, default=0)
    topics: list[AddPartitionsToTxnTopic] = wire(Array(AddPartitionsToTxnTopic), until=3, factory=list)


@attrs.define(kw_only=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: int = wire("int32")
    partition_error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class AddPartitionsToTxnTopicResult:
    name: str = wire("string")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire(
        Array(AddPartitionsToTxnPartitionResult), factory=list
    )


@attrs.define(kw_only=True)
class AddPartitionsToTxnResult:
    transactional_id: str = wire("string")
    topic_results: list[AddPartitionsToTxnTopicResult] = wire(Array(AddPartitionsToTxnTopicResult), factory=list)


@attrs.define(kw_only=True)
class AddPartitionsToTxnResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 24, 0, 5, 3

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=4, default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = wire(
        Array(AddPartitionsToTxnResult), since=4, factory=list
    )
    results_by_topic: list[AddPartitionsToTxnTopicResult] = wire(
        Array(AddPartitionsToTxnTopicResult), until=3, factory=list
    )
