"""WriteTxnMarkers (key 27, versions 1 and 2): a coordinator has the leaders of partitions end transactions (KIP-98).

Only brokers send it, and `kafka-transactions.sh abort` for a transaction that hangs (KIP-664).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class WritableTxnMarkerTopic:
    name: str = wire("string")
    partition_indexes: list[int] = wire(Array("int32"), factory=list)


@attrs.define(kw_only=True)
class WritableTxnMarker:
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    transaction_result: bool = wire("bool")  # true: commit, false: abort
    topics: list[WritableTxnMarkerTopic] = wire(Array(WritableTxnMarkerTopic), factory=list)
    coordinator_epoch: int = wire("int32")  # of the partition of `__transaction_state`
    transaction_version: int = wire(
        "int8", since=2, default=0
    )  # of 2 the marker's epoch is above the records' (KIP-1228)


@attrs.define(kw_only=True)
class WriteTxnMarkersRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 27, 1, 2, 1

    markers: list[WritableTxnMarker] = wire(Array(WritableTxnMarker), factory=list)


@attrs.define(kw_only=True)
class WritableTxnMarkerPartitionResult:
    partition_index: int = wire("int32")
    error_code: int = wire("int16", default=0)


@attrs.define(kw_only=True)
class WritableTxnMarkerTopicResult:
    name: str = wire("string")
    partitions: list[WritableTxnMarkerPartitionResult] = wire(Array(WritableTxnMarkerPartitionResult), factory=list)


@attrs.define(kw_only=True)
class WritableTxnMarkerResult:
    producer_id: int = wire("int64")
    topics: list[WritableTxnMarkerTopicResult] = wire(Array(WritableTxnMarkerTopicResult), factory=list)


@attrs.define(kw_only=True)
class WriteTxnMarkersResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 27, 1, 2, 1

    markers: list[WritableTxnMarkerResult] = wire(Array(WritableTxnMarkerResult), factory=list)
