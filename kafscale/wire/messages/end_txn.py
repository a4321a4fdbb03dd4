"""EndTxn (key 26, versions 0 to 5): commit or abort a transaction (KIP-98).

From version 5 on each end raises the producer's epoch, and the answer says which id and epoch come next (KIP-890).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import wire


@attrs.define(kw_only=True)
class EndTxnRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 26, 0, 5, 3

    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    committed: bool = wire("bool")  # false: abort


@attrs.define(kw_only=True)
class EndTxnResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 26, 0, 5, 3

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    producer_id: int = wire("int64", since=5, default=-1)  # for the next transaction; -1: as before
    producer_epoch: int = wire("int16", since=5, default=-1)
