"""AddOffsetsToTxn (key 25, versions 0 to 4): a transaction is going to commit offsets of a group (KIP-98).

It adds the group's partition of `__consumer_offsets` to the transaction, as TxnOffsetCommit does from version 5 on.
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import wire


@attrs.define(kw_only=True)
class AddOffsetsToTxnRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 25, 0, 4, 3

    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    group_id: str = wire("string")


@attrs.define(kw_only=True)
class AddOffsetsToTxnResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 25, 0, 4, 3

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
