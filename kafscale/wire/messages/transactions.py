"""Messages of transactions and their producers."""

from __future__ import annotations

from kafscale.wire.schema import Array, Message, Struct, wire


class InitProducerIdRequest(Message, key=22, versions=(0, 5), flexible=2):
    """InitProducerId: a producer id and epoch for a producer (KIP-98); from version 3 its next epoch (KIP-360)."""

    transactional_id: str | None = wire("string", default=None)  # null: idempotence without transactions
    transaction_timeout_ms: int = wire("int32")
    producer_id: int = wire("int64", since=3, default=-1)
    producer_epoch: int = wire("int16", since=3, default=-1)


class InitProducerIdResponse(Message, answers=InitProducerIdRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    producer_id: int = wire("int64", default=-1)
    producer_epoch: int = wire("int16", default=-1)


class AddPartitionsToTxnTopic(Struct):
    name: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    verify_only: bool = wire("bool", default=False)  # add nothing: is each of them in the transaction?
    topics: list[AddPartitionsToTxnTopic] = wire(Array(AddPartitionsToTxnTopic), factory=list)


class AddPartitionsToTxnRequest(Message, key=24, versions=(0, 5), flexible=3):
    """AddPartitionsToTxn: partitions that transactions will write to; brokers send version 4 or later (KIP-890)."""

    transactions: list[AddPartitionsToTxnTransaction] = wire(
        Array(AddPartitionsToTxnTransaction), since=4, factory=list
    )
    transactional_id: str = wire("string", until=3, default="")
    producer_id: int = wire("int64", until=3, default=0)
    producer_epoch: int = wire("int16", until=3, default=0)
    topics: list[AddPartitionsToTxnTopic] = wire(Array(AddPartitionsToTxnTopic), until=3, factory=list)


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = wire("int32")
    partition_error_code: int = wire("int16", default=0)


class AddPartitionsToTxnTopicResult(Struct):
    name: str = wire("string")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = wire(
        Array(AddPartitionsToTxnPartitionResult), factory=list
    )


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = wire("string")
    topic_results: list[AddPartitionsToTxnTopicResult] = wire(Array(AddPartitionsToTxnTopicResult), factory=list)


class AddPartitionsToTxnResponse(Message, answers=AddPartitionsToTxnRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", since=4, default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = wire(
        Array(AddPartitionsToTxnResult), since=4, factory=list
    )
    results_by_topic: list[AddPartitionsToTxnTopicResult] = wire(
        Array(AddPartitionsToTxnTopicResult), until=3, factory=list
    )


class AddOffsetsToTxnRequest(Message, key=25, versions=(0, 4), flexible=3):
    """AddOffsetsToTxn: enrol a group's partition of `__consumer_offsets` in a transaction (KIP-98)."""

    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    group_id: str = wire("string")


class AddOffsetsToTxnResponse(Message, answers=AddOffsetsToTxnRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)


class EndTxnRequest(Message, key=26, versions=(0, 5), flexible=3):
    """EndTxn: commit or abort a transaction (KIP-98). From version 5 on each end raises the epoch (KIP-890)."""

    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    committed: bool = wire("bool")  # false: abort


class EndTxnResponse(Message, answers=EndTxnRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    producer_id: int = wire("int64", since=5, default=-1)  # for the next transaction; -1: as before
    producer_epoch: int = wire("int16", since=5, default=-1)


class WritableTxnMarkerTopic(Struct):
    name: str = wire("string")
    partition_indexes: list[int] = wire(Array("int32"), factory=list)


class WritableTxnMarker(Struct):
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    transaction_result: bool = wire("bool")  # true: commit, false: abort
    topics: list[WritableTxnMarkerTopic] = wire(Array(WritableTxnMarkerTopic), factory=list)
    coordinator_epoch: int = wire("int32")  # of the partition of `__transaction_state`
    transaction_version: int = wire(
        "int8", since=2, default=0
    )  # of 2 the marker's epoch is above the records' (KIP-1228)


class WriteTxnMarkersRequest(Message, key=27, versions=(1, 2), flexible=1):
    """WriteTxnMarkers: end transactions in the partitions of a leader (KIP-98, KIP-664)."""

    markers: list[WritableTxnMarker] = wire(Array(WritableTxnMarker), factory=list)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


class WritableTxnMarkerTopicResult(Struct):
    name: str = wire("string")
    partitions: list[WritableTxnMarkerPartitionResult] = wire(Array(WritableTxnMarkerPartitionResult), factory=list)


class WritableTxnMarkerResult(Struct):
    producer_id: int = wire("int64")
    topics: list[WritableTxnMarkerTopicResult] = wire(Array(WritableTxnMarkerTopicResult), factory=list)


class WriteTxnMarkersResponse(Message, answers=WriteTxnMarkersRequest):
    markers: list[WritableTxnMarkerResult] = wire(Array(WritableTxnMarkerResult), factory=list)


class DescribedProducersTopic(Struct):
    name: str = wire("string")
    partition_indexes: list[int] = wire(Array("int32"), factory=list)


class DescribeProducersRequest(Message, key=61, versions=(0, 0), flexible=0):
    """DescribeProducers: recent producers of partitions, and their transactions (KIP-664)."""

    topics: list[DescribedProducersTopic] = wire(Array(DescribedProducersTopic), factory=list)


class ProducerState(Struct):
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int32")  # an int16 everywhere else
    last_sequence: int = wire("int32", default=-1)
    last_timestamp: int = wire("int64", default=-1)  # in milliseconds
    coordinator_epoch: int = wire("int32")  # of the last end marker; -1: none
    current_txn_start_offset: int = wire("int64", default=-1)  # -1: no transaction is open


class PartitionResponse(Struct):
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)
    error_message: str | None = wire("string", default=None)
    active_producers: list[ProducerState] = wire(Array(ProducerState), factory=list)


class TopicResponse(Struct):
    name: str = wire("string")
    partitions: list[PartitionResponse] = wire(Array(PartitionResponse), factory=list)


class DescribeProducersResponse(Message, answers=DescribeProducersRequest):
    throttle_time_ms: int = wire("int32", default=0)
    topics: list[TopicResponse] = wire(Array(TopicResponse), factory=list)


class DescribeTransactionsRequest(Message, key=65, versions=(0, 0), flexible=0):
    """DescribeTransactions: states of transactional ids coordinated here (KIP-664)."""

    transactional_ids: list[str] = wire(Array("string"), factory=list)


class TransactionTopicData(Struct):
    topic: str = wire("string")
    partitions: list[int] = wire(Array("int32"), factory=list)


class DescribedTransaction(Struct):
    error_code: int = wire("int16", default=0)
    transactional_id: str = wire("string")
    transaction_state: str = wire("string", default="")
    transaction_timeout_ms: int = wire("int32", default=0)
    transaction_start_time_ms: int = wire("int64", default=0)  # -1: none is open
    producer_id: int = wire("int64", default=0)
    producer_epoch: int = wire("int16", default=0)
    topics: list[TransactionTopicData] = wire(
        Array(TransactionTopicData), factory=list
    )  # those that are still without a marker


class DescribeTransactionsResponse(Message, answers=DescribeTransactionsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    transaction_states: list[DescribedTransaction] = wire(Array(DescribedTransaction), factory=list)


class ListTransactionsRequest(Message, key=66, versions=(0, 2), flexible=0):
    """ListTransactions: the transactional ids that this broker coordinates (KIP-664, KIP-994, KIP-1152)."""

    state_filters: list[str] = wire(Array("string"), factory=list)  # empty: all
    producer_id_filters: list[int] = wire(Array("int64"), factory=list)  # empty: all
    # only what has been open for longer, in ms; negative: all
    duration_filter: int = wire("int64", since=1, default=-1)
    transactional_id_pattern: str | None = wire("string", since=2, default=None)  # RE2; null or empty: all


class ListedTransactionState(Struct):
    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    transaction_state: str = wire("string")


class ListTransactionsResponse(Message, answers=ListTransactionsRequest):
    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    unknown_state_filters: list[str] = wire(Array("string"), factory=list)
    transaction_states: list[ListedTransactionState] = wire(Array(ListedTransactionState), factory=list)
