"""ListTransactions (key 66, versions 0 to 2): the transactional ids that this broker coordinates (KIP-664).

Version 1 filters by age (KIP-994), version 2 by a regular expression (KIP-1152).
"""

from __future__ import annotations

import attrs

from kafscale.wire.schema import Array, wire


@attrs.define(kw_only=True)
class ListTransactionsRequest:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 66, 0, 2, 0

    state_filters: list[str] = wire(Array("string"), factory=list)  # empty: all
    producer_id_filters: list[int] = wire(Array("int64"), factory=list)  # empty: all
    # only what has been open for longer, in ms; negative: all
    duration_filter: int = wire("int64", since=1, default=-1)
    transactional_id_pattern: str | None = wire("string", since=2, default=None)  # RE2; null or empty: all


@attrs.define(kw_only=True)
class TransactionState:
    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    transaction_state: str = wire("string")


@attrs.define(kw_only=True)
class ListTransactionsResponse:
    API_KEY, MIN_VERSION, MAX_VERSION, FLEXIBLE_SINCE = 66, 0, 2, 0

    throttle_time_ms: int = wire("int32", default=0)
    error_code: int = wire("int16", default=0)
    unknown_state_filters: list[str] = wire(Array("string"), factory=list)
    transaction_states: list[TransactionState] = wire(Array(TransactionState), factory=list)
