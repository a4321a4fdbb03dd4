"""InitProducerId (key 22, versions 0 to 5): a producer id and epoch for a producer (KIP-98).

From version 3 on a producer may ask for the next epoch of the id that it has (KIP-360). Version 5 may be
answered with TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import wire


@attrs.define(kw_only=True)
class InitProducerIdRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 22, 0, 5, 2

    transactional_id: str | None = wire("string", default=None)  # null: idempotence without transactions
    transaction_timeout_ms: int = wire("int32")
    producer_id: int = wire("int64", since=3, default=-1)
    producer_epoch: int = wire("int16", since=3, default=-1)


@attrs.define(kw_only=True)
class InitProducerIdResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 22, 0, 5, 2

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    producer_id: int = wire("int64", default=-1)
    producer_epoch: int = wire("int16", default=-1)
